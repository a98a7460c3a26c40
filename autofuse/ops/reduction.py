"""Reductions over whole axes, and what is made of them: Softmax and its kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import (
    F16,
    F32,
    I8,
    I32,
    axes_in,
    axis_in,
    kept_shape,
    like,
    merge,
    reduce_axes,
    scaled,
    square,
)
from autofuse.ops.declare import Call, Op, Sample

Fn = Callable[[Expr], Expr]


@dataclass(frozen=True)
class _Form:
    """A reduction as a map before it, the combine and a map after it (which knows the count)."""

    combine: Combine
    before: Fn | None = None
    after: Callable[[Expr, int], Expr] | None = None


def _through_float(fn: str) -> Callable[[Expr, int], Expr]:
    """A function of floats that integers go through double for."""

    def after(x: Expr, n: int) -> Expr:
        wide = x if x.dtype.is_float else cast_to(x, DType.FLOAT64)
        return cast_to(call(fn, wide), x.dtype)

    return after


def _axes(c: Call, rank: int) -> tuple[int, ...]:
    given = c.ints(1, "axes")
    if given:
        return axes_in(given, rank)
    return () if c.attr("noop_with_empty_axes", 0) else tuple(range(rank))


def _emit(form: _Form) -> Callable[[Call], Sequence[ValueId]]:
    def emit(c: Call) -> Sequence[ValueId]:
        b = c.builder
        x = c.input(0)
        shape, dtype = b.shape(x), b.dtype(x)
        axes = _axes(c, len(shape))
        count = int(np.prod([shape[a] for a in axes], dtype=np.int64))
        before = form.before or (lambda e: e)
        after = form.after
        if not axes:  # without axes the function itself still applies
            return [b.elementwise([x], lambda e: before(e) if after is None else after(before(e), 1))]
        stored = dtype if after is None else dtype.compute
        r = reduce_axes(b, x, axes, form.combine, before, bool(c.attr("keepdims", 1)), stored)
        if after is None:
            return [r]
        return [b.map([r], b.shape(r), lambda i, read: after(read(0, i), count), dtype)]

    return emit


def _log_sum_exp(c: Call) -> Sequence[ValueId]:
    """The maximum is subtracted; an infinite one is not, as inf - inf is NaN."""
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    axes = _axes(c, len(shape))
    if not axes:
        return [b.elementwise([x], lambda e: e)]
    keep = bool(c.attr("keepdims", 1))
    m = reduce_axes(b, x, axes, Combine.MAX, keepdims=keep, dtype=dtype.compute)

    def finite(e: Expr) -> Expr:
        return select(call("isinf", e), like(e, 0), e)

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        e = read(0, merge(out, reduced, axes, len(shape), keep))
        return call("exp", call("sub", e, finite(read(1, out))))

    s = b.reduce([x, m], kept_shape(shape, axes, keep), [shape[a] for a in axes], Combine.SUM, body)
    return [b.elementwise([s, m], lambda e, top: call("add", call("log", e), finite(top)), dtype)]


def _arg(c: Call, first: Combine, last: Combine) -> Sequence[ValueId]:
    x = c.input(0)
    axis = axis_in(int(c.attr("axis", 0)), len(c.builder.shape(x)))
    combine = last if c.attr("select_last_index", 0) else first
    return [reduce_axes(c.builder, x, [axis], combine, keepdims=bool(c.attr("keepdims", 1)))]


def softmax_axes(c: Call) -> tuple[int, ...]:
    """Below opset 13 Softmax and its kin flatten to two dimensions at `axis`, which is 1 by default."""
    rank = len(c.builder.shape(c.input(0)))
    if c.opset >= 13:
        return (axis_in(int(c.attr("axis", -1)), rank),)
    axis = int(c.attr("axis", 1))
    return tuple(range(axis + rank if axis < 0 else axis, rank))


def softmax(c: Call, x: ValueId, axes: tuple[int, ...]) -> ValueId:
    """exp(x - max) / sum over the axes: a maximum, a map, a sum, a map."""
    b = c.builder
    compute = b.dtype(x).compute
    m = reduce_axes(b, x, axes, Combine.MAX, dtype=compute)
    e = b.elementwise([x, m], lambda a, top: call("exp", call("sub", a, top)), compute)
    s = reduce_axes(b, e, axes, Combine.SUM)
    return b.elementwise([e, s], lambda a, total: call("div", a, total), b.dtype(x))


def _softmax(c: Call) -> Sequence[ValueId]:
    return [softmax(c, c.input(0), softmax_axes(c))]


def _log_softmax(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    axes, compute = softmax_axes(c), b.dtype(x).compute
    m = reduce_axes(b, x, axes, Combine.MAX, dtype=compute)
    d = b.elementwise([x, m], lambda a, top: call("sub", a, top), compute)
    s = reduce_axes(b, d, axes, Combine.SUM, lambda a: call("exp", a))
    return [b.elementwise([d, s], lambda a, total: call("sub", a, call("log", total)), b.dtype(x))]


def _hardmax(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    axes, shape, compute = softmax_axes(c), b.shape(x), b.dtype(x).compute
    top = reduce_axes(b, x, axes, Combine.ARGMAX)

    def body(i: Index, read: Reader) -> Expr:
        mine = ix.flatten([i[a] for a in axes], [shape[a] for a in axes])
        best = read(0, [const(0) if a in axes else e for a, e in enumerate(i)])
        return select(call("eq", mine, best), const(1, compute), const(0, compute))

    return [b.map([top], shape, body, b.dtype(x))]


_X = (F32, (2, 3, 4))
_AXES = np.array([-1, 1], np.int64)


def _reduce(name: str, form: _Form, low: float = -2.0, ints: bool = True, emit: bool = True) -> Op:
    return Op(name, _emit(form) if emit else _log_sum_exp, _samples(name, low, ints))


def _samples(name: str, low: float, ints: bool) -> tuple[Sample, ...]:
    as_input = 13 if name == "ReduceSum" else 18
    found = [
        Sample((_X,), low=low, opset=as_input),
        Sample((_X, _AXES), {"keepdims": 0}, constant=(1,), low=low, opset=as_input),
        Sample((_X, _AXES[:1]), {"keepdims": 1}, constant=(1,), low=low, opset=as_input),
        Sample((_X, _AXES[:0]), {"noop_with_empty_axes": 1}, constant=(1,), low=low, opset=as_input),
        Sample((_X,), {"axes": [0, 2], "keepdims": 0}, low=low, opset=11),
        Sample(((F16, (3, 5)), _AXES[:1]), constant=(1,), low=low, opset=as_input),
    ]
    if ints:
        found.append(Sample(((I32, (3, 4)),), {"axes": [1]}, low=1, high=9, opset=11))
    return tuple(found)


def _arg_samples() -> tuple[Sample, ...]:
    ties = np.array([[2, 7, 7], [7, 1, 7]], np.float32)
    return (
        Sample((_X,)),
        Sample((_X,), {"axis": -1, "keepdims": 0}),
        Sample((ties,), {"axis": 1}),
        Sample((ties,), {"axis": 1, "select_last_index": 1}),
        Sample(((I8, (4, 5)),), {"axis": 0}, low=-9, high=9),
    )


def _softmax_samples() -> tuple[Sample, ...]:
    return (
        Sample((_X,)),
        Sample((_X,), {"axis": 1}),
        Sample((_X,), opset=11),
        Sample((_X,), {"axis": 0}, opset=9),
        Sample(((F16, (3, 9)),)),
    )


REDUCTIONS: tuple[Op, ...] = (
    _reduce("ReduceSum", _Form(Combine.SUM)),
    _reduce("ReduceMean", _Form(Combine.SUM, None, scaled), ints=False),
    _reduce("ReduceMax", _Form(Combine.MAX)),
    _reduce("ReduceMin", _Form(Combine.MIN)),
    _reduce("ReduceProd", _Form(Combine.PROD)),
    _reduce("ReduceL1", _Form(Combine.SUM, lambda x: call("abs", x))),
    _reduce("ReduceL2", _Form(Combine.SUM, square, _through_float("sqrt")), ints=False),
    _reduce("ReduceLogSum", _Form(Combine.SUM, None, _through_float("log")), low=0.1, ints=False),
    _reduce("ReduceLogSumExp", _Form(Combine.SUM), ints=False, emit=False),
    _reduce("ReduceSumSquare", _Form(Combine.SUM, square)),
    Op("ArgMax", lambda c: _arg(c, Combine.ARGMAX, Combine.ARGMAX_LAST), _arg_samples()),
    Op("ArgMin", lambda c: _arg(c, Combine.ARGMIN, Combine.ARGMIN_LAST), _arg_samples()),
    Op("Softmax", _softmax, _softmax_samples()),
    Op("LogSoftmax", _log_softmax, _softmax_samples()),
    Op("Hardmax", _hardmax, _softmax_samples()),
)
