"""Numpy evaluation of what is computed on its own: the reference that its kernels are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autofuse.ir.expr import Expr, Var
from autofuse.ir.stage import Alone, Combine, Determinant, Running, Scan, Scatter, Sort
from autofuse.ops.interpret import convert, evaluate_expr, float_type
from autofuse.ops.recurrent import evaluate_scan

_UFUNCS: dict[Combine, np.ufunc] = {
    Combine.SUM: np.add,
    Combine.PROD: np.multiply,
    Combine.MAX: np.maximum,
    Combine.MIN: np.minimum,
}


def evaluate_alone(alone: Alone, inputs: Sequence[np.ndarray], wide: bool = False) -> list[np.ndarray]:
    """All outputs. With `wide`, float arithmetic is done in float64 and float results are float64 (the reference)."""
    with np.errstate(all="ignore"):
        match alone:
            case Scan():
                return list(evaluate_scan(alone, inputs, wide))
            case Scatter():
                return [_scatter(alone, inputs, wide)]
            case Sort():
                return _sort(alone, inputs[0], wide)
            case Running():
                return [_running(alone, inputs[0], wide)]
            case Determinant():
                return [_determinant(alone, inputs[0], wide)]


def _over(axes: Sequence[Var], e: Expr, inputs: Sequence[np.ndarray], wide: bool) -> np.ndarray:
    """An expression at every point of some axes."""
    rank = len(axes)
    env: dict[Expr, Any] = {
        a: np.arange(a.extent or 0, dtype=np.int64).reshape([-1 if j == k else 1 for j in range(rank)])
        for k, a in enumerate(axes)
    }
    values = np.asarray(evaluate_expr(e, env, inputs, wide))
    return np.broadcast_to(values, tuple(a.extent or 0 for a in axes))


def _scatter(s: Scatter, inputs: Sequence[np.ndarray], wide: bool) -> np.ndarray:
    out = np.array(convert(_over(s.axes, s.initial, inputs, wide), s.dtype, wide))
    at = tuple(_over(s.updates, i, inputs, wide).reshape(-1) for i in s.index)
    values = convert(_over(s.updates, s.value, inputs, wide), s.dtype, wide).reshape(-1)
    if not values.size:
        return out
    flat = out.reshape(-1)
    where = np.ravel_multi_index(at, out.shape) if at else np.zeros(values.size, np.int64)
    if s.combine is None:
        flat[where] = values  # numpy writes in order: of equal places the last one stays
    elif values.dtype.kind in "fiu":
        _UFUNCS[s.combine].at(flat, where, values)
    else:  # ufunc.at has no loops for bfloat16
        for k, v in zip(where.tolist(), values, strict=True):
            flat[k] = _UFUNCS[s.combine](flat[k], v)
    return flat.reshape(out.shape)


def _sort(s: Sort, x: np.ndarray, wide: bool) -> list[np.ndarray]:
    """A stable sort; for a descending one the rows are sorted backwards from the end, so that equal elements keep their order."""
    rows = np.moveaxis(np.asarray(x), s.axis, -1)
    keys = rows.astype(np.float32) if rows.dtype.kind not in "fiub" else rows
    if s.largest:
        order = keys.shape[-1] - 1 - np.argsort(keys[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(keys, axis=-1, kind="stable")
    order = order[..., : s.count].astype(np.int64)
    best = np.take_along_axis(rows, order, axis=-1)
    found = np.ascontiguousarray(np.moveaxis(best, -1, s.axis))
    return [np.asarray(convert(found, s.dtype, wide)), np.ascontiguousarray(np.moveaxis(order, -1, s.axis))]


def _running(r: Running, x: np.ndarray, wide: bool) -> np.ndarray:
    carried = float_type(r.dtype.compute, wide)
    rows = np.moveaxis(np.asarray(x), r.axis, 0).astype(carried)
    if r.reverse:
        rows = rows[::-1]
    fn = _UFUNCS[r.combine]
    total = fn.accumulate(rows, axis=0, dtype=carried) if rows.shape[0] else rows
    if r.exclusive and rows.shape[0]:
        first = np.full_like(total[:1], 0 if r.combine is Combine.SUM else 1)
        total = np.concatenate([first, total[:-1]])
    if r.reverse:
        total = total[::-1]
    return np.ascontiguousarray(convert(np.moveaxis(total, 0, r.axis), r.dtype, wide))


def _determinant(d: Determinant, x: np.ndarray, wide: bool) -> np.ndarray:
    """All matrices at once, column by column: the kernels take the same pivots, so that NaN and infinities come out alike."""
    n = d.source[-1]
    a = np.asarray(x).astype(float_type(d.dtype.compute, wide)).reshape(-1, n, n)
    every = np.arange(len(a))
    total = np.ones(len(a), a.dtype)
    for k in range(n):
        column = np.abs(a[:, k:, k])
        best = k + np.where(np.isnan(column), -1, column).argmax(axis=1)
        best = np.where(np.isnan(column[:, 0]), k, best)  # nothing is greater than NaN
        pivot_rows = a[every, best].copy()
        a[every, best] = a[:, k]
        a[:, k] = pivot_rows
        pivot = a[:, k, k]
        total = total * np.where(best == k, pivot, -pivot)
        factor = np.where(pivot[:, None] == 0, 0, a[:, k + 1 :, k] / pivot[:, None])
        a[:, k + 1 :, k + 1 :] -= factor[:, :, None] * a[:, None, k, k + 1 :]
    return np.asarray(convert(total.reshape(d.source[:-2]), d.dtype, wide))
