"""Windows on the host: each lane reduces a row of its own, a register block over neighbouring rows shares what they read.

Pooling, depthwise convolutions and column sums are of this kind. The block lies along the innermost row axis where that is longer than a
vector, else along the one before it (the pixels of a blocked layout). Blocks away from the borders carry no guards along that
axis; what all lanes of a block skip is skipped by a branch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from autofuse.fusion.form import Anchor, Form
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, apply, const, load, loads, var, variables
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Combine
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule
from autofuse.kernels.contract_roles import dimension
from autofuse.kernels.contract_window import Segment, holds, segments
from autofuse.kernels.nest import Nest, store
from autofuse.kernels.passes import identity, levels, merge
from autofuse.kernels.spans import cover
from autofuse.loops.ir import Alloc, Buffer, For, If, LoopKind, Scope, Stmt, Store, loop

At = dict[Expr, Expr]

UNROLLED = 64
"""Up to so many updates are written out one after the other, so that neighbouring rows share loads."""


def is_window(nest: Nest) -> bool:
    """Whether a nest is one pass of plain reductions, a value for each row and no more."""
    form = nest.form
    return (
        bool(nest.rows)
        and form.row_points * form.reduced_points > 0
        and len(levels(form.anchors)) == 1
        and not any(o.full for o in form.outputs)
        and not any(a.combine.is_arg for a in form.anchors)
    )


def window_loops(nest: Nest, schedule: Schedule, target: Target) -> For:
    """The whole kernel."""
    return _Window(nest, schedule, target).grid()


def constant_layouts(form: Form, ins: tuple[Layout, ...], outs: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """Input layouts in which constants (the weights of a depthwise convolution) have the lanes' axis innermost."""
    lane = _lane_axis(form, outs)
    if lane is None:
        return ins
    out = list(ins)
    for a in form.anchors:
        for ld in loads(a.body):
            k = ld.source
            if not isinstance(k, int) or not form.program.inputs[k].constant:
                continue
            d = dimension(ld.index, lane)
            if d is not None and d < len(ld.index) - 1:
                out[k] = Layout.permuted((*(x for x in range(len(ld.index)) if x != d), d))
    return tuple(out)


def _lane_axis(form: Form, outs: tuple[Layout, ...]) -> Var | None:
    """The row axis that lies innermost in the first output."""
    o = form.outputs[0]
    for d, n in reversed(list(zip(outs[0].dims, outs[0].extents(o.shape), strict=True))):
        if n > 1:
            axis = o.index[d.axis]
            return axis if isinstance(axis, Var) else None
    return None


