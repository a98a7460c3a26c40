"""The loops of a convolution by Winograd's algorithm on the host (winograd_host.py says how a task goes about it)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Apply, Expr, Var, apply, const, load, select, var, walk
from autofuse.kernels.access import Resolver, bind
from autofuse.kernels.base import Schedule
from autofuse.kernels.contract_problem import Problem, Result
from autofuse.kernels.contract_tile import At, Panel, Rows, Tile, shielded
from autofuse.kernels.contract_window import segments
from autofuse.kernels.winograd_shape import Cell, Shape
from autofuse.kernels.winograd_transform import tile_read, transform_input, transform_output
from autofuse.loops.ir import Alloc, Buffer, For, If, Let, LoopKind, Scope, Stmt, Store, loop


@dataclass
class WinogradLoops:
    """The loops of one kernel."""

    w: Shape
    schedule: Schedule

    def __post_init__(self) -> None:
        w, c = self.w, self.schedule
        self.names = itertools.count()
        self.binding = bind(w.variant)
        self.rows = min(c.integer("rows"), w.tiles)
        self.vectors = min(c.integer("vectors"), w.vectors)
        self.count = min(self.rows * c.integer("groups"), w.tiles)
        self.task_blocks = -(-w.tiles // self.count)
        self.last = w.tiles - (self.task_blocks - 1) * self.count
        self.panels = -(-w.vectors // self.vectors)
        self.per_part = -(-self.panels // min(c.integer("parts"), self.panels))
        inputs = w.points * w.blocks * self.count * w.block
        self.inputs = Buffer("tiles", DType.FLOAT32, inputs, Scope.SHARED)
        self.products = Buffer("products", DType.FLOAT32, w.points * self.vectors * self.count * w.block, Scope.SHARED)
        self.tile_block = var("tb", self.task_blocks)
        self.resolve = Resolver(self.binding.inputs, {})
        self._multiplication()

    def fresh(self, name: str, extent: int | None) -> Var:
        return var(f"{name}_{next(self.names)}", extent)

    def value(self, name: str) -> Var:
        """A variable for an element."""
        return var(f"{name}_{next(self.names)}", None, DType.FLOAT32)

    # ---- the grid

    def grid(self) -> For:
        """The whole kernel."""
        parts = -(-self.panels // self.per_part)
        g = var("g", parts * self.task_blocks)
        part, block = ix.unflatten(g, (parts, self.task_blocks))
        full = apply("lt", (self.tile_block, const(self.task_blocks - 1)), DType.BOOL)
        count: Expr = const(self.count)
        if self.last != self.count:
            count = select(full, const(self.count), const(self.last))
        n = self.fresh("n", self.count + 1)
        part_var = self.fresh("part", parts)
        return loop(
            g,
            LoopKind.GRID,
            Let(part_var, part),
            Let(self.tile_block, block),
            Let(n, count),
            Alloc(self.inputs),
            Alloc(self.products),
            self._transform_inputs(n),
            *self._panels(part_var, n, full),
        )

    def _panels(self, part: Expr, n: Var, full: Expr) -> tuple[Stmt, ...]:
        whole = self.w.vectors // self.vectors
        out: list[Stmt] = []
        begin = ix.mul(part, self.per_part)
        if whole:
            t = self.fresh("t", whole)
            end = ix.minimum(const(whole), ix.add(begin, const(self.per_part)))
            panel = Panel(ix.mul(t, self.vectors * self.w.block), self.vectors, False)
            out.append(loop(t, LoopKind.SERIAL, *self._panel(panel, n, full), begin=begin, end=end))
        rest = self.w.vectors - whole * self.vectors
        if rest:
            panel = Panel(const(whole * self.vectors * self.w.block), rest, False)
            mine = apply("eq", (part, const((self.panels - 1) // self.per_part)), DType.BOOL)
            out.append(If(mine, self._panel(panel, n, full)))
        return tuple(out)

    def _panel(self, panel: Panel, n: Var, full: Expr) -> tuple[Stmt, ...]:
        multiply = self._multiply(panel, self.count)
        if self.last != self.count:
            multiply = (If(full, multiply, self._multiply(panel, self.last)),)
        return (*multiply, self._transform_outputs(panel, n))

    # ---- which tile

    def _place(self, t: Var) -> tuple[list[Stmt], list[Expr]]:
        """The images' axes, the phase and the tile's place in each dimension, from its number in the block."""
        w = self.w
        q = self.fresh("q", w.tiles)
        flat = ix.add(ix.mul(self.tile_block, self.count), t)
        stmts: list[Stmt] = [Let(q, flat)]
        places: list[Expr] = []
        for place, extent in zip(ix.unflatten(q, w.shape), w.shape, strict=True):
            if extent == 1:
                places.append(const(0))
                continue
            v = self.fresh("at", extent)
            stmts.append(Let(v, place))
            places.append(v)
        return stmts, places

    # ---- inputs

    def _transform_inputs(self, n: Var) -> For:
        w, s = self.w, self.w.s
        t, cb = self.fresh("t", self.count), self.fresh("cb", w.blocks)
        stmts, places = self._place(t)
        at: At = dict(zip(s.images, places, strict=False))
        points = tuple(var(f"w{d}", w.side) for d in range(w.rank))
        read = self.resolve(tile_read(s, w.outputs(places, (0,) * w.rank), points))
        read = ix.substitute(read, at)
        conditions = [x for x in walk(read) if isinstance(x, Apply) and x.fn == "lt" and x.args[0].dtype is INDEX]
        inside: Expr = ix.TRUE
        for x in dict.fromkeys(conditions):
            for corner in (0, w.side - 1):
                inside = ix.both(inside, ix.substitute(x, dict.fromkeys(points, const(corner))))
        known: At = dict.fromkeys(conditions, ix.TRUE)
        fast = self._input_tile(read, points, known, t, cb)
        body: tuple[Stmt, ...] = (fast,)
        if inside is not ix.TRUE:
            body = (If(inside, (fast,), (self._input_tile(read, points, {}, t, cb),)),)
        inner = loop(cb, LoopKind.SERIAL, *body) if w.blocks > 1 else loop(cb, LoopKind.UNROLL, *body)
        return loop(t, LoopKind.SERIAL, *stmts, inner, end=n)

    def _input_tile(self, read: Expr, points: Sequence[Var], known: At, t: Var, cb: Var) -> For:
        w = self.w
        l = self.fresh("l", w.block)
        channel = ix.add(ix.mul(cb, w.block), l)
        body: list[Stmt] = []

        def at(cell: Cell) -> Expr:
            swap: At = {**known, w.s.channel: channel, **{p: const(k) for p, k in zip(points, cell, strict=True)}}
            return ix.substitute(read, swap)

        def combine(column: Sequence[Expr]) -> list[Expr]:
            return transform_input(w.size, w.s.reach, column)

        for cell, x in self._separable(body, at, combine, "d"):
            body.append(Store(self.inputs, self._input_offset(const(w.flat(cell)), cb, t, l), x))
        return loop(l, LoopKind.VECTOR, *body)

    def _separable(
        self, body: list[Stmt], at: Callable[[Cell], Expr], combine: Callable[[Sequence[Expr]], list[Expr]], name: str
    ) -> Iterator[tuple[Cell, Expr]]:
        """A transform applied along each dimension of a tile in turn. Values are read column by column, so that few are alive at once."""
        w = self.w
        if w.rank == 1:
            column = [self._let(body, name, at((i,))) for i in range(w.side)]
            yield from (((i,), x) for i, x in enumerate(combine(column)))
            return
        columns: list[list[Expr]] = []
        for j in range(w.side):
            column = [self._let(body, name, at((i, j))) for i in range(w.side)]
            columns.append([self._let(body, "e", x) for x in combine(column)])
        for i in range(len(columns[0])):
            for j, x in enumerate(combine([columns[k][i] for k in range(w.side)])):
                yield (i, j), x

    def _let(self, body: list[Stmt], name: str, value: Expr) -> Var:
        v = self.value(name)
        body.append(Let(v, value))
        return v

    def _input_offset(self, point: Expr, cb: Expr, t: Expr, l: Expr) -> Expr:
        w = self.w
        return ix.flatten((point, cb, t, l), (w.points, w.blocks, self.count, w.block))

    # ---- products

    def _multiplication(self) -> None:
        """The product at one tile position as a contraction of its own."""
        w = self.w
        self.point, self.start = var("xi", w.points), var("start", w.vectors * w.block)
        n, m = var("n", w.vectors * w.block), var("m", self.count)
        cb, cl = var("cb", w.blocks), var("cl", w.block)
        total = var("sum", None, DType.FLOAT32)
        weight = self.binding.inputs[w.s.weight].buffer
        narrow: Expr = load(self.inputs, (self._input_offset(self.point, cb, m, cl),), DType.FLOAT32)
        place = (ix.floor_div(n, w.block), self.point, cb, cl, ix.floor_mod(n, w.block))
        extents = (w.vectors, w.points, w.blocks, w.block, w.block)
        wide: Expr = load(weight, (ix.flatten(place, extents),), DType.FLOAT32)
        local = ix.sub(n, self.start)
        offset = self._product_offset(self.point, ix.floor_div(local, w.block), m, ix.floor_mod(local, w.block))
        results = (Result(self.products, offset, total, False),)
        reduced = (cb, cl) if w.blocks > 1 else (cl,)
        if w.blocks == 1:
            narrow = ix.substitute(narrow, {cb: const(0)})
            wide = ix.substitute(wide, {cb: const(0)})
        problem = Problem(
            self.binding,
            narrow,
            wide,
            results,
            total,
            n,
            m if self.count > 1 else None,
            (),
            (),
            reduced,
            w.vectors * w.block,
            w.block,
            0,
            frozenset(),
        )
        self.tile = Tile(problem, self.schedule.integer("unroll"))

    def _product_offset(self, point: Expr, v: Expr, t: Expr, l: Expr) -> Expr:
        return ix.flatten((point, v, t, l), (self.w.points, self.vectors, self.count, self.w.block))

    def _multiply(self, panel: Panel, count: int) -> tuple[Stmt, ...]:
        point = self.fresh("xi", self.w.points)
        at: At = {self.point: point, self.start: panel.start}
        body: list[Stmt] = []
        for s in segments(count, self.rows, lambda start, size: True):
            if s.count == 1:
                body += self.tile.emit(at, panel, Rows(const(s.first * self.rows), s.size, True))
            else:
                r = self.fresh("r", s.count)
                start = ix.mul(ix.add(r, const(s.first)), self.rows)
                body.append(loop(r, LoopKind.SERIAL, *self.tile.emit(at, panel, Rows(start, s.size, True))))
        return (loop(point, LoopKind.SERIAL, *body),)

    # ---- outputs

    def _transform_outputs(self, panel: Panel, n: Var) -> For:
        w, s = self.w, self.w.s
        t, v = self.fresh("t", self.count), self.fresh("v", panel.vectors)
        stmts, places = self._place(t)
        at: At = dict(zip(s.images, places, strict=False))
        inside = ix.in_range(w.outputs(places, (w.size - 1,) * w.rank), w.extents)
        fast = self._output_tile(panel, at, places, t, v, False)
        body: tuple[Stmt, ...] = (fast,)
        if inside is not ix.TRUE:
            body = (If(inside, (fast,), (self._output_tile(panel, at, places, t, v, True),)),)
        inner = loop(v, LoopKind.SERIAL, *body) if panel.vectors > 1 else loop(v, LoopKind.UNROLL, *body)
        return loop(t, LoopKind.SERIAL, *stmts, inner, end=n)

    def _output_tile(self, panel: Panel, at: At, places: list[Expr], t: Var, v: Var, border: bool) -> For:
        w, s = self.w, self.w.s
        l = self.fresh("l", w.block)
        body: list[Stmt] = []
        point = ix.add(panel.start, ix.mul(v, w.block), l)
        exists = ix.less(point, const(s.n.extent or 1))

        def product(cell: Cell) -> Expr:
            return load(self.products, (self._product_offset(const(w.flat(cell)), v, t, l),), DType.FLOAT32)

        def combine(column: Sequence[Expr]) -> list[Expr]:
            return transform_output(w.size, s.reach, column)

        for cell, x in self._separable(body, product, combine, "p"):
            total = self._let(body, "y", x)
            where = w.outputs(places, cell)
            valid = ix.in_range(where, w.extents) if border else ix.TRUE
            if valid is ix.FALSE:
                continue
            swap: At = {**at, **dict(zip(s.spaces, where, strict=True)), s.n: point, s.c.result: total}
            body += self._stores(swap, valid, exists)
        return loop(l, LoopKind.VECTOR, *body)

    def _stores(self, swap: At, valid: Expr, exists: Expr) -> list[Stmt]:
        out: list[Stmt] = []
        for (index, value), operand in zip(self.w.s.c.outputs, self.binding.outputs, strict=True):
            offset = ix.substitute(operand.offset(index), swap)
            e = ix.substitute(self.resolve(value), swap)
            e = shielded(e, ix.both(valid, exists))
            if not operand.layout.is_plain:
                guard = valid
                e = select(exists, e, const(0, e.dtype))
            else:
                guard = ix.both(valid, exists)
            out.append(Store(operand.buffer, offset, e, None if guard is ix.TRUE else guard))
        return out
