"""Windows: the part of a reduced axis or of a tile's rows for which a padded factor is not zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Var, apply, const, variables
from autofuse.kernels.contract_roles import coefficient
from autofuse.loops.ir import If, LoopKind, Stmt, loop


@dataclass(frozen=True)
class Segment:
    """`count` neighbouring tiles of `size` points each, the first of which starts at `first` x `step`."""

    first: int
    count: int
    size: int
    step: int
    clean: bool


def segments(points: int, step: int, clean: Callable[[int, int], bool], merge: bool = False) -> list[Segment]:
    """Tiles of `step` points over an axis; neighbours of the same size for which `clean(start, size)` holds make one segment.

    With `merge`, neighbours for which it doesn't hold do so too.
    """
    out: list[Segment] = []
    for t in range(-(-points // step)):
        size = min(step, points - t * step)
        plain = clean(t * step, size)
        last = out[-1] if out else None
        if last is not None and plain == last.clean and last.size == size and (plain or merge):
            out[-1] = Segment(last.first, last.count + 1, size, step, plain)
        else:
            out.append(Segment(t, 1, size, step, plain))
    return out


Make = Callable[[Segment, Expr], tuple[Stmt, ...]]
"""The statements of a tile of a segment, given the tile's number."""


def over_segments(
    found: Iterable[Segment], block: tuple[Expr, int, int], fresh: Callable[[str, int | None], Var], make: Make
) -> tuple[Stmt, ...]:
    """The tiles of all segments that lie in a task's block of tiles: its number, its size, and how many tiles there are in all."""
    which, size, total = block
    out: list[Stmt] = []
    for s in found:
        if size >= total:
            if s.count == 1:
                out += make(s, const(s.first))
            else:
                t = fresh("t", s.count)
                out.append(loop(t, LoopKind.SERIAL, *make(s, ix.add(t, const(s.first)))))
            continue
        low = ix.mul(which, size)
        if s.count == 1:
            mine = apply("eq", (which, const(s.first // size)), DType.BOOL)
            out.append(If(mine, make(s, const(s.first))))
        elif size == 1 and s.count == total:
            out += make(s, which)
        else:
            t = fresh("t", s.count)
            begin = ix.maximum(const(0), ix.sub(low, const(s.first)))
            end = ix.minimum(const(s.count), ix.sub(ix.add(low, const(size)), const(s.first)))
            out.append(loop(t, LoopKind.SERIAL, *make(s, ix.add(t, const(s.first))), begin=begin, end=end))
    return tuple(out)


def holds(condition: Expr, swap: dict[Expr, Expr]) -> bool:
    """Whether a comparison is true everywhere under a substitution."""
    folded = ix.substitute(condition, swap)
    return isinstance(folded, Const) and bool(folded.value)


def solvable(atom: Expr, axis: Var) -> bool:
    """Whether a comparison is one with a constant and affine, with a positive factor, in the axis."""
    match atom:
        case Apply("lt", (Const(), e)) | Apply("lt", (e, Const())):
            c = coefficient(e, axis)
            return c is not None and c > 0
        case _:
            return False


def window(axis: Var, conditions: Iterable[Expr]) -> tuple[Expr, Expr]:
    """Begin and end of the values of an axis for which all comparisons hold. Each must be solvable in it."""
    begin: Expr = const(0)
    end: Expr = const(axis.extent or 0)
    for atom in conditions:
        match atom:
            case Apply("lt", (Const(value=v), e)):
                begin = ix.maximum(begin, _first(e, axis, int(v) + 1))
            case Apply("lt", (e, Const(value=v))):
                end = ix.minimum(end, _first(e, axis, int(v)))
            case _:
                raise ValueError("not a comparison with a constant")
    return begin, end


def _first(e: Expr, axis: Var, least: int) -> Expr:
    """The least value of an axis for which e >= least."""
    c = coefficient(e, axis)
    assert c is not None and c > 0
    rest = ix.sub(e, ix.mul(axis, c))
    return ix.floor_div(ix.add(const(least + c - 1), ix.mul(rest, -1)), c)


def dynamic_windows(conditions: Iterable[Expr], reduced: Sequence[Var], fixed: frozenset[Var]) -> dict[Var, list[Expr]]:
    """Comparisons by the one reduced axis that each depends on, beside axes that are `fixed` while the sum is formed."""
    out: dict[Var, list[Expr]] = {}
    for atom in conditions:
        free = variables(atom)
        inner = [a for a in reduced if a in free]
        if len(inner) == 1 and free - {inner[0]} <= fixed and solvable(atom, inner[0]):
            out.setdefault(inner[0], []).append(atom)
    return out


def valid_rows(conditions: Sequence[Expr], m: Var, start: int, size: int, at: dict[Var, int]) -> tuple[int, int]:
    """The rows first <= row < last of a tile for which comparisons hold at given values of the other axes."""
    good = [r for r in range(size) if all(_true(c, {**at, m: start + r}) for c in conditions)]
    return (good[0], good[-1] + 1) if good else (0, 0)


def _true(atom: Expr, values: dict[Var, int]) -> bool:
    match atom:
        case Apply("lt", (a, b)):
            return _value(a, values) < _value(b, values)
        case _:
            raise ValueError("not a comparison")


def _value(e: Expr, values: dict[Var, int]) -> int:
    parts, constant = ix.terms(e)
    total = constant
    for a, c in parts:
        assert isinstance(a, Var)
        total += c * values[a]
    return total


def is_affine(atom: Expr) -> bool:
    """Whether both sides of a comparison are sums of multiples of variables."""
    match atom:
        case Apply("lt", args):
            return all(isinstance(a, Var) for x in args for a, _ in ix.terms(x)[0])
        case _:
            return False
