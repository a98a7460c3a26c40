"""Passes: in which order a form's anchors and outputs can be computed, and how partial results combine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from autofuse.fusion.form import Anchor
from autofuse.fusion.inline import is_expensive
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Expr, Var, apply, call, const, rewrite, var, variables, walk
from autofuse.ir.stage import Combine


def levels(anchors: Sequence[Anchor]) -> tuple[tuple[Anchor, ...], ...]:
    """The anchors of each pass over the reduced axes: a pass needs only results of the passes before it."""
    level: dict[Var, int] = {}
    out: list[list[Anchor]] = []
    for a in anchors:
        needs = [level[v] for v in variables(a.body) if v in level]
        k = max(needs, default=-1) + 1
        level[a.result] = k
        if k == len(out):
            out.append([])
        out[k].append(a)
    return tuple(tuple(p) for p in out)


def identity(combine: Combine, dtype: DType) -> Expr:
    """The value that changes nothing under a combine (for ARG*, that of the compared value)."""
    match combine:
        case Combine.SUM:
            return const(0, dtype)
        case Combine.PROD:
            return const(1, dtype)
        case Combine.MAX | Combine.ARGMAX | Combine.ARGMAX_LAST:
            return const(dtype.min_value, dtype)
        case _:
            return const(dtype.max_value, dtype)


def merge(combine: Combine, a: Expr, b: Expr) -> Expr:
    """a combined with b; not for ARG*."""
    match combine:
        case Combine.SUM:
            return call("add", a, b) if a.dtype is not DType.BOOL else call("or", a, b)
        case Combine.PROD:
            return call("mul", a, b) if a.dtype is not DType.BOOL else call("and", a, b)
        case Combine.MAX:
            return call("maximum", a, b) if a.dtype is not DType.BOOL else call("or", a, b)
        case Combine.MIN:
            return call("minimum", a, b) if a.dtype is not DType.BOOL else call("and", a, b)
        case _:
            raise ValueError(f"{combine} carries a position; use better()")


def better(combine: Combine, new: Expr, best: Expr) -> Expr:
    """Whether a later element replaces the best so far in an ARG reduction. The first NaN wins over everything."""
    last = combine in (Combine.ARGMAX_LAST, Combine.ARGMIN_LAST)
    larger = combine in (Combine.ARGMAX, Combine.ARGMAX_LAST)
    fn = ("ge" if last else "gt") if larger else ("le" if last else "lt")
    wins = apply(fn, (new, best), DType.BOOL)
    if not new.dtype.is_float:
        return wins
    nan_new, nan_best = call("isnan", new), call("isnan", best)
    if last:
        return call("or", nan_new, wins)
    return call("or", wins, call("and", nan_new, call("not", nan_best)))


@dataclass(frozen=True)
class Cached:
    """A full-size subexpression that is worth keeping between passes: computed in pass `first`, read again later."""

    expr: Expr
    first: int


def reused(groups: Sequence[Sequence[Expr]], reduced: Sequence[Var]) -> tuple[Cached, ...]:
    """Expensive subexpressions over the reduced axes that several groups (passes, then the outputs) need: the largest ones."""
    seen: dict[Expr, list[int]] = {}
    for k, group in enumerate(groups):
        for x in dict.fromkeys(x for e in group for x in walk(e)):
            if is_expensive(x) and variables(x) & set(reduced):
                seen.setdefault(x, []).append(k)
    shared = {x: ks for x, ks in seen.items() if len(ks) > 1}
    inner = {y for x in shared for y in walk(x) if y is not x}
    return tuple(Cached(x, min(ks)) for x, ks in shared.items() if x not in inner)


@dataclass(frozen=True)
class Shared:
    """A divisor that all points of a row share, and the variable that stands for its reciprocal."""

    divisor: Expr
    inverse: Var

    @property
    def ordinary(self) -> Expr:
        """Whether the reciprocal is a normal number as well: neither zero, infinite, NaN nor short of digits."""
        most = 2.0 ** (126 if self.divisor.dtype is DType.FLOAT32 else 1022)
        size = call("abs", self.divisor)
        least = apply("lt", (const(1 / most, size.dtype), size), DType.BOOL)
        return ix.both(least, apply("lt", (size, const(most, size.dtype)), DType.BOOL))


def shared_divisors(
    values: Sequence[Expr], sums: Collection[Var], reduced: Collection[Var]
) -> tuple[tuple[Expr, ...], tuple[Shared, ...]]:
    """The values with quotients by what a sum over the row gave as products with its reciprocal, and these divisors.

    Such a divisor carries the rounding of all that was summed, to which half a unit more in the last place is nothing. Quotients by
    exact values (a greatest one, a parameter) stay: what is rounded to integers afterwards can depend on their last bit.
    """
    found: dict[Expr, Shared] = {}

    def product(e: Expr) -> Expr | None:
        match e:
            case Apply("div", (a, b)) if e.dtype in (DType.FLOAT32, DType.FLOAT64):
                used = variables(b)
                if not used & set(sums) or used & set(reduced):
                    return None
                shared = found.setdefault(b, Shared(b, var(f"inverse{len(found)}", None, e.dtype)))
                return call("mul", a, shared.inverse)
            case _:
                return None

    return tuple(rewrite(v, product) for v in values), tuple(found.values())
