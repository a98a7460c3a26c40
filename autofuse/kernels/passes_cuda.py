"""Passes: the loops over the reduced domain that a multi-pass reduction needs, and what they can hand on to each other.

Softmax needs three: the maximum, the sum of exponentials, the quotients. An element that an earlier pass has worked out (an
exponential, an input that was read) can be kept for the later ones instead of being computed or read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autofuse.fusion.form import Form
from autofuse.fusion.inline import is_expensive
from autofuse.ir import index as ix
from autofuse.ir.expr import INDEX, Apply, Const, Expr, Load, Var, var, variables, walk
from autofuse.kernels.points import Points


@dataclass(frozen=True)
class Pass:
    """One loop over the reduced domain: the anchors that it accumulates and the full outputs that it stores."""

    anchors: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """A value of each point that is made in pass `first` and used again by later passes."""

    value: Expr
    first: int
    last: int


def passes_of(form: Form, points: Points) -> tuple[Pass, ...]:
    """The passes in order. An anchor comes right after those that its body reads; so does a full output."""
    level: dict[Expr, int] = {}

    def of(e: Expr) -> int:
        return max((level.get(v, 0) for v in variables(e)), default=0)

    anchors: list[list[int]] = []
    for k, (anchor, body) in enumerate(zip(form.anchors, points.bodies, strict=True)):
        at = of(body)
        level[anchor.result] = at + 1
        while len(anchors) <= at:
            anchors.append([])
        anchors[at].append(k)
    outputs: list[list[int]] = [[] for _ in range(len(anchors) + 1)]
    for k, (output, value) in enumerate(zip(form.outputs, points.values, strict=True)):
        if output.full:
            outputs[of(value)].append(k)
    anchors.append([])
    found = [Pass(tuple(a), tuple(o)) for a, o in zip(anchors, outputs, strict=True)]
    return tuple(found if found[-1].outputs else found[:-1])


def roots_of(p: Pass, points: Points) -> tuple[Expr, ...]:
    """What a pass evaluates at every point."""
    return (*(points.bodies[k] for k in p.anchors), *(points.values[k] for k in p.outputs))


def kept_values(passes: tuple[Pass, ...], points: Points) -> tuple[Kept, ...]:
    """What is worth keeping between passes: shared subexpressions that are expensive or read memory.

    They are found from the top, so that a whole shared expression is kept and not its parts; one that follows cheaply from what is
    kept already is computed again.
    """
    inner = set(points.reduced)
    seen: dict[Expr, int] = {}
    uses: dict[Expr, list[int]] = {}
    for number, p in enumerate(passes):
        _collect(roots_of(p, points), number, inner, seen, uses)
        for root in roots_of(p, points):
            for e in walk(root):
                seen.setdefault(e, number)
    # what is part of another kept value comes before it
    ordered = sorted(uses.items(), key=lambda use: sum(1 for _ in walk(use[0])))
    return tuple(Kept(e, seen[e], max(at)) for e, at in ordered)


def places_of(kept: tuple[Kept, ...], passes: tuple[Pass, ...], points: Points) -> tuple[int, ...]:
    """A place in memory for each kept value. A place whose value is not needed any more is used again."""
    out: dict[int, int] = {}
    free: list[tuple[Kept, int]] = []
    count = 0
    for n in sorted(range(len(kept)), key=lambda n: kept[n].first):
        k = kept[n]
        again = next((f for f in free if _hands_over(f[0], k, kept, passes, points)), None)
        if again is not None:
            free.remove(again)
        else:
            count += 1
        out[n] = again[1] if again is not None else count - 1
        free.append((k, out[n]))
    return tuple(out[n] for n in range(len(kept)))


def _hands_over(old: Kept, new: Kept, kept: tuple[Kept, ...], passes: tuple[Pass, ...], points: Points) -> bool:
    """Whether an old value is needed for nothing but the new one when that is made."""
    if old.value.dtype is not new.value.dtype or old.last > new.first:
        return False
    if old.last < new.first:
        return True
    gone, here = var("gone", None, old.value.dtype), var("here", None, new.value.dtype)
    others = [k.value for k in kept if k.first == new.first and k is not new]
    mine: dict[Expr, Expr] = {old.value: gone, new.value: here}
    needed = [*roots_of(passes[new.first], points), *others]
    return not any(gone in variables(ix.substitute(e, mine)) for e in needed)


def _collect(
    roots: Iterable[Expr], number: int, inner: set[Var], seen: Mapping[Expr, int], uses: dict[Expr, list[int]]
) -> None:
    done: set[Expr] = set()
    stack = list(reversed(list(roots)))
    while stack:
        e = stack.pop()
        if e in done or isinstance(e, Const | Var) or e.dtype is INDEX or not variables(e) & inner:
            continue
        done.add(e)
        if e in uses or (e in seen and _worth(e, uses)):
            uses.setdefault(e, []).append(number)
        elif isinstance(e, Apply):
            stack.extend(reversed(e.args))


def _worth(e: Expr, kept: Mapping[Expr, object]) -> bool:
    """Whether working an expression out again from what is kept would read memory or take long."""
    stack = [e]
    done: set[Expr] = set()
    while stack:
        x = stack.pop()
        if x in done or x in kept:
            continue
        done.add(x)
        if isinstance(x, Load) or is_expensive(x):
            return True
        if isinstance(x, Apply):
            stack.extend(x.args)
    return False


def invariants(roots: Iterable[Expr], inner: Iterable[Var]) -> tuple[Expr, ...]:
    """The largest subexpressions that stay the same along the reduced axes and take long or read memory."""
    axes = set(inner)
    found: list[Expr] = []
    done: set[Expr] = set()
    stack = list(reversed(list(roots)))
    while stack:
        e = stack.pop()
        if e in done or isinstance(e, Const | Var) or e.dtype is INDEX:
            continue
        done.add(e)
        if not variables(e) & axes:
            if any(isinstance(x, Load) or is_expensive(x) or _divides(x) for x in walk(e)):
                found.append(e)
        elif isinstance(e, Apply):
            stack.extend(reversed(e.args))
    return tuple(found)


def _divides(e: Expr) -> bool:
    return isinstance(e, Apply) and e.fn == "div" and e.dtype.is_float
