"""Normalisations, in two passes: the mean first, then the squares of what was centred."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.common import F32, F64, axes_in, axis_in, like, reduce_axes, scaled, square
from autofuse.ops.declare import Call, Op, Sample, Unsupported


def inverse_deviation(total: Expr, count: int, epsilon: float) -> Expr:
    """1 / sqrt(total / count + epsilon)."""
    variance = scaled(total, count)
    return call("div", like(total, 1), call("sqrt", call("add", variance, like(total, epsilon))))


def centred(b: Builder, x: ValueId, axes: Sequence[int]) -> tuple[ValueId, ValueId]:
    """The mean over the axes (kept as size 1) and x less it, both in the computing type."""
    compute = b.dtype(x).compute
    count = int(np.prod([b.shape(x)[a] for a in axes], dtype=np.int64))
    total = reduce_axes(b, x, axes, Combine.SUM, dtype=compute)
    mean = b.elementwise([total], lambda e: scaled(e, count))
    return mean, b.elementwise([x, mean], lambda e, m: call("sub", e, m), compute)


def standardised(b: Builder, x: ValueId, axes: Sequence[int], epsilon: float) -> tuple[ValueId, ValueId, ValueId]:
    """The mean, x less it, and the inverse standard deviation."""
    count = int(np.prod([b.shape(x)[a] for a in axes], dtype=np.int64))
    mean, d = centred(b, x, axes)
    squares = reduce_axes(b, d, axes, Combine.SUM, square)
    return mean, d, b.elementwise([squares], lambda e: inverse_deviation(e, count, epsilon))


def affine(
    b: Builder,
    d: ValueId,
    inverse: ValueId,
    scale: ValueId | None,
    bias: ValueId | None,
    where: Callable[[Index], Index],
    dtype: DType,
) -> ValueId:
    """d * inverse * scale + bias; `where` maps the output's index to that of scale and bias."""
    inputs = [v for v in (d, inverse, scale, bias) if v is not None]

    def body(i: Index, read: Reader) -> Expr:
        e = call("mul", read(0, i), read.broadcast(1, i))
        if scale is not None:
            e = call("mul", e, cast_to(read(2, where(i)), e.dtype))
        if bias is not None:
            e = call("add", e, cast_to(read(len(inputs) - 1, where(i)), e.dtype))
        return e

    return b.map(inputs, b.shape(d), body, dtype)


def trailing(b: Builder, v: ValueId) -> Callable[[Index], Index]:
    """numpy's broadcasting of a parameter against the last dimensions."""
    dims = b.shape(v)

    def where(i: Index) -> Index:
        return tuple(const(0) if n == 1 else k for k, n in zip(i[len(i) - len(dims) :], dims, strict=True))

    return where


def layer_norm(
    b: Builder, x: ValueId, axes: Sequence[int], epsilon: float, scale: ValueId | None, bias: ValueId | None
) -> tuple[ValueId, ValueId, ValueId]:
    """The result, the mean and the inverse standard deviation."""
    mean, d, inverse = standardised(b, x, axes, epsilon)
    for v in (scale, bias):
        if v is not None and np.broadcast_shapes(b.shape(v), b.shape(x)) != b.shape(x):
            raise Unsupported("a scale or bias that enlarges the output")
    shapes = {b.shape(v) for v in (scale, bias) if v is not None}
    if len(shapes) > 1:  # parameters of different shapes: broadcast each by itself
        scaled_only = affine(b, d, inverse, scale, None, trailing(b, scale or 0), b.dtype(d))
        y = b.elementwise([scaled_only, bias or 0], lambda e, t: call("add", e, cast_to(t, e.dtype)), b.dtype(x))
        return y, mean, inverse
    one = scale if scale is not None else bias
    where = trailing(b, one) if one is not None else (lambda i: i)
    return affine(b, d, inverse, scale, bias, where, b.dtype(x)), mean, inverse


