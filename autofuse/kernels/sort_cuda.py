"""Sorting on a GPU. `bitonic`: a block sorts the positions of a row's elements; `few`: a thread keeps the best of its row while it reads.

Bitonic sorting compares pairs at distances that do not depend on the data (Batcher, "Sorting networks and their applications", 1968).
Positions are compared by their elements and then by themselves, which makes the order total and the result stable. Rows are filled up
to a power of two with positions behind the end, which come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, load, select, var
from autofuse.ir.stage import Sort
from autofuse.ir.target import Target
from autofuse.kernels.alone import Operands, Rows, one_of, only, operands_of, variant_for
from autofuse.kernels.base import Choice, Lowered, Schedule, Scratch, Variant
from autofuse.kernels.launches import region_launch
from autofuse.kernels.points import below, up
from autofuse.kernels.sort import FEW, better, deliver, rows_of, select_few
from autofuse.loops.ir import Alloc, Barrier, Buffer, For, If, Let, Level, LoopKind, Scope, Stmt, Store, loop

SHARED_POSITIONS = 8192
"""Positions that are sorted in shared memory; longer rows take global memory, a piece a block."""


class SortCuda:
    """A block a row, or a thread a row."""

    name = "sort_cuda"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """The likelier one first."""
        sort = only(program, Sort)
        if sort is None or not target.is_cuda:
            return
        r = rows_of(sort)
        every = ["bitonic"]
        if 0 < sort.count <= FEW:
            every.insert(0 if r.length <= 64 or r.count >= 128 * target.cores else 1, "few")
        for algorithm in every:
            yield variant_for(self.name, algorithm, program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`algorithm`; `rows`; `padded` length of a row; `max_threads`."""
        r = rows_of(one_of(variant, Sort))
        facts: dict[str, Choice] = {"algorithm": variant.algorithm, "rows": r.count, "padded": _padded(r.length)}
        return {**facts, "max_threads": target.max_threads_per_block}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """A thread for every pair of a row, up to a full block; small blocks where threads have rows of their own."""
        if variant.algorithm == "few":
            return Schedule.of({"threads": 64})
        threads = 32
        while threads < min(1024, target.max_threads_per_block) and 2 * threads < _padded(
            rows_of(one_of(variant, Sort)).length
        ):
            threads *= 2
        return Schedule.of({"threads": threads})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel; none where the outputs are empty."""
        sort = one_of(variant, Sort)
        r = rows_of(sort)
        if not r.count or not sort.count:
            return Lowered(())
        operands, threads = operands_of(variant), schedule.integer("threads")
        if variant.algorithm == "few":
            nest = _few(sort, r, operands, threads)
            return Lowered((region_launch("sort_few", nest, threads, sort.flops, operands.binding),))
        padded = _padded(r.length)
        if padded <= SHARED_POSITIONS:
            order = Buffer("order", DType.INT32, padded, Scope.SHARED)
            nest = _bitonic(sort, r, operands, threads, order, r.count)
            return Lowered((region_launch("sort_bitonic", nest, threads, sort.flops, operands.binding),))
        blocks = min(r.count, 2 * target.cores)
        order = Buffer("order", DType.INT32, padded * blocks, written=True)
        nest = _bitonic(sort, r, operands, threads, order, blocks)
        launch = region_launch("sort_bitonic", nest, threads, sort.flops, operands.binding, (order,))
        return Lowered((launch,), (Scratch(order.size * order.dtype.itemsize),))


def _padded(n: int) -> int:
    """The next power of two, at least 2."""
    return max(2, 1 << max(n - 1, 0).bit_length())


def _few(sort: Sort, r: Rows, operands: Operands, threads: int) -> For:
    g, t = var("g", up(r.count, threads)), var("t", threads)
    row = ix.add(ix.mul(g, threads), t)
    body = select_few(sort, r, operands, row, Scope.REGISTER)
    if r.count % threads:
        body = (If(below(row, r.count), body),)
    return loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, *body))


def _bitonic(sort: Sort, r: Rows, operands: Operands, threads: int, order: Buffer, blocks: int) -> For:
    """The grid of blocks, each of which takes every `blocks`-th row."""
    g, t, turn = var("g", blocks), var("t", threads), var("turn", up(r.count, blocks))
    n, padded = r.length, _padded(r.length)
    every = ix.add(ix.mul(turn, blocks), g)
    # all blocks take the same number of turns: barriers stand under no condition
    row = ix.minimum(every, const(r.count - 1))
    base = ix.mul(g, padded) if order.scope is Scope.GLOBAL else const(0)
    source = operands.inputs[0]

    def dealt(count: int, name: str, *body: Stmt) -> tuple[Stmt, ...]:
        """Run the body, in which `point(name)` counts, for 0 .. count-1 by the threads of a block."""
        rounds = var(f"{name}r", up(count, threads))
        point = ix.add(ix.mul(rounds, threads), t)
        inner: tuple[Stmt, ...] = (Let(var(name, count), point), *body)
        if count % threads:
            inner = (If(below(point, count), inner),)
        return (loop(t, LoopKind.THREAD, loop(rounds, LoopKind.SERIAL, *inner)), Barrier(Level.BLOCK))

    def element(position: Expr) -> Expr:
        offset = r.offset(row, position)
        inside = None if padded == n else below(position, n)
        return cast_to(load(source, (offset,), source.dtype, 0, inside), source.dtype.compute)

    def place(at: Expr) -> Expr:
        return cast_to(load(order, (ix.add(base, at),), DType.INT32), INDEX)

    fill = var("f", padded)
    begin = dealt(padded, "f", Store(order, ix.add(base, fill), cast_to(fill, DType.INT32)))

    # a run has 2 << stage elements; pairs lie `distance` apart
    levels = padded.bit_length() - 1
    stage, step = var("stage", levels), var("step", levels)
    pair, low, distance = var("pair", padded // 2), var("low", padded), var("distance", padded)
    a, b, swap = var("a", padded), var("b", padded), var("swap", None, DType.BOOL)
    near = call("bit_and", pair, call("sub", distance, const(1)))
    falls = call("ne", call("bit_and", low, call("shift_left", const(2), stage)), const(0))
    precedes = _precedes(sort, b, a, element, None if padded == n else n)
    exchange = (
        Store(order, ix.add(base, low), cast_to(b, DType.INT32)),
        Store(order, ix.add(base, low, distance), cast_to(a, DType.INT32)),
    )
    compare = dealt(
        padded // 2,
        "pair",
        Let(distance, call("shift_left", const(1), ix.sub(stage, step))),
        Let(low, call("sub", call("mul", pair, const(2)), near)),
        Let(a, place(low)),
        Let(b, place(ix.add(low, distance))),
        Let(swap, call("xor", precedes, falls)),
        If(swap, exchange),
    )
    sorting = loop(stage, LoopKind.SERIAL, loop(step, LoopKind.SERIAL, *compare, end=ix.add(stage, const(1))))

    rank, position = var("rank", sort.count), var("position", n)
    write: tuple[Stmt, ...] = (Let(position, place(rank)), *deliver(sort, r, operands, row, rank, position))
    if r.count % blocks:
        write = (If(below(every, r.count), write),)
    end = dealt(sort.count, "rank", *write)
    if up(r.count, blocks) == 1:
        end = end[:1]  # there is no further row that would be written over what is still read
    allocate = () if order.scope is Scope.GLOBAL else (Alloc(order),)
    return loop(g, LoopKind.GRID, *allocate, loop(turn, LoopKind.SERIAL, *begin, sorting, *end))


def _precedes(sort: Sort, a: Expr, b: Expr, element: Callable[[Expr], Expr], n: int | None) -> Expr:
    """Whether position a comes before position b: by their elements, then by themselves; positions from n on come last."""
    x, y = element(a), element(b)
    first = select(better(sort, x, y), ix.TRUE, ix.both(ix.negate(better(sort, y, x)), call("lt", a, b)))
    if n is None:
        return first
    outside = call("ge", b, const(n))
    return select(call("lt", a, const(n)), call("or", outside, first), ix.both(outside, call("lt", a, b)))
