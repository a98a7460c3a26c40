"""Tiles of a matrix product on a GPU: block tiles in shared memory, register tiles of multiply-adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Var, call, cast_to, const, load, var
from autofuse.kernels.gemm import Gemm, Side, zero
from autofuse.kernels.points import VECTOR_BYTES, below, place, up
from autofuse.loops.ir import (
    Alloc,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Buffer,
    For,
    If,
    Let,
    Level,
    LoopKind,
    Scope,
    Stmt,
    Store,
    loop,
)

PAD = VECTOR_BYTES
"""Bytes between the rows of a tile in shared memory: a transposing store then hits different banks."""


@dataclass(frozen=True)
class Tiling:
    """Sizes: of a block's tile, of a thread's, tiles under way at once, and blocks that share the sum."""

    block_m: int
    block_n: int
    block_k: int
    thread_m: int
    thread_n: int
    stages: int
    split: int

    @property
    def across(self) -> int:
        """Threads of a block along the columns."""
        return self.block_n // self.thread_n

    @property
    def down(self) -> int:
        """Threads of a block along the rows."""
        return self.block_m // self.thread_m

    @property
    def threads(self) -> int:
        return self.across * self.down


@dataclass(frozen=True)
class _Tile:
    """A factor's tile in shared memory: `stages` copies of block x depth elements, contiguous along depth or along the block."""

    side: Side
    name: str
    block: int
    depth: int
    stages: int
    along_depth: bool

    @property
    def pitch(self) -> int:
        return (self.depth if self.along_depth else self.block) + PAD // self.side.dtype.itemsize

    @property
    def size(self) -> int:
        return self.pitch * (self.block if self.along_depth else self.depth)

    @property
    def buffer(self) -> Buffer:
        return Buffer(f"tile_{self.name}", self.side.dtype, self.size * self.stages, Scope.SHARED)

    def slot(self, stage: Expr, at: Expr, k: Expr) -> Expr:
        """Where an element lies."""
        major, minor = (at, k) if self.along_depth else (k, at)
        return ix.add(ix.mul(stage, self.size), ix.mul(major, self.pitch), minor)


