"""Numpy evaluation of stages: constant folding, and the float64 reference that kernels are checked against."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Load, Var, const
from autofuse.ir.stage import Combine, Stage
from autofuse.ops.interpret import convert, evaluate_expr, float_type
from autofuse.ops.products import contract

__all__ = ["convert", "evaluate", "evaluate_expr"]

CHUNK = 1 << 22
"""Points evaluated at a time: bounds the memory of a reduction over large domains."""

FEW = 64
"""Points of a reduction that are combined one after the other, each for all outputs at once."""


def evaluate(stage: Stage, inputs: Sequence[np.ndarray], wide: bool = False) -> np.ndarray:
    """The stage's output. With `wide`, float arithmetic is done in float64 and the result is float64 (the reference)."""
    with np.errstate(all="ignore"):
        if stage.contraction is not None:
            fast = contract(stage, inputs, wide)
            if fast is not None:
                return fast
        if stage.combine is None:
            same = _reshaped(stage, inputs, wide)
            if same is not None:
                return same
        return _general(stage, inputs, wide)


def _reshaped(stage: Stage, inputs: Sequence[np.ndarray], wide: bool) -> np.ndarray | None:
    """The input under another shape, where the stage only reads its elements in order."""
    if not isinstance(stage.body, Load) or not isinstance(stage.body.source, int):
        return None
    array = inputs[stage.body.source]
    if array.size != math.prod(stage.shape) or array.size == 0 or stage.body.fill is not None:
        return None
    one = const(0)
    ones: dict[Expr, Expr] = {a: one for a in stage.axes if a.extent == 1}
    mine = ix.flatten([ones.get(a, a) for a in stage.axes], stage.shape)
    source = ix.substitute(ix.flatten(stage.body.index, array.shape), ones)
    if source is not mine:
        return None
    return np.array(convert(array.reshape(stage.shape), stage.dtype, wide))


def _general(stage: Stage, inputs: Sequence[np.ndarray], wide: bool) -> np.ndarray:
    shape = stage.shape
    total = math.prod(shape) * math.prod(a.extent or 0 for a in stage.reduce_axes)
    along = next((k for k, n in enumerate(shape) if n > 1), 0)
    if stage.combine is None or total <= CHUNK or not shape or shape[along] <= 1:
        return _block(stage, inputs, wide, 0, (0, shape[0] if shape else 1))
    rows = max(1, CHUNK * shape[along] // total)
    starts = range(0, shape[along], rows)
    parts = [_block(stage, inputs, wide, along, (k, min(k + rows, shape[along]))) for k in starts]
    return np.concatenate(parts, axis=along)


def _block(stage: Stage, inputs: Sequence[np.ndarray], wide: bool, along: int, part: tuple[int, int]) -> np.ndarray:
    """Evaluate a part of one axis and the whole of the others."""
    kept = len(stage.axes)
    axes: list[Var] = [*stage.axes, *stage.reduce_axes]
    spans = [part if k == along and k < kept else (0, a.extent or 0) for k, a in enumerate(axes)]
    full = tuple(last - first for first, last in spans)
    env: dict[Expr, Any] = {}
    for k, (a, (first, last)) in enumerate(zip(axes, spans, strict=True)):
        env[a] = np.arange(first, last, dtype=np.int64).reshape([-1 if j == k else 1 for j in range(len(axes))])
    values = np.asarray(evaluate_expr(stage.body, env, inputs, wide))
    if stage.combine is None:
        return np.array(convert(np.broadcast_to(values, full), stage.dtype, wide))
    values = np.broadcast_to(values, full).astype(float_type(stage.acc_dtype, wide), copy=False)
    return convert(_combine(values, stage.combine, kept), stage.dtype, wide)


_COMBINES: dict[Combine, np.ufunc] = {
    Combine.SUM: np.add,
    Combine.PROD: np.multiply,
    Combine.MAX: np.maximum,
    Combine.MIN: np.minimum,
}


def _combine(values: np.ndarray, combine: Combine, kept: int) -> np.ndarray:
    if combine.is_arg:
        return _position(values, combine, kept)
    shape, over = values.shape[:kept], values.shape[kept:]
    fn = _COMBINES[combine]
    if 0 < math.prod(over) <= min(FEW, math.prod(shape)):
        total: Any = None
        for at in itertools.product(*map(range, over)):
            where: tuple[Any, ...] = (..., *at)
            tap = values[where]
            total = np.array(tap) if total is None else fn(total, tap, out=np.asarray(total))
        return np.asarray(total)
    if combine in (Combine.SUM, Combine.PROD):
        return np.asarray(fn.reduce(values, axis=tuple(range(kept, values.ndim)), dtype=values.dtype))
    return np.asarray(fn.reduce(values, axis=tuple(range(kept, values.ndim)), initial=_identity(values, combine)))


def _identity(values: np.ndarray, combine: Combine) -> Any:
    """What a maximum or minimum of nothing is."""
    low = combine is Combine.MAX
    if values.dtype.kind == "b":
        return not low
    if values.dtype.kind in "iu":
        info = np.iinfo(values.dtype)
        return values.dtype.type(info.min if low else info.max)
    return values.dtype.type(-np.inf if low else np.inf)


def _position(values: np.ndarray, combine: Combine, kept: int) -> np.ndarray:
    flat = values.reshape(*values.shape[:kept], math.prod(values.shape[kept:]))
    last = combine in (Combine.ARGMAX_LAST, Combine.ARGMIN_LAST)
    seen = flat[..., ::-1] if last else flat
    found = seen.argmax(-1) if combine in (Combine.ARGMAX, Combine.ARGMAX_LAST) else seen.argmin(-1)
    return np.asarray(flat.shape[-1] - 1 - found if last else found, dtype=np.int64)
