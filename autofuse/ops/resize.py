"""Resize and Upsample: nearest, linear and cubic, with or without antialiasing, with scales or sizes that are known at import.

`autofuse.ops.resize_taps` works out where an axis reads and with which weights. An index that follows a rule becomes
arithmetic (o // 2 for a doubled axis); any other, and the weights, become small constant tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.common import F16, F32, F64, I32, U8, axis_in, like
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.resize_taps import Axis, axis_of

MOST_LOADS = 64
"""Elements that one output may read in one step (cubic in three dimensions); what reads more is resized axis by axis."""


@dataclass(frozen=True)
class _Plan:
    """Sizes, scales and crop of each axis of the tensor."""

    out: list[int]
    scales: list[float]
    roi: list[tuple[float, float]]


def _rule(positions: np.ndarray, n: int) -> Callable[[Expr], Expr] | None:
    """An expression (p o + q) // d, clamped, that gives these positions clamped; None where none of the usual ones does."""
    out = len(positions)
    if out == 0:
        return lambda o: const(0)
    o = np.arange(out)
    wanted = np.clip(positions, 0, n - 1)
    g = gcd(n, out) or 1
    p, d = n // g, out // g
    for scale, shift in ((p, 0), (2 * p, p - d)):
        below = d if shift == 0 else 2 * d
        for q in (0, below // 2, below // 2 - 1, below - 1, -below, below, 2 * below):
            found = (o * scale + shift + q) // below
            if np.array_equal(np.clip(found, 0, n - 1), wanted):
                return _clamped(scale, shift + q, below, n)
    steps = np.diff(wanted)
    if out > 1 and (steps == steps[0]).all():
        return _clamped(int(steps[0]), int(wanted[0]), 1, n)
    return None


def _clamped(p: int, q: int, d: int, n: int) -> Callable[[Expr], Expr]:
    def expression(o: Expr) -> Expr:
        found = ix.floor_div(ix.add(ix.mul(o, p), const(q)), d)
        return ix.minimum(ix.maximum(found, const(0)), const(n - 1))

    return expression


class _Tables:
    """Constants that the body reads, as input slots."""

    def __init__(self, b: Builder, x: ValueId) -> None:
        self.b = b
        self.inputs = [x]

    def read(self, table: np.ndarray) -> Callable[[Expr, Reader], Expr]:
        self.inputs.append(self.b.constant(np.ascontiguousarray(table)))
        slot = len(self.inputs) - 1
        return lambda o, read: read(slot, (o,))


Tap = tuple[Callable[[Expr, Reader], Expr], Callable[[Expr, Reader], Expr] | None]


def _where(column: np.ndarray, n: int, tables: _Tables) -> Callable[[Expr, Reader], Expr]:
    """The position of one tap, by rule or by table."""
    rule = _rule(column, n)
    if rule is not None:
        known = rule
        return lambda o, read: known(o)
    table = tables.read(np.clip(column, 0, n - 1))
    return lambda o, read: cast_to(table(o, read), INDEX)


def _taps(axis: Axis, tables: _Tables, dtype: np.dtype) -> list[Tap]:
    """(position, weight) readers of an axis."""
    found: list[Tap] = []
    for k in range(axis.positions.shape[1]):
        where = _where(axis.positions[:, k], axis.size, tables)
        found.append((where, None if axis.weights is None else tables.read(axis.weights[:, k].astype(dtype))))
    return found


def _apply(c: Call, plan: _Plan, old: bool) -> ValueId:
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    nearest = str(c.attr("mode", "nearest")) == "nearest"
    if 0 in shape and 0 not in plan.out:
        raise Unsupported("an empty tensor made larger")
    axes: dict[int, Axis] = {}
    for k, (n, m, s, r) in enumerate(zip(shape, plan.out, plan.scales, plan.roi, strict=True)):
        if n != m or s != 1.0 or r != (0.0, 1.0):
            axes[k] = axis_of(c, n, m, s, r, old)
    if not axes:
        return x
    work = dtype.compute if nearest else _working(dtype)
    if np.prod([a.positions.shape[1] for a in axes.values()]) > MOST_LOADS:
        for k, a in axes.items():
            x = _along(b, x, k, a, work)
        axes = {k: Axis(len(a.positions), _identity(a), None, a.outside) for k, a in axes.items()}
    tables = _Tables(b, x)
    taps = {k: _taps(a, tables, work.numpy) for k, a in axes.items()}
    masks = {k: tables.read(a.outside) for k, a in axes.items() if a.outside is not None}
    order = list(axes)

    def interpolate(i: Index, read: Reader, depth: int, at: dict[int, Expr]) -> Expr:
        if depth == len(order):
            index = [at.get(k, e) for k, e in enumerate(i)]
            return read.raw(0, index) if nearest else cast_to(read(0, index), work)
        k = order[depth]
        total: Expr | None = None
        for where, weight in taps[k]:
            e = interpolate(i, read, depth + 1, {**at, k: where(i[k], read)})
            if weight is not None:
                e = call("mul", e, weight(i[k], read))
            total = e if total is None else call("add", total, e)
        assert total is not None
        return total

    def body(i: Index, read: Reader) -> Expr:
        e = interpolate(i, read, 0, {})
        for k, mask in masks.items():
            e = select(mask(i[k], read), like(e, float(c.attr("extrapolation_value", 0.0))), e)
        return e if nearest or dtype.is_float else _saturated(e, dtype)

    return b.map(tables.inputs, plan.out, body, dtype)


def _working(dtype: DType) -> DType:
    """The type that interpolation computes in: integers in one that holds them."""
    if dtype.is_float:
        return dtype.compute
    return DType.FLOAT32 if dtype.itemsize <= 2 else DType.FLOAT64


def _saturated(e: Expr, dtype: DType) -> Expr:
    """Rounded half to even, and held in the range of an integer type."""
    if dtype is DType.BOOL:
        raise Unsupported("interpolation of booleans")
    low, high = (like(e, float(v)) for v in (dtype.min_value, dtype.max_value))
    return cast_to(call("minimum", call("maximum", call("round", e), low), high), dtype)


def _identity(axis: Axis) -> np.ndarray:
    return np.arange(len(axis.positions), dtype=np.int64)[:, None]


def _along(b: Builder, x: ValueId, k: int, axis: Axis, work: DType) -> ValueId:
    """One axis resized: a sum over its taps, which follow one upon the other."""
    shape = b.shape(x)
    if axis.weights is None:
        raise Unsupported("more taps than one element may read")
    count = axis.weights.shape[1]
    tables = _Tables(b, x)
    tables.inputs.append(b.constant(np.ascontiguousarray(axis.weights.astype(work.numpy))))
    first = axis.positions[:, 0]
    start = tables.read(first)
    last = const(axis.size - 1)

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        at = ix.add(cast_to(start(out[k], read), INDEX), reduced[0])
        at = ix.minimum(ix.maximum(at, const(0)), last)
        e = cast_to(read(0, (*out[:k], at, *out[k + 1 :])), work)
        return call("mul", e, read(1, (out[k], reduced[0])))

    return b.reduce(tables.inputs, (*shape[:k], len(first), *shape[k + 1 :]), [count], Combine.SUM, body, work)


def _given(c: Call, k: int) -> np.ndarray | None:
    """A parameter; an empty one counts as left out."""
    found = c.constant(k)
    return None if found is None or found.size == 0 else found.reshape(-1)


def _spread(values: Sequence[float], axes: Sequence[int], rank: int, rest: float) -> list[float]:
    out = [rest] * rank
    for a, v in zip(axes, values, strict=True):
        out[a] = v
    return out


def _by_scales(shape: Sequence[int], scales: Sequence[float], roi: list[tuple[float, float]]) -> _Plan:
    if len(scales) != len(shape) or any(s <= 0 for s in scales):
        raise Unsupported(f"scales {list(scales)} for a tensor of shape {tuple(shape)}")
    return _Plan([int(np.floor(s * n)) for s, n in zip(scales, shape, strict=True)], list(scales), roi)


def _resize(c: Call) -> Sequence[ValueId]:
    shape = c.builder.shape(c.input(0))
    rank = len(shape)
    whole = [(0.0, 1.0)] * rank
    if c.opset < 11:
        scales = _given(c, 1)
        if scales is None:
            raise Unsupported("no scales are given")
        return [_apply(c, _by_scales(shape, [float(s) for s in scales], whole), old=True)]
    given = c.attr("axes")
    axes = [axis_in(int(a), rank) for a in given] if given is not None else list(range(rank))
    crop = c.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi, scales, sizes = _given(c, 1) if crop else None, _given(c, 2), _given(c, 3)
    ranges = list(whole)
    if roi is not None:
        for k, a in enumerate(axes):
            ranges[a] = (float(roi[k]), float(roi[k + len(axes)]))
    if sizes is None:
        if scales is None:
            raise Unsupported("neither scales nor sizes are given")
        return [_apply(c, _by_scales(shape, _spread([float(s) for s in scales], axes, rank, 1.0), ranges), old=False)]
    out = list(shape)
    for a, n in zip(axes, sizes, strict=True):
        out[a] = int(n)
    factors = [m / n if n else 1.0 for m, n in zip(out, shape, strict=True)]
    policy = str(c.attr("keep_aspect_ratio_policy", "stretch"))
    if policy != "stretch":
        chosen = (min if policy == "not_larger" else max)(factors[a] for a in axes)
        factors = [chosen if a in axes else 1.0 for a in range(rank)]
        out = [int(chosen * n + 0.5) if a in axes else n for a, n in enumerate(shape)]
    return [_apply(c, _Plan(out, factors, ranges), old=False)]


def _upsample(c: Call) -> Sequence[ValueId]:
    shape = c.builder.shape(c.input(0))
    given = c.attr("scales") if c.attr("scales") is not None else _given(c, 1)
    scales = [float(s) for s in given] if given is not None else []
    return [_apply(c, _by_scales(shape, scales, [(0.0, 1.0)] * len(shape)), old=True)]


_X = (F32, (1, 2, 4, 6))


def _scaled(*scales: float, dtype: str = F32, **attributes: object) -> Sample:
    low, high = (-2.0, 2.0) if dtype.startswith("float") else (0, 255)
    inputs = ((dtype, _X[1]), None, np.array([1, 1, *scales], np.float32))
    return Sample(inputs, attributes, low=low, high=high, constant=(2,))


def _sized(*sizes: int, **attributes: object) -> Sample:
    return Sample((_X, None, None, np.array([1, 2, *sizes], np.int64)), attributes, constant=(3,))


RESIZES: tuple[Op, ...] = (
    Op(
        "Resize",
        _resize,
        (
            _scaled(2, 3),
            _scaled(2, 2, coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
            _scaled(0.5, 0.6, coordinate_transformation_mode="asymmetric", nearest_mode="ceil"),
            _scaled(2, 1.5, mode="linear"),
            _scaled(2, 2, mode="linear", dtype=F16),
            _scaled(2, 2, mode="linear", dtype=F64),
            _sized(7, 9, mode="linear", coordinate_transformation_mode="align_corners"),
            _sized(3, 4, mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
            _sized(9, 5, mode="cubic"),
            _sized(9, 5, mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
            _sized(9, 5, nearest_mode="round_prefer_ceil"),
            Sample(((U8, (1, 2, 4, 6)), None, np.array([1, 1, 2, 2], np.float32)), constant=(2,), low=0, high=255),
            _scaled(0.6, 0.55, mode="linear", antialias=1),
            _scaled(0.6, 0.55, mode="cubic", antialias=1, exclude_outside=1),
            _sized(3, 13, mode="cubic", antialias=1),
            _scaled(1.9, 0.18, mode="cubic", antialias=1),
            _scaled(2, 0.5, dtype=U8, mode="linear"),
            _scaled(1.5, 0.7, dtype=I32, mode="cubic"),
        ),
    ),
    Op(
        "Upsample",
        _upsample,
        (
            Sample((_X, np.array([1, 1, 2, 3], np.float32)), opset=9, constant=(1,)),
            Sample((_X,), {"scales": [1.0, 1.0, 2.0, 2.0]}, opset=7),
            Sample((_X, np.array([1, 1, 2, 3], np.float32)), {"mode": "linear"}, opset=9, constant=(1,)),
        ),
    ),
)