def _layer_norm(c: Call) -> Sequence[ValueId | None]:
    x = c.input(0)
    rank = len(c.builder.shape(x))
    axes = range(axis_in(int(c.attr("axis", -1)), rank), rank)
    epsilon = float(c.attr("epsilon", 1e-5))
    made = layer_norm(c.builder, x, axes, epsilon, c.input(1), c.input(2) if c.has(2) else None)
    return made[: len(c.wanted)]


def rms_norm(b: Builder, x: ValueId, axes: Sequence[int], epsilon: float, scale: ValueId) -> tuple[ValueId, ValueId]:
    """x / sqrt(mean of squares + epsilon) * scale, and the inverse root."""
    count = int(np.prod([b.shape(x)[a] for a in axes], dtype=np.int64))
    squares = reduce_axes(b, x, axes, Combine.SUM, square, dtype=b.dtype(x).compute)
    inverse = b.elementwise([squares], lambda e: inverse_deviation(e, count, epsilon))
    return affine(b, x, inverse, scale, None, trailing(b, scale), b.dtype(x)), inverse


def _rms_norm(c: Call) -> Sequence[ValueId]:
    x = c.input(0)
    rank = len(c.builder.shape(x))
    axes = range(axis_in(int(c.attr("axis", -1)), rank), rank)
    return [rms_norm(c.builder, x, axes, float(c.attr("epsilon", 1e-5)), c.input(1))[0]]