def best_block(nest: Nest, target: Target) -> int:
    """Rows (or vectors of rows) of the register block: as many as share much and leave few over."""
    lanes = target.lanes(4)
    if not nest.rows:
        return 1
    n = nest.rows[-1].extent or 1
    if n > lanes or len(nest.rows) == 1:
        return max(1, min(4, n // lanes))
    n = nest.rows[-2].extent or 1
    return min((-(-n // u) * u, -u) for u in (4, 5, 6, 7, 8) if u <= max(n, 4))[1] * -1


def neutral(e: Expr, combine: Combine, dtype: DType) -> frozenset[Expr]:
    """The comparisons without which an element changes nothing in a reduction."""
    same = identity(combine, dtype)
    match e:
        case Load(guard=guard) if guard is not None and isinstance(same, Const) and e.fill == same.value:
            return frozenset(_conjunction(guard))
        case Apply("select", (c, a, Const(value=v))) if isinstance(same, Const) and v == same.value:
            return frozenset(_conjunction(c)) | neutral(a, combine, dtype)
        case Apply("cast", (a,)) if a.dtype.compute is dtype and a.dtype.has_zero:
            return neutral(a, combine, dtype)
        case Apply("mul", (a, b)) if combine is Combine.SUM and dtype.is_float:
            return neutral(a, combine, dtype) | neutral(b, combine, dtype)
        case _:
            return frozenset()


def _conjunction(c: Expr) -> tuple[Expr, ...]:
    match c:
        case Apply("and", (a, b)):
            return (*_conjunction(a), *_conjunction(b))
        case _:
            return (c,)


class _Window:
    def __init__(self, nest: Nest, schedule: Schedule, target: Target) -> None:
        self.nest = nest
        self.unroll = schedule.integer("unroll")
        self.task = schedule.integer("task")
        self.stream = schedule.flag("stream")
        sizes = [b.dtype.compute.itemsize for b in nest.binding.parameters]
        sizes += [a.result.dtype.itemsize for a in nest.form.anchors]
        lanes = target.lanes(min(max(*sizes, 4), 8))
        self.lane = nest.rows[-1]
        n = self.lane.extent or 1
        along = n > lanes or len(nest.rows) == 1
        self.axis = self.lane if along else nest.rows[-2]
        self.outer = nest.rows[:-1] if along else nest.rows[:-2]
        self.vectors = [(0, lanes)] if along else cover(n, lanes)
        self.step = (lanes if along else 1) * self.unroll
        self.along = along
        self.lanes = lanes
        found = [neutral(nest.bodies[a], a.combine, nest.bodies[a].dtype.compute) for a in nest.form.anchors]
        self.guards = sorted(frozenset.intersection(*found), key=_text)
        self.fresh = itertools.count()

    # ---- the grid

    def grid(self) -> For:
        n = self.axis.extent or 1
        whole = n - n % self.lanes if self.along else n
        found = segments(whole, self.step, self._clean) if whole else []
        # the last vector of a long axis reaches back over rows that are done: it writes the same values again
        tails = [(n - self.lanes, self.lanes)] if 0 < whole < n else [] if whole else cover(n, self.lanes)
        tiles = sum(s.count for s in found)
        rows = math.prod(a.extent or 1 for a in self.outer)
        points = self.nest.form.reduced_points * (self.lane.extent or 1 if not self.along else 1)
        shape = tuple(a.extent or 1 for a in self.outer)

        def place(flat: Expr) -> At:
            return dict(zip(self.outer, ix.unflatten(flat, shape), strict=True))

        if tiles > 1 and (n * points >= 2 * self.task or rows == 1):
            size = max(1, self.task // (self.step * points))
            blocks = -(-tiles // size)
            g = var("g", rows * blocks)
            which = ix.floor_mod(g, blocks)
            at = place(ix.floor_div(g, blocks))
            out = [s for segment in found for s in self._part(segment, which, size, at)]
            last: tuple[Stmt, ...] = self._tails(tails, at)
            if last:
                end = apply("eq", (which, const(blocks - 1)), DType.BOOL)
                out += last if blocks == 1 else (If(end, last),)
            return For(g, LoopKind.GRID, tuple(out))
        each = max(1, min(rows, self.task // max(1, n * points)))
        g = var("g", -(-rows // each))

        def row(flat: Expr) -> tuple[Stmt, ...]:
            at = place(flat)
            return (*(s for segment in found for s in self._whole(segment, at)), *self._tails(tails, at))

        if each == 1:
            return For(g, LoopKind.GRID, row(g))
        o = var("o", each)
        end_row = None if rows % each == 0 else ix.minimum(const(each), ix.sub(const(rows), ix.mul(g, each)))
        return loop(g, LoopKind.GRID, loop(o, LoopKind.SERIAL, *row(ix.add(ix.mul(g, each), o)), end=end_row))

    def _clean(self, start: int, size: int) -> bool:
        """Whether a block touches no border along its axis."""
        inside = ix.add(const(start), var("wtest", size)) if size > 1 else const(start)
        return all(holds(c, {self.axis: inside}) for c in self.guards if self.axis in variables(c))

    def _whole(self, s: Segment, at: At) -> tuple[Stmt, ...]:
        if s.count == 1:
            return self._tile(const(s.first * s.step), s.size, at)
        t = var(f"t{next(self.fresh)}", s.count)
        return (loop(t, LoopKind.SERIAL, *self._tile(ix.mul(ix.add(t, const(s.first)), s.step), s.size, at)),)

    def _part(self, s: Segment, which: Expr, size: int, at: At) -> tuple[Stmt, ...]:
        """The tiles of a segment that lie in a task's block of `size` tiles."""
        low = ix.mul(which, size)
        if s.count == 1:
            mine = apply("eq", (which, const(s.first // size)), DType.BOOL)
            return (If(mine, self._tile(const(s.first * s.step), s.size, at)),)
        t = var(f"t{next(self.fresh)}", s.count)
        begin = ix.maximum(const(0), ix.sub(low, const(s.first)))
        end = ix.minimum(const(s.count), ix.sub(ix.add(low, const(size)), const(s.first)))
        body = self._tile(ix.mul(ix.add(t, const(s.first)), s.step), s.size, at)
        return (loop(t, LoopKind.SERIAL, *body, begin=begin, end=end),)

    def _tails(self, tails: Sequence[tuple[int, int]], at: At) -> tuple[Stmt, ...]:
        return tuple(s for start, width in tails for s in self._block(const(start), 1, 0, width, at))

    # ---- a tile

    def _tile(self, start: Expr, size: int, at: At) -> tuple[Stmt, ...]:
        """A register block for each vector of the lanes."""
        out: list[Stmt] = []
        for first, width in self.vectors:
            out += self._block(start, size // self.lanes if self.along else size, first, width, at)
        return tuple(out)

    def _block(self, start: Expr, count: int, first: int, width: int, at: At) -> tuple[Stmt, ...]:
        """`count` vectors of `width` rows: accumulators, the reduction, the stores."""
        nest = self.nest
        anchors = nest.form.anchors
        accs = {
            a: Buffer(f"acc{next(self.fresh)}", nest.bodies[a].dtype.compute, count * width, Scope.REGISTER)
            for a in anchors
        }

        def lanewise(make: Callable[[At, Expr], tuple[Stmt, ...]]) -> Stmt:
            """`make(place, register)` for each row of the block."""
            tag = next(self.fresh)
            u, l = var(f"u{tag}", count), var(f"l{tag}", width)
            register = ix.add(ix.mul(u, width), l)
            if self.along:
                where: At = {**at, self.lane: ix.add(start, register)}
            else:
                where = {**at, self.axis: ix.add(start, u), self.lane: ix.add(const(first), l)}
            return loop(u, LoopKind.UNROLL, loop(l, LoopKind.VECTOR, *make(where, register)))

        def zero(where: At, register: Expr) -> tuple[Stmt, ...]:
            del where
            return tuple(Store(accs[a], register, identity(a.combine, accs[a].dtype)) for a in anchors)

        def take(known: At) -> tuple[Stmt, ...]:
            def update(where: At, register: Expr) -> tuple[Stmt, ...]:
                return tuple(self._update(a, accs[a], register, {**where, **known}) for a in anchors)

            if self.along or not isinstance(start, Const):
                return (lanewise(update),)
            # a block at a known place may lie at a border: rows that an element adds nothing to are left out
            out: list[Stmt] = []
            for u in range(count):
                l = var(f"l{next(self.fresh)}", width)
                where: At = {**at, **known, self.axis: const(int(start.value) + u), self.lane: ix.add(const(first), l)}
                if not any(ix.substitute(c, where) is ix.FALSE for c in self.guards):
                    out.append(loop(l, LoopKind.VECTOR, *update(where, ix.add(const(u * width), l))))
            return tuple(out)

        def write(where: At, register: Expr) -> tuple[Stmt, ...]:
            done: At = {a.result: load(acc, (register,), acc.dtype) for a, acc in accs.items()}
            return tuple(store(nest, k, {**where, **done}, self.stream) for k in range(len(nest.form.outputs)))

        body = (
            *(Alloc(b) for b in accs.values()),
            lanewise(zero),
            *self._reduce(nest.reduced, {}, at, self._unrolled(count), take),
            lanewise(write),
        )
        scope = var(f"b{next(self.fresh)}", 1)  # a block of its own, so that accumulators end with it
        return (loop(scope, LoopKind.SERIAL, *body),)

    def _update(self, a: Anchor, acc: Buffer, register: Expr, here: At) -> Stmt:
        best = load(acc, (register,), acc.dtype)
        return Store(acc, register, merge(a.combine, best, ix.substitute(self.nest.bodies[a], here)))

    def _unrolled(self, count: int) -> frozenset[Var]:
        """The reduced axes that are written out: the innermost ones, while the text stays short."""
        out: list[Var] = []
        total = count * len(self.nest.form.anchors)
        for a in reversed(self.nest.reduced):
            total *= a.extent or 1
            if total > UNROLLED:
                break
            out.append(a)
        return frozenset(out)

    def _reduce(
        self, axes: Sequence[Var], known: At, at: At, unrolled: frozenset[Var], take: Callable[[At], tuple[Stmt, ...]]
    ) -> tuple[Stmt, ...]:
        """Loops over the reduced axes, each entered only where its guards hold for the whole block."""
        if not axes:
            return take(known)
        axis, rest = axes[0], axes[1:]
        settled = {*self.outer, *self.nest.reduced[: len(self.nest.reduced) - len(rest)]}
        mine = [c for c in self.guards if axis in variables(c) and variables(c) <= settled]
        swap: At = {**at, **known}

        def once(value: Expr) -> tuple[Stmt, ...]:
            here: At = {**known, axis: value, **dict.fromkeys(mine, ix.TRUE)}
            body = self._reduce(rest, here, at, unrolled, take)
            condition: Expr = ix.TRUE
            for c in mine:
                condition = ix.both(condition, ix.substitute(c, {**swap, axis: value}))
            if condition is ix.TRUE:
                return body
            return () if isinstance(condition, Const) else (If(condition, body),)

        if axis in unrolled:
            return tuple(s for k in range(axis.extent or 1) for s in once(const(k)))
        k = var(f"k{next(self.fresh)}", axis.extent)
        return (loop(k, LoopKind.SERIAL, *once(k)),)


def _text(e: Expr) -> str:
    match e:
        case Apply():
            return f"{e.fn}({','.join(_text(a) for a in e.args)})"
        case Const():
            return repr(e.value)
        case Var():
            return e.name
        case _:
            return ""
