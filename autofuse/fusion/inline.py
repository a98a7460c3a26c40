"""Inlining: the value of a region's tensor at an index, as one expression over what the region does not compute by maps."""

from __future__ import annotations

from collections.abc import Callable

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Apply, Const, Expr, Load, apply, cast_to, const, load, select
from autofuse.ir.stage import Stage

Leaf = Callable[[int, tuple[Expr, ...]], Expr | None]
"""Given a local number and the index at which it is read: its expression, or None to inline the map that makes it."""


class Inliner:
    """Expressions of a region's tensors with the maps between them substituted. `leaf` ends the recursion."""

    def __init__(self, program: RegionProgram, leaf: Leaf) -> None:
        self.program = program
        self.leaf = leaf
        self._memo: dict[tuple[int, tuple[Expr, ...]], Expr] = {}

    def read(self, number: int, index: tuple[Expr, ...]) -> Expr:
        """The value of a tensor at an index, in the type that its body computes (a half type in float32)."""
        key = (number, index)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._read(number, index)
        return found

    def _read(self, number: int, index: tuple[Expr, ...]) -> Expr:
        ended = self.leaf(number, index)
        if ended is not None:
            return ended
        if number < len(self.program.inputs):
            return load(number, index, self.program.inputs[number].dtype)
        step, _ = self.program.defined_by[number]
        if not isinstance(step.stage, Stage) or step.stage.combine is not None:
            raise ValueError(f"local number {number} is no map and the leaf did not take it")
        mapping: dict[Expr, Expr] = dict(zip(step.stage.axes, index, strict=True))
        return self.body(step.stage.body, step.operands, mapping)

    def body(self, root: Expr, operands: tuple[int, ...], mapping: dict[Expr, Expr]) -> Expr:
        """A stage's body with its axes and its operands substituted."""
        done: dict[Expr, Expr] = dict(mapping)

        def go(e: Expr) -> Expr:
            found = done.get(e)
            if found is not None:
                return found
            out = self._rebuild(e, operands, go)
            done[e] = out
            return out

        return go(root)

    def _rebuild(self, e: Expr, operands: tuple[int, ...], go: Callable[[Expr], Expr]) -> Expr:
        match e:
            case Apply("cast", (Load() as inner,)) if inner.dtype.is_half and e.dtype is inner.dtype.compute:
                # A half-typed tensor between two fused stages stays in float32; a Cast of the model is in the body itself.
                return cast_to(self._load(inner, operands, go), e.dtype)
            case Apply("select", (c, a, b)):
                condition = go(c)
                return select(condition, go(a), go(b))
            case Apply():
                return ix.substitute(apply(e.fn, e.args, e.dtype), {a: go(a) for a in e.args})
            case Load():
                return cast_to(self._load(e, operands, go), e.dtype)
            case _:
                return e

    def _load(self, e: Load, operands: tuple[int, ...], go: Callable[[Expr], Expr]) -> Expr:
        assert isinstance(e.source, int)
        index = tuple(go(i) for i in e.index)
        number = operands[e.source]
        if e.fill is None:
            return self.read(number, index)
        inside = ix.in_range(index, self.program.tensor(number).shape)
        if isinstance(inside, Const):
            return self.read(number, index) if inside.value else const(e.fill, e.dtype)
        value = self.read(number, index)
        if isinstance(value, Load) and value.fill is None and value.source == number:
            return load(number, index, value.dtype, e.fill)
        return select(inside, value, const(e.fill, value.dtype))


def is_expensive(e: Expr) -> bool:
    """Whether an operation costs many instructions (a transcendental function or a division)."""
    return isinstance(e, Apply) and e.dtype.is_float and (e.fn in EXPENSIVE)


EXPENSIVE = frozenset(
    {"exp", "log", "log1p", "tanh", "erf", "pow", "sin", "cos", "tan", "sqrt", "sinh", "cosh", "asin", "acos", "atan"}
    | {"asinh", "acosh", "atanh", "fmod", "float_mod"}
)
