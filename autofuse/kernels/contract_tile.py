"""The register tile of a host contraction: accumulators, the loops of the sum around them, and the epilogue."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Load, Var, apply, cast_to, const, load, rewrite, select, to_text, var, variables
from autofuse.kernels.contract_problem import Problem
from autofuse.kernels.contract_roles import vanishing
from autofuse.kernels.contract_window import (
    dynamic_windows,
    holds,
    is_affine,
    valid_rows,
    window,
)
from autofuse.loops.ir import Alloc, Buffer, For, Let, LoopKind, Scope, Stmt, Store, loop

At = dict[Expr, Expr]

MAX_PEELED = 9
"""Up to so many positions of a window are written out one by one in a tile at a border."""


@dataclass(frozen=True)
class Panel:
    """Some vectors of n: the index of the first point, and how many vectors. `partial` panels reach past the end of n."""

    start: Expr
    vectors: int
    partial: bool


@dataclass(frozen=True)
class Rows:
    """Some rows of m: the first one (also as a number where it is one), how many, and whether no row touches a border."""

    start: Expr
    count: int
    clean: bool
    number: int = 0


@dataclass
class Tile:
    """Emits register tiles of a problem. `packed` gives the wide factor's place in scratch memory where it was packed.

    With `spill`, scratch memory for a tile, the epilogue is a loop over a copy of the accumulators instead of a statement for each of
    them: outputs in which lanes lie apart take so much text that it would be long to compile.
    """

    p: Problem
    unroll: int
    packed: Callable[[At, Expr], Expr] | None = None
    spill: Buffer | None = None
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        p = self.p
        zero = vanishing(p.narrow) | (vanishing(p.wide) if self.packed is None else frozenset())
        ordered = sorted(zero, key=to_text)
        along = [a for a in ordered if p.m is not None and p.m in variables(a)]
        fixed = frozenset((*p.batch, *p.outer))
        self.windows = dynamic_windows((a for a in ordered if a not in along), p.reduced, fixed)
        axes = {v for a in along for v in variables(a)} - {p.m}
        self.border: list[Expr] = along
        self.peel: Var | None = None
        if len(axes) == 1 and all(is_affine(a) for a in along):
            axis = axes.pop()
            if axis in p.reduced and (axis.extent or 0) <= MAX_PEELED and axis not in self.windows:
                self.peel = axis

    def fresh(self, name: str, extent: int | None) -> Var:
        """A variable of its own."""
        return var(f"{name}{next(self._count)}", extent)

    def is_clean(self, start: int, size: int) -> bool:
        """Whether rows start .. start+size-1 of m touch no border."""
        m = self.p.m
        if m is None:
            return True
        inside = ix.add(const(start), var("mtest", size)) if size > 1 else const(start)
        return all(holds(a, {m: inside}) for a in self.border)

    # ---- the tile

    def emit(self, at: At, panel: Panel, rows: Rows) -> tuple[Stmt, ...]:
        """One tile: zeroed accumulators, the sum, the epilogue."""
        p = self.p
        number = next(self._count)
        acc = Buffer(f"acc{number}", p.dtype, rows.count * panel.vectors * p.lanes, Scope.REGISTER)
        r, l = self.fresh("r", rows.count * panel.vectors), self.fresh("l", p.lanes)
        zero = Store(acc, ix.add(ix.mul(r, p.lanes), l), const(0, p.dtype))
        return (
            Alloc(acc),
            loop(r, LoopKind.UNROLL, loop(l, LoopKind.VECTOR, zero)),
            *self._nest(acc, dict(at), panel, rows, p.reduced, {}),
            *self._epilogue(acc, at, panel, rows),
        )

    def _nest(
        self, acc: Buffer, at: At, panel: Panel, rows: Rows, axes: tuple[Var, ...], numbers: dict[Var, int]
    ) -> tuple[Stmt, ...]:
        """The loops over the remaining reduced axes."""
        if not axes:
            return self._multiply(acc, at, panel, rows, numbers)
        a, rest = axes[0], axes[1:]
        extent = a.extent or 1

        def inner(value: Expr) -> tuple[Stmt, ...]:
            return self._nest(acc, {**at, a: value}, panel, rows, rest, numbers)

        if a is self.peel and not rows.clean:
            out: list[Stmt] = []
            for value in range(extent):
                out += self._nest(acc, {**at, a: const(value)}, panel, rows, rest, {**numbers, a: value})
            return tuple(out)
        if a in self.windows:
            conditions = self.windows[a]
            begin, end = window(a, conditions)
            known: At = dict.fromkeys(conditions, ix.TRUE)
            k = self.fresh("k", extent)
            body = self._nest(acc, {**at, **known, a: k}, panel, rows, rest, numbers)
            return (loop(k, LoopKind.SERIAL, *body, begin=ix.substitute(begin, at), end=ix.substitute(end, at)),)
        if rest:
            k = self.fresh("k", extent)
            return (loop(k, LoopKind.SERIAL, *inner(k)),)
        return self._unrolled(extent, inner)

    def _unrolled(self, extent: int, inner: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """The innermost loop, unrolled."""
        u = min(self.unroll, extent)
        out: list[Stmt] = []
        whole = extent // u
        for first, step, count in ((0, u, whole), (whole * u, extent - whole * u, 1)):
            if step == 0:
                continue
            k, j = self.fresh("k", count), self.fresh("u", step)
            base = ix.add(const(first), ix.mul(k, step)) if count > 1 else const(first)
            body: tuple[Stmt, ...] = inner(ix.add(base, j) if step > 1 else base)
            if step > 1:
                body = (loop(j, LoopKind.UNROLL, *body),)
            out += (loop(k, LoopKind.SERIAL, *body),) if count > 1 else body
        return tuple(out)

    def _multiply(self, acc: Buffer, at: At, panel: Panel, rows: Rows, numbers: dict[Var, int]) -> tuple[Stmt, ...]:
        """One step of the sum: acc[row][vector] += narrow[row] * wide[vector]."""
        p = self.p
        first, last = 0, rows.count
        if not rows.clean and self.peel is not None:
            assert p.m is not None
            first, last = valid_rows(self.border, p.m, rows.number, rows.count, numbers)
            if first == last:
                return ()
            at = {**at, **dict.fromkeys(self.border, ix.TRUE)}
        l = self.fresh("l", p.lanes)
        body: list[Stmt] = []
        wide: list[Var] = []
        for v in range(panel.vectors):
            b = var(f"b{next(self._count)}", None, p.dtype)
            point = self.point(panel, v, l)
            value = self.packed(at, ix.sub(point, panel.start)) if self.packed else self._wide(at, panel, point)
            body.append(Let(b, cast_to(value, p.dtype)))
            wide.append(b)

        def row(m: Expr) -> tuple[Stmt, ...]:
            where = {**at, p.m: ix.add(rows.start, m)} if p.m is not None else at
            a = var(f"a{next(self._count)}", None, p.dtype)
            out: list[Stmt] = [Let(a, cast_to(ix.substitute(p.narrow, where), p.dtype))]
            for v, b in enumerate(wide):
                place = self.place(panel, m, v, l)
                out.append(Store(acc, place, self.step(load(acc, (place,), p.dtype), a, b)))
            return tuple(out)

        if last - first == 1:
            body += row(const(first))
        else:
            m = self.fresh("m", last - first)
            body.append(loop(m, LoopKind.UNROLL, *row(ix.add(const(first), m))))
        return (loop(l, LoopKind.VECTOR, *body),)

    def step(self, total: Expr, a: Expr, b: Expr) -> Expr:
        """A partial sum with one more term: of an element of the narrow factor and one of the wide factor."""
        return apply("add", (total, apply("mul", (a, b), self.p.dtype)), self.p.dtype)

    def point(self, panel: Panel, v: int, l: Var) -> Expr:
        """The index along n of a lane."""
        return ix.add(panel.start, const(v * self.p.lanes), l)

    def place(self, panel: Panel, m: Expr, v: int, l: Var) -> Expr:
        """The accumulator of a row, a vector and a lane."""
        lanes = self.p.lanes
        return ix.add(ix.mul(m, panel.vectors * lanes), const(v * lanes), l)

    def _wide(self, at: At, panel: Panel, point: Expr) -> Expr:
        value = ix.substitute(self.p.wide, {**at, self.p.n: point})
        return shielded(value, self.valid(point)) if panel.partial else value

    def valid(self, point: Expr) -> Expr:
        """Whether a point of n exists."""
        return ix.less(point, const(self.p.n.extent or 1))

    # ---- the epilogue

    def _epilogue(self, acc: Buffer, at: At, panel: Panel, rows: Rows) -> tuple[Stmt, ...]:
        m = self.fresh("m", rows.count)
        row: Expr = m if rows.count > 1 else const(0)
        if self.spill is None:
            body = [self._results(acc, at, panel, rows, row, const(v)) for v in range(panel.vectors)]
            return (For(m, LoopKind.UNROLL, tuple(body)),) if rows.count > 1 else tuple(body)
        r, l = self.fresh("r", rows.count * panel.vectors), self.fresh("l", self.p.lanes)
        place = ix.add(ix.mul(r, self.p.lanes), l)
        copy = Store(self.spill, place, load(acc, (place,), self.p.dtype))
        v = self.fresh("v", panel.vectors)
        results = self._results(self.spill, at, panel, rows, row, v if panel.vectors > 1 else const(0))
        inner: Stmt = loop(v, LoopKind.SERIAL, results) if panel.vectors > 1 else results
        return (
            loop(r, LoopKind.UNROLL, loop(l, LoopKind.VECTOR, copy)),
            loop(m, LoopKind.SERIAL, inner) if rows.count > 1 else inner,
        )

    def _results(self, sums: Buffer, at: At, panel: Panel, rows: Rows, row: Expr, v: Expr) -> For:
        """All outputs at a row and a vector, from the sums that lie in a buffer."""
        p = self.p
        l = self.fresh("l", p.lanes)
        along = ix.add(ix.mul(v, p.lanes), l)
        point = ix.add(panel.start, along)
        total = load(sums, (ix.add(ix.mul(row, panel.vectors * p.lanes), along),), p.dtype)
        swap: At = {**at, p.n: point, p.total: total}
        if p.m is not None:
            swap[p.m] = ix.add(rows.start, row)
        valid = self.valid(point)
        stores: list[Stmt] = []
        for result in p.results:
            value = ix.substitute(result.value, swap)
            offset = ix.substitute(result.offset, swap)
            if panel.partial:
                value = shielded(value, valid)
            if result.padded:
                stores.append(Store(result.buffer, offset, select(valid, value, const(0, value.dtype))))
            elif valid is not ix.FALSE:
                stores.append(Store(result.buffer, offset, value, None if valid is ix.TRUE else valid))
        return loop(l, LoopKind.VECTOR, *stores)


def shielded(e: Expr, valid: Expr) -> Expr:
    """The expression with reads that could leave their memory done only where `valid` holds."""
    if valid is ix.TRUE:
        return e

    def fn(x: Expr) -> Expr | None:
        if not isinstance(x, Load) or not isinstance(x.source, Buffer) or x.source.scope is not Scope.GLOBAL:
            return None
        low, high = ix.bounds(x.index[0])
        if low >= 0 and high < x.source.size:
            return None
        guard = valid if x.guard is None else ix.both(valid, x.guard)
        return load(x.source, x.index, x.dtype, x.fill, guard)

    return rewrite(e, fn)
