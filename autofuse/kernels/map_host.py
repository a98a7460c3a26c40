"""Element-wise regions on the host: vectors along the output's innermost axis, rows dealt out to tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Load, Var, const, select
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, Resolver, bind, collapse, iterate
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.layouts import map_layouts
from autofuse.kernels.nest import streams
from autofuse.kernels.points import crossing
from autofuse.kernels.spans import lanewise, tasks
from autofuse.kernels.transpose_host import tiles
from autofuse.loops.ir import Kernel, Stmt, Store
from autofuse.loops.verify import verify_kernel


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
        output; `cores`, `l3`."""
        form = _form(variant)
        nbytes = bind(variant).nbytes
        crosses = turned(variant, target) is not None
        return {
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
        stream = int(streams(bind(variant).nbytes, target))
        return Schedule.of({"task": task, "unroll": 1 if tile else 2, "stream": stream, "tile": tile})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        form = _form(variant)
        points = map_points(variant)
        binding, axes, values, offsets = points.binding, points.axes, points.values, points.offsets
        inner = axes[-1] if axes else None
        n = (inner.extent or 0) if inner is not None else 1

        stream = schedule.flag("stream")

        def block(outer: dict[Expr, Expr], start: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
            def lane(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                del register
                at: dict[Expr, Expr] = dict(outer)
                if inner is not None:
                    at[inner] = point
                return tuple(
                    Store(o.buffer, ix.substitute(off, at), ix.substitute(v, at), stream=stream)
                    for o, off, v in zip(binding.outputs, offsets, values, strict=True)
                )

            return (lanewise(start, lanes, unroll, lane),)

        widest = max(b.dtype.itemsize for b in binding.parameters)
        lanes = target.lanes(widest)
        found = turned(variant, target) if schedule.flag("tile") else None
        if found is not None:
            across, staged = found
            task = schedule.integer("task")
            body = tiles(axes, across, staged, values, offsets, binding.outputs, lanes, task, stream)
        else:
            body = tasks(axes[:-1], n, lanes, schedule.integer("unroll"), schedule.integer("task"), block)
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


def _form(variant: Variant) -> Form:
    form = analyse(variant.program)
    assert isinstance(form, Form)
    return form
