"""Views and joins: regions whose output is memory that exists, or is written in place by the producers of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.ir import index as ix
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, const, var
from autofuse.ir.graph import Graph, Node
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Kind

ALIGN = 64
"""Bytes that every kernel's operand is aligned to: a view that starts elsewhere is copied."""


@dataclass(frozen=True)
class Piece:
    """Where an input lies in the output's memory (`in_place`), or the output in the input's (`alias`): an element offset."""

    input: int
    offset: int


def _sole_output(program: RegionProgram) -> tuple[tuple[Expr, ...], Expr, tuple[int, ...]] | None:
    form = analyse(program)
    if not isinstance(form, Form) or form.kind is not Kind.MAP or len(form.outputs) != 1:
        return None
    o = form.outputs[0]
    return o.index, o.value, o.shape


@lru_cache(maxsize=1 << 13)
def alias_of(program: RegionProgram, ins: tuple[Layout, ...], out: Layout) -> Piece | None:
    """The part of an input that the output is, or None."""
    found = _sole_output(program)
    if found is None:
        return None
    index, value, shape = found
    if not isinstance(value, Load) or value.fill is not None or not isinstance(value.source, int):
        return None
    source = program.inputs[value.source]
    layout = ins[value.source]
    if (
        source.dtype is not program.tensor(program.outputs[0]).dtype
        or out.is_padded(shape)
        or layout.is_padded(source.shape)
    ):
        return None
    delta = ix.sub(layout.offset(value.index, source.shape), out.offset(index, shape))
    if not isinstance(delta, Const) or delta.value < 0 or int(delta.value) * source.dtype.itemsize % ALIGN:
        return None
    return Piece(value.source, int(delta.value))


@lru_cache(maxsize=1 << 13)
def pieces_of(program: RegionProgram, ins: tuple[Layout, ...], out: Layout) -> tuple[Piece, ...] | None:
    """Where each input lies in the output when the output is just the inputs end to end, or None."""
    found = _sole_output(program)
    if found is None or len(program.inputs) < 2 or out.is_padded(found[2]):
        return None
    index, value, shape = found
    axis = _split_axis(value)
    if axis is None:
        return None
    extent = axis.extent or 0
    starts = sorted({0, *(s for s in _thresholds(value, axis) if 0 < s < extent)})
    pieces: list[Piece] = []
    dtype = program.tensor(program.outputs[0]).dtype
    for start, end in zip(starts, [*starts[1:], extent], strict=True):
        j: Expr = var("j", end - start) if end - start > 1 else const(0)
        where: dict[Expr, Expr] = {axis: ix.add(j, const(start))}
        part = ix.substitute(value, where)
        if not isinstance(part, Load) or not isinstance(part.source, int) or part.fill is not None:
            return None
        source = program.inputs[part.source]
        if source.dtype is not dtype or source.constant or ins[part.source].is_padded(source.shape):
            return None
        here = out.offset(tuple(ix.substitute(i, where) for i in index), shape)
        delta = ix.sub(here, ins[part.source].offset(part.index, source.shape))
        if not isinstance(delta, Const) or int(delta.value) * dtype.itemsize % ALIGN:
            return None
        pieces.append(Piece(part.source, int(delta.value)))
    whole = sum(program.inputs[p.input].shape != () and _size(program, p.input) for p in pieces)
    if len({p.input for p in pieces}) != len(pieces) or whole != _prod(shape):
        return None
    return tuple(pieces)


def _size(program: RegionProgram, k: int) -> int:
    return _prod(program.inputs[k].shape)


def _prod(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:
        out *= n
    return out


def _split_axis(e: Expr) -> Var | None:
    """The axis that the outermost select tests."""
    match e:
        case Apply("select", (Apply("lt", (Var() as axis, Const())), _, _)):
            return axis
        case _:
            return None


def _thresholds(e: Expr, axis: Var) -> set[int]:
    match e:
        case Apply("select", (Apply("lt", (a, Const(value=s))), x, y)) if a is axis:
            return {int(s)} | _thresholds(x, axis) | _thresholds(y, axis)
        case _:
            return set()


def is_join(graph: Graph, node: Node) -> bool:
    """Whether a node only lays values end to end that kernels make, so that they may be written straight into place."""
    if node.kind is not Kind.MAP or len(node.inputs) < 2:
        return False
    if any(
        v not in graph.producer or not graph.producer[v].kind.has_kernel or v in graph.output_set for v in node.inputs
    ):
        return False
    program = program_of(graph, Region.of(graph, [node.id]))
    ins = tuple(Layout.plain(len(t.shape)) for t in program.inputs)
    return pieces_of(program, ins, Layout.plain(len(program.tensor(program.outputs[0]).shape))) is not None
