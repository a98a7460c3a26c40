"""Index arithmetic: simplification under the ranges of the axis variables.

An index is kept as a sum of coefficient x atom, an atom being a variable, a quotient, a remainder or something opaque.
Quotients and remainders fold where the ranges prove it, which is what turns a read through Reshape, Transpose and a
blocked layout into one affine address. The rules are those of integer division rounding down (Granlund and
Montgomery; the same normal form is used by Halide and tinygrad).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from autofuse.ir.dtype import DType
from autofuse.ir.expr import (
    INDEX,
    Apply,
    Const,
    Expr,
    Load,
    Var,
    apply,
    const,
    load,
    select,
    walk,
)

Terms = tuple[tuple[Expr, int], ...]
_BIG = 1 << 62


@lru_cache(maxsize=1 << 16)
def bounds(e: Expr) -> tuple[int, int]:
    """The least and greatest value that an index expression can take (inclusive)."""
    match e:
        case Const():
            return int(e.value), int(e.value)
        case Var():
            return (0, max(e.extent - 1, 0)) if e.extent is not None else (-_BIG, _BIG)
        case Apply("add", (a, b)):
            (al, ah), (bl, bh) = bounds(a), bounds(b)
            return al + bl, ah + bh
        case Apply("sub", (a, b)):
            (al, ah), (bl, bh) = bounds(a), bounds(b)
            return al - bh, ah - bl
        case Apply("mul", (a, b)):
            corners = [x * y for x in bounds(a) for y in bounds(b)]
            return min(corners), max(corners)
        case Apply("floor_div", (a, Const(value=d))) if d > 0:
            lo, hi = bounds(a)
            return lo // int(d), hi // int(d)
        case Apply("floor_mod", (a, Const(value=d))) if d > 0:
            lo, hi = bounds(a)
            return (lo, hi) if lo >= 0 and hi < d else (0, int(d) - 1)
        case Apply("minimum", (a, b)):
            (al, ah), (bl, bh) = bounds(a), bounds(b)
            return min(al, bl), min(ah, bh)
        case Apply("maximum", (a, b)):
            (al, ah), (bl, bh) = bounds(a), bounds(b)
            return max(al, bl), max(ah, bh)
        case Apply("select", (_, a, b)):
            (al, ah), (bl, bh) = bounds(a), bounds(b)
            return min(al, bl), max(ah, bh)
        case _:
            return -_BIG, _BIG


@lru_cache(maxsize=1 << 16)
def terms(e: Expr) -> tuple[Terms, int]:
    """An index expression as (((atom, coefficient), ...), constant)."""
    found: dict[Expr, int] = {}
    constant = 0
    stack: list[tuple[Expr, int]] = [(e, 1)]
    while stack:
        x, c = stack.pop()
        match x:
            case Const():
                constant += c * int(x.value)
            case Var(extent=1):
                pass
            case Apply("add", (a, b)):
                stack += [(b, c), (a, c)]
            case Apply("sub", (a, b)):
                stack += [(b, -c), (a, c)]
            case Apply("mul", (a, Const(value=k))) | Apply("mul", (Const(value=k), a)):
                stack.append((a, c * int(k)))
            case _:
                found[x] = found.get(x, 0) + c
    return tuple((a, c) for a, c in found.items() if c), constant


def from_terms(parts: Iterable[tuple[Expr, int]], constant: int) -> Expr:
    """The expression of a sum, with its terms in a stable order (greatest stride first)."""
    ordered = sorted(((a, c) for a, c in parts if c), key=lambda t: (-abs(t[1]), _order(t[0])))
    out: Expr | None = None
    for atom, c in ordered:
        term = atom if c == 1 else apply("mul", (atom, const(c)), INDEX)
        out = term if out is None else apply("add", (out, term), INDEX)
    if out is None:
        return const(constant)
    return out if constant == 0 else apply("add", (out, const(constant)), INDEX)


@lru_cache(maxsize=1 << 15)
def _order(e: Expr) -> str:
    match e:
        case Var():
            return e.name
        case Apply():
            return e.fn + "(" + ",".join(_order(a) for a in e.args) + ")"
        case Load():
            return f"load{e.source}" + ",".join(_order(a) for a in e.index)
        case Const():
            return repr(e.value)


def add(*xs: Expr) -> Expr:
    """The sum, in normal form."""
    merged: dict[Expr, int] = {}
    constant = 0
    for x in xs:
        parts, c = terms(x)
        constant += c
        for atom, k in parts:
            merged[atom] = merged.get(atom, 0) + k
    return _recombine(merged, constant)


def _recombine(merged: dict[Expr, int], constant: int) -> Expr:
    """Fold c*d*(x // d) + c*(x % d) back into c*x."""
    for atom in list(merged):
        match atom:
            case Apply("floor_mod", (x, Const(value=d))):
                c = merged.get(atom, 0)
                quotient = floor_div(x, int(d))
                q_parts, q_const = terms(quotient)
                if len(q_parts) == 1 and q_const == 0 and q_parts[0][1] == 1 and c:
                    q = q_parts[0][0]
                    if merged.get(q, 0) == c * int(d):
                        del merged[atom], merged[q]
                        return add(from_terms(merged.items(), constant), mul(x, c))
            case _:
                pass
    return from_terms(merged.items(), constant)


def sub(a: Expr, b: Expr) -> Expr:
    """The difference, in normal form."""
    return add(a, mul(b, -1))


def mul(a: Expr, b: Expr | int) -> Expr:
    """The product; by a constant it is distributed over the sum."""
    if isinstance(b, int):
        b = const(b)
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const):
        k = int(b.value)
        parts, c = terms(a)
        return from_terms(((atom, x * k) for atom, x in parts), c * k)
    return apply("mul", (a, b), INDEX)


