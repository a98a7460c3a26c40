"""Vector loops on a GPU: which loads and stores of neighbouring lanes become one access of up to 16 bytes.

A lane's accesses may be joined where its offset is the lane plus a multiple of the width, the buffer is aligned to the access, and all lanes
are guarded alike. A guard that compares such an offset with a multiple of the width is alike for all lanes in fact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Apply, Const, Expr, Load, Var, apply, const, variables, walk
from autofuse.loops.ir import Buffer, For, If, LaneReduce, Let, Scope, Stmt, Store, blocks_of, expressions, statements

ACCESS_BYTES = 16
"""The widest access of one thread."""


@dataclass(frozen=True)
class Joined:
    """An access of all lanes: from `offset` on, `lanes` elements in pieces of `width`, where `guard` holds."""

    buffer: Buffer
    offset: Expr
    lanes: int
    width: int
    guard: Expr | None


def multiple(e: Expr, at_most: int) -> int:
    """The greatest power of two up to `at_most` that divides an index expression for sure."""
    parts, constant = ix.terms(e)
    divisor = math.gcd(at_most, constant)
    for atom, c in parts:
        own = 1
        match atom:
            case Apply("mul", (a, b)):
                own = multiple(a, at_most) * multiple(b, at_most)
            case Apply("floor_mod", (a, Const(value=d))):
                own = math.gcd(multiple(a, at_most), int(d))
            case Apply("minimum" | "maximum" | "select", args):
                own = math.gcd(*(multiple(a, at_most) for a in args[-2:]))
            case _:
                pass
        divisor = math.gcd(divisor, c * own)
    return divisor


def first_lane(offset: Expr, lane: Var) -> Expr | None:
    """The offset of lane 0 where lane v is at that plus v; None where it isn't."""
    parts, constant = ix.terms(offset)
    rest: list[tuple[Expr, int]] = []
    found = False
    for atom, c in parts:
        if atom is lane and c == 1:
            found = True
        elif lane in variables(atom):
            return None
        else:
            rest.append((atom, c))
    return ix.from_terms(rest, constant) if found else None


def uniform(predicate: Expr, lane: Var, lanes: int) -> Expr | None:
    """A predicate without the lane that holds for all lanes exactly where the given one does for each; None where none is found."""
    if lane not in variables(predicate):
        return predicate
    match predicate:
        case Apply("and" | "or" as fn, (a, b)):
            left, right = uniform(a, lane, lanes), uniform(b, lane, lanes)
            return None if left is None or right is None else apply(fn, (left, right), DType.BOOL)
        case Apply("not", (a,)):
            inner = uniform(a, lane, lanes)
            return None if inner is None else apply("not", (inner,), DType.BOOL)
        case Apply("lt", (a, b)) if a.dtype is INDEX and b.dtype is INDEX:
            return _same_side(a, b, lane, lanes)
        case _:
            return None


def _same_side(a: Expr, b: Expr, lane: Var, lanes: int) -> Expr | None:
    """a < b: on one side a lane of a whole group, on the other a bound between groups."""
    base = first_lane(a, lane)
    if base is not None and lane not in variables(b):
        if multiple(base, lanes) % lanes == 0 and multiple(b, lanes) % lanes == 0:
            return apply("lt", (base, b), DType.BOOL)
    base = first_lane(b, lane)
    if base is not None and lane not in variables(a):
        if multiple(base, lanes) % lanes == 0 and multiple(ix.add(a, const(1)), lanes) % lanes == 0:
            return apply("lt", (a, base), DType.BOOL)
    return None


