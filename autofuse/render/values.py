"""Expressions as statements: what is used twice is computed once.

An expression is a graph whose shared nodes would be written out again at each use, so that the text could grow
exponentially. Here every node with several uses gets a temporary, as long as that evaluates nothing that would not have
been evaluated: a load that only one branch of a select reaches may touch memory only there, so such a select becomes an if.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Apply, Const, Expr, Load, Var, apply, children, load, var, walk
from autofuse.ir.index import bounds

_INDEX_WORTH = 6  # an index expression below this many written nodes is shorter than its temporary is worth
_TOO_WIDE = 1 << 61


@dataclass
class Lines:
    """Text under construction, with its indentation."""

    text: list[str] = field(default_factory=list)
    depth: int = 0

    def add(self, line: str) -> None:
        self.text.append(("  " * self.depth + line) if line else "")

    def open(self, head: str) -> None:
        """Write the head of a block and go into it."""
        self.add(f"{head} {{" if head else "{")
        self.depth += 1

    def close(self, tail: str = "") -> None:
        """Leave a block; `tail` follows its brace."""
        self.depth -= 1
        self.add("}" + tail)

    def __str__(self) -> str:
        return "\n".join(self.text) + "\n"


def replace(root: Expr, known: dict[Expr, Expr]) -> Expr:
    """The expression with known subexpressions replaced; unlike `ir.expr.rewrite` it does not look below them and keeps all else as it is."""
    done: dict[Expr, Expr] = dict(known)
    stack = [root]
    while stack:
        e = stack[-1]
        if e in done:
            stack.pop()
            continue
        waiting = [c for c in children(e) if c not in done]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        match e:
            case Apply():
                args = tuple(done[a] for a in e.args)
                done[e] = e if args == e.args else apply(e.fn, args, e.dtype)
            case Load():
                index = tuple(done[i] for i in e.index)
                guard = done[e.guard] if e.guard is not None else None
                same = index == e.index and guard is e.guard
                done[e] = e if same else load(e.source, index, e.dtype, e.fill, guard)
            case _:
                done[e] = e
    return done[root]


class _Shape:
    """What is below each node of a graph, as bit sets over its nodes."""

    def __init__(self, roots: Sequence[Expr], known: dict[Expr, Expr]) -> None:
        self.order: list[Expr] = []
        self.uses: dict[Expr, int] = {}
        self.below: dict[Expr, int] = {}
        self.surely: dict[Expr, int] = {}
        self.speculable: dict[Expr, bool] = {}
        self.written: dict[Expr, int] = {}
        self.bit: dict[Expr, int] = {}
        for root in roots:
            self._visit(root, known)
            self.uses[root] = self.uses.get(root, 0) + 1

    def _visit(self, root: Expr, known: dict[Expr, Expr]) -> None:
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            e, expanded = stack.pop()
            if e in self.bit:
                continue
            below = () if e in known else children(e)
            if not expanded:
                stack.append((e, True))
                stack.extend((c, False) for c in reversed(below))
                continue
            for c in below:
                self.uses[c] = self.uses.get(c, 0) + 1
            self._add(e, below)

    def _add(self, e: Expr, below: tuple[Expr, ...]) -> None:
        self.bit[e] = own = 1 << len(self.order)
        self.order.append(e)
        mask = sure = own
        for c in below:
            mask |= self.below[c]
        match e, below:
            case _, ():
                pass
            case Apply("select"), (c, a, b):
                sure |= self.surely[c] | (self.surely[a] & self.surely[b])
            case Apply("and" | "or"), (a, _):
                sure |= self.surely[a]
            case Load(guard=g), _ if g is not None:
                sure |= self.surely[g]
            case _:
                for c in below:
                    sure |= self.surely[c]
        self.below[e], self.surely[e] = mask, sure
        self.written[e] = 1 + sum(self.written[c] for c in below)
        if isinstance(e, Load):
            # its index is looked at under the guard only
            self.speculable[e] = e.guard is not None and self.speculable.get(e.guard, True)
        else:
            self.speculable[e] = all(self.speculable[c] for c in below)


@dataclass
class Values:
    """Writes the expressions of a kernel's statements into `lines`.

    `text` renders an expression without sharing; `declare` gives the declaration of a temporary, "float t3" say; `fresh` a new name.
    """

    lines: Lines
    text: Callable[[Expr], str]
    declare: Callable[[Var, str, bool], str]
    fresh: Callable[[str], str]
    bind: Callable[[Var, str], None]
    _temporaries: int = 0

    def texts(self, roots: Sequence[Expr], known: dict[Expr, Expr] | None = None) -> list[str]:
        """The texts of expressions that are all evaluated here; temporaries are written first."""
        known = {} if known is None else dict(known)
        shape = _Shape(roots, known)
        sure = 0
        for root in roots:
            sure |= shape.surely[root]
        shared = [e for e in shape.order if shape.uses[e] > 1 and e not in known and _worth(e, shape.written[e])]
        hot = 0
        for e in shared:
            if not sure & shape.bit[e] and not shape.speculable[e]:
                hot |= shape.bit[e]
        blocks = self._blocks(shape, sure, hot)
        hidden = 0
        for e in blocks:
            for branch in (e.args[1], e.args[2]):
                hidden |= shape.below[branch]
        hidden &= ~sure
        wanted = set(shared) | set(blocks)
        for e in shape.order:
            if e not in wanted or hidden & shape.bit[e] or hot & shape.bit[e]:
                continue
            if e in blocks:
                assert isinstance(e, Apply)
                self._branch(e, known)
            elif sure & shape.bit[e] or shape.speculable[e]:
                value = self.text(replace(e, known))
                name = self._temporary(e, known)
                self.lines.add(f"{self.declare(name[0], name[1], True)} = {value};")
        return [self.text(replace(root, known)) for root in roots]

    def _blocks(self, shape: _Shape, sure: int, hot: int) -> dict[Apply, None]:
        """The selects that must become statements: they are evaluated for sure and hold shared loads in a branch."""
        out: dict[Apply, None] = {}
        for e in shape.order:
            if isinstance(e, Apply) and e.fn == "select" and sure & shape.bit[e] and len(children(e)) == 3:
                if (shape.below.get(e.args[1], 0) | shape.below.get(e.args[2], 0)) & hot:
                    out[e] = None
        return out

    def _branch(self, e: Apply, known: dict[Expr, Expr]) -> None:
        condition = self.text(replace(e.args[0], known))
        branches = (e.args[1], e.args[2])
        outside = dict(known)
        name = self._temporary(e, known)
        self.lines.add(f"{self.declare(name[0], name[1], False)};")
        self.lines.open(f"if ({condition})")
        for k, branch in enumerate(branches):
            (value,) = self.texts([branch], outside)
            self.lines.add(f"{name[1]} = {value};")
            if k == 0:
                self.lines.depth -= 1
                self.lines.add("} else {")
                self.lines.depth += 1
        self.lines.close()

    def _temporary(self, e: Expr, known: dict[Expr, Expr]) -> tuple[Var, str]:
        lo, hi = bounds(e) if e.dtype is INDEX else (-1, _TOO_WIDE)
        self._temporaries += 1
        # the extent keeps what is known of an index's range, so that divisions of it stay plain
        temporary = var(f"${self._temporaries}", hi + 1 if lo >= 0 and hi < _TOO_WIDE else None, e.dtype)
        name = self.fresh("t")
        self.bind(temporary, name)
        known[e] = temporary
        return temporary, name


def _worth(e: Expr, written: int) -> bool:
    if isinstance(e, Const | Var):
        return False
    if isinstance(e, Load):
        return True
    return written >= (_INDEX_WORTH if e.dtype in (INDEX, DType.BOOL) else 3)


def finite_bounds(roots: Iterable[Expr]) -> tuple[int, int]:
    """The widest range of the index arithmetic below some expressions whose range is known."""
    low = high = 0
    for root in roots:
        for e in walk(root):
            if isinstance(e, Apply) and e.dtype is INDEX:
                lo, hi = bounds(e)
                if lo > -_TOO_WIDE and hi < _TOO_WIDE:
                    low, high = min(low, lo), max(high, hi)
    return low, high
