"""A product of 8-bit integers under the layouts of a variant: which axes are tiled, and how its factors are brought into bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, Var, loads, var, variables
from autofuse.ir.layout import Layout
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, Resolver, bind, collapse
from autofuse.kernels.base import Variant
from autofuse.kernels.contract_layouts import can_block_input, can_block_output, channel_axis, number_of, wanted_layouts
from autofuse.kernels.contract_problem import Result
from autofuse.kernels.contract_roles import coefficient, dimension, tensor_loads
from autofuse.kernels.dot_roles import QUAD, IntegerProduct, integer_product, quad_axis, quads_of
from autofuse.kernels.layouts import blocked, channel_block
from autofuse.loops.ir import Buffer

SUMMED = DType.INT32


@dataclass(frozen=True)
class DotProblem:
    """What a kernel needs to know.

    `rows` and `columns` are the factors' 8-bit values, `row_zero` and `column_zero` their zero points; `prepared` is the buffer of a
    constant column factor (INT32: quads), None where the kernel brings it into quads itself. `m` is the tile's row axis (None: a single
    row), `n` its vector axis, `quad` the reduced axis of quads and `others` the rest, outermost first. `block` is how many
    neighbours along `quad` lie together in memory (0: all of them). `grid` are the axes that every task has one place of.
    """

    binding: Binding
    rows: Expr
    columns: Expr
    row_zero: Expr | None
    column_zero: Expr | None
    prepared: Buffer | None
    results: tuple[Result, ...]
    total: Var
    m: Var | None
    n: Var
    quad: Var
    others: tuple[Var, ...]
    grid: tuple[Var, ...]
    along_rows: bool
    block: int
    points: int
    lanes: int

    @property
    def row_extent(self) -> int:
        return (self.m.extent or 1) if self.m is not None else 1

    @property
    def vectors(self) -> int:
        """Vectors along n."""
        return -(-self.points // self.lanes)

    @property
    def terms(self) -> int:
        """Terms of the sum."""
        return (self.quad.extent or 1) * math.prod(a.extent or 1 for a in self.others)

    @property
    def products(self) -> int:
        """Products of two bytes in all, those of padding left out."""
        return self.row_extent * math.prod(a.extent or 1 for a in self.grid) * (self.n.extent or 1) * self.terms

    @property
    def padded_quad(self) -> int:
        """The extent of the axis of quads, rounded up to whole ones."""
        return -(-(self.quad.extent or 1) // QUAD) * QUAD

    @property
    def depth(self) -> int:
        """Bytes of a row: the terms with the padding to whole quads."""
        return self.padded_quad * math.prod(a.extent or 1 for a in self.others)


def dot_variants(family: str, program: RegionProgram, target: Target) -> Iterator[Variant]:
    """Along the best vector axis: on row-major tensors, and on channel blocks where they fit."""
    p = integer_product(program)
    if p is None or target.is_cuda:
        return
    chosen = _vector_axis(p)
    if chosen is None:
        return
    side, n = chosen
    c, block = p.c, channel_block(target)
    plain = tuple(Layout.plain(len(t.shape)) for t in program.inputs)
    rank = [len(program.tensor(o).shape) for o in program.outputs]
    seen: list[tuple[tuple[Layout, ...], tuple[Layout, ...]]] = [(plain, tuple(Layout.plain(r) for r in rank))]
    found = channel_axis(c, 1 - side)
    channels = dimension(c.outputs[0][0], n) == 1
    if found is not None and channels:
        activation, channel = found
        inner = can_block_input(c, activation, channel, block) and (channel.extent or 0) % block == 0
        outer = [can_block_output(c, k, n, block) for k in range(len(c.outputs))]
        weights = {number_of(ld) for ld in tensor_loads(c.factors[side])}
        for block_in, block_out in ((inner, outer), (False, outer), (inner, [False] * len(outer))):
            ins = wanted_layouts(c, side, n, target, any(block_out), activation if block_in else None, channel)
            ins = tuple(plain[k] if k in weights else l for k, l in enumerate(ins))
            outs = tuple(
                blocked(program.tensor(o), block) if b else Layout.plain(r)
                for o, b, r in zip(program.outputs, block_out, rank, strict=True)
            )
            if (ins, outs) not in seen:
                seen.append((ins, outs))
    for ins, outs in seen:
        quad = _quad(p, side, ins)
        how = quads_of(c.factors[side], c, n, quad, target.lanes(SUMMED.itemsize))
        yield Variant(family, f"dot-{n.name}", program, ins, outs, False, (how,) if how is not None else ())


def _vector_axis(p: IntegerProduct) -> tuple[int, Var] | None:
    """The factor that is read by vectors and the axis along which: a constant one, then along the outputs' rows, then the longest axis."""
    c = p.c
    ranked: list[tuple[bool, bool, int, str, int, Var]] = []
    for side in (0, 1):
        constant = all(c.form.program.inputs[number_of(ld)].constant for ld in tensor_loads(c.factors[side]))
        for n in c.only(side):
            last = dimension(c.outputs[0][0], n) == len(c.outputs[0][0]) - 1
            ranked.append((not constant, not last, -(n.extent or 1), n.name, side, n))
    return min(ranked, key=lambda r: r[:4])[4:] if ranked else None