def join(
    buffer: Buffer,
    offset: Expr,
    guard: Expr | None,
    lane: Var,
    lanes: int,
    varying: frozenset[Var],
    expanded: Callable[[Expr], Expr],
) -> Joined | None:
    """The joined access of all lanes, or None.

    `varying` are variables that differ between lanes besides the lane itself; `expanded` says what index variables stand for.
    """
    if buffer.scope not in (Scope.GLOBAL, Scope.SHARED):
        return None
    base = first_lane(offset, lane)
    if base is None or variables(base) & varying or any(isinstance(e, Load) for e in walk(base)):
        return None
    if guard is not None:
        guard = uniform(guard, lane, lanes)
        if guard is None or variables(guard) & varying:
            return None
    size = buffer.dtype.itemsize
    most = min(ACCESS_BYTES, buffer.align) // size
    width = multiple(expanded(base), max(1, most))
    width = math.gcd(width, lanes)
    return Joined(buffer, base, lanes, width, guard) if width >= 2 else None


def reads(statement: Stmt) -> set[Buffer]:
    """The buffers that a statement or one below it loads from."""
    out: set[Buffer] = set()
    for s in statements(statement):
        for e in expressions(s):
            out |= {x.source for x in walk(e) if isinstance(x, Load) and isinstance(x.source, Buffer)}
    return out


def writes(statement: Stmt) -> set[Buffer]:
    """The buffers that a statement or one below it stores to."""
    return {s.buffer for s in statements(statement) if isinstance(s, Store)}


def mentioned(statement: Stmt) -> set[Var]:
    """The variables in a statement's expressions and in those below it."""
    return {v for s in statements(statement) for e in expressions(s) for v in variables(e)}


def sure_loads(roots: Iterable[Expr]) -> list[Load]:
    """The loads that are evaluated whatever the values are, those of other loads' offsets left out."""
    out: dict[Load, None] = {}
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        e = stack.pop(0)
        if e in seen:
            continue
        seen.add(e)
        match e:
            case Load():
                out[e] = None
            case Apply("select" | "and" | "or", args):
                stack.append(args[0])
            case Apply(_, args):
                stack.extend(args)
            case _:
                pass
    return list(out)


def inline_indices(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements with their index and guard Lets substituted, so that offsets show what they are made of."""
    known: dict[Expr, Expr] = {}
    out: list[Stmt] = []
    for s in body:
        if known:
            s = substitute(s, known)
        if isinstance(s, Let) and s.var.dtype in (INDEX, DType.BOOL) and not _loads(s.value):
            known[s.var] = s.value
        else:
            out.append(s)
    return tuple(out)


def _loads(e: Expr) -> bool:
    return any(isinstance(x, Load) for x in walk(e))


def substitute(s: Stmt, known: dict[Expr, Expr]) -> Stmt:
    """A statement that may stand in a vector loop, with expressions replaced throughout."""

    def new(e: Expr) -> Expr:
        return ix.substitute(e, known)

    match s:
        case Let():
            return Let(s.var, new(s.value))
        case Store():
            return Store(s.buffer, new(s.offset), new(s.value), None if s.guard is None else new(s.guard), s.stream)
        case If():
            return If(
                new(s.condition),
                tuple(substitute(x, known) for x in s.then),
                tuple(substitute(x, known) for x in s.otherwise),
            )
        case For():
            return For(s.var, s.kind, tuple(substitute(x, known) for x in s.body), new(s.begin), new(s.stop))
        case LaneReduce():
            return LaneReduce(s.target, s.combine, new(s.value), s.lane)
        case _:
            return s


def varies(statement: Stmt, varying: set[Var]) -> bool:
    """Whether a loop's bounds or a condition differ between lanes."""
    match statement:
        case For():
            return bool((variables(statement.begin) | variables(statement.stop)) & varying)
        case If():
            return bool(variables(statement.condition) & varying)
        case _:
            return True


def simple(body: Iterable[Stmt]) -> bool:
    """Whether a vector loop's body holds nothing but what can be dealt out to lanes statement by statement."""
    return all(
        isinstance(s, Let | Store | If | For | LaneReduce) and all(simple(b) for b in blocks_of(s)) for s in body
    )
