"""Numpy values of scalar expressions: vectorised over the axes, with views in place of gathers where an index is affine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, walk
from autofuse.ir.functions import FUNCTIONS

Ranges = Mapping[Expr, tuple[int, int]]
"""First value and count of each axis."""

MOST_PADDING = 8
"""A load whose padded tensor would be this many times the tensor is gathered instead."""


def float_type(dtype: DType, wide: bool) -> np.dtype[Any]:
    """The numpy type that values of `dtype` are kept in."""
    return np.dtype(np.float64) if wide and dtype.is_float else dtype.numpy


def convert(x: Any, dtype: DType, wide: bool = False) -> np.ndarray:
    """Cast as ONNX does: floats truncate towards zero to integers, anything but zero is True.

    Narrow types are reached and left by way of the types that they compute in. Their rounding is kept with `wide` too: it is coarse, and
    what it makes of a value is what the model asks for.
    """
    array = np.asarray(x)
    if _is_extension(array.dtype):
        array = array.astype(from_numpy(array.dtype).compute.numpy)
    if dtype is DType.BOOL:
        return array.astype(bool, copy=False)
    if dtype.is_narrow:
        array = array.astype(dtype.compute.numpy, copy=False).astype(dtype.numpy)
    return array.astype(float_type(dtype, wide), copy=False)


def _is_extension(dtype: np.dtype[Any]) -> bool:
    """Whether a numpy type was added by a library: casts between two of those are not defined, and few functions know them."""
    return dtype.isbuiltin == 2


def reinterpret(x: Any, source: DType, dtype: DType, wide: bool = False) -> np.ndarray:
    """The bits of values of one type as those of another of the same size."""
    stored = np.ascontiguousarray(np.asarray(x).astype(source.numpy, copy=False))
    return stored.view(dtype.numpy).reshape(np.shape(x)).astype(float_type(dtype, wide), copy=False)


def evaluate_expr(root: Expr, env: Mapping[Expr, Any], inputs: Sequence[np.ndarray], wide: bool) -> Any:
    """Evaluate an expression over arrays of axis values, vectorised."""
    done: dict[Expr, Any] = dict(env)
    counted = _counted(env)
    for e in walk(root):
        if e in done:
            continue
        match e:
            case Const():
                done[e] = np.asarray(e.value, dtype=float_type(e.dtype, wide))
            case Var():
                raise KeyError(f"axis {e.name} has no value")
            case Load():
                done[e] = _load(e, done, counted, inputs, wide)
            case Apply("cast", (a,)):
                # A cast to a half type in a body is the model's own, and so is its rounding; storing one rounds nothing here.
                kept = convert(done[a], e.dtype) if e.dtype.is_half else done[a]
                done[e] = convert(kept, e.dtype, wide)
            case Apply("bitcast", (a,)):
                done[e] = reinterpret(done[a], a.dtype, e.dtype, wide)
            case Apply():
                done[e] = FUNCTIONS[e.fn].numpy(*(done[a] for a in e.args))
    return done[root]


def _counted(env: Mapping[Expr, Any]) -> dict[Expr, tuple[int, int, int]]:
    """The axes whose values count up by one along one dimension: that (from the last one), the first value, the count."""
    found: dict[Expr, tuple[int, int, int]] = {}
    for a, values in env.items():
        array = np.asarray(values)
        if array.size == 0 or array.dtype != np.int64 or array.size != max(array.shape, default=1):
            continue
        flat = array.reshape(-1)
        first = int(flat[0])
        if int(flat[-1]) - first == array.size - 1 and (array.size < 3 or bool((np.diff(flat) == 1).all())):
            place = int(np.argmax(array.shape)) - array.ndim if array.shape else -1
            found[a] = (place, first, array.size)
    return found


def _load(
    e: Load,
    done: Mapping[Expr, Any],
    counted: Mapping[Expr, tuple[int, int, int]],
    inputs: Sequence[np.ndarray],
    wide: bool,
) -> Any:
    if not isinstance(e.source, int):
        raise KeyError(f"load from {e.source!r}: not an input slot")
    array = inputs[e.source]
    kept = float_type(e.dtype, wide)
    if array.size == 0:
        shape = np.broadcast_shapes(*(np.shape(done[i]) for i in e.index)) if e.index else ()
        return np.full(shape, e.fill or 0, dtype=kept)
    view = _aligned(e, array, done, counted)
    if view is not None:
        return view.astype(kept, copy=False) if e.dtype.is_float else view
    return _gathered(e, array, done).astype(kept, copy=False)


def _gathered(e: Load, array: np.ndarray, done: Mapping[Expr, Any]) -> np.ndarray:
    """Element by element; an index outside the tensor reads `fill`, or anything where there is none."""
    index = [np.asarray(done[i]) for i in e.index]
    out = np.asarray(array[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, array.shape, strict=True))])
    if e.fill is None:
        return out
    inside: Any = True
    for i, n in zip(index, array.shape, strict=True):
        inside = inside & (i >= 0) & (i < n)
    return out if np.all(inside) else np.where(inside, out, np.asarray(e.fill, dtype=out.dtype))


def _aligned(
    e: Load, array: np.ndarray, done: Mapping[Expr, Any], counted: Mapping[Expr, tuple[int, int, int]]
) -> np.ndarray | None:
    """A view whose dimensions stand where the axes' own do; None where the index is not affine in such axes."""
    made = strided(e, array, {a: (first, n) for a, (_, first, n) in counted.items()})
    if made is None:
        return None
    view, used = made
    rank = max((np.ndim(done[a]) or 1 for a in counted), default=0)
    wide_axes = [a for a in used if counted[a][2] > 1]
    places = [counted[a][0] for a in wide_axes]
    if len(set(places)) != len(places):
        return None
    view = view.reshape([counted[a][2] for a in wide_axes]) if len(wide_axes) != len(used) else view
    order = sorted(range(len(places)), key=places.__getitem__)
    shape = [1] * rank
    for k in order:
        shape[places[k]] = view.shape[k]
    return view.transpose(order).reshape(shape)


