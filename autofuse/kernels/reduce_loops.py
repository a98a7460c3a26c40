"""The loops of a reduction on the host: vectors along the reduced axis (`inner`) or along a row axis (`outer`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from autofuse.fusion.form import Anchor
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Const, Expr, Var, const, load, select, var
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule
from autofuse.kernels.nest import Nest, store
from autofuse.kernels.passes import Cached, better, identity, levels, merge, reused
from autofuse.kernels.spans import lanewise, span, tasks
from autofuse.loops.ir import Alloc, Buffer, For, LaneReduce, Let, LoopKind, Scope, Stmt, Store, loop

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


class _Inner(_Writer):
    def grid(self) -> For:
        nest = self.nest
        n = (nest.rows[-1].extent or 0) if nest.rows else 1

        def block(outer: At, start: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
            del lanes, unroll
            return self.row({**outer, nest.rows[-1]: start} if nest.rows else dict(outer))

        return tasks(nest.rows[:-1], n, 1, 1, self.task, block)

    def row(self, at: At) -> tuple[Stmt, ...]:
        kept = self.kept(1)
        out: list[Stmt] = [Alloc(b) for b in kept.values()]
        known = dict(at)
        for p, anchors in enumerate(self.passes):
            out += self.one_pass(p, anchors, known, kept)
        out += [store(self.nest, k, known) for k in self.single]
        if self.full:

            def lane(here: At, register: Expr) -> tuple[Stmt, ...]:
                del register
                return tuple(store(self.nest, k, here, self.stream) for k in self.full)

            out += self.sweep(len(self.passes), known, kept, lane)
        return tuple(out)

    def one_pass(self, p: int, anchors: Sequence[Anchor], known: At, kept: Mapping[Cached, Buffer]) -> list[Stmt]:
        """Reduce all anchors of a pass in one sweep; their results are added to `known`."""
        nest = self.nest
        axes = nest.reduced
        n = (axes[-1].extent or 0) if axes else 1
        lanes = 1 if any(a.combine.is_arg for a in anchors) else self.lanes
        while lanes > max(n, 1):
            lanes //= 2
        unroll = max(1, min(self.unroll, n // lanes)) if lanes > 1 else 1
        wide = {a: self.accumulators(a, lanes * unroll) for a in anchors}
        narrow = {a: self.accumulators(a, 1) for a in anchors}
        out: list[Stmt] = []
        for a in anchors:
            out += [*self.start(a, wide[a], lanes, unroll), *self.start(a, narrow[a], 1, 1)]
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
                stmts.append(loop(x, LoopKind.SERIAL, body))
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
            out += self.finish(a, wide[a], narrow[a], lanes, unroll, known)
        return out

    def finish(
        self, a: Anchor, wide: Sequence[Buffer], narrow: Sequence[Buffer], lanes: int, unroll: int, known: At
    ) -> list[Stmt]:
        """Combine the accumulators of a row into one value, bound to the anchor's result."""
        out: list[Stmt] = []
        if a.combine.is_arg:  # one lane, and no scalar tail: the position stands in the first accumulator
            known[a.result] = load(wide[1], (const(0),), DType.INT64)
            return out
        dtype = wide[0].dtype
        total: Expr = load(wide[0], (const(0),), dtype)
        if lanes > 1:
            v = var(f"v{next(self.fresh)}", lanes)
            partial: Expr = load(wide[0], (v,), dtype)
            for u in range(1, unroll):
                partial = merge(a.combine, partial, load(wide[0], (ix.add(const(u * lanes), v),), dtype))
            total = var(f"s{next(self.fresh)}", None, dtype)
            out.append(LaneReduce(total, a.combine.value, partial, v))
        result = var(f"s{next(self.fresh)}", None, dtype)
        out.append(Let(result, merge(a.combine, total, load(narrow[0], (const(0),), dtype))))
        known[a.result] = result
        return out

    def sweep(self, p: int, known: At, kept: Mapping[Cached, Buffer], body: Lane) -> tuple[Stmt, ...]:
        """A pass that only stores: vectors along the last reduced axis."""
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

                return (lanewise(start, lanes, unroll, lane, f"{tag}s{next(self.fresh)}"),)

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
