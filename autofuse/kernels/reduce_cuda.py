"""Reductions on a GPU, and whatever maps come before, between and after them, in one kernel (or one a pass)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Var, const, loads, var
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, Resolver, bind, plain_layouts
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.combine_cuda import Threads
from autofuse.kernels.launches import region_launch
from autofuse.kernels.passes_cuda import kept_values, passes_of, places_of
from autofuse.kernels.points import Points, below, points_of, stride_of, up, vector_limit
from autofuse.kernels.rows_cuda import UNROLLED, Rows, Span, block_nest, row_axes
from autofuse.kernels.split_cuda import split
from autofuse.loops.ir import Buffer, For, Let, Stmt

_SPLIT_FROM = 4096
"""A row shorter than this is not worth a second launch."""

_SPLIT_OUTER_FROM = 512
"""The same where a thread goes over it alone, or with a few others."""

_RESERVED = 32 * 1024
"""Bytes of shared memory that kept values may not take: the reductions need some."""


class ReduceCuda:
    """Reductions, several passes in one kernel; sums of products too, where nothing better applies.

    `block`: the threads of a block (or a warp) share a row and take neighbouring elements of it. `outer`: neighbouring threads take
    neighbouring rows. `split` and `split_outer`: the same with several blocks to a row; each pass is a launch, partial results go
    through memory.
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
        if any(a.combine.is_arg for a in form.anchors) or form.row_points == 0:
            return
        if form.reduced_points >= _SPLIT_FROM and form.row_points <= 8 * target.cores:
            yield Variant(self.name, "split", program, ins, outs)
        narrow = Variant(self.name, "split_outer", program, ins, outs)
        if form.reduced_points >= _SPLIT_OUTER_FROM and 1 < form.row_points <= 128 * target.cores:
            if _reads_along_rows(form, bind(narrow)):
                yield narrow

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`algorithm`; `points` rows; `reduced` points of each; `kept` values and `kept_bytes` a point; limits.

        `vector_max` neighbours along a row may be taken at once; `max_threads`, `shared` bytes and `unrolled` iterations are limits.
        """
        form, binding, points = _points(variant)
        passes = passes_of(form, points)
        kept = kept_values(passes, points)
        held = dict(zip(places_of(kept, passes, points), kept, strict=True))
        return {
            "algorithm": variant.algorithm,
            "points": points.row_points,
            "reduced": points.reduced_points,
            "kept": len(held),
            "kept_bytes": sum(k.value.dtype.itemsize for k in held.values()),
            "vector_max": _vector_max(form, points, binding),
            "max_threads": target.max_threads_per_block,
            "shared": max(target.shared_memory - _RESERVED, 0),
            "unrolled": UNROLLED,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """A warp for a short row, a block for a long one; values kept in registers where they fit."""
        facts = self.facts(variant, target)
        rows, reduced, vector = (int(facts[name]) for name in ("points", "reduced", "vector_max"))
        if variant.algorithm in ("outer", "split_outer"):
            return _outer_schedule(variant.algorithm, rows, reduced, target)
        if variant.algorithm == "split":
            parts = next((p for p in (8, 32) if rows * p >= 2 * target.cores), 128)
            return _schedule(threads=256, vector=min(vector, 4), parts=parts)
        while vector > 1 and reduced < 32 * vector:
            vector //= 2
        chunks = up(reduced, vector)
        many = rows >= 16 * target.cores
        if chunks <= (128 if many else 64):
            warps = 4 if many else 1
            return _schedule(threads=32 * warps, rows=warps, vector=vector, cache=_cache(facts, 32, vector))
        threads = 64
        while threads < 512 and chunks > 2 * threads:
            threads *= 2
        return _schedule(threads=threads, vector=vector, cache=_cache(facts, threads, vector))

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """The kernels; none where the outputs are empty."""
        form, binding, points = _points(variant)
        if points.row_points == 0 or (points.reduced_points == 0 and all(o.full for o in form.outputs)):
            return Lowered(())
        threads, vector = schedule.integer("threads"), schedule.integer("vector")
        t, lanes = var("t", threads), schedule.integer("lanes")
        adjacent = variant.algorithm in ("block", "split")
        if adjacent:
            lanes = threads // schedule.integer("rows")
        who = Threads.of(t, threads, lanes, adjacent)
        if variant.algorithm in ("split", "split_outer"):
            return split(form, binding, points, who, t, vector, schedule.integer("parts"))
        body = _rows(form, binding, points, who, t, vector, str(schedule.values["cache"]))
        return Lowered((region_launch(f"reduce_{variant.algorithm}", body, threads, form.flops, binding),))


def _schedule(
    threads: int, rows: int = 1, lanes: int = 1, vector: int = 1, cache: str = "recompute", parts: int = 1
) -> Schedule:
    return Schedule.of(
        {"threads": threads, "rows": rows, "lanes": lanes, "vector": vector, "cache": cache, "parts": parts}
    )


def _outer_schedule(algorithm: str, rows: int, reduced: int, target: Target) -> Schedule:
    """Lanes enough to fill the device; a warp's threads stay on neighbouring rows."""
    lanes = 1
    while lanes < 16 and rows * lanes < target.cores * 512 and reduced >= 16 * lanes:
        lanes *= 4
    threads = max(128, 32 * lanes)
    while threads > max(4 * rows * lanes, 128):
        threads //= 2
    blocks = up(rows, threads // lanes)
    parts = next((p for p in (8, 32) if blocks * p >= 2 * target.cores), 128) if algorithm == "split_outer" else 1
    return _schedule(threads=threads, lanes=lanes, parts=parts)


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
    rows = _row_order(form, binding) if variant.algorithm in ("outer", "split_outer") else None
    return form, binding, points_of(form, binding, rows)


def _votes(form: Form, binding: Binding, axes: tuple[Var, ...]) -> dict[Var, int]:
    """For each axis, how many elements of the inputs are contiguous along it."""
    resolve = Resolver(binding.inputs, {})
    votes = dict.fromkeys(axes, 0)
    for e in (*(a.body for a in form.anchors), *(o.value for o in form.outputs)):
        for ld in loads(resolve(e)):
            for a in axes:
                if isinstance(ld.source, Buffer) and stride_of(ld.index[0], a) == 1:
                    votes[a] += ld.source.size
    return votes


def _row_order(form: Form, binding: Binding) -> tuple[Var, ...]:
    """The row axes with the one along which most inputs are contiguous innermost: neighbouring threads run along it."""
    votes = _votes(form, binding, form.rows)
    if not any(votes.values()):
        return form.rows
    best = max(form.rows, key=lambda a: votes[a])
    return (*(a for a in form.rows if a is not best), best)


def _reads_along_rows(form: Form, binding: Binding) -> bool:
    """Whether the inputs are contiguous along a row axis rather than along a reduced one."""
    along_rows = max(_votes(form, binding, form.rows).values(), default=0)
    return along_rows > max(_votes(form, binding, form.reduced).values(), default=0)


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


def _rows(form: Form, binding: Binding, points: Points, who: Threads, t: Var, vector: int, keep: str) -> For:
    """One kernel for all passes: blocks of threads, `who.lanes` of which share a row."""
    g, row = var("g", up(points.row_points, who.rows)), var("row", points.row_points)
    number = ix.add(ix.mul(g, who.rows), who.row)
    exists = below(number, points.row_points)
    span = Span.whole(points, vector)
    rows = Rows(form, binding, points, who, span, row_axes(points, row), exists, keep)
    body: list[Stmt] = [Let(row, ix.minimum(number, const(points.row_points - 1))), *rows.private()]
    for k in range(len(rows.passes)):
        accumulators, statements = rows.accumulate(k)
        body += statements
        body += rows.finish(accumulators)
    return block_nest(g, t, rows, [*body, *rows.row_outputs()])
