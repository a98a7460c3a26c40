"""Element-wise regions on a GPU: one pass over the output, a vector of neighbouring elements a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import const, var
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, bind, plain_layouts
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.launches import region_launch
from autofuse.kernels.points import Points, below, crossing, place, points_of, up, vector_limit
from autofuse.kernels.transpose_cuda import transpose
from autofuse.loops.ir import For, If, Let, LoopKind, Stmt, Store, loop


class MapCuda:
    """Maps: no reductions. `flat` deals out the output in order; `tile` turns tiles around in shared memory.

    The second is offered where an input's neighbouring elements lie along another axis than the output's, so that reads and writes
    can both be coalesced.
    """

    name = "map_cuda"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """Row-major layouts everywhere."""
        form = analyse(program)
        if not isinstance(form, Form) or form.kind is not Kind.MAP or not target.is_cuda:
            return
        ins, outs = plain_layouts(program)
        flat = Variant(self.name, "flat", program, ins, outs)
        yield flat
        points, _ = _points(flat)
        if crossing(points.rows, points.values) is not None:
            yield Variant(self.name, "tile", program, ins, outs)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`algorithm`; `points` of an output; `vector_max` neighbours that a thread may take; `max_threads`."""
        points, binding = _points(variant)
        return {
            "algorithm": variant.algorithm,
            "points": points.row_points,
            "vector_max": _vector_max(points, binding),
            "max_threads": target.max_threads_per_block,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """The widest vectors as long as that leaves threads enough to fill the device."""
        if variant.algorithm == "tile":
            return Schedule.of({"threads": 256, "vector": 1, "unroll": 1})
        points, binding = _points(variant)
        vector = _vector_max(points, binding)
        fill = target.cores * 512
        while vector > 1 and points.row_points // vector < fill:
            vector //= 2
        threads = 256 if points.row_points // vector >= target.cores * 256 else 128
        unroll = 2 if points.row_points // vector >= 16 * fill else 1
        return Schedule.of({"threads": threads, "vector": vector, "unroll": unroll})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel; none where the outputs are empty."""
        points, binding = _points(variant)
        if points.row_points == 0:
            return Lowered(())
        threads = schedule.integer("threads")
        if variant.algorithm == "tile":
            body = transpose(points, binding, threads)
        else:
            body = _flat(points, binding, threads, schedule.integer("vector"), schedule.integer("unroll"))
        name, flops = f"map_{variant.algorithm}", variant.program.flops
        return Lowered((region_launch(name, body, threads, flops, binding),))


def _points(variant: Variant) -> tuple[Points, Binding]:
    form = analyse(variant.program)
    assert isinstance(form, Form)
    binding = bind(variant)
    return points_of(form, binding), binding


def _vector_max(points: Points, binding: Binding) -> int:
    inner = points.rows[-1] if points.rows else None
    sizes = [o.buffer.dtype.itemsize for o in binding.outputs]
    return vector_limit(inner, points.values, zip(points.offsets, sizes, strict=True))


def _flat(points: Points, binding: Binding, threads: int, vector: int, unroll: int) -> For:
    """Neighbouring threads take neighbouring chunks; a block's further chunks lie a block's width apart."""
    chunks = points.row_points // vector
    grid = up(chunks, threads * unroll)
    g, t, u = var("g", grid), var("t", threads), var("u", unroll)
    start = ix.add(ix.mul(g, threads * unroll), ix.mul(u, threads), t)
    if unroll == 1:
        start = ix.substitute(start, {u: const(0)})
    chunk = var("c", chunks)
    lane = var("v", vector)
    where = place(points.rows, chunk, vector, lane if vector > 1 else const(0))

    def element() -> tuple[Stmt, ...]:
        return tuple(
            Store(o.buffer, ix.substitute(offset, where), ix.substitute(value, where))
            for o, offset, value in zip(binding.outputs, points.offsets, points.values, strict=True)
        )

    inner: tuple[Stmt, ...] = element()
    if vector > 1:
        inner = (For(lane, LoopKind.VECTOR, inner),)
    body: tuple[Stmt, ...] = (Let(chunk, start), *inner)
    if grid * threads * unroll != chunks:
        body = (If(below(start, chunks), body),)
    if unroll > 1:
        body = (For(u, LoopKind.UNROLL, body),)
    return loop(g, LoopKind.GRID, For(t, LoopKind.THREAD, body))
