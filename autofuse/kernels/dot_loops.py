"""The loops of a product of 8-bit integers on the host.

A task takes a block of rows: it brings them into bytes without a sign in scratch memory, four neighbours of the sum in each 32-bit
integer, with the sum of each row where a zero point asks for it. Register tiles of 32-bit sums then run over quads; zero points are taken off
in the epilogue. Constant factors are in quads already, other ones are brought into them panel by panel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, Var, apply, cast_to, const, load, select, var
from autofuse.kernels.base import Schedule
from autofuse.kernels.contract_problem import Problem, Result
from autofuse.kernels.contract_tile import At, Panel, Rows, Tile, shielded
from autofuse.kernels.contract_window import Segment, over_segments, segments
from autofuse.kernels.dot_problem import DotProblem
from autofuse.kernels.dot_roles import QUAD, signed, unsigned
from autofuse.loops.ir import Alloc, Buffer, For, If, LaneReduce, Let, LoopKind, Scope, Stmt, Store, loop

INT = DType.INT32
ONES = const(0x01010101, INT)
"""Four bytes of one: a dot product with them is a sum."""
_Places = tuple[Expr | None, ...]
"""The places of a quad's bytes along its axis; None past the end."""
CHUNK = 256
"""Bytes of a row that are summed up in one statement."""


class _DotTile(Tile):
    """A tile whose terms are dot products of four bytes."""

    def step(self, total: Expr, a: Expr, b: Expr) -> Expr:
        return apply("dot_bytes", (a, b, total), INT)


