"""Two contractions in one kernel on the host, as in attention: a block of queries at a time, its scores kept in the caches.

For each block: the queries are laid side by side, the first product's register tiles write scores, sweeps over them make weights, and the
second product's tiles deliver. Memory that others see never holds scores (Rabe, Staats 2021). Dao et al. 2022 keep parts of rows and rescale; here
whole rows are kept, which the second-level cache of a core holds up to tens of thousands of keys, and nothing is computed otherwise than the
operators say: `kept` gives Inf and NaN where they do. `late` divides sums instead of weights by what belongs to a whole row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from autofuse.fusion.chain import Chain, chain_of
from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Const, Expr, Var, const, load, select, var
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.access import plain_layouts
from autofuse.kernels.attention_problem import Block, Sweep, block, is_late, turned_masks
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.contract_tile import At, Panel, Rows, Tile, shielded
from autofuse.kernels.contract_window import segments
from autofuse.kernels.passes import identity, merge
from autofuse.loops.ir import Alloc, Buffer, For, If, Kernel, Let, LoopKind, Scope, Stmt, Store, TransposeTile, loop
from autofuse.loops.verify import verify_kernel


class AttentionHost:
    """Chains of two products over blocks of queries."""

    name = "attention_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """`kept`, and where weights are divided by something of whole rows `late`, which rounds otherwise and is tolerant for that."""
        chain = _chain(program)
        if target.is_cuda or chain is None:
            return
        ins, outs = plain_layouts(program)
        turned = turned_masks(chain)
        ins = tuple(turned.get(k, layout) for k, layout in enumerate(ins))
        yield Variant(self.name, "kept", program, ins, outs)
        if is_late(chain):
            yield Variant(self.name, "late", program, ins, outs, tolerant=True)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`vectors_extent`: vectors of queries; `keys_extent`; of the second product's tile `rows_extent` and, in vectors, `wide_extent`; `across`: 1
        where lanes run along queries in both products; `vector_registers`."""
        b = block(variant, 1, target)
        queries, columns = b.n.extent or 1, b.chain.column.extent or 1
        return {
            "vectors_extent": -(-queries // b.lanes),
            "keys_extent": b.chain.key.extent or 1,
            "rows_extent": columns if b.across else queries,
            "wide_extent": 1 if b.across else -(-columns // b.lanes),
            "across": int(b.across),
            "vector_registers": target.vector_registers,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Two vectors of queries where there are so many and cores enough stay busy; register tiles as full as they get."""
        b = block(variant, 1, target)
        registers = target.vector_registers
        extent = -(-(b.n.extent or 1) // b.lanes)
        vectors = 1
        others = math.prod(a.extent or 1 for a in (*b.chain.batch, *b.outer))
        if extent > 1 and others * -(-extent // 2) >= 2 * target.cores:
            vectors = 2
        keys = _even(b.chain.key.extent or 1, (registers - 1 - vectors) // vectors)
        columns = b.chain.column.extent or 1
        wide = 1 if b.across else min(2, -(-columns // b.lanes))  # few broadcasts and few rows of values at once
        if b.across:
            rows = _even(columns, (registers - 1 - vectors) // vectors)
        else:
            rows = _even(min(vectors * b.lanes, b.n.extent or 1), (registers - 1 - wide) // wide)
        return Schedule.of({"vectors": vectors, "keys": keys, "rows": rows, "wide": wide, "unroll": 4})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        b = block(variant, schedule.integer("vectors"), target)
        body = _Kernel(b, schedule).grid()
        kernel = Kernel(
            "attention",
            b.binding.parameters,
            body,
            body.var.extent or 0,
            flops=variant.program.flops,
            bytes=b.binding.nbytes,
        )
        return Lowered((RegionLaunch(verify_kernel(kernel), b.binding.arguments),))


def _chain(program: RegionProgram) -> Chain | None:
    if sum(s.kind is Kind.CONTRACT for s in program.steps) != 2:
        return None
    found = chain_of(program)
    return found if isinstance(found, Chain) else None


def _even(extent: int, most: int) -> int:
    """The smallest tile with which an axis takes no more tiles than with the largest one."""
    most = max(1, min(most, 14))
    return -(-extent // -(-extent // most))


def whole_products(variant: Variant, target: Target) -> float:
    """FLOPs of both products, in whole vectors of queries and of columns."""
    b = block(variant, 1, target)
    queries = b.n.extent or 1
    columns = b.chain.column.extent or 1
    lanes = b.lanes
    outer = math.prod(a.extent or 1 for a in (*b.chain.batch, *b.outer))
    keys, depth = b.chain.key.extent or 1, math.prod(a.extent or 1 for a in b.chain.depth)
    padded = -(-queries // lanes) * lanes
    second = padded * columns if b.across else queries * -(-columns // lanes) * lanes
    return 2.0 * outer * keys * (padded * depth + second)


class _Kernel:
    """The grid and what a task does for its block of queries."""

    def __init__(self, b: Block, schedule: Schedule) -> None:
        self.b = b
        self.keys, self.rows = schedule.integer("keys"), schedule.integer("rows")
        self.wide = schedule.integer("wide")
        self.vectors = schedule.integer("vectors")
        self.count = itertools.count()
        unroll = schedule.integer("unroll")
        before, after = b.products
        self.before = Tile(before, unroll, _count=self.count)
        self.after = Tile(after, unroll, _count=self.count)
        if after.scatters:
            width = self.vectors if b.across else self.wide
            self.after.spill = Buffer("sums", b.dtype, self.rows * width * b.lanes, Scope.SHARED)

    def fresh(self, name: str, extent: int | None) -> Var:
        return var(f"{name}{next(self.count)}", extent)

    # ---- the grid

    def grid(self) -> For:
        """A task for each block of queries."""
        b = self.b
        queries = b.n.extent or 1
        blocks = -(-queries // b.size)
        axes = (*b.chain.batch, *b.outer)
        shape = (*(a.extent or 1 for a in axes), blocks)
        g = var("g", math.prod(shape))
        at: At = {}
        lets: list[Stmt] = []
        for a, place in zip(axes, ix.unflatten(g, shape)[:-1], strict=True):
            at[a] = place
            if not isinstance(place, Const):
                at[a] = p = self.fresh("p", a.extent)
                lets.append(Let(p, place))
        number = ix.unflatten(g, shape)[-1]
        lets += [Alloc(x) for x in (b.packed, b.scores)]
        if b.sweeps.divisor is not None:
            lets.append(Alloc(b.divisors))
        if self.after.spill is not None:
            lets.append(Alloc(self.after.spill))
        whole, rest = divmod(queries, b.size)
        last = self._block(at, const(whole * b.size), rest) if rest else ()
        if not whole:
            return loop(g, LoopKind.GRID, *lets, *last)
        # a variable that knows how many whole blocks there are: no lane of them needs a check
        p = self.fresh("p", whole)
        start = ix.mul(p, b.size)
        full = (Let(p, number), *self._block(at, start, b.size))
        if rest:
            return loop(g, LoopKind.GRID, *lets, If(ix.less(number, const(whole)), full, last))
        return loop(g, LoopKind.GRID, *lets, *full)

    def _block(self, at: At, start: Expr, queries: int) -> tuple[Stmt, ...]:
        """All that is done for a block of so many queries, from `start` on."""
        b = self.b
        at = {**at, b.start: start}
        vectors = -(-queries // b.lanes)
        panel = Panel(start, vectors, queries % b.lanes != 0)
        out = [*self._pack(at, panel, queries), *self._scores(at, panel)]
        known: dict[Var, Buffer] = {}
        for sweep in b.sweeps.sweeps:
            out += self._sweep(at, panel, sweep, known)
        out += self._divide(at, panel, known)
        out += self._deliver(at, panel, queries)
        return tuple(out)

    # ---- the first product

    def _pack(self, at: At, panel: Panel, queries: int) -> tuple[Stmt, ...]:
        """The queries' factor, term by term with neighbouring queries side by side; zeros past their end."""
        b = self.b
        *others, last = b.chain.depth
        extent = last.extent or 1
        axes = [self.fresh("k", a.extent) for a in others]
        inside: At = {**at, **dict(zip(others, axes, strict=True))}
        base = ix.mul(ix.flatten(axes, [a.extent or 1 for a in axes]), extent)
        squares = extent // b.lanes if b.turns else 0
        body: list[Stmt] = []
        if squares:
            c = self.fresh("c", squares)
            first = ix.mul(c, b.lanes)
            tiles = (self._square(inside, panel, v, base, first, queries) for v in range(panel.vectors))
            # loops of their own: registers end with them
            body.append(loop(c, LoopKind.SERIAL, *(loop(self.fresh("o", 1), LoopKind.SERIAL, *t) for t in tiles)))
        if extent > squares * b.lanes:
            k = self.fresh("k", extent)
            stmts: list[Stmt] = []
            for v in range(panel.vectors):
                l = self.fresh("l", b.lanes)
                value = ix.substitute(b.query, {**inside, last: k, b.n: self.before.point(panel, v, l)})
                place = ix.add(ix.mul(ix.add(base, k), b.size), const(v * b.lanes), l)
                stmts.append(loop(l, LoopKind.VECTOR, Store(b.packed, place, self._inside(value, panel, v, l))))
            body.append(loop(k, LoopKind.SERIAL, *stmts, begin=const(squares * b.lanes)))
        nest: tuple[Stmt, ...] = tuple(body)
        for a in reversed(axes):
            nest = (loop(a, LoopKind.SERIAL, *nest),)
        return nest

    def _square(self, at: At, panel: Panel, v: int, base: Expr, first: Expr, queries: int) -> list[Stmt]:
        """As many terms of a vector of queries as it has lanes: read along the terms, turned around in registers."""
        b = self.b
        side = b.lanes
        tile = Buffer(f"turned{next(self.count)}", b.dtype, side * side, Scope.REGISTER)
        there = min(side, queries - v * side)
        out: list[Stmt] = [Alloc(tile)]
        for begin, count in ((0, there), (there, side - there)):
            if not count:
                continue
            i, l = self.fresh("i", count), self.fresh("l", side)
            row = ix.add(const(begin), i) if count > 1 else const(begin)
            where: At = {**at, b.chain.depth[-1]: ix.add(first, l), b.n: ix.add(panel.start, const(v * side), row)}
            value = ix.substitute(b.query, where) if begin == 0 else const(0, b.dtype)
            store = loop(l, LoopKind.VECTOR, Store(tile, ix.add(ix.mul(row, side), l), value))
            out.append(loop(i, LoopKind.UNROLL, store))
        j, l = self.fresh("j", side), self.fresh("l", side)
        place = ix.add(ix.mul(ix.add(base, first, j), b.size), const(v * side), l)
        turned = load(tile, (ix.add(ix.mul(j, side), l),), b.dtype)
        out += [
            TransposeTile(tile, side),
            loop(j, LoopKind.UNROLL, loop(l, LoopKind.VECTOR, Store(b.packed, place, turned))),
        ]
        return out

    def _inside(self, value: Expr, panel: Panel, v: int, l: Var) -> Expr:
        """A value of a lane; zero where there is no such query."""
        if not panel.partial:
            return value
        valid = self.before.valid(self.before.point(panel, v, l))
        return select(valid, shielded(value, valid), const(0, value.dtype))

    def _scores(self, at: At, panel: Panel) -> tuple[Stmt, ...]:
        extent = self.b.chain.key.extent or 1
        return self._tiles(self.before, at, panel, extent, self.keys)

    def _tiles(self, tile: Tile, at: At, panel: Panel, extent: int, step: int) -> tuple[Stmt, ...]:
        """Register tiles of a panel over all rows, `step` at a time."""
        out: list[Stmt] = []
        for s in segments(extent, step, lambda start, size: True):
            t = self.fresh("t", s.count)
            start = ix.mul(ix.add(t, const(s.first)) if s.count > 1 else const(s.first), step)
            # a loop of its own also where it runs once: what it allocates ends with it
            out.append(loop(t, LoopKind.SERIAL, *tile.emit(at, panel, Rows(start, s.size, True))))
        return tuple(out)

    # ---- the rows between

    def _sweep(self, at: At, panel: Panel, sweep: Sweep, known: dict[Var, Buffer]) -> list[Stmt]:
        """One pass over the scores of a block; results of its reductions are added to `known`, lane by lane of the block."""
        b = self.b
        sums: dict[Var, Buffer] = {}
        out: list[Stmt] = []
        for a, _ in sweep.anchors:
            acc = sums[a.result] = Buffer(f"row{next(self.count)}", b.dtype, panel.vectors * b.lanes, Scope.REGISTER)
            r, l = self.fresh("r", panel.vectors), self.fresh("l", b.lanes)
            start = Store(acc, ix.add(ix.mul(r, b.lanes), l), identity(a.combine, b.dtype))
            out += [Alloc(acc), loop(r, LoopKind.UNROLL, loop(l, LoopKind.VECTOR, start))]
        j = self.fresh("j", b.chain.key.extent)
        body: list[Stmt] = []
        for v in range(panel.vectors):
            l = self.fresh("l", b.lanes)
            along = ix.add(const(v * b.lanes), l)
            place = ix.add(ix.mul(j, b.size), along)
            here = self._lane(at, panel, v, l, known)
            here.update({b.chain.key: j, b.sweeps.held: load(b.scores, (place,), b.dtype)})
            made: dict[Expr, Expr] = {}
            stmts: list[Stmt] = []
            for e in dict.fromkeys([*(e for _, e in sweep.anchors), *([sweep.keep] if sweep.keep is not None else [])]):
                made[e] = t = var(f"w{next(self.count)}", None, b.dtype)
                stmts.append(Let(t, self._computed(e, here, panel, v, l)))
            for a, e in sweep.anchors:
                acc = sums[a.result]
                stmts.append(Store(acc, along, merge(a.combine, load(acc, (along,), b.dtype), made[e])))
            if sweep.keep is not None:
                stmts.append(Store(b.scores, place, made[sweep.keep]))
            body.append(loop(l, LoopKind.VECTOR, *stmts))
        out.append(loop(j, LoopKind.SERIAL, *body))
        known.update(sums)
        return out

    def _lane(self, at: At, panel: Panel, v: int, l: Var, known: Mapping[Var, Buffer]) -> At:
        """Where a lane's query is, and what its row was reduced to so far."""
        along = ix.add(const(v * self.b.lanes), l)
        results: At = {result: load(acc, (along,), acc.dtype) for result, acc in known.items()}
        return {**at, **results, self.b.n: self.before.point(panel, v, l)}

    def _computed(self, e: Expr, here: At, panel: Panel, v: int, l: Var) -> Expr:
        """An expression at a lane, which reads nothing from memory where there is no such query."""
        value = ix.substitute(e, here)
        return shielded(value, self.before.valid(self.before.point(panel, v, l))) if panel.partial else value

    def _divide(self, at: At, panel: Panel, known: Mapping[Var, Buffer]) -> list[Stmt]:
        """Lay out by what each query's sums are divided, where they are."""
        b = self.b
        out: list[Stmt] = []
        for v in range(panel.vectors if b.sweeps.divisor is not None else 0):
            assert b.sweeps.divisor is not None
            l = self.fresh("l", b.lanes)
            value = self._computed(b.sweeps.divisor, self._lane(at, panel, v, l, known), panel, v, l)
            out.append(loop(l, LoopKind.VECTOR, Store(b.divisors, ix.add(const(v * b.lanes), l), value)))
        return out

    # ---- the second product

    def _deliver(self, at: At, panel: Panel, queries: int) -> tuple[Stmt, ...]:
        b = self.b
        columns = b.chain.column.extent or 1
        if b.across:
            return self._tiles(self.after, at, panel, columns, self.rows)
        width = self.wide * b.lanes
        out: list[Stmt] = []
        for s in segments(columns, width, lambda start, size: start + size <= columns // b.lanes * b.lanes):
            t = self.fresh("t", s.count)
            start = ix.mul(ix.add(t, const(s.first)) if s.count > 1 else const(s.first), width)
            part = Panel(start, -(-s.size // b.lanes), s.size % b.lanes != 0)
            out.append(loop(t, LoopKind.SERIAL, *self._tiles(self.after, at, part, queries, self.rows)))
        return tuple(out)
