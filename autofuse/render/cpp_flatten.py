"""Loops of the host, before they are text: unrolled, cut into machine vectors, with register buffers told apart.

What comes out has serial loops, branches and straight lines only. Every line knows the lane variable of the vector
loop that it stood in; all vector loops of one width share one lane variable, so that equal expressions of
neighbouring loops are the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autofuse.errors import CompileError
from autofuse.ir import index as ix
from autofuse.ir.expr import Const, Expr, Var, children, const, var
from autofuse.loops.ir import (
    Alloc,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    LaneReduce,
    Let,
    LoopKind,
    Prefetch,
    Scope,
    Stmt,
    Store,
    ThreadReduce,
    TransposeTile,
    blocks_of,
    statements,
)
from autofuse.render.cpp_widths import Property, Widths, accesses, loading

MOST_LINES = 16384


@dataclass(frozen=True)
class Line:
    """A Let, Store, Prefetch, Alloc or TransposeTile; `lane` is the variable of the vector loop around it, or None."""

    stmt: Let | Store | Prefetch | Alloc | TransposeTile
    lane: Var | None


@dataclass(frozen=True)
class Fold:
    """A reduction over lanes: the values are combined with one another, then over the lanes of `lane` (None: one lane)."""

    target: Var
    combine: str
    values: tuple[Expr, ...]
    lane: Var | None


@dataclass(frozen=True)
class Loop:
    """A loop at run time."""

    var: Var
    begin: Expr
    end: Expr
    body: tuple[Item, ...]


@dataclass(frozen=True)
class Branch:
    """A condition at run time, the same for all lanes."""

    condition: Expr
    then: tuple[Item, ...]
    otherwise: tuple[Item, ...]


Item = Line | Fold | Loop | Branch


def flatten_kernel(kernel: Kernel, vector_bytes: int) -> tuple[Item, ...]:
    """The body of the kernel's grid loop. CompileError where the host has no rendering of a statement."""
    _refuse(kernel)
    return tuple(_Flattener(kernel, Widths(kernel, vector_bytes)).block(kernel.body.body, _Meaning(), None))


_RENDERED = (For, Let, Alloc, Store, Prefetch, If, Barrier, LaneReduce, ThreadReduce, TransposeTile)


def _refuse(kernel: Kernel) -> None:
    for s in statements(kernel.body):
        if not isinstance(s, _RENDERED):
            raise CompileError(f"kernel {kernel.family}: no rendering of {type(s).__name__} on the host yet")
        if isinstance(s, Alloc) and s.buffer.scope is Scope.FRAGMENT:
            raise CompileError(f"kernel {kernel.family}: no rendering of fragments on the host yet")
        if kernel.threads > 1 and isinstance(s, (Barrier, ThreadReduce)):
            raise CompileError(f"kernel {kernel.family}: {kernel.threads} threads with barriers do not run on the host")


# ---- unrolling


class _Meaning:
    """What variables stand for inside a block: expressions with all of them replaced, remembered.

    A result is remembered in the outermost block whose variables suffice for it, so that the copies of an unrolled loop share
    what does not depend on the loop.
    """

    def __init__(self, outer: _Meaning | None = None) -> None:
        self.chain: tuple[_Meaning, ...] = (*outer.chain, self) if outer is not None else (self,)
        self.done: dict[Expr, tuple[Expr, int]] = {}
        self.inward = [m.done for m in reversed(self.chain)]

    def define(self, v: Var, value: Expr) -> None:
        self.done[v] = (value, len(self.chain) - 1)

    def inner(self, v: Var | None = None, value: Expr | None = None) -> _Meaning:
        """The meaning inside a nested block, where `v` stands for `value`."""
        new = _Meaning(self)
        if v is not None and value is not None:
            new.define(v, value)
        return new

    def find(self, e: Expr) -> tuple[Expr, int] | None:
        for m in self.inward:
            found = m.get(e)
            if found is not None:
                return found
        return None

    def __call__(self, root: Expr) -> Expr:
        found = self.find(root)
        stack = [root] if found is None else []
        while stack:
            e = stack[-1]
            found = self.find(e)
            if found is not None:
                stack.pop()
                continue
            known: dict[Expr, Expr] = {}
            level, missing = 0, []
            for c in children(e):
                below = self.find(c)
                if below is None:
                    missing.append(c)
                else:
                    known[c] = below[0]
                    level = max(level, below[1])
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            found = (ix.rebuilt(e, known.__getitem__), level)
            self.chain[level].done[e] = found
        assert found is not None
        return found[0]


