"""Machine vectors for vector loops: what varies over the lanes, and how wide its arithmetic is."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator

from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Apply, Const, Expr, Load, Var, children
from autofuse.loops.ir import (
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
    expressions,
    statements,
)


def unknown(root: Expr, known: Container[Expr]) -> Iterator[Expr]:
    """The subexpressions that are not known yet, children first; whoever iterates adds each to what is known."""
    stack = [root]
    while stack:
        e = stack[-1]
        if e in known:
            stack.pop()
            continue
        below = children(e)
        missing = [c for c in below if c not in known] if below else None
        if missing:
            missing.reverse()
            stack += missing
        else:
            stack.pop()
            yield e


class Property:
    """A property that an expression has where `test` holds for it or (with `every`: and) its subexpressions, remembered."""

    def __init__(self, test: Callable[[Expr], bool], every: bool = False) -> None:
        self.test = test
        self.every = every
        self.known: dict[Expr, bool] = {}

    def __call__(self, root: Expr) -> bool:
        known = self.known
        found = known.get(root)
        if found is None:
            test, every = self.test, self.every
            for e in unknown(root, known):
                found = test(e)
                if found is every:
                    for c in children(e):
                        if known[c] is not every:
                            found = not every
                            break
                known[e] = found
            found = known[root]
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


class Widths:
    """How many lanes each vector loop gets: those of a machine vector of its widest arithmetic."""

    def __init__(self, kernel: Kernel, vector_bytes: int) -> None:
        self.bytes = vector_bytes
        self.is_position = position_property()
        self.is_loading = loading()
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
            for buffer, offset in accesses(x, self.is_loading):
                if buffer.scope is Scope.REGISTER and varying(offset):
                    users.setdefault(buffer, set()).add(id(s))
        most = max(1, self.bytes // size)
        self.width[id(s)] = 1 if diverges else math.gcd(extent, 1 << (most.bit_length() - 1))

    def __getitem__(self, s: VectorScope) -> int:
        return self.width[id(s)]


def loading() -> Property:
    """Whether an expression reads memory or registers."""
    return Property(lambda e: isinstance(e, Load))


def loads_below(root: Expr, is_loading: Property) -> Iterator[Load]:
    """Every distinct load below. Most of an expression is addresses, which hold none: those are passed over."""
    if not is_loading(root):
        return
    known = is_loading.known
    seen = {root}
    stack = [root]
    while stack:
        e = stack.pop()
        if isinstance(e, Load):
            yield e
        for c in children(e):
            if known[c] and c not in seen:
                seen.add(c)
                stack.append(c)


def accesses(s: Stmt, is_loading: Property) -> Iterator[tuple[Buffer, Expr]]:
    """The (buffer, offset) pairs that a statement itself reads or writes."""
    if isinstance(s, Store):
        yield s.buffer, s.offset
    for root in expressions(s):
        for e in loads_below(root, is_loading):
            if isinstance(e.source, Buffer):
                yield e.source, e.index[0]
