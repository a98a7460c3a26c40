"""The loops of a reduction on the host: vectors along the reduced axis (`inner`) or along a row axis (`outer`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autofuse.fusion.form import Anchor
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Const, Expr, Var, call, const, load, select, var
from autofuse.ir.stage import Combine
from autofuse.ir.target import Target
from autofuse.kernels.ahead import LINE, Stream, fetch, moves, streams_along
from autofuse.kernels.base import Schedule
from autofuse.kernels.nest import Nest, store
from autofuse.kernels.passes import Cached, better, identity, levels, merge, reused, shared_divisors
from autofuse.kernels.spans import lanewise, span, tasks
from autofuse.loops.ir import Alloc, Buffer, For, If, LaneReduce, Let, LoopKind, Scope, Stmt, Store, loop

At = dict[Expr, Expr]
Lane = Callable[[At, Expr], tuple[Stmt, ...]]
"""(values of axes and kept expressions, register offset) -> statements of one lane."""


def inner_loops(nest: Nest, schedule: Schedule, target: Target) -> For:
    """Every row is reduced by vectors along the last reduced axis, pass after pass."""
    return _Inner(nest, schedule, target).grid()


def outer_loops(nest: Nest, schedule: Schedule, target: Target) -> For:
    """Every lane reduces a row of its own, serially."""
    return _Outer(nest, schedule, target).grid()


class _Writer:
    def __init__(self, nest: Nest, schedule: Schedule, target: Target) -> None:
        self.nest = nest
        self.unroll = schedule.integer("unroll")
        self.task = max(1, schedule.integer("task") // max(nest.form.reduced_points, 1))
        self.passes = levels(nest.form.anchors)
        self.full = [k for k, o in enumerate(nest.form.outputs) if o.full]
        self.single = [k for k, o in enumerate(nest.form.outputs) if not o.full]
        sizes = [b.dtype.compute.itemsize for b in nest.binding.parameters]
        sizes += [a.result.dtype.itemsize for a in nest.form.anchors if not a.combine.is_arg]
        self.lanes = target.lanes(min(max(*sizes, 4), 8))
        groups: list[list[Expr]] = [[nest.bodies[a] for a in p] for p in self.passes]
        groups.append([nest.values[k] for k in self.full])
        keep = schedule.values["cache"] == "keep"
        self.stream = schedule.flag("stream")
        self.cached = reused(groups, nest.reduced) if keep else ()
        self.budget = target.l2 // 2
        self.near = target.l1 // 4
        self.fresh = itertools.count()

    def kept(self, width: int) -> dict[Cached, Buffer]:
        """Scratch for the expressions that are kept between passes, `width` rows at once; none where they don't fit."""
        points = self.nest.form.reduced_points * width
        if sum(points * c.expr.dtype.compute.itemsize for c in self.cached) > self.budget:
            return {}
        k = next(self.fresh)
        return {
            c: Buffer(f"kept{k}_{n}", c.expr.dtype.compute, points, Scope.SHARED) for n, c in enumerate(self.cached)
        }

    def point(self, at: At, kept: Mapping[Cached, Buffer], p: int, offset: Expr) -> tuple[At, list[Stmt]]:
        """Kept expressions at a point of pass p: read those of earlier passes, compute and keep this pass's."""
        here = dict(at)
        stmts: list[Stmt] = []
        for c, buffer in kept.items():
            if c.first < p:
                here[c.expr] = load(buffer, (offset,), buffer.dtype)
            elif c.first == p:
                t = var(f"t{next(self.fresh)}", None, c.expr.dtype)
                stmts += [Let(t, ix.substitute(c.expr, here)), Store(buffer, offset, t)]
                here[c.expr] = t
        return here, stmts

    def update(self, a: Anchor, acc: Sequence[Buffer], register: Expr, here: At) -> list[Stmt]:
        """Take one element into an accumulator (for ARG*: the value and its position)."""
        body = ix.substitute(self.nest.bodies[a], here)
        best = load(acc[0], (register,), acc[0].dtype)
        if not a.combine.is_arg:
            return [Store(acc[0], register, merge(a.combine, best, body))]
        t = var(f"t{next(self.fresh)}", None, body.dtype)
        w = var(f"w{next(self.fresh)}", None, DType.BOOL)
        where = load(acc[1], (register,), DType.INT64)
        position = ix.substitute(self.nest.position, here)
        return [
            Let(t, body),
            Let(w, better(a.combine, t, best)),
            Store(acc[0], register, select(w, t, best)),
            Store(acc[1], register, select(w, position, where)),
        ]

    def accumulators(self, a: Anchor, size: int) -> list[Buffer]:
        dtype = self.nest.bodies[a].dtype.compute
        k = next(self.fresh)
        acc = [Buffer(f"acc{k}", dtype, size, Scope.REGISTER)]
        if a.combine.is_arg:
            acc.append(Buffer(f"pos{k}", DType.INT64, size, Scope.REGISTER))
        return acc

    def start(self, a: Anchor, acc: Sequence[Buffer], lanes: int, unroll: int) -> list[Stmt]:
        """Allocate accumulators and give them the identity."""

        def lane(point: Expr, register: Expr) -> tuple[Stmt, ...]:
            del point
            first = Store(acc[0], register, identity(a.combine, acc[0].dtype))
            return (first, Store(acc[1], register, const(0))) if len(acc) > 1 else (first,)

        return [*(Alloc(b) for b in acc), lanewise(const(0), lanes, unroll, lane, f"z{next(self.fresh)}")]

    def over_reduced(self, axes: Sequence[Var], tag: str, body: Callable[[At], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """Serial loops over some reduced axes."""
        fresh = [var(f"{tag}{k}", a.extent) for k, a in enumerate(axes)]
        stmts = body(dict(zip(axes, fresh, strict=True)))
        for v in reversed(fresh):
            stmts = (loop(v, LoopKind.SERIAL, *stmts),)
        return stmts


@dataclass(frozen=True)
class _Row:
    """A row that is reduced: what is known of it so far, what is kept of it between passes, and the row to fetch ahead meanwhile."""

    known: At
    kept: Mapping[Cached, Buffer]
    next: At


class _Inner(_Writer):
    def __init__(self, nest: Nest, schedule: Schedule, target: Target) -> None:
        super().__init__(nest, schedule, target)
        self.together = int(schedule.values.get("together", 1))
        sums = [a.result for a in nest.form.anchors if a.combine is Combine.SUM]
        values, self.shared = shared_divisors(nest.values, sums, nest.reduced)
        self.products = replace(nest, values=values)
        self.fetched = self.last_reads() if schedule.flag("ahead") and nest.rows and nest.reduced else {}

    def last_reads(self) -> dict[int, tuple[Stream, ...]]:
        """What each pass reads for the last time, of what differs from row to row."""
        nest = self.nest
        groups: list[Sequence[Expr]] = [[nest.bodies[a] for a in p] for p in self.passes]
        groups.append([nest.values[k] for k in self.full])
        found: dict[int, tuple[Stream, ...]] = {}
        later: tuple[Stream, ...] = ()
        for p in reversed(range(len(groups))):
            known: dict[Expr, Expr] = {c.expr: const(0, c.expr.dtype) for c in self.cached if c.first < p}
            values = [ix.substitute(e, known) for e in groups[p]]
            own = moves(streams_along(values, nest.reduced[-1]), nest.rows[-1])
            found[p] = tuple(s for s in own if s not in later)
            later += own
        return found

    def grid(self) -> For:
        nest = self.nest
        n = (nest.rows[-1].extent or 0) if nest.rows else 1

        def block(outer: At, start: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
            del lanes
            if not nest.rows:
                return self.rows([_Row(dict(outer), self.kept(1), {})])
            each = [{**outer, nest.rows[-1]: ix.add(start, const(k))} for k in range(2 * unroll)]
            pairs = zip(each[:unroll], each[unroll:], strict=True)
            return self.rows([_Row(here, self.kept(1), following) for here, following in pairs])

        return tasks(nest.rows[:-1], n, 1, max(1, min(self.together, n)) if nest.rows else 1, self.task, block)

    def rows(self, rows: Sequence[_Row]) -> tuple[Stmt, ...]:
        """Neighbouring rows, pass by pass: the lanes of one are folded while the next one is read."""
        out: list[Stmt] = [Alloc(b) for r in rows for b in r.kept.values()]
        for p, anchors in enumerate(self.passes):
            for r in rows:
                out += self.one_pass(p, anchors, r)
        out += [store(self.nest, k, r.known) for r in rows for k in self.single]
        if self.full:
            for r in rows:
                out += self.write_full(r)
        return tuple(out)

    def write_full(self, r: _Row) -> tuple[Stmt, ...]:
        """The last sweep: by products with reciprocals where those are as good as the divisors that the row shares."""

        def of(nest: Nest) -> Lane:
            return lambda here, register: tuple(store(nest, k, here, self.stream) for k in self.full)

        last = len(self.passes)
        exact = self.sweep(last, r, of(self.nest))
        if not any(self.nest.values[k] is not self.products.values[k] for k in self.full):
            return exact
        lets: list[Stmt] = []
        ordinary: Expr = ix.TRUE
        inverses: At = {}
        for s in self.shared:
            inverse = var(f"inverse{next(self.fresh)}", None, s.inverse.dtype)
            divisor = ix.substitute(s.divisor, r.known)
            lets.append(Let(inverse, call("div", const(1, divisor.dtype), divisor)))
            ordinary = ix.both(ordinary, ix.substitute(s.ordinary, r.known))
            inverses[s.inverse] = inverse
        quick = self.sweep(last, replace(r, known={**r.known, **inverses}), of(self.products))
        return (*lets, If(ordinary, quick, exact))

    def fetch(self, p: int, r: _Row, outer: At, start: Expr, count: int) -> tuple[Stmt, ...]:
        """Hints for the next row, at the points that pass p is at in this one."""
        axis = self.nest.reduced[-1]
        streams = self.fetched.get(p, ())
        streams = tuple(s for s in streams if 2 * count * s.buffer.dtype.itemsize >= LINE)
        row = sum(self.nest.form.reduced_points * s.buffer.dtype.itemsize for s in streams)
        return fetch(streams, {**r.next, **outer}, axis, start, count, self.together * row > self.near)

    def one_pass(self, p: int, anchors: Sequence[Anchor], r: _Row) -> list[Stmt]:
        """Reduce all anchors of a pass in one sweep; their results are added to `known`."""
        nest, known, kept = self.nest, r.known, r.kept
        axes = nest.reduced
        n = (axes[-1].extent or 0) if axes else 1
        lanes = 1 if any(a.combine.is_arg for a in anchors) else self.lanes
        while lanes > max(n, 1):
            lanes //= 2
        unroll = max(1, min(self.unroll, n // lanes)) if lanes > 1 else 1
        wide = {a: self.accumulators(a, lanes * unroll) for a in anchors}
        narrow = {a: self.accumulators(a, 1) for a in anchors if n % lanes}
        out: list[Stmt] = []
        for a in anchors:
            out += self.start(a, wide[a], lanes, unroll)
            if a in narrow:
                out += self.start(a, narrow[a], 1, 1)
        strides = ix.flatten

        def nested(outer: At) -> tuple[Stmt, ...]:
            place = {**known, **outer}
            prefix = strides([outer[a] for a in axes[:-1]], tuple(a.extent or 0 for a in axes[:-1]))
            base = ix.mul(prefix, n)

            def take(acc: Mapping[Anchor, Sequence[Buffer]], point: Expr, register: Expr) -> tuple[Stmt, ...]:
                here = {**place, axes[-1]: point} if axes else dict(place)
                here, stmts = self.point(here, kept, p, ix.add(base, point))
                for a in anchors:
                    stmts += self.update(a, acc[a], register, here)
                return tuple(stmts)

            stmts: list[Stmt] = []
            vectors = n // lanes
            blocks, rest = divmod(vectors, unroll)
            tag = f"q{next(self.fresh)}"
            if blocks:
                x = var(f"{tag}x", blocks)
                step = lanes * unroll
                body = lanewise(ix.mul(x, step), lanes, unroll, lambda pt, reg: take(wide, pt, reg), tag)
                stmts.append(loop(x, LoopKind.SERIAL, *self.fetch(p, r, outer, ix.mul(x, step), step), body))
            if rest:
                first = const(blocks * unroll * lanes)
                stmts.append(lanewise(first, lanes, rest, lambda pt, reg: take(wide, pt, reg), f"{tag}r"))
            if n % lanes:
                t = var(f"{tag}t", n % lanes)
                point = ix.add(const(vectors * lanes), t)
                stmts.append(loop(t, LoopKind.SERIAL, *take(narrow, point, const(0))))
            return tuple(stmts)

        out += self.over_reduced(axes[:-1], f"o{next(self.fresh)}_", nested)
        for a in anchors:
            out += self.finish(a, wide[a], narrow.get(a, ()), lanes, unroll, known)
        return out

    def finish(
        self, a: Anchor, wide: Sequence[Buffer], narrow: Sequence[Buffer], lanes: int, unroll: int, known: At
    ) -> list[Stmt]:
        """Combine the accumulators of a row into one value, bound to the anchor's result.

        Pairs of vectors are combined, then pairs of pairs: nothing else can run while the next pass waits for the result.
        """
        out: list[Stmt] = []
        if a.combine.is_arg:  # one lane, and no scalar tail: the position stands in the first accumulator
            known[a.result] = load(wide[1], (const(0),), DType.INT64)
            return out
        dtype = wide[0].dtype
        total: Expr = load(wide[0], (const(0),), dtype)
        if lanes > 1:
            v = var(f"v{next(self.fresh)}", lanes)
            parts: list[Expr] = [load(wide[0], (ix.add(const(u * lanes), v),), dtype) for u in range(unroll)]
            while len(parts) > 1:
                odd = parts[len(parts) & ~1 :]
                parts = [merge(a.combine, x, y) for x, y in zip(parts[::2], parts[1::2], strict=False)] + odd
            total = var(f"s{next(self.fresh)}", None, dtype)
            out.append(LaneReduce(total, a.combine.value, parts[0], v))
        result = var(f"s{next(self.fresh)}", None, dtype)
        tail = load(narrow[0], (const(0),), dtype) if narrow else None
        out.append(Let(result, total if tail is None else merge(a.combine, total, tail)))
        known[a.result] = result
        return out

    def sweep(self, p: int, r: _Row, body: Lane) -> tuple[Stmt, ...]:
        """A pass that only stores: vectors along the last reduced axis."""
        known, kept = r.known, r.kept
        axes = self.nest.reduced
        n = (axes[-1].extent or 0) if axes else 1
        tag = f"f{next(self.fresh)}"

        def nested(outer: At) -> tuple[Stmt, ...]:
            place = {**known, **outer}
            prefix = ix.flatten([outer[a] for a in axes[:-1]], tuple(a.extent or 0 for a in axes[:-1]))
            base = ix.mul(prefix, n)

            def block(start: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
                def lane(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                    here = {**place, axes[-1]: point} if axes else dict(place)
                    here, stmts = self.point(here, kept, p, ix.add(base, point))
                    return (*stmts, *body(here, register))

                vectors = lanewise(start, lanes, unroll, lane, f"{tag}s{next(self.fresh)}")
                return (*self.fetch(p, r, outer, start, lanes * unroll), vectors)

            return span(n, self.lanes, 1, block, f"{tag}x")

        return self.over_reduced(axes[:-1], tag, nested)


class _Outer(_Writer):
    def grid(self) -> For:
        rows = self.nest.rows
        n = (rows[-1].extent or 0) if rows else 1
        return tasks(rows[:-1], n, self.lanes, self.unroll, self.task, self.block)

    def block(self, outer: At, start: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
        nest = self.nest
        width = lanes * unroll
        kept = self.kept(width)
        out: list[Stmt] = [Alloc(b) for b in kept.values()]
        results: dict[Anchor, Sequence[Buffer]] = {}

        def known(point: Expr, register: Expr) -> At:
            at = dict(outer)
            if nest.rows:
                at[nest.rows[-1]] = point
            for a, acc in results.items():
                at[a.result] = load(acc[-1], (register,), acc[-1].dtype)
            return at

        def visit(p: int, lane: Lane, reduced: At) -> tuple[Stmt, ...]:
            order = tuple(a.extent or 0 for a in nest.reduced)
            flat = ix.flatten([reduced[a] for a in nest.reduced], order)

            def one(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                at = {**known(point, register), **reduced}
                here, stmts = self.point(at, kept, p, ix.add(ix.mul(flat, width), register))
                return (*stmts, *lane(here, register))

            return (lanewise(start, lanes, unroll, one, f"l{next(self.fresh)}"),)

        for p, anchors in enumerate(self.passes):
            accs = {a: self.accumulators(a, width) for a in anchors}
            for a in anchors:
                out += self.start(a, accs[a], lanes, unroll)

            def take(here: At, register: Expr, accs: Mapping[Anchor, Sequence[Buffer]] = accs) -> tuple[Stmt, ...]:
                return tuple(s for a, acc in accs.items() for s in self.update(a, acc, register, here))

            def body(reduced: At, p: int = p, take: Lane = take) -> tuple[Stmt, ...]:
                return visit(p, take, reduced)

            out += self.over_reduced(nest.reduced, f"o{next(self.fresh)}_", body)
            results.update(accs)
        if self.single:

            def write(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                return tuple(store(nest, k, known(point, register)) for k in self.single)

            out.append(lanewise(start, lanes, unroll, write, f"w{next(self.fresh)}"))
        if self.full:

            def write_full(here: At, register: Expr) -> tuple[Stmt, ...]:
                del register
                return tuple(store(nest, k, here, self.stream) for k in self.full)

            last = len(self.passes)
            out += self.over_reduced(nest.reduced, f"o{next(self.fresh)}_", lambda r: visit(last, write_full, r))
        if isinstance(start, Const) or nest.rows:
            scope = var(f"b{next(self.fresh)}", 1)  # a block of its own, so that allocations end with it
            return (loop(scope, LoopKind.SERIAL, *out),)
        return tuple(out)