def strided(e: Load, array: np.ndarray, ranges: Ranges) -> tuple[np.ndarray, list[Expr]] | None:
    """A view with a dimension for each axis that the index uses, on a padded copy where it leaves the tensor.

    None where an index is not affine in the given axes, or padding would dwarf the tensor.
    """
    pads: list[tuple[int, int]] = []
    base: list[int] = []
    uses: dict[Expr, list[tuple[int, int]]] = {}
    for d, (i, n) in enumerate(zip(e.index, array.shape, strict=True)):
        parts, constant = ix.terms(i)
        low = high = constant
        start = constant
        for a, c in parts:
            if a not in ranges:
                return None
            first, count = ranges[a]
            ends = (c * first, c * (first + count - 1))
            low, high, start = low + min(ends), high + max(ends), start + ends[0]
            uses.setdefault(a, []).append((d, c))
        pads.append((max(0, -low), max(0, high - n + 1)))
        base.append(start + max(0, -low))
    if any(p != (0, 0) for p in pads):
        size = math.prod(n + p + q for n, (p, q) in zip(array.shape, pads, strict=True))
        if size > MOST_PADDING * max(array.size, 1 << 12):
            return None
        array = np.pad(array, pads, constant_values=e.fill or 0)
    used = list(uses)
    strides = [sum(array.strides[d] * c for d, c in uses[a]) for a in used]
    corner = array[tuple(slice(b, None) for b in base)]
    if _is_extension(array.dtype):
        corner = corner.view(f"u{array.itemsize}")
    view = np.lib.stride_tricks.as_strided(corner, [ranges[a][1] for a in used], strides, writeable=False)
    return view.view(array.dtype), used