class _Flattener:
    def __init__(self, kernel: Kernel, widths: Widths) -> None:
        self.kernel = kernel
        self.widths = widths
        self.lines = 0
        self.fresh = 0

    def block(self, body: tuple[Stmt, ...], at: _Meaning, lane: Var | None) -> Iterator[Item]:
        """The statements of a block; `at` is its own."""
        for s in body:
            yield from self.statement(s, at, lane)

    def statement(self, s: Stmt, at: _Meaning, lane: Var | None) -> Iterator[Item]:
        match s:
            case For():
                yield from self.loop(s, at, lane)
            case If():
                yield from self.branch(s, at, lane)
            case Let() | ThreadReduce():
                target = s.var if isinstance(s, Let) else s.target
                value = at(s.value)
                if isinstance(value, (Const, Var)) and value.dtype is target.dtype:
                    at.define(target, value)
                    return
                new = self.rename(target)
                at.define(target, new)
                yield self.line(Let(new, value), lane)
            case Store():
                guard = at(s.guard) if s.guard is not None else None
                if isinstance(guard, Const):
                    if not guard.value:
                        return
                    guard = None
                yield self.line(Store(s.buffer, at(s.offset), at(s.value), guard, s.stream), lane)
            case Prefetch():
                yield self.line(Prefetch(s.buffer, at(s.offset), s.far), lane)
            case Alloc() | TransposeTile():
                yield self.line(s, lane)
            case LaneReduce():
                yield self.fold(s, at, lane)
            case _:
                pass  # a barrier among one thread

    def line(self, stmt: Let | Store | Prefetch | Alloc | TransposeTile, lane: Var | None) -> Line:
        self.lines += 1
        if self.lines > MOST_LINES:
            raise CompileError(f"kernel {self.kernel.family}: unrolls to more than {MOST_LINES} statements")
        return Line(stmt, lane)

    def rename(self, v: Var) -> Var:
        self.fresh += 1
        return var(f"{v.name}_{self.fresh}", v.extent, v.dtype)

    def loop(self, s: For, at: _Meaning, lane: Var | None) -> Iterator[Item]:
        begin, end = at(s.begin), at(s.stop)
        count = ix.sub(end, begin)
        if isinstance(count, Const) and count.value <= 0:
            return
        single = isinstance(count, Const) and count.value == 1
        steps = int(count.value) if isinstance(count, Const) else 0
        match s.kind:
            case LoopKind.UNROLL:
                for k in range(steps):
                    yield from self.block(s.body, at.inner(s.var, const(k)), lane)
            case LoopKind.VECTOR:
                for inner, point in self.vectors(self.widths[s], steps):
                    yield from self.block(s.body, at.inner(s.var, point), inner)
            case _ if single:
                yield from self.block(s.body, at.inner(s.var, begin), lane)
            case _:
                new = self.rename(s.var)
                yield Loop(new, begin, end, tuple(self.block(s.body, at.inner(s.var, new), lane)))

    def vectors(self, width: int, lanes: int) -> Iterator[tuple[Var | None, Expr]]:
        """The lane variable of each machine vector, and the lane of the loop that it stands for."""
        lane = lane_variable(width)
        for k in range(0, lanes, width):
            yield lane, (ix.add(lane, const(k)) if lane is not None else const(k))

    def branch(self, s: If, at: _Meaning, lane: Var | None) -> Iterator[Item]:
        condition = at(s.condition)
        if isinstance(condition, Const):
            yield from self.block(s.then if condition.value else s.otherwise, at.inner(), lane)
            return
        then, otherwise = (tuple(self.block(b, at.inner(), lane)) for b in blocks_of(s))
        yield Branch(condition, then, otherwise)

    def fold(self, s: LaneReduce, at: _Meaning, lane: Var | None) -> Fold:
        if lane is not None:
            raise CompileError(f"kernel {self.kernel.family}: a reduction over lanes inside a vector loop")
        width = self.widths[s]
        points = [point for _, point in self.vectors(width, s.lane.extent or 0)]
        values = tuple(at.inner(s.lane, point)(s.value) for point in points)
        target = self.rename(s.target)
        at.define(s.target, target)
        return Fold(target, s.combine, values, lane_variable(width))


def lane_variable(width: int) -> Var | None:
    """The one lane variable of that width; None for a single lane, which is no vector."""
    return var(f"lane{width}", width) if width > 1 else None


# ---- register buffers


@dataclass(frozen=True)
class Register:
    """How a REGISTER buffer is kept: `width` lanes each in named variables (1: scalars), or (0) as an array in memory."""

    width: int


def registers(items: Iterable[Item]) -> dict[Buffer, Register]:
    """How each register buffer of a flattened kernel is kept."""
    uses: dict[Buffer, list[tuple[int, Expr, Var | None]]] = {}
    for stmt_lane, pairs in _all_accesses(items, loading()):
        for buffer, offset in pairs:
            if buffer.scope is Scope.REGISTER:
                coefficient = dict(ix.terms(offset)[0]).get(stmt_lane, 0) if stmt_lane is not None else 0
                uses.setdefault(buffer, []).append((coefficient, offset, stmt_lane))
    return {buffer: _keep(found) for buffer, found in uses.items()}


def _keep(found: list[tuple[int, Expr, Var | None]]) -> Register:
    widths = {lane.extent for c, _, lane in found if c == 1 and lane is not None}
    if len(widths) > 1:
        return Register(0)
    width = widths.pop() or 1 if widths else 1
    for c, offset, lane in found:
        parts, base = ix.terms(offset)
        rest = [a for a, _ in parts if a is not lane]
        if rest or (c != 0 and not (c == 1 and base % width == 0)):
            return Register(0)
    return Register(width)


def _all_accesses(
    items: Iterable[Item], is_loading: Property
) -> Iterator[tuple[Var | None, Iterator[tuple[Buffer, Expr]]]]:
    for item in items:
        match item:
            case Line():
                yield item.lane, accesses(item.stmt, is_loading)
            case Fold():
                for v in item.values:
                    yield item.lane, accesses(Let(item.target, v), is_loading)
            case Loop():
                yield None, accesses(Let(item.var, ix.add(item.begin, item.end)), is_loading)
                yield from _all_accesses(item.body, is_loading)
            case Branch():
                yield None, accesses(If(item.condition, ()), is_loading)
                yield from _all_accesses(item.then, is_loading)
                yield from _all_accesses(item.otherwise, is_loading)
