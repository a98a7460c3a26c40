"""Element-wise regions on the host: vectors along the output's innermost axis, rows dealt out to tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Apply, Expr, Load, Var, const, select, var, variables, walk
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, Resolver, bind, collapse, iterate
from autofuse.kernels.ahead import fetch, gaps, repeated, streams_along
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.layouts import map_layouts
from autofuse.kernels.nest import streams
from autofuse.kernels.points import crossing
from autofuse.kernels.spans import lanewise, tasks
from autofuse.kernels.transpose_host import tiles
from autofuse.loops.ir import Kernel, Stmt, Store
from autofuse.loops.verify import verify_kernel

_MOST_PIECES = 8


@dataclass(frozen=True)
class MapPoints:
    """A map under its layouts: loop axes in the order of the first output's memory, and each output's value and offset there."""

    binding: Binding
    axes: tuple[Var, ...]
    values: tuple[Expr, ...]
    offsets: tuple[Expr, ...]


@lru_cache(maxsize=1 << 12)
def map_points(variant: Variant) -> MapPoints:
    """The points of a map, with axes merged as far as the addresses allow; padding of the output gets zeros."""
    form = _form(variant)
    binding = bind(variant)
    first = form.outputs[0]
    nest = iterate(variant.output_layouts[0], first.shape)
    where: dict[Expr, Expr] = {}
    for axis, place in zip(first.index, nest.index, strict=True):
        if isinstance(axis, Var):
            where[axis] = place
    resolve = Resolver(binding.inputs, where)
    values: list[Expr] = []
    offsets: list[Expr] = []
    for o, operand in zip(form.outputs, binding.outputs, strict=True):
        value = resolve(o.value, nest.valid)
        values.append(select(nest.valid, value, const(0, value.dtype)))
        offsets.append(operand.offset(tuple(resolve(i) for i in o.index)))
    axes, merged = collapse(nest.axes, [*values, *offsets])
    return MapPoints(
        binding,
        axes,
        tuple(ix.substitute(e, merged) for e in values),
        tuple(ix.substitute(e, merged) for e in offsets),
    )


class MapHost:
    """Maps: no reductions, one pass over the output's elements."""

    name = "map_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """One variant per sensible combination of layouts."""
        form = analyse(program)
        if not isinstance(form, Form) or form.kind is not Kind.MAP or target.is_cuda:
            return
        for ins, outs in map_layouts(program, target):
            yield Variant(self.name, "vector", program, ins, outs)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`points`: elements of an output; `bytes`: of all operands; `crossing`: whether an input runs along another axis than the
        output; `jumps`: whether an input's rows do not follow each other; `repeats`: how often a long input is read again; `pieces`: the
        vectors of a row that is made of several pieces; `cores`, `l2`, `l3`."""
        form = _form(variant)
        nbytes = bind(variant).nbytes
        crosses = turned(variant, target) is not None
        again = _again(variant, target)
        return {
            "jumps": int(_jumps(variant)),
            "repeats": (again.extent or 1) if again is not None else 1,
            "pieces": _pieces(variant, target),
            "l2": target.l2,
            "points": form.row_points,
            "bytes": nbytes,
            "crossing": int(crosses),
            "cores": target.cores,
            "l3": target.l3,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Tasks of 16 Ki elements, or smaller ones so that each core has some."""
        points = _form(variant).row_points
        task = 16384
        while task > 1024 and points // task < 4 * target.cores:
            task //= 4
        tile = int(turned(variant, target) is not None)
        nbytes = bind(variant).nbytes
        again = _again(variant, target)
        ahead = int(not tile and nbytes > target.l2 and _jumps(variant))
        return Schedule.of(
            {
                "task": task,
                "unroll": 1 if tile or ahead else _pieces(variant, target) or 2,
                "stream": int(streams(nbytes, target)),
                "tile": tile,
                "ahead": ahead,
                "together": 2 if not tile and again is not None and (again.extent or 1) % 2 == 0 else 1,
            }
        )

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        form = _form(variant)
        points = map_points(variant)
        binding, axes, values, offsets = points.binding, points.axes, points.values, points.offsets
        inner = axes[-1] if axes else None
        n = (inner.extent or 0) if inner is not None else 1

        stream = schedule.flag("stream")
        ahead = streams_along(values, inner) if schedule.flag("ahead") and inner is not None and len(axes) > 1 else ()
        together = int(schedule.values.get("together", 1))
        again = _again(variant, target) if together > 1 else None
        group = var("group", (again.extent or 1) // together) if again is not None else None

        def rows(outer: dict[Expr, Expr]) -> list[dict[Expr, Expr]]:
            """The rows that share what is read: neighbours along the axis that some inputs do not know."""
            if again is None or group is None:
                return [outer]
            first = ix.mul(outer.get(group, const(0)), together)
            return [{**outer, again: ix.add(first, const(k))} for k in range(together)]

        def block(outer: dict[Expr, Expr], start: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
            def row(here: dict[Expr, Expr]) -> Stmt:
                def lane(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                    del register
                    at: dict[Expr, Expr] = dict(here)
                    if inner is not None:
                        at[inner] = point
                    return tuple(
                        Store(o.buffer, ix.substitute(off, at), ix.substitute(v, at), stream=stream)
                        for o, off, v in zip(binding.outputs, offsets, values, strict=True)
                    )

                return lanewise(start, lanes, unroll, lane)

            each = rows(outer)
            hints: dict[Stmt, None] = {}
            if ahead and inner is not None:
                step = const(together if axes[-2] is again else 1)
                for here in each:
                    following = {**here, axes[-2]: ix.add(here[axes[-2]], step)}
                    hints |= dict.fromkeys(fetch(ahead, following, inner, start, lanes * unroll, far=True))
            return (*hints, *(row(here) for here in each))

        widest = max(b.dtype.itemsize for b in binding.parameters)
        lanes = target.lanes(widest)
        found = turned(variant, target) if schedule.flag("tile") else None
        if found is not None:
            across, staged = found
            task = schedule.integer("task")
            body = tiles(axes, across, staged, values, offsets, binding.outputs, lanes, task, stream)
        else:
            outer_axes = tuple(group if group is not None and a is again else a for a in axes[:-1])
            task = schedule.integer("task") // together
            body = tasks(outer_axes, n, lanes, schedule.integer("unroll"), task, block)
        kernel = Kernel("map", binding.parameters, body, body.var.extent or 0, flops=form.flops, bytes=binding.nbytes)
        return Lowered((RegionLaunch(verify_kernel(kernel), binding.arguments),))


def turned(variant: Variant, target: Target) -> tuple[Var, tuple[Load, ...]] | None:
    """The axis to turn around and the loads along it, where all tensors have elements of 4 or of 8 bytes: tiles are square."""
    points = map_points(variant)
    sizes = {b.dtype.itemsize for b in points.binding.parameters}
    if len(sizes) != 1 or not sizes <= {4, 8}:
        return None
    side = target.lanes(sizes.pop())
    return crossing(points.axes, points.values, side) if side >= 4 else None


@lru_cache(maxsize=1 << 12)
def _jumps(variant: Variant) -> bool:
    """Whether rows of an input lie apart from each other: what follows a stream of addresses then loses it after each row."""
    points = map_points(variant)
    return len(points.axes) > 1 and gaps(
        streams_along(points.values, points.axes[-1]), points.axes[-2], points.axes[-1]
    )


@lru_cache(maxsize=1 << 12)
def _again(variant: Variant, target: Target) -> Var | None:
    """The axis along which inputs that no longer are in the first cache are read again."""
    points = map_points(variant)
    return repeated(streams_along(points.values, points.axes[-1]), points.axes, target.l1 // 2) if points.axes else None


@lru_cache(maxsize=1 << 12)
def _pieces(variant: Variant, target: Target) -> int:
    """The vectors of a short row whose elements are chosen by their place in it (a Concat's, say): once all are written out, no choice
    is left. 0 where there are none, or too many."""
    points = map_points(variant)
    lanes = target.lanes(max(b.dtype.itemsize for b in points.binding.parameters))
    n = (points.axes[-1].extent or 0) if points.axes else 0
    tests = (e for v in points.values for e in walk(v) if isinstance(e, Apply) and e.dtype is DType.BOOL)
    chosen = (
        any(points.axes[-1] in variables(e) and all(a.dtype is INDEX for a in e.args) for e in tests) if n else False
    )
    return n // lanes if chosen and n % lanes == 0 and n // lanes <= _MOST_PIECES else 0


def _form(variant: Variant) -> Form:
    form = analyse(variant.program)
    assert isinstance(form, Form)
    return form
