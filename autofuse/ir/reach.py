"""Which elements of its inputs a stage reads for certain: a read beyond a tensor's end is found before it is a kernel's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autofuse.ir.expr import Apply, Expr, Load, Var
from autofuse.ir.index import terms
from autofuse.ir.stage import Stage


def leaving(stage: Stage, shapes: Sequence[tuple[int, ...]]) -> str:
    """A read without a fill that certainly leaves its tensor, in words; empty where none is known to.

    `shapes` has an entry per input slot. Only reads that no branch guards and indices that are sums of multiples of axes are looked at: their
    extremes are reached by some element.
    """
    if any(a.extent == 0 for a in (*stage.axes, *stage.reduce_axes)):
        return ""
    for read in _unguarded(stage.body):
        if read.fill is not None or not isinstance(read.source, int):
            continue
        for k, (index, n) in enumerate(zip(read.index, shapes[read.source], strict=True)):
            low, high = _extremes(index) or (0, n - 1)
            if low < 0 or high >= n:
                return f"elements {low} to {high} of dimension {k} of input {read.source} are read, which has {n}"
    return ""


def _unguarded(root: Expr) -> Iterator[Load]:
    stack, seen = [root], {root}
    while stack:
        e = stack.pop()
        match e:
            case Load():
                yield e
                below: tuple[Expr, ...] = e.index
            case Apply("select", (condition, _, _)):
                below = (condition,)
            case Apply(args=args):
                below = args
            case _:
                below = ()
        stack += [x for x in below if x not in seen]
        seen.update(below)


def _extremes(index: Expr) -> tuple[int, int] | None:
    found, constant = terms(index)
    low = high = constant
    for atom, factor in found:
        if not isinstance(atom, Var) or atom.extent is None:
            return None
        low += min(0, factor * (atom.extent - 1))
        high += max(0, factor * (atom.extent - 1))
    return low, high
