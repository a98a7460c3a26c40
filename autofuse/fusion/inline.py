"""Inlining: the value of a region's tensor at an index, as one expression over what the region does not compute by maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
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
        """The value of a tensor at an index, in the type that its body computes (a half type in float32, not yet rounded)."""
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
            case Apply("cast", (Load() as inner,)) if e.dtype is inner.dtype.compute:
                return cast_to(rounded(self._load(inner, operands, go), inner.dtype), e.dtype)
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


def rounded(value: Expr, dtype: DType) -> Expr:
    """What a tensor of a type holds of a value: fusing must not give a half type more digits than storing it would.

    The standard defines operators by what they make of tensors, so a function body in float16 rounds after each of its operators. What
    is computed without rounding (moves, choices, signs) stays as it is, and so does every type that is computed in itself.
    """
    if value.dtype is dtype or dtype.compute is dtype or _exact(value, dtype):
        return value
    return cast_to(value, dtype)


def _exact(value: Expr, dtype: DType) -> bool:
    """Whether a value is one of the type's own for certain."""
    match value:
        case Apply("cast", (inner,)):
            return inner.dtype is dtype
        case Const():
            with np.errstate(over="ignore"):
                return float(np.asarray(value.value).astype(dtype.numpy)) == value.value
        case Apply("select", (_, a, b)) | Apply("maximum" | "minimum", (a, b)):
            return _exact(a, dtype) and _exact(b, dtype)
        case Apply("neg" | "abs", (a,)):
            return _exact(a, dtype)
        case _:
            return False


def is_expensive(e: Expr) -> bool:
    """Whether an operation costs many instructions (a transcendental function or a division)."""
    return isinstance(e, Apply) and e.dtype.is_float and (e.fn in EXPENSIVE)


EXPENSIVE = frozenset(
    {"exp", "log", "log1p", "tanh", "erf", "pow", "sin", "cos", "tan", "sqrt", "sinh", "cosh", "asin", "acos", "atan"}
    | {"asinh", "acosh", "atanh", "fmod", "float_mod"}
)