@dataclass
class DotKernel:
    """The grid, the scratch memory and the loops of a task around the tiles."""

    p: DotProblem
    schedule: Schedule
    vector_bytes: int

    def __post_init__(self) -> None:
        p, s = self.p, self.schedule
        self._count = itertools.count()
        self.rows = min(s.integer("rows"), p.row_extent)
        self.vectors = min(s.integer("vectors"), p.vectors)
        self.row_segments = segments(p.row_extent, self.rows, lambda start, size: True)
        self.panel_segments = segments(p.points, self.vectors * p.lanes, self._whole_panel)
        self.tiles = -(-p.row_extent // self.rows)
        self.panels = -(-p.vectors // self.vectors)
        self.task_tiles = min(self.tiles, s.integer("task_tiles"))
        self.task_panels = min(self.panels, s.integer("task_panels"))
        self.count = min(self.rows * self.task_tiles, p.row_extent)  # rows of a block
        self.quads = p.depth // QUAD
        # a block's rows: one after the other as bytes, or quads of neighbouring rows side by side
        self.width = -(-self.count // p.lanes) * p.lanes if p.along_rows else self.count
        kind, size = (INT, self.quads * self.width) if p.along_rows else (DType.UINT8, self.width * p.depth)
        self.bytes = Buffer("rows", kind, size, Scope.SHARED)
        self.row_zero = self._zero(p.row_zero, p.rows, DType.INT8, 128)
        self.column_zero = self._zero(p.column_zero, p.columns, DType.UINT8, -128)
        self.row_sums = Buffer("row_sums", INT, self.width, Scope.SHARED) if self.column_zero is not None else None
        wide = self.vectors * p.lanes
        self.panel: Buffer | None = None
        self.column_sums: Buffer | None = None
        if p.prepared is None:
            self.panel = Buffer("columns", INT, self.quads * wide, Scope.SHARED)
            if self.row_zero is not None:
                self.column_sums = Buffer("column_sums", INT, wide, Scope.SHARED)
        self.start = var("start", p.row_extent)
        self.first = var("first", p.vectors * p.lanes)  # of the panel
        self.tile = self._tile()

    def fresh(self, name: str, extent: int | None) -> Var:
        """A variable of its own."""
        return var(f"{name}_{next(self._count)}", extent)

    def _whole_panel(self, start: int, size: int) -> bool:
        return start + -(-size // self.p.lanes) * self.p.lanes <= (self.p.n.extent or 1)

    @staticmethod
    def _zero(zero: Expr | None, factor: Expr, moved: DType, by: int) -> Expr | None:
        """The zero point of a factor after it was moved to the sign that the instruction takes."""
        if factor.dtype is not moved:
            return zero
        return const(by, INT) if zero is None else apply("add", (zero, const(by, INT)), INT)

    # ---- the problem of the tiles

    def _tile(self) -> _DotTile:
        p = self.p
        m = var("row", self.count) if p.m is not None else None
        kq, n = var("kq", self.quads), p.n
        local: Expr = m if m is not None else const(0)
        if p.along_rows:
            narrow: Expr = load(self.bytes, (ix.add(ix.mul(kq, self.width), local),), INT)
        else:
            place = ix.add(ix.mul(local, p.depth), ix.mul(kq, QUAD))
            narrow = _joined([load(self.bytes, (ix.add(place, const(j)),), DType.UINT8) for j in range(QUAD)])
        if p.prepared is not None:
            lanes = p.lanes
            at = (ix.floor_div(n, lanes), kq, ix.floor_mod(n, lanes))
            wide: Expr = load(p.prepared, (ix.flatten(at, (-(-p.points // lanes), self.quads, lanes)),), INT)
        else:
            wide = const(0, INT)  # read from scratch memory
        swap: At = {p.total: self._shifted(p.total, local)}
        if p.m is not None:
            swap[p.m] = ix.add(self.start, local)
        results = tuple(
            Result(r.buffer, ix.substitute(r.offset, swap), ix.substitute(r.value, swap), r.padded) for r in p.results
        )
        problem = Problem(
            p.binding, narrow, wide, results, p.total, n, m, (), (), (kq,), p.points, p.lanes, 0, frozenset()
        )
        tile = _DotTile(problem, self.schedule.integer("unroll"), self._packed if self.panel is not None else None)
        if problem.scatters:
            tile.spill = Buffer("sums", INT, self.rows * self.vectors * p.lanes, Scope.SHARED)
        return tile

    def _packed(self, at: At, lane: Expr) -> Expr:
        assert self.panel is not None
        (kq,) = self.tile.p.reduced
        return load(self.panel, (ix.add(ix.mul(at[kq], self.vectors * self.p.lanes), lane),), INT)

    def _shifted(self, total: Expr, local: Expr) -> Expr:
        """The sum with zero points taken off."""
        p = self.p
        za, zb = self.row_zero, self.column_zero
        if za is not None and p.m is not None:
            za = ix.substitute(za, {p.m: ix.add(self.start, local)})
        if za is not None:
            if p.prepared is not None:
                rounded = -(-p.points // p.lanes) * p.lanes
                sums = load(p.prepared, (ix.add(const(rounded * self.quads), p.n),), INT)
            else:
                assert self.column_sums is not None
                sums = load(self.column_sums, (ix.sub(p.n, self.first),), INT)
            total = _minus(total, _times(za, sums))
        if zb is not None:
            assert self.row_sums is not None
            total = _minus(total, _times(zb, load(self.row_sums, (local,), INT)))
        if za is not None and zb is not None:
            total = apply("add", (total, _times(_times(za, zb), const(p.terms, INT))), INT)
        return total

    # ---- the grid

    def grid(self) -> For:
        """The whole kernel."""
        p = self.p
        blocks = -(-self.tiles // self.task_tiles)
        parts = -(-self.panels // self.task_panels)
        sizes = [*(a.extent or 1 for a in p.grid), blocks, parts]
        g = var("g", math.prod(sizes))
        at: At = {}
        lets: list[Stmt] = []
        places: list[Expr] = []
        for n, place in zip(sizes, ix.unflatten(g, tuple(sizes)), strict=True):
            where: Expr = const(0)
            if n > 1:
                where = index = self.fresh("p", n)
                lets.append(Let(index, place))
            places.append(where)
        at.update(zip(p.grid, places, strict=False))
        block, part = places[-2:]
        lets.append(Let(self.start, ix.mul(block, self.rows * self.task_tiles)))
        buffers = (self.bytes, self.row_sums, self.panel, self.column_sums, self.tile.spill)
        scratch = [Alloc(b) for b in buffers if b is not None]
        return loop(g, LoopKind.GRID, *lets, *scratch, *self._fill_rows(at), *self._tiles(at, block, part))

    def _tiles(self, at: At, block: Expr, part: Expr) -> tuple[Stmt, ...]:
        width = self.vectors * self.p.lanes

        def panel(segment: Segment, t: Expr) -> tuple[Stmt, ...]:
            first = ix.mul(t, width)
            made = Panel(first, -(-segment.size // self.p.lanes), not segment.clean)
            inside: At = {**at, self.first: first}

            def rows(segment: Segment, t: Expr) -> tuple[Stmt, ...]:
                local = ix.mul(ix.sub(t, ix.mul(block, self.task_tiles)), self.rows)
                return self.tile.emit(inside, made, Rows(local, segment.size, True))

            tiles = over_segments(self.row_segments, (block, self.task_tiles, self.tiles), self.fresh, rows)
            return (*self._fill_panel(at, made), *tiles)

        return over_segments(self.panel_segments, (part, self.task_panels, self.panels), self.fresh, panel)

    # ---- rows as bytes

    def _fill_rows(self, at: At) -> tuple[Stmt, ...]:
        """Write the block's rows to scratch memory, zeros past the end of an incomplete quad, and their sums where they are wanted."""
        return self._side_by_side(at) if self.p.along_rows else self._one_by_one(at)

    def _one_by_one(self, at: At) -> tuple[Stmt, ...]:
        p = self.p
        row = self.fresh("row", self.count)
        here: At = {**at, p.m: ix.add(self.start, row)} if p.m is not None else at
        axes = [self.fresh("k", a.extent) for a in p.others]
        here = {**here, **dict(zip(p.others, axes, strict=True))}
        base = ix.mul(ix.flatten((row, *axes), (self.count, *(a.extent or 1 for a in axes))), p.padded_quad)

        def put(first: Expr, size: int) -> tuple[Stmt, ...]:
            lane = self.fresh("l", size)
            k = ix.add(first, lane) if size > 1 else first
            value = ix.substitute(unsigned(p.rows), {**here, p.quad: k})
            store = Store(self.bytes, ix.add(base, k), value)
            return (loop(lane, LoopKind.VECTOR, store) if size > 1 else store,)

        body = [*_pieces(p.quad.extent or 1, p.block or self.vector_bytes, put, self.fresh)]
        for k in range(p.quad.extent or 1, p.padded_quad):
            body.append(Store(self.bytes, ix.add(base, const(k)), const(0, DType.UINT8)))
        nest: tuple[Stmt, ...] = tuple(body)
        for a in reversed(axes):
            nest = (loop(a, LoopKind.SERIAL, *nest),)
        end = ix.minimum(const(self.count), ix.sub(const(p.row_extent), self.start))
        return (loop(row, LoopKind.SERIAL, *nest, *self._sum_row(row), end=end),)

    def _sum_row(self, row: Expr) -> tuple[Stmt, ...]:
        """The sum of a row's bytes."""
        sums, p = self.row_sums, self.p
        if sums is None:
            return ()

        def add(first: Expr, size: int) -> tuple[Stmt, ...]:
            lane, part = self.fresh("l", size), var(f"part{next(self._count)}", None, INT)
            place = ix.add(ix.mul(row, p.depth), first, lane)
            value = cast_to(load(self.bytes, (place,), DType.UINT8), INT)
            known = load(sums, (row,), INT)
            total = Store(sums, row, apply("add", (known, part), INT))
            return LaneReduce(part, "sum", value, lane), total

        return (Store(sums, row, const(0, INT)), *_pieces(p.depth, CHUNK, add, self.fresh))

    def _side_by_side(self, at: At) -> tuple[Stmt, ...]:
        p = self.p
        assert p.m is not None
        m, lanes = p.m, p.lanes
        end = ix.minimum(const(p.row_extent), ix.add(self.start, const(self.count)))

        def vector(v: Expr, whole: bool) -> tuple[Stmt, ...]:
            def put(here: At, quad: Expr, filled: _Places) -> Stmt:
                lane = self.fresh("l", lanes)
                row = ix.add(self.start, ix.mul(v, lanes), lane)
                valid = ix.TRUE if whole else ix.less(row, const(p.row_extent))
                value = _joined([_byte(unsigned(p.rows), {**here, m: row, p.quad: k}) for k in filled])
                if valid is not ix.TRUE:
                    value = select(valid, shielded(value, valid), const(0, INT))
                place = ix.add(ix.mul(quad, self.width), ix.mul(v, lanes), lane)
                return loop(lane, LoopKind.VECTOR, Store(self.bytes, place, value))

            return (*self._quads(at, put), *self._sum_quads(self.bytes, self.width, self.row_sums, ix.mul(v, lanes)))

        v = self.fresh("v", self.width // lanes)
        whole = ix.floor_div(ix.sub(const(p.row_extent), self.start), lanes)
        most = const(self.width // lanes)
        out: tuple[Stmt, ...] = (loop(v, LoopKind.SERIAL, *vector(v, True), end=ix.minimum(most, whole)),)
        if p.row_extent % lanes == 0 and (self.count % lanes == 0 or self.count == p.row_extent):
            return out
        # the vector that reaches past the last row, where this block has it
        last = var(f"last_{next(self._count)}", self.width // lanes + 1)
        mine = apply("lt", (ix.add(self.start, ix.mul(last, lanes)), end), DType.BOOL)
        rest = Let(last, ix.minimum(most, whole))
        return (*out, rest, If(mine, vector(last, False)))

    def _quads(self, at: At, put: Callable[[At, Expr, _Places], Stmt]) -> tuple[Stmt, ...]:
        """A statement for every quad: its number, and the places of its bytes along the axis of quads (None past the end)."""
        p = self.p
        axes = [self.fresh("k", a.extent) for a in p.others]
        here: At = {**at, **dict(zip(p.others, axes, strict=True))}
        per_axis = p.padded_quad // QUAD
        base = ix.mul(ix.flatten(axes, (a.extent or 1 for a in axes)), per_axis)
        extent = p.quad.extent or 1
        body: list[Stmt] = []
        if extent >= QUAD:
            kq = self.fresh("kq", extent // QUAD)
            places = tuple(ix.add(ix.mul(kq, QUAD), const(j)) for j in range(QUAD))
            body.append(loop(kq, LoopKind.SERIAL, put(here, ix.add(base, kq), places)))
        if extent % QUAD:
            first = extent // QUAD * QUAD
            rest = tuple(const(first + j) if first + j < extent else None for j in range(QUAD))
            body.append(put(here, ix.add(base, const(extent // QUAD)), rest))
        nest: tuple[Stmt, ...] = tuple(body)
        for a in reversed(axes):
            nest = (loop(a, LoopKind.SERIAL, *nest),)
        return nest

    def _sum_quads(self, quads: Buffer, width: int, sums: Buffer | None, first: Expr) -> tuple[Stmt, ...]:
        """The sums of a vector of rows or columns over all quads: of bytes without a sign for rows, with one for columns."""
        if sums is None:
            return ()
        lane, k, again = self.fresh("l", self.p.lanes), self.fresh("kq", self.quads), self.fresh("l", self.p.lanes)
        place = ix.add(first, again)
        value = load(quads, (ix.add(ix.mul(k, width), place),), INT)
        known = load(sums, (place,), INT)
        pair = (value, ONES) if sums is self.row_sums else (ONES, value)
        step = Store(sums, place, apply("dot_bytes", (*pair, known), INT))
        return (
            loop(lane, LoopKind.VECTOR, Store(sums, ix.add(first, lane), const(0, INT))),
            loop(k, LoopKind.SERIAL, loop(again, LoopKind.VECTOR, step)),
        )

    # ---- columns as quads

    def _fill_panel(self, at: At, panel: Panel) -> tuple[Stmt, ...]:
        """Write a panel of the column factor to scratch memory, zeros past the end of n, and the sums of its columns."""
        p, target = self.p, self.panel
        if target is None:
            return ()
        width = self.vectors * p.lanes
        out: list[Stmt] = []
        for v in range(panel.vectors):

            def put(here: At, quad: Expr, filled: _Places, v: int = v) -> Stmt:
                lane = self.fresh("l", p.lanes)
                point = self.tile.point(panel, v, lane)
                value = _joined([_byte(signed(p.columns), {**here, p.n: point, p.quad: k}) for k in filled])
                if panel.partial:
                    valid = self.tile.valid(point)
                    value = select(valid, shielded(value, valid), const(0, INT))
                place = ix.add(ix.mul(quad, width), const(v * p.lanes), lane)
                return loop(lane, LoopKind.VECTOR, Store(target, place, value))

            out += self._quads(at, put)
            out += self._sum_quads(target, width, self.column_sums, const(v * p.lanes))
        return tuple(out)


def _byte(value: Expr, swap: Mapping[Expr, Expr | None]) -> Expr:
    """A byte at a place; zero where there is none."""
    if None in swap.values():
        return const(0, DType.UINT8)
    return ix.substitute(value, {k: e for k, e in swap.items() if e is not None})


def _joined(quad: list[Expr]) -> Expr:
    return apply("join_bytes", tuple(quad), INT)


def _times(a: Expr, b: Expr) -> Expr:
    return apply("mul", (a, b), INT)


def _minus(a: Expr, b: Expr) -> Expr:
    return apply("sub", (a, b), INT)


def _pieces(
    extent: int,
    size: int,
    make: Callable[[Expr, int], tuple[Stmt, ...]],
    fresh: Callable[[str, int | None], Var],
) -> tuple[Stmt, ...]:
    """Statements over an axis: whole pieces of `size` in a loop, then ever smaller powers of two."""
    whole = extent // size
    out: list[Stmt] = []
    if whole > 1:
        t = fresh("t", whole)
        out.append(loop(t, LoopKind.SERIAL, *make(ix.mul(t, size), size)))
    elif whole:
        out += make(const(0), size)
    first = whole * size
    while first < extent:
        piece = 1 << ((extent - first).bit_length() - 1)
        out += make(const(first), piece)
        first += piece
    return tuple(out)