class Writer:
    """Writes the product kernel of a Gemm for one tiling."""

    def __init__(self, problem: Gemm, tiling: Tiling) -> None:
        self.p = problem
        self.t = tiling
        self.asynchronous = tiling.stages > 1
        # copies can't transpose; plain stores put every tile with its block's axis contiguous
        self.a = self._tile(problem.rows, "a", tiling.block_m)
        self.b = self._tile(problem.columns, "b", tiling.block_n)
        self.tiles_m = up(problem.rows.points, tiling.block_m)
        self.tiles_n = up(problem.columns.points, tiling.block_n)
        self.steps = up(problem.terms, tiling.block_k)
        self.share = up(self.steps, tiling.split)
        self.grid = problem.batches * tiling.split * self.tiles_m * self.tiles_n
        self.g, self.thread = var("g", self.grid), var("t", tiling.threads)
        shape = (problem.batches, tiling.split, self.tiles_m, self.tiles_n)
        self.batch, self.part, self.tile_m, self.tile_n = ix.unflatten(self.g, shape)
        batch_shape = tuple(a.extent or 1 for a in problem.batch)
        self.where: dict[Expr, Expr] = dict(zip(problem.batch, ix.unflatten(self.batch, batch_shape), strict=True))
        self.accumulator = Buffer("acc", problem.result.dtype, tiling.thread_m * tiling.thread_n, Scope.REGISTER)

    def _tile(self, side: Side, name: str, block: int) -> _Tile:
        along = self.asynchronous and side.along_depth
        return _Tile(side, name, block, self.t.block_k, self.t.stages, along)

    # ---- the nest

    def nest(self, deliver: Callable[[Writer], list[Stmt]]) -> For:
        """The whole kernel; `deliver` writes what is done with the accumulators."""
        body: list[Stmt] = [Alloc(self.accumulator)]
        e = var("e", self.accumulator.size)
        body.append(loop(e, LoopKind.UNROLL, Store(self.accumulator, e, const(0, self.accumulator.dtype))))
        body += self._pipelined() if self.asynchronous else self._plain()
        body += deliver(self)
        shared = (Alloc(self.a.buffer), Alloc(self.b.buffer))
        return loop(self.g, LoopKind.GRID, *shared, For(self.thread, LoopKind.THREAD, tuple(body)))

    def _steps(self) -> tuple[Var, Expr | None, Expr]:
        """The loop over this block's share of the sum: its variable, its end where that differs, and the number of the step."""
        s = var("s", self.share)
        first = ix.mul(self.part, self.share)
        end = None
        if self.share * self.t.split != self.steps:
            left = ix.sub(const(self.steps), first)
            end = ix.maximum(ix.minimum(const(self.share), left), const(0))
        return s, end, ix.add(first, s)

    def _plain(self) -> list[Stmt]:
        s, end, step = self._steps()
        body: list[Stmt] = [
            *self._fill(self.a, self.tile_m, step, const(0)),
            *self._fill(self.b, self.tile_n, step, const(0)),
            Barrier(Level.BLOCK),
            self._multiply(const(0)),
            Barrier(Level.BLOCK),
        ]
        return [loop(s, LoopKind.SERIAL, *body, end=end)]

    def _pipelined(self) -> list[Stmt]:
        """Copies of the next step's tiles are under way while this step's are multiplied."""
        s, end, step = self._steps()
        stop = end if end is not None else const(self.share)
        first = ix.substitute(step, {s: const(0)})
        following = ix.add(s, const(1))
        ahead = ix.substitute(step, {s: following})
        now, later = ix.floor_mod(s, 2), ix.floor_mod(following, 2)
        start = [
            *self._copy(self.a, self.tile_m, first, const(0), "p"),
            *self._copy(self.b, self.tile_n, first, const(0), "p"),
        ]
        fetch = [
            *self._copy(self.a, self.tile_m, ahead, later, "q"),
            *self._copy(self.b, self.tile_n, ahead, later, "q"),
        ]
        body: list[Stmt] = [
            If(ix.less(following, stop), tuple(fetch)),
            AsyncCommit(),
            AsyncWait(1),
            Barrier(Level.BLOCK),
            self._multiply(now),
            Barrier(Level.BLOCK),
        ]
        return [*start, AsyncCommit(), loop(s, LoopKind.SERIAL, *body, end=end)]

    # ---- filling shared memory

    def _dealt(
        self,
        tile: _Tile,
        number: Expr,
        step: Expr,
        width: int,
        name: str,
        make: Callable[[Expr, Expr, Expr, Expr, Expr], tuple[tuple[Stmt, ...], tuple[Stmt, ...]]],
    ) -> list[Stmt]:
        """Deal groups of `width` neighbours out to the threads.

        `make(local, local k, at, k, guard)` gets a group's first element in the tile and in the matrix, and gives the
        statements for groups inside the matrix and outside.
        """
        side, t = tile.side, self.t
        groups = tile.block * t.block_k // width
        trips = up(groups, t.threads)
        u = var(f"u{name}{tile.name}", trips)
        number_of = ix.add(ix.mul(u, t.threads), self.thread)
        if trips == 1:
            number_of = self.thread
        if side.along_depth:
            local, group = ix.floor_div(number_of, t.block_k // width), ix.floor_mod(number_of, t.block_k // width)
            local_k = ix.mul(group, width)
        else:
            local_k, group = ix.floor_div(number_of, tile.block // width), ix.floor_mod(number_of, tile.block // width)
            local = ix.mul(group, width)
        at = ix.add(ix.mul(number, tile.block), local)
        k = ix.add(ix.mul(step, t.block_k), local_k)
        inside = ix.both(below(at, side.points), below(k, self.p.terms))
        then, otherwise = make(local, local_k, at, k, inside)
        body = then if inside is ix.TRUE or not otherwise else (If(inside, then, otherwise),)
        if groups % t.threads:
            body = (If(below(number_of, groups), body),)
        return [For(u, LoopKind.UNROLL, body)] if trips > 1 else list(body)

    def _axes(self, side: Side, first: Expr, first_k: Expr, width: int, lane: Expr) -> dict[Expr, Expr]:
        """The axes of a side and of the sum, from the numbers of a group along each: groups are of `width` along the contiguous one."""
        own, deep = _widths(side, width)
        return {
            **self.where,
            **place(side.axes, first, own, lane if own > 1 else const(0)),
            **place(self.p.depth, first_k, deep, lane if deep > 1 else const(0)),
        }

    def _fill(self, tile: _Tile, number: Expr, step: Expr, stage: Expr) -> list[Stmt]:
        """Evaluate a factor's elements into its tile; zero where the matrix ends."""
        side = tile.side
        along = self.t.block_k if side.along_depth else tile.block
        width = min(side.vector, along)
        lane = var(f"l{tile.name}", width)
        element = lane if width > 1 else const(0)

        def make(local: Expr, local_k: Expr, at: Expr, k: Expr, _: Expr) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
            own, deep = _widths(side, width)
            x, y = var(f"x{tile.name}", side.points // own), var(f"y{tile.name}", self.p.terms // deep)
            if side.along_depth:
                slot = tile.slot(stage, local, ix.add(local_k, element))
            else:
                slot = tile.slot(stage, ix.add(local, element), local_k)
            value = ix.substitute(side.held, self._axes(side, x, y, width, element))

            def lanes(s: Stmt) -> Stmt:
                return For(lane, LoopKind.VECTOR, (s,)) if width > 1 else s

            then = (
                Let(x, ix.floor_div(at, own)),
                Let(y, ix.floor_div(k, deep)),
                lanes(Store(tile.buffer, slot, value)),
            )
            return then, (lanes(Store(tile.buffer, slot, zero(side.dtype))),)

        return self._dealt(tile, number, step, width, "f", make)

    def _copy(self, tile: _Tile, number: Expr, step: Expr, stage: Expr, name: str) -> list[Stmt]:
        """Begin copying a factor's tile; zeros are written where the matrix ends."""
        side = tile.side
        source = side.plain
        assert source is not None and isinstance(source.source, Buffer)
        memory = source.source
        along = self.t.block_k if side.along_depth else tile.block
        width = min(side.vector, along)

        def make(
            local: Expr, local_k: Expr, at: Expr, k: Expr, inside: Expr
        ) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
            own, deep = _widths(side, width)
            where = self._axes(side, ix.floor_div(at, own), ix.floor_div(k, deep), width, const(0))
            offset = ix.substitute(source.index[0], where)
            guard = None if inside is ix.TRUE else inside
            return (AsyncCopy(tile.buffer, tile.slot(stage, local, local_k), memory, offset, width, guard),), ()

        return self._dealt(tile, number, step, width, name, make)

    # ---- multiplying

    def row(self, i: Expr) -> Expr:
        """The row within the block's tile of a thread's i-th: groups of neighbours, a block's height apart."""
        return _spread(i, self.t.thread_m, ix.floor_div(self.thread, self.t.across), self.t.down)

    def column(self, j: Expr) -> Expr:
        """The column within the block's tile of a thread's j-th."""
        return _spread(j, self.t.thread_n, ix.floor_mod(self.thread, self.t.across), self.t.across)

    def _multiply(self, stage: Expr) -> Stmt:
        t, acc = self.t, self.accumulator
        k = var("k", t.block_k)
        left = Buffer("left", acc.dtype, t.thread_m, Scope.REGISTER)
        right = Buffer("right", acc.dtype, t.thread_n, Scope.REGISTER)
        body: list[Stmt] = [Alloc(left), Alloc(right)]
        body += self._fetch(left, self.a, stage, k, t.thread_m, self.row, "i")
        body += self._fetch(right, self.b, stage, k, t.thread_n, self.column, "j")
        i, j = var("im", t.thread_m), var("jn", t.thread_n)
        slot = ix.add(ix.mul(i, t.thread_n), j)
        held = load(acc, (slot,), acc.dtype)
        a, b = load(left, (i,), acc.dtype), load(right, (j,), acc.dtype)
        value = call("fma", a, b, held) if acc.dtype.is_float else call("add", held, call("mul", a, b))
        body.append(loop(i, LoopKind.UNROLL, loop(j, LoopKind.UNROLL, Store(acc, slot, value))))
        return loop(k, LoopKind.UNROLL, *body)

    def _fetch(
        self, target: Buffer, tile: _Tile, stage: Expr, k: Expr, count: int, where: Callable[[Expr], Expr], name: str
    ) -> list[Stmt]:
        width = group(count)
        lane, u = var(f"{name}l", width), var(f"{name}g", count // width)
        many = count > width
        at = ix.add(ix.mul(u, width), lane) if many else lane
        held = load(tile.buffer, (tile.slot(stage, where(at), k),), tile.side.dtype)
        value = cast_to(tile.side.element(held), target.dtype)
        # the tile's rows are as far apart as vectors are wide only where it is not transposed
        kind = LoopKind.VECTOR if not tile.along_depth and width > 1 else LoopKind.UNROLL
        inner: Stmt = loop(lane, kind, Store(target, at, value))
        return [loop(u, LoopKind.UNROLL, inner)] if many else [inner]


def _widths(side: Side, width: int) -> tuple[int, int]:
    """Elements of a group along a side's own axes and along the sum."""
    return (1, width) if side.along_depth else (width, 1)


def group(count: int) -> int:
    """Neighbours that a thread takes together: 16 bytes of float32, or all it has."""
    return min(count, 4)


def _spread(i: Expr, count: int, thread: Expr, threads: int) -> Expr:
    """Element i of a thread: its groups of neighbours are dealt out in turns, so that a warp's accesses lie side by side."""
    width = group(count)
    outer, inner = ix.floor_div(i, width), ix.floor_mod(i, width)
    return ix.add(ix.mul(outer, width * threads), ix.mul(thread, width), inner)
