"""Reductions on a GPU, and whatever maps come before, between and after them, in one kernel (or one a pass)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Var, const, loads, var
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, Resolver, bind, plain_layouts
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.combine_cuda import Threads
from autofuse.kernels.launches import region_launch
from autofuse.kernels.passes_cuda import kept_values, passes_of
from autofuse.kernels.points import Points, below, points_of, stride_of, up, vector_limit
from autofuse.kernels.rows_cuda import UNROLLED, Rows, Span
from autofuse.kernels.split_cuda import split
from autofuse.loops.ir import Alloc, Buffer, For, Let, LoopKind, Scope, Stmt, loop

_SPLIT_FROM = 4096
"""A row shorter than this is not worth a second launch."""

_RESERVED = 32 * 1024
"""Bytes of shared memory that kept values may not take: the reductions need some."""


class ReduceCuda:
    """Reductions, several passes in one kernel; sums of products too, where nothing better applies.

    `block`: the threads of a block (or a warp) share a row and take neighbouring elements of it. `outer`: neighbouring threads take
    neighbouring rows. `split`: several blocks share a row; each pass is a launch, partial results go through memory.
    """

    name = "reduce_cuda"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """Row-major layouts everywhere."""
        form = analyse(program)
        if not isinstance(form, Form) or form.kind not in (Kind.REDUCE, Kind.CONTRACT) or not target.is_cuda:
            return
        ins, outs = plain_layouts(program)
        yield Variant(self.name, "block", program, ins, outs)
        if form.row_points > 1:
            yield Variant(self.name, "outer", program, ins, outs)
        plain = not any(a.combine.is_arg for a in form.anchors)
        if plain and form.reduced_points >= _SPLIT_FROM and form.row_points <= 8 * target.cores:
            yield Variant(self.name, "split", program, ins, outs)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`algorithm`; `points` rows; `reduced` points of each; `kept` values and `kept_bytes` a point; limits.

        `vector_max` neighbours along a row may be taken at once; `max_threads`, `shared` bytes and `unrolled` iterations are limits.
        """
        form, binding, points = _points(variant)
        kept = kept_values(passes_of(form, points), points)
        return {
            "algorithm": variant.algorithm,
            "points": points.row_points,
            "reduced": points.reduced_points,
            "kept": len(kept),
            "kept_bytes": sum(k.value.dtype.itemsize for k in kept),
            "vector_max": _vector_max(form, points, binding),
            "max_threads": target.max_threads_per_block,
            "shared": max(target.shared_memory - _RESERVED, 0),
            "unrolled": UNROLLED,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """A warp for a short row, a block for a long one; values kept in registers where they fit."""
        facts = self.facts(variant, target)
        rows, reduced = int(facts["points"]), int(facts["reduced"])
        if variant.algorithm == "outer":
            lanes = 1
            while lanes < 16 and rows * lanes < target.cores * 256 and reduced >= 16 * lanes:
                lanes *= 4
            return _schedule(threads=128, lanes=lanes)
        vector = int(facts["vector_max"])
        if variant.algorithm == "split":
            parts = next((p for p in (8, 32) if rows * p >= 2 * target.cores), 128)
            return _schedule(threads=256, vector=min(vector, 4), parts=parts)
        while vector > 1 and reduced < 32 * vector:
            vector //= 2
        chunks = up(reduced, vector)
        if chunks <= 64:
            warps = 4 if rows >= 4 * target.cores else 1
            return _schedule(threads=32 * warps, rows=warps, vector=vector, cache=_cache(facts, 32, vector))
        threads = 64
        while threads < 512 and chunks > 4 * threads:
            threads *= 2
        return _schedule(threads=threads, vector=vector, cache=_cache(facts, threads, vector))

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """The kernels; none where the outputs are empty."""
        form, binding, points = _points(variant)
        if points.row_points == 0 or (points.reduced_points == 0 and all(o.full for o in form.outputs)):
            return Lowered(())
        threads, vector = schedule.integer("threads"), schedule.integer("vector")
        if variant.algorithm == "split":
            return split(form, binding, points, threads, vector, schedule.integer("parts"))
        if variant.algorithm == "block":
            lanes = threads // schedule.integer("rows")
        else:
            lanes = schedule.integer("lanes")
        keep = str(schedule.values["cache"])
        body = _rows(form, binding, points, threads, lanes, vector, keep, variant.algorithm == "block")
        return Lowered((region_launch(f"reduce_{variant.algorithm}", body, threads, form.flops, binding),))


def _schedule(
    threads: int, rows: int = 1, lanes: int = 1, vector: int = 1, cache: str = "recompute", parts: int = 1
) -> Schedule:
    return Schedule.of(
        {"threads": threads, "rows": rows, "lanes": lanes, "vector": vector, "cache": cache, "parts": parts}
    )


def _cache(facts: Mapping[str, Choice], lanes: int, vector: int) -> str:
    """How to keep values between passes: in registers if they are few, else in shared memory, else not at all."""
    kept, reduced = int(facts["kept"]), int(facts["reduced"])
    trips = up(up(reduced, vector), lanes)
    if not kept:
        return "recompute"
    if kept * trips * vector <= 32 and trips <= UNROLLED:
        return "register"
    return "shared" if int(facts["kept_bytes"]) * reduced <= int(facts["shared"]) else "recompute"


def _points(variant: Variant) -> tuple[Form, Binding, Points]:
    form = analyse(variant.program)
    assert isinstance(form, Form)
    binding = bind(variant)
    rows = _row_order(form, binding) if variant.algorithm == "outer" else None
    return form, binding, points_of(form, binding, rows)


def _row_order(form: Form, binding: Binding) -> tuple[Var, ...]:
    """The row axes with the one along which most inputs are contiguous innermost: neighbouring threads run along it."""
    resolve = Resolver(binding.inputs, {})
    votes = dict.fromkeys(form.rows, 0)
    for e in (*(a.body for a in form.anchors), *(o.value for o in form.outputs)):
        for ld in loads(resolve(e)):
            for a in form.rows:
                if isinstance(ld.source, Buffer) and stride_of(ld.index[0], a) == 1:
                    votes[a] += ld.source.size
    if not form.rows or not any(votes.values()):
        return form.rows
    best = max(form.rows, key=lambda a: votes[a])
    return (*(a for a in form.rows if a is not best), best)


def _vector_max(form: Form, points: Points, binding: Binding) -> int:
    """Positions are not carried in vectors, so an arg-max takes one element at a time."""
    if any(a.combine.is_arg for a in form.anchors) or not points.reduced:
        return 1
    full = [
        (offset, o.buffer.dtype.itemsize)
        for out, o, offset in zip(form.outputs, binding.outputs, points.offsets, strict=True)
        if out.full
    ]
    values = [*points.bodies, *(v for v, out in zip(points.values, form.outputs, strict=True) if out.full)]
    return vector_limit(points.reduced[-1], values, full)


def _rows(
    form: Form, binding: Binding, points: Points, threads: int, lanes: int, vector: int, keep: str, adjacent: bool
) -> For:
    """The grid: blocks of threads, `lanes` of which share a row."""
    each = threads // lanes
    grid = up(points.row_points, each)
    g, t, row = var("g", grid), var("t", threads), var("row", points.row_points)
    if adjacent:
        own, lane = ix.floor_div(t, lanes), ix.floor_mod(t, lanes)
    else:
        own, lane = ix.floor_mod(t, each), ix.floor_div(t, each)
    number = ix.add(ix.mul(g, each), own)
    shape = tuple(a.extent or 0 for a in points.rows)
    where: dict[Expr, Expr] = dict(zip(points.rows, ix.unflatten(row, shape), strict=True))
    rows = Rows(
        form,
        binding,
        points,
        Threads(threads, lanes, own, lane, adjacent),
        Span.whole(points, vector),
        where,
        below(number, points.row_points),
        keep,
    )
    body: list[Stmt] = [Let(row, ix.minimum(number, const(points.row_points - 1))), *rows.private()]
    for k in range(len(rows.passes)):
        accumulators, statements = rows.accumulate(k)
        body += statements
        body += rows.finish(accumulators)
    body += rows.row_outputs()
    # what the block shares is allocated once for all its threads
    partials = [s for s in body if isinstance(s, Alloc) and s.buffer.scope is Scope.SHARED]
    private = tuple(s for s in body if s not in partials)
    return loop(g, LoopKind.GRID, *rows.shared(), *partials, For(t, LoopKind.THREAD, private))
