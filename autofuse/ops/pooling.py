"""Pooling over windows and over whole spatial axes, and the local response normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.expr import Const, Expr, call, cast_to, const
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F16, F32, F64, I8, Window, like, reduce_axes, scaled, square, window
from autofuse.ops.declare import Call, Op, Sample, Unsupported


def _geometry(c: Call) -> Window:
    shape = c.builder.shape(c.input(0))
    kernel = [int(k) for k in c.attr("kernel_shape") or ()]
    if len(shape) < 3 or len(kernel) != len(shape) - 2:
        raise Unsupported(f"a window of rank {len(kernel)} over a tensor of rank {len(shape)}")
    return window(c, shape[2:], kernel, bool(c.attr("ceil_mode", 0)))


def _max_pool(c: Call) -> Sequence[ValueId | None]:
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    g = _geometry(c)

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        return read(0, (*out[:2], *g.index(out[2:], reduced)), fill=dtype.min_value)

    made = (*shape[:2], *g.out)
    best = b.reduce([x], made, g.kernel, Combine.MAX, body, dtype)
    if not (len(c.wanted) > 1 and c.wanted[1]):
        return [best, None][: max(len(c.wanted), 1)]
    tap = b.reduce([x], made, g.kernel, Combine.ARGMAX, body)
    columns_first = bool(c.attr("storage_order", 0))

    def flat(i: Index, read: Reader) -> Expr:
        at = g.index(i[2:], ix.unflatten(read(0, i), g.kernel))
        plane = ix.add(ix.mul(i[0], shape[1]), i[1])
        order = (at[::-1], g.sizes[::-1]) if columns_first else (at, g.sizes)
        return ix.add(ix.mul(plane, int(np.prod(g.sizes))), ix.flatten(*order))

    return [best, b.map([tap], made, flat)]


def _count(g: Window, o: Expr, k: int, pads_too: bool) -> Expr:
    """How many taps of spatial axis k lie in the tensor, or in the tensor and its padding."""
    s, d, p = g.strides[k], g.dilations[k], g.begin[k]
    first = ix.sub(const(p), ix.mul(o, s))
    stop = g.sizes[k] - 1 + (g.end[k] if pads_too else 0)
    last = ix.minimum(ix.floor_div(ix.add(first, const(stop)), d), const(g.kernel[k] - 1))
    begin = const(0) if pads_too else ix.maximum(ix.floor_div(ix.add(first, const(d - 1)), d), const(0))
    return ix.add(last, ix.mul(begin, -1), const(1))


def _average_pool(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    g = _geometry(c)
    pads_too = bool(c.attr("count_include_pad", 0))

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        return read(0, (*out[:2], *g.index(out[2:], reduced)), fill=0.0)

    def mean(i: Index, read: Reader) -> Expr:
        count: Expr = const(1)
        for k, o in enumerate(i[2:]):
            count = ix.mul(count, _count(g, o, k, pads_too))
        e = read(0, i)
        if isinstance(count, Const):
            return scaled(e, int(count.value))
        return call("div", e, cast_to(count, e.dtype))

    made = (*shape[:2], *g.out)
    total = b.reduce([x], made, g.kernel, Combine.SUM, body, dtype.compute)
    return [b.map([total], made, mean, dtype)]


def _norm(p: int) -> tuple[Callable[[Expr], Expr], Callable[[Expr], Expr]]:
    """|x|^p and its inverse on a sum."""
    if p == 1:
        return (lambda x: call("abs", x)), (lambda s: s)
    if p == 2:
        return square, (lambda s: call("sqrt", s))
    return (
        lambda x: call("pow", call("abs", x), like(x, p)),
        lambda s: call("pow", s, like(s, 1.0 / p)),
    )


def _lp_pool(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    g = _geometry(c)
    before, after = _norm(int(c.attr("p", 2)))

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        return before(read(0, (*out[:2], *g.index(out[2:], reduced)), fill=0.0))

    total = b.reduce([x], (*shape[:2], *g.out), g.kernel, Combine.SUM, body, dtype.compute)
    return [b.elementwise([total], after, dtype)]


def _spatial(c: Call) -> tuple[list[int], int]:
    shape = c.builder.shape(c.input(0))
    if len(shape) < 2:
        raise Unsupported("global pooling of a tensor without channels")
    return list(range(2, len(shape))), int(np.prod(shape[2:], dtype=np.int64))


def _global_average(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    axes, count = _spatial(c)
    total = reduce_axes(b, x, axes, Combine.SUM, dtype=b.dtype(x).compute)
    return [b.elementwise([total], lambda e: scaled(e, count), b.dtype(x))]


def _global_max(c: Call) -> Sequence[ValueId]:
    return [reduce_axes(c.builder, c.input(0), _spatial(c)[0], Combine.MAX, dtype=c.builder.dtype(c.input(0)))]


def _global_lp(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    before, after = _norm(int(c.attr("p", 2)))
    total = reduce_axes(b, x, _spatial(c)[0], Combine.SUM, before, dtype=b.dtype(x).compute)
    return [b.elementwise([total], after, b.dtype(x))]


def _lrn(c: Call) -> Sequence[ValueId]:
    """x / (bias + alpha / size * sum of squares over a window of channels) ^ beta."""
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    size = int(c.attr("size"))
    alpha, beta, bias = (float(c.attr(n, d)) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        at = ix.add(out[1], reduced[0], const(-((size - 1) // 2)))
        return square(read(0, (out[0], at, *out[2:]), fill=0.0))

    def scale(e: Expr, total: Expr) -> Expr:
        t = call("add", like(total, bias), call("mul", total, like(total, alpha / size)))
        return call("div", e, call("pow", t, like(t, beta)))

    total = b.reduce([x], shape, [size], Combine.SUM, body, dtype.compute)
    return [b.elementwise([x, total], scale, dtype)]


def _s(shape: tuple[int, ...], kernel: list[int], dtype: str = F32, outputs: int = 1, **attributes: object) -> Sample:
    low, high = (-99, 99) if dtype == I8 else (-2.0, 2.0)
    opset = 22 if "dilations" in attributes else 21
    return Sample(((dtype, shape),), {"kernel_shape": kernel, **attributes}, opset, low, high, outputs)


_X = (1, 2, 7, 8)
_COMMON = (
    _s(_X, [3, 2]),
    _s(_X, [3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    _s(_X, [3, 3], strides=[2, 2], ceil_mode=1),
    _s(_X, [2, 2], auto_pad="SAME_UPPER"),
    _s(_X, [2, 3], auto_pad="SAME_LOWER", strides=[2, 1]),
    _s((1, 2, 9), [3], strides=[2]),
    _s((1, 1, 4, 5, 4), [2, 2, 2]),
    _s(_X, [2, 3], F16),
    _s(_X, [2, 3], F64),
    _s(_X, [2, 2], dilations=[2, 3]),
)

POOLINGS: tuple[Op, ...] = (
    Op(
        "MaxPool",
        _max_pool,
        (
            *_COMMON,
            _s(_X, [2, 2], I8, pads=[1, 1, 0, 0]),
            _s(_X, [2, 2], outputs=2, strides=[2, 2]),
            _s(_X, [3, 3], outputs=2, pads=[1, 1, 1, 1], storage_order=1),
        ),
    ),
    Op(
        "AveragePool",
        _average_pool,
        (
            *_COMMON,
            _s(_X, [3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
            _s(_X, [3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1, ceil_mode=1),
            _s(_X, [3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
        ),
    ),
    Op("LpPool", _lp_pool, (_s(_X, [3, 2]), _s(_X, [2, 2], p=1), _s(_X, [2, 2], p=3, strides=[2, 2]))),
    Op("GlobalAveragePool", _global_average, (Sample(((F32, _X),)), Sample(((F16, (2, 3, 4)),)))),
    Op("GlobalMaxPool", _global_max, (Sample(((F32, _X),)), Sample(((F32, (2, 3, 4)),)))),
    Op("GlobalLpPool", _global_lp, (Sample(((F32, _X),)), Sample(((F32, _X),), {"p": 3}))),
    Op(
        "LRN",
        _lrn,
        (
            Sample(((F32, (2, 7, 3, 4)),), {"size": 3, "alpha": 0.1, "beta": 0.75, "bias": 2.0}),
            Sample(((F32, (5, 5, 3, 4)),), {"size": 4}),
        ),
    ),
)
