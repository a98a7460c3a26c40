"""Loops of the host, before they are text: unrolled, cut into machine vectors, with register buffers told apart.

What comes out has serial loops, branches and straight lines only. Every line knows the lane variable of the vector
loop that it stood in; all vector loops of one width share one lane variable, so that equal expressions of
neighbouring loops are the same object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from autofuse.errors import CompileError
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Apply, Const, Expr, Load, Var, children, const, var, walk
from autofuse.ir.index import substitute
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
    Scope,
    Stmt,
    Store,
    ThreadReduce,
    blocks_of,
    expressions,
    statements,
)

MOST_LINES = 16384


@dataclass(frozen=True)
class Line:
    """A Let, Store or Alloc; `lane` is the variable of the vector loop around it, or None."""

    stmt: Let | Store | Alloc
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
    return tuple(_Flattener(kernel, _Widths(kernel, vector_bytes)).block(kernel.body.body, {}, None))


def _refuse(kernel: Kernel) -> None:
    for s in statements(kernel.body):
        if not isinstance(s, (For, Let, Alloc, Store, If, Barrier, LaneReduce, ThreadReduce)):
            raise CompileError(f"kernel {kernel.family}: no rendering of {type(s).__name__} on the host yet")
        if isinstance(s, Alloc) and s.buffer.scope is Scope.FRAGMENT:
            raise CompileError(f"kernel {kernel.family}: no rendering of fragments on the host yet")
        if kernel.threads > 1 and isinstance(s, (Barrier, ThreadReduce)):
            raise CompileError(f"kernel {kernel.family}: {kernel.threads} threads with barriers do not run on the host")


# ---- what varies over the lanes


class Property:
    """A property that an expression has where `test` holds for it or (with `every`: and) its subexpressions, remembered."""

    def __init__(self, test: Callable[[Expr], bool], every: bool = False) -> None:
        self.test = test
        self.every = every
        self.known: dict[Expr, bool] = {}

    def __call__(self, root: Expr) -> bool:
        found = self.known.get(root)
        if found is None:
            for e in walk(root):
                if e not in self.known:
                    below = (self.known[c] for c in children(e))
                    own = self.test(e)
                    self.known[e] = (own and all(below)) if self.every else (own or any(below))
            found = self.known[root]
        return found


def position_property() -> Property:
    """Whether an expression is computed from loop variables alone: a position or a test of positions, not data."""
    return Property(
        lambda e: (
            e.dtype in (INDEX, DType.BOOL) and not isinstance(e, Load) and not (isinstance(e, Var) and e.extent is None)
        ),
        every=True,
    )


def value_nodes(root: Expr, is_position: Property) -> Iterator[Expr]:
    """The subexpressions that take part in arithmetic, parents first: not those of addresses, guards and positions."""
    stack = [root]
    seen: set[Expr] = set()
    while stack:
        e = stack.pop()
        if e in seen or is_position(e):
            continue
        seen.add(e)
        yield e
        if isinstance(e, Apply):
            stack.extend(e.args)


VectorScope = For | LaneReduce


class _Widths:
    """How many lanes each vector loop gets: those of a machine vector of its widest arithmetic."""

    def __init__(self, kernel: Kernel, vector_bytes: int) -> None:
        self.bytes = vector_bytes
        self.is_position = position_property()
        self.width: dict[int, int] = {}  # by id(): hashing a loop walks all of it
        users: dict[Buffer, set[int]] = {}
        for s in statements(kernel.body):
            if isinstance(s, LaneReduce):
                self._enter(s, s.lane, (s,), users)
            elif isinstance(s, For) and s.kind is LoopKind.VECTOR:
                self._enter(s, s.var, s.body, users)
        # a register buffer is one array of vectors: all loops that use it see the same width
        changed = True
        while changed:
            changed = False
            for loops in users.values():
                least = min(self.width[loop] for loop in loops)
                for loop in loops:
                    if self.width[loop] != least:
                        self.width[loop], changed = least, True

    def _enter(self, s: VectorScope, lane: Var, body: Iterable[Stmt], users: dict[Buffer, set[int]]) -> None:
        inner = [x for b in body for x in statements(b)]
        extent = int(s.stop.value) if isinstance(s, For) and isinstance(s.stop, Const) else lane.extent or 1
        lanes = {lane}
        varying = Property(lambda e: isinstance(e, Var) and e in lanes)
        size, diverges = 1, False
        for x in inner:
            if isinstance(x, Let) and varying(x.value):
                lanes.add(x.var)
            divergent = (x.condition,) if isinstance(x, If) else (x.begin, x.stop) if isinstance(x, For) else ()
            diverges = diverges or any(varying(e) for e in divergent)
            for root in expressions(x):
                if isinstance(x, Store) and root is x.offset:
                    continue
                for e in value_nodes(root, self.is_position):
                    if varying(e):
                        size = max(size, (e.dtype if isinstance(e, Load) else e.dtype.compute).itemsize)
            if isinstance(x, Store) and varying(x.offset):
                size = max(size, x.buffer.dtype.itemsize)
            for buffer, offset in accesses(x):
                if buffer.scope is Scope.REGISTER and varying(offset):
                    users.setdefault(buffer, set()).add(id(s))
        most = max(1, self.bytes // size)
        self.width[id(s)] = 1 if diverges else math.gcd(extent, 1 << (most.bit_length() - 1))

    def __getitem__(self, s: VectorScope) -> int:
        return self.width[id(s)]


def accesses(s: Stmt) -> Iterator[tuple[Buffer, Expr]]:
    """The (buffer, offset) pairs that a statement itself reads or writes."""
    if isinstance(s, Store):
        yield s.buffer, s.offset
    for root in expressions(s):
        for e in walk(root):
            if isinstance(e, Load) and isinstance(e.source, Buffer):
                yield e.source, e.index[0]


# ---- unrolling


class _Flattener:
    def __init__(self, kernel: Kernel, widths: _Widths) -> None:
        self.kernel = kernel
        self.widths = widths
        self.lines = 0
        self.fresh = 0

    def block(self, body: tuple[Stmt, ...], known: Mapping[Expr, Expr], lane: Var | None) -> Iterator[Item]:
        at = dict(known)
        for s in body:
            yield from self.statement(s, at, lane)

    def statement(self, s: Stmt, at: dict[Expr, Expr], lane: Var | None) -> Iterator[Item]:
        match s:
            case For():
                yield from self.loop(s, at, lane)
            case If():
                yield from self.branch(s, at, lane)
            case Let() | ThreadReduce():
                target = s.var if isinstance(s, Let) else s.target
                value = substitute(s.value, at)
                if isinstance(value, (Const, Var)) and value.dtype is target.dtype:
                    at[target] = value
                    return
                at[target] = self.rename(target)
                yield self.line(Let(at[target], value), lane)  # type: ignore[arg-type]
            case Store():
                guard = substitute(s.guard, at) if s.guard is not None else None
                if isinstance(guard, Const):
                    if not guard.value:
                        return
                    guard = None
                yield self.line(
                    Store(s.buffer, substitute(s.offset, at), substitute(s.value, at), guard, s.stream), lane
                )
            case Alloc():
                yield self.line(s, lane)
            case LaneReduce():
                yield self.fold(s, at, lane)
            case _:
                pass  # a barrier among one thread

    def line(self, stmt: Let | Store | Alloc, lane: Var | None) -> Line:
        self.lines += 1
        if self.lines > MOST_LINES:
            raise CompileError(f"kernel {self.kernel.family}: unrolls to more than {MOST_LINES} statements")
        return Line(stmt, lane)

    def rename(self, v: Var) -> Var:
        self.fresh += 1
        return var(f"{v.name}_{self.fresh}", v.extent, v.dtype)

    def loop(self, s: For, at: dict[Expr, Expr], lane: Var | None) -> Iterator[Item]:
        begin, end = substitute(s.begin, at), substitute(s.stop, at)
        count = ix.sub(end, begin)
        if isinstance(count, Const) and count.value <= 0:
            return
        single = isinstance(count, Const) and count.value == 1
        match s.kind:
            case LoopKind.UNROLL:
                for k in range(int(count.value) if isinstance(count, Const) else 0):
                    yield from self.block(s.body, {**at, s.var: const(k)}, lane)
            case LoopKind.VECTOR:
                width = self.widths[s]
                inner = lane_variable(width)
                for k in range(0, int(count.value) if isinstance(count, Const) else 0, width):
                    point = ix.add(inner, const(k)) if inner is not None else const(k)
                    yield from self.block(s.body, {**at, s.var: point}, inner)
            case _ if single:
                yield from self.block(s.body, {**at, s.var: begin}, lane)
            case _:
                at_var = self.rename(s.var)
                yield Loop(at_var, begin, end, tuple(self.block(s.body, {**at, s.var: at_var}, lane)))

    def branch(self, s: If, at: dict[Expr, Expr], lane: Var | None) -> Iterator[Item]:
        condition = substitute(s.condition, at)
        if isinstance(condition, Const):
            yield from self.block(s.then if condition.value else s.otherwise, at, lane)
            return
        then, otherwise = (tuple(self.block(b, at, lane)) for b in blocks_of(s))
        yield Branch(condition, then, otherwise)

    def fold(self, s: LaneReduce, at: dict[Expr, Expr], lane: Var | None) -> Fold:
        if lane is not None:
            raise CompileError(f"kernel {self.kernel.family}: a reduction over lanes inside a vector loop")
        width = self.widths[s]
        inner = lane_variable(width)
        values = []
        for k in range(0, s.lane.extent or 0, width):
            point = ix.add(inner, const(k)) if inner is not None else const(k)
            values.append(substitute(s.value, {**at, s.lane: point}))
        target = self.rename(s.target)
        at[s.target] = target
        return Fold(target, s.combine, tuple(values), inner)


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
    for stmt_lane, pairs in _all_accesses(items):
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


def _all_accesses(items: Iterable[Item]) -> Iterator[tuple[Var | None, Iterator[tuple[Buffer, Expr]]]]:
    for item in items:
        match item:
            case Line():
                yield item.lane, accesses(item.stmt)
            case Fold():
                for v in item.values:
                    yield item.lane, accesses(Let(item.target, v))
            case Loop():
                yield None, accesses(Let(item.var, ix.add(item.begin, item.end)))
                yield from _all_accesses(item.body)
            case Branch():
                yield None, accesses(If(item.condition, ()))
                yield from _all_accesses(item.then)
                yield from _all_accesses(item.otherwise)