def _quad(p: IntegerProduct, side: int, ins: tuple[Layout, ...]) -> Var:
    """The axis of quads: the channels where they are blocked."""
    found = channel_axis(p.c, 1 - side)
    if found is not None and not ins[number_of(found[0])].is_plain:
        return found[1]
    return quad_axis(p.c)


@lru_cache(maxsize=256)
def dot_problem(variant: Variant, target: Target) -> DotProblem:
    """The problem of a variant."""
    p = integer_product(variant.program)
    assert p is not None
    chosen = _vector_axis(p)
    assert chosen is not None
    side, n = chosen
    c = p.c
    binding, prepared = _bound(variant)
    resolve = Resolver(binding.inputs, {})
    narrow, wide = resolve(c.factors[1 - side]), resolve(c.factors[side])
    zeros = [resolve(z) if z is not None else None for z in (p.zeros[1 - side], p.zeros[side])]
    values = [resolve(value) for _, value in c.outputs]
    offsets = [o.offset(index) for o, (index, _) in zip(binding.outputs, c.outputs, strict=True)]

    in_wide = variables(wide) | (variables(zeros[1]) if zeros[1] is not None else frozenset())
    batch = tuple(a for a in c.rows if a is not n and a in in_wide)
    own = tuple(a for a in c.rows if a is not n and a not in in_wide)
    shifts = [zeros[0]] if zeros[0] is not None else []
    own, merged = collapse(own, [narrow, *shifts, *values, *offsets])
    narrow = ix.substitute(narrow, merged)
    values, offsets = ([ix.substitute(e, merged) for e in es] for es in (values, offsets))
    row_zero = ix.substitute(zeros[0], merged) if zeros[0] is not None else None

    m = max(own, key=lambda a: (min(a.extent or 1, 8), own.index(a))) if own else None
    quad = _quad(p, side, variant.input_layouts)
    found = channel_axis(c, 1 - side)
    block = 0
    if found is not None and quad is found[1]:
        block = variant.input_layouts[number_of(found[0])].blocks.get(1, 0)
    padded = [not o.layout.is_plain and o.layout.is_padded(o.shape) for o in binding.outputs]
    lanes = target.lanes(SUMMED.itemsize)
    points = n.extent or 1
    if any(padded):
        points = -(-points // lanes) * lanes
    results = tuple(
        Result(o.buffer, offset, value, pad)
        for o, offset, value, pad in zip(binding.outputs, offsets, values, padded, strict=True)
    )
    return DotProblem(
        binding,
        narrow,
        wide,
        row_zero,
        zeros[1],
        prepared,
        results,
        c.result,
        m,
        n,
        quad,
        tuple(a for a in c.reduced if a is not quad),
        (*batch, *(a for a in own if a is not m)),
        m is not None and not block and not _together(narrow, quad) and _together(narrow, m),
        block,
        points,
        lanes,
    )


def _bound(variant: Variant) -> tuple[Binding, Buffer | None]:
    """The operands; a prepared constant is read as 32-bit integers."""
    binding = bind(variant)
    if not variant.prepared:
        return binding, None
    k = variant.prepared[0][0]
    quads = Buffer(f"x{k}", SUMMED, variant.elements(k) // SUMMED.itemsize)
    return Binding({**binding.inputs, k: replace(binding.inputs[k], buffer=quads)}, binding.outputs), quads


def _together(e: Expr, axis: Var) -> bool:
    """Whether neighbours along an axis lie side by side in all that an expression reads along it."""
    found = [ld.index[0] for ld in loads(e) if isinstance(ld.source, Buffer) and axis in variables(ld.index[0])]
    lane = var("neighbour", axis.extent)
    return bool(found) and all(coefficient(ix.substitute(i, {axis: lane}), lane) == 1 for i in found)