def _instance_norm(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    axes = range(2, len(b.shape(x)))
    _, d, inverse = standardised(b, x, axes, float(c.attr("epsilon", 1e-5)))
    return [affine(b, d, inverse, c.input(1), c.input(2), lambda i: (i[1],), b.dtype(x))]


def group_norm(c: Call, groups: int, epsilon: float, by_group: bool) -> ValueId:
    """Statistics over the channels of a group and all spatial axes; scale and bias by channel, or by group in opset 18."""
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    if len(shape) < 2 or shape[1] % groups:
        raise Unsupported(f"{groups} groups do not divide the channels of {shape}")
    per = shape[1] // groups
    over = (per, *shape[2:])
    count = int(np.prod(over, dtype=np.int64))
    compute = dtype.compute

    def total(v: ValueId, fn: Callable[[Expr], Expr]) -> ValueId:
        def body(out: Index, reduced: Index, read: Reader) -> Expr:
            channel = ix.add(ix.mul(out[1], per), reduced[0])
            return fn(read(0, (out[0], channel, *reduced[1:])))

        return b.reduce([v], (shape[0], groups), over, Combine.SUM, body, compute)

    def group(i: Index) -> Index:
        return (i[0], ix.floor_div(i[1], per))

    mean = b.elementwise([total(x, lambda e: e)], lambda e: scaled(e, count))
    d = b.map([x, mean], shape, lambda i, read: call("sub", read(0, i), read(1, group(i))), compute)
    inverse = b.elementwise([total(d, square)], lambda e: inverse_deviation(e, count, epsilon))

    def body(i: Index, read: Reader) -> Expr:
        at = group(i)[1:] if by_group else (i[1],)
        e = call("mul", read(0, i), read(1, group(i)))
        return call("add", call("mul", e, cast_to(read(2, at), e.dtype)), cast_to(read(3, at), e.dtype))

    return b.map([d, inverse, c.input(1), c.input(2)], shape, body, dtype)


def _group_norm(c: Call) -> Sequence[ValueId]:
    by_group = c.opset < 21
    return [group_norm(c, int(c.attr("num_groups")), float(c.attr("epsilon", 1e-5)), by_group)]


def _batch_norm(c: Call) -> Sequence[ValueId | None]:
    """Inference: scale and shift are small stages of the four parameters (constant as a rule), then one map."""
    b = c.builder
    training = c.attr("training_mode", 0) if c.opset >= 14 else any(c.wanted[1:])
    if c.opset < 7:
        training = not c.attr("is_test", 0)
    if not c.attr("spatial", 1):
        raise Unsupported("BatchNormalization with statistics of each position")
    if training:
        return _batch_norm_training(c)
    x, weight, bias, mean, variance = (c.input(k) for k in range(5))
    compute, shape = b.dtype(x).compute, b.shape(x)
    epsilon = float(c.attr("epsilon", 1e-5))

    def factor(s: Expr, v: Expr) -> Expr:
        return call("div", s, call("sqrt", call("add", v, like(v, epsilon))))

    def wide(e: Expr) -> Expr:
        return cast_to(e, compute)

    scale = b.elementwise([weight, variance], lambda s, v: factor(wide(s), wide(v)), compute)
    shift = b.elementwise([bias, mean, scale], lambda t, m, s: call("sub", wide(t), call("mul", wide(m), s)), compute)

    def body(i: Index, read: Reader) -> Expr:
        at = (i[1],) if len(shape) > 1 else (const(0),)
        return call("add", call("mul", read(0, i), read(1, at)), read(2, at))

    return [b.map([x, scale, shift], shape, body, b.dtype(x)), *([None] * (len(c.wanted) - 1))]


def _batch_norm_training(c: Call) -> Sequence[ValueId | None]:
    """Training: the batch's own statistics; then the running ones with them mixed in, and (below opset 14) the batch's."""
    b = c.builder
    x, weight, bias, mean, variance = (c.input(k) for k in range(5))
    shape = b.shape(x)
    if len(shape) < 2:
        raise Unsupported("BatchNormalization of a vector in training mode")
    axes = [a for a in range(len(shape)) if a != 1]
    count = int(np.prod([shape[a] for a in axes], dtype=np.int64))
    momentum, epsilon = float(c.attr("momentum", 0.9)), float(c.attr("epsilon", 1e-5))
    own, d = centred(b, x, axes)
    squares = reduce_axes(b, d, axes, Combine.SUM, square)
    spread = b.elementwise([squares], lambda e: scaled(e, count))
    inverse = b.elementwise([squares], lambda e: inverse_deviation(e, count, epsilon))
    y = affine(b, d, inverse, weight, bias, lambda i: (i[1],), b.dtype(x))

    def at(i: Index) -> Index:
        return tuple(i[0] if a == 1 else const(0) for a in range(len(shape)))

    def mixed(old: ValueId, new: ValueId) -> ValueId:
        def body(i: Index, read: Reader) -> Expr:
            e = read(1, at(i))
            kept = call("mul", cast_to(read(0, i), e.dtype), like(e, momentum))
            return call("add", kept, call("mul", e, like(e, 1 - momentum)))

        return b.map([old, new], (shape[1],), body, b.dtype(old))

    def plain(new: ValueId) -> ValueId:
        return b.map([new], (shape[1],), lambda i, read: read(0, at(i)), b.dtype(mean))

    makes: tuple[Callable[[], ValueId], ...] = (
        lambda: mixed(mean, own),
        lambda: mixed(variance, spread),
        lambda: plain(own),
        lambda: plain(spread),
    )
    return [y, *(make() if w else None for make, w in zip(makes, c.wanted[1:], strict=False))]


def _lp_norm(c: Call) -> Sequence[ValueId]:
    """x / norm; a vector of zeros stays zero."""
    b = c.builder
    x = c.input(0)
    axis = axis_in(int(c.attr("axis", -1)), len(b.shape(x)))
    two = int(c.attr("p", 2)) == 2

    def before(e: Expr) -> Expr:
        return square(e) if two else call("abs", e)

    def divide(e: Expr, total: Expr) -> Expr:
        norm = call("sqrt", total) if two else total
        return select(call("eq", norm, like(norm, 0)), like(e, 0), call("div", e, norm))

    total = reduce_axes(b, x, [axis], Combine.SUM, before, dtype=b.dtype(x).compute)
    return [b.elementwise([x, total], divide, b.dtype(x))]


def _mean_variance(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    shape = b.shape(x)
    axes = axes_in([int(a) for a in c.attr("axes") or (0, 2, 3)], len(shape))
    count = int(np.prod([shape[a] for a in axes], dtype=np.int64))
    _, d = centred(b, x, axes)
    squares = reduce_axes(b, d, axes, Combine.SUM, square)

    def divide(e: Expr, total: Expr) -> Expr:
        deviation = call("sqrt", scaled(total, count))
        return call("div", e, call("add", deviation, like(e, 1e-9)))

    return [b.elementwise([d, squares], divide, b.dtype(x))]


def _bn(dtype: str, shape: tuple[int, ...], opset: int = 15, **attributes: object) -> Sample:
    channels = shape[1]
    variance = np.linspace(0.5, 2.0, channels).astype(dtype)
    return Sample(((dtype, shape), *([(dtype, (channels,))] * 3), variance), attributes, opset)


_LARGE = np.array([[40000, 40001, 40002, 40003], [7, 7, 7, 7]], np.float32)
_ONES = (np.ones(4, np.float32), np.zeros(4, np.float32))

NORMALIZATIONS: tuple[Op, ...] = (
    Op(
        "BatchNormalization",
        _batch_norm,
        (
            _bn(F32, (2, 3, 4, 5)),
            _bn(F32, (4, 3), 9),
            _bn(F64, (2, 3, 4), epsilon=0.1),
            dataclasses.replace(_bn(F32, (2, 3, 4, 5), training_mode=1, momentum=0.7), outputs=3),
            dataclasses.replace(_bn(F64, (6, 3), training_mode=1), outputs=3),
        ),
    ),
    Op(
        "LayerNormalization",
        _layer_norm,
        (
            Sample(((F32, (2, 3, 5)), (F32, (5,)), (F32, (5,))), outputs=3),
            Sample(((F32, (2, 3, 5)), (F32, (3, 5))), {"axis": 1, "epsilon": 0.1}),
            Sample((_LARGE, *_ONES)),
            Sample(((F32, (2, 3, 4)), (F32, (3, 4)), (F32, (4,))), {"axis": -2}),
        ),
    ),
    Op(
        "RMSNormalization",
        _rms_norm,
        (
            Sample(((F32, (2, 3, 5)), (F32, (5,))), opset=23),
            Sample(((F32, (2, 3, 5)), (F32, (3, 5))), {"axis": 1, "epsilon": 0.1}, opset=23),
        ),
        since=23,
    ),
    Op(
        "InstanceNormalization",
        _instance_norm,
        (
            Sample(((F32, (2, 3, 4, 5)), (F32, (3,)), (F32, (3,)))),
            Sample(((F32, (2, 3, 6)), (F32, (3,)), (F32, (3,))), {"epsilon": 0.1}),
        ),
    ),
    Op(
        "GroupNormalization",
        _group_norm,
        (
            Sample(((F32, (2, 6, 4, 5)), (F32, (6,)), (F32, (6,))), {"num_groups": 3}, opset=21),
            Sample(((F32, (2, 4, 6)), (F32, (2,)), (F32, (2,))), {"num_groups": 2, "epsilon": 0.1}, opset=18),
        ),
        since=18,
    ),
    Op(
        "LpNormalization",
        _lp_norm,
        (
            Sample(((F32, (3, 4)),)),
            Sample(((F32, (3, 4)),), {"axis": 0, "p": 1}, low=0.1),
            Sample((np.array([[0, 0, 0], [3, 4, 0]], np.float32),)),
        ),
    ),
    Op(
        "MeanVarianceNormalization",
        _mean_variance,
        (Sample(((F32, (2, 3, 4, 5)),), opset=13), Sample(((F32, (2, 3, 4)),), {"axes": [0, 2]}, opset=13)),
    ),
)