@lru_cache(maxsize=1 << 16)
def floor_div(a: Expr, d: int) -> Expr:
    """a // d, rounding down, d > 0."""
    if d == 1:
        return a
    parts, constant = terms(a)
    whole = [(atom, c // d) for atom, c in parts if c % d == 0]
    rest = [(atom, c) for atom, c in parts if c % d]
    rest_constant = constant % d
    out_constant = constant // d
    remainder = from_terms(rest, rest_constant)
    lo, hi = bounds(remainder)
    if lo // d == hi // d:
        return from_terms(whole, out_constant + lo // d)
    g = math.gcd(d, *(c for _, c in rest))
    if g > 1:
        # rest_constant % g cannot reach the next multiple of g: floor((g*y + r) / d) = floor(y / (d/g)), 0 <= r < g
        inner = from_terms([(atom, c // g) for atom, c in rest], rest_constant // g)
        return add(from_terms(whole, out_constant), floor_div(inner, d // g))
    coarse = _coarse(rest, rest_constant, d)
    if coarse is not None:
        g, outer, _ = coarse
        return add(from_terms(whole, out_constant), floor_div(outer, d // g))
    match remainder:
        case Apply("floor_div", (x, Const(value=e))) if e > 0:
            return add(from_terms(whole, out_constant), floor_div(x, int(e) * d))
        case Apply("floor_mod", (x, Const(value=e))) if e > 0 and int(e) % d == 0:
            return add(from_terms(whole, out_constant), floor_mod(floor_div(x, d), int(e) // d))
        case _:
            quotient = apply("floor_div", (remainder, const(d)), INDEX)
            return add(from_terms(whole, out_constant), quotient)


def _coarse(rest: list[tuple[Expr, int]], constant: int, d: int) -> tuple[int, Expr, Expr] | None:
    """A sum as g*y + s with 0 <= s < g and g a divisor of d, as (g, y, s), so that the sum // d is y // (d/g); None where there is none."""
    ordered = sorted(rest, key=lambda t: (-abs(t[1]), _order(t[0])))
    g = d
    for k in range(1, len(ordered)):
        g = math.gcd(g, ordered[k - 1][1])
        if g == 1:
            return None
        small = from_terms(ordered[k:], constant)
        lo, hi = bounds(small)
        if lo // g == hi // g:
            q = lo // g
            return g, from_terms([(atom, c // g) for atom, c in ordered[:k]], q), add(small, const(-q * g))
    return None


@lru_cache(maxsize=1 << 16)
def floor_mod(a: Expr, d: int) -> Expr:
    """a mod d with the sign of d, d > 0."""
    if d == 1:
        return const(0)
    parts, constant = terms(a)
    rest = [(atom, c % d) if abs(c) >= d else (atom, c) for atom, c in parts if c % d]
    remainder = from_terms(rest, constant % d)
    lo, hi = bounds(remainder)
    if lo // d == hi // d:
        return add(remainder, const(-(lo // d) * d))
    g = math.gcd(d, *(c for _, c in rest))
    if g > 1:
        r = constant % d
        inner = from_terms([(atom, c // g) for atom, c in rest], r // g)
        return add(mul(floor_mod(inner, d // g), g), const(r % g))
    coarse = _coarse(rest, constant % d, d)
    if coarse is not None:
        g, outer, small = coarse
        return add(mul(floor_mod(outer, d // g), g), small)
    match remainder:
        case Apply("floor_mod", (x, Const(value=e))) if e > 0 and int(e) % d == 0:
            return floor_mod(x, d)
        case _:
            return apply("floor_mod", (remainder, const(d)), INDEX)


def minimum(a: Expr, b: Expr) -> Expr:
    """The lesser, folded where the ranges decide."""
    if bounds(a)[1] <= bounds(b)[0]:
        return a
    if bounds(b)[1] <= bounds(a)[0]:
        return b
    return apply("minimum", (a, b), INDEX)


def maximum(a: Expr, b: Expr) -> Expr:
    """The greater, folded where the ranges decide."""
    if bounds(a)[0] >= bounds(b)[1]:
        return a
    if bounds(b)[0] >= bounds(a)[1]:
        return b
    return apply("maximum", (a, b), INDEX)


TRUE = const(True, DType.BOOL)
FALSE = const(False, DType.BOOL)


def less(a: Expr, b: Expr) -> Expr:
    """a < b, folded where the ranges decide."""
    lo, hi = bounds(sub(a, b))
    if hi < 0:
        return TRUE
    if lo >= 0:
        return FALSE
    return apply("lt", (a, b), DType.BOOL)


def both(a: Expr, b: Expr) -> Expr:
    """Logical and of two predicates."""
    if isinstance(a, Const):
        return b if a.value else FALSE
    if isinstance(b, Const):
        return a if b.value else FALSE
    return a if a is b else apply("and", (a, b), DType.BOOL)


def in_range(index: Iterable[Expr], shape: Iterable[int]) -> Expr:
    """The predicate that every index lies inside its dimension."""
    out: Expr = TRUE
    for i, n in zip(index, shape, strict=True):
        out = both(out, both(less(const(-1), i), less(i, const(n))))
    return out


_TESTS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "lt": less,
    "ge": lambda a, b: negate(less(a, b)),
    "gt": lambda a, b: less(b, a),
    "le": lambda a, b: negate(less(b, a)),
}


def negate(p: Expr) -> Expr:
    """Logical not."""
    match p:
        case Const():
            return FALSE if p.value else TRUE
        case Apply("not", (q,)):
            return q
        case _:
            return apply("not", (p,), DType.BOOL)


@lru_cache(maxsize=1 << 16)
def _rebuild(e: Apply, args: tuple[Expr, ...]) -> Expr:
    """One node with simplified arguments: index arithmetic is normalised, all else is kept as it is."""
    if e.dtype is INDEX and all(a.dtype is INDEX for a in args):
        match e.fn:
            case "add":
                return add(*args)
            case "sub":
                return sub(*args)
            case "mul":
                return mul(*args)
            case "floor_div" if isinstance(args[1], Const) and args[1].value > 0:
                return floor_div(args[0], int(args[1].value))
            case "floor_mod" if isinstance(args[1], Const) and args[1].value > 0:
                return floor_mod(args[0], int(args[1].value))
            case "minimum":
                return minimum(*args)
            case "maximum":
                return maximum(*args)
            case _:
                pass
    if e.dtype is DType.BOOL:
        if e.fn in _TESTS and args[0].dtype is INDEX:
            return _TESTS[e.fn](*args)
        if e.fn == "and":
            return both(*args)
        if e.fn == "not":
            return negate(args[0])
    if e.fn == "select":
        return select(*args)
    return apply(e.fn, args, e.dtype)


def rebuilt(e: Expr, done: Callable[[Expr], Expr]) -> Expr:
    """One node whose subexpressions are replaced by what `done` gives for them, simplified."""
    match e:
        case Apply():
            return _rebuild(e, tuple([done(a) for a in e.args]))
        case Load():
            guard = done(e.guard) if e.guard is not None else None
            if isinstance(guard, Const):
                if not guard.value:
                    return const(e.fill or 0, e.dtype)
                guard = None
            return load(e.source, tuple([done(i) for i in e.index]), e.dtype, e.fill, guard)
        case _:
            return e


def substitute(root: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """Replace expressions (usually variables) and simplify all index arithmetic on the way up."""
    done: dict[Expr, Expr] = {}
    for e in walk(root):
        done[e] = mapping[e] if e in mapping else rebuilt(e, done.__getitem__)
    return done[root]


def simplify(e: Expr) -> Expr:
    """The same expression with its index arithmetic in normal form."""
    return substitute(e, {})


def flatten(index: Iterable[Expr], shape: Iterable[int]) -> Expr:
    """The row-major offset of an index."""
    out: Expr = const(0)
    for i, n in zip(index, shape, strict=True):
        out = add(mul(out, n), i)
    return out


def unflatten(offset: Expr, shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """The index of a row-major offset that lies inside the shape."""
    out: list[Expr] = []
    stride = math.prod(shape)
    for axis, n in enumerate(shape):
        stride //= max(n, 1)
        quotient = floor_div(offset, stride) if stride > 0 else const(0)
        out.append(quotient if axis == 0 else floor_mod(quotient, max(n, 1)))
    return tuple(out)
