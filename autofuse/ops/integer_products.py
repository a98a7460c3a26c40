"""Products of quantised integers: accumulated in 32 bits, and brought back to narrow integers where the operator says so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.common import I8, U8
from autofuse.ops.convolution import conv_window, grouped_channel
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.linear import broadcast_index
from autofuse.ops.quantization import saturated


def _shift_of(b: Builder, zero: ValueId | None, read: Reader, slot: int, at: Sequence[Expr]) -> Expr | None:
    """A zero point as an integer; None where there is none. `at` is used where it has an entry for each channel or row."""
    if zero is None:
        return None
    dims = b.shape(zero)
    index = [const(0)] * len(dims) if int(np.prod(dims)) == 1 else list(at)
    return cast_to(read(slot, index), DType.INT32)


def _shifted(e: Expr, zero: Expr | None) -> Expr:
    wide = cast_to(e, DType.INT32)
    return wide if zero is None else call("sub", wide, zero)


def _zero(c: Call, k: int) -> ValueId | None:
    """A zero point, or None where it is left out or known to be 0 (then a plain contraction remains)."""
    if not c.has(k):
        return None
    known = c.builder.known(c.input(k))
    return None if known is not None and not known.any() else c.input(k)


def _slots(*values: ValueId | None) -> tuple[list[ValueId], list[int]]:
    """The values that are there, and the slot of each."""
    inputs: list[ValueId] = []
    slots: list[int] = []
    for v in values:
        slots.append(len(inputs))
        if v is not None:
            inputs.append(v)
    return inputs, slots


def integer_matmul(c: Call, x: ValueId, y: ValueId, zx: ValueId | None, zy: ValueId | None) -> ValueId:
    """numpy's matmul in 32-bit integers. A zero point of x may be one a row, one of y one a column."""
    b = c.builder
    left, right = b.shape(x), b.shape(y)
    if not left or not right:
        raise Unsupported("a scalar has no matrix product")
    if left[-1] != (right[-2] if len(right) > 1 else right[0]):
        raise Unsupported(f"the inner dimensions of {left} and {right} differ")
    inputs, slots = _slots(x, y, zx, zy)
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        lead, k = out[: len(batch)], reduced[0]
        row = out[len(batch) : len(batch) + len(rows)]
        column = out[len(batch) + len(rows) :]

        def zero(v: ValueId | None, slot: int, own: Index, tail: Index) -> Expr | None:
            dims = () if v is None else b.shape(v)
            at = own if len(dims) == 1 else (*broadcast_index(lead, dims[:-2]), *tail)
            return _shift_of(b, v, read, slot, at)

        a = read(slots[0], (*broadcast_index(lead, left[:-2]), *row, k))
        w = read(slots[1], (*broadcast_index(lead, right[:-2]), k, *column))
        za = zero(zx, slots[2], row, (*row, const(0)))
        zw = zero(zy, slots[3], column, (const(0), *column))
        return call("mul", _shifted(a, za), _shifted(w, zw))

    return b.reduce(inputs, (*batch, *rows, *columns), [left[-1]], Combine.SUM, body, DType.INT32)


def integer_conv(c: Call, x: ValueId, w: ValueId, zx: ValueId | None, zw: ValueId | None) -> ValueId:
    """The convolution in 32-bit integers; padding holds the zero point, so that it counts as zero."""
    b = c.builder
    xs, ws = b.shape(x), b.shape(w)
    g = conv_window(c, xs, ws)
    groups = int(c.attr("group", 1))
    inputs, slots = _slots(x, w, zx, zw)

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        (n, k, *o), (ch, *tap) = out, reduced
        at = (n, grouped_channel(k, ch, ws[0], groups, ws[1]), *g.index(tuple(o), tuple(tap)))
        za = _shift_of(b, zx, read, slots[2], ())
        if za is None:
            a = cast_to(read(slots[0], at, fill=0), DType.INT32)
        else:
            inside = ix.in_range(at, xs)
            a = select(inside, _shifted(read(slots[0], at), za), const(0, DType.INT32))
        zb = _shift_of(b, zw, read, slots[3], [k])
        return call("mul", a, _shifted(read(slots[1], (k, ch, *tap)), zb))

    return b.reduce(inputs, (xs[0], ws[0], *g.out), (ws[1], *ws[2:]), Combine.SUM, body, DType.INT32)


def _requantized(
    b: Builder,
    total: ValueId,
    parameters: Sequence[ValueId | None],
    axes: Sequence[int],
    bias: ValueId | None,
    to: DType,
) -> ValueId:
    """saturate(round(total * sx sw / sy) + zero point); parameters are sx, sw, sy and the zero point of y.

    A parameter that is a vector has an entry for each index of its axis in `axes`; the bias one for each channel.
    """
    inputs, slots = _slots(total, *parameters, bias)

    def body(i: Index, read: Reader) -> Expr:
        def one(k: int) -> Expr | None:
            v = parameters[k]
            if v is None:
                return None
            dims = b.shape(v)
            if int(np.prod(dims)) == 1:
                return read(slots[k + 1], [const(0)] * len(dims))
            if len(dims) == 1:
                return read(slots[k + 1], [i[axes[k]]])
            return read.broadcast(slots[k + 1], i)

        sx, sw, sy, zero = (one(k) for k in range(4))
        assert sx is not None and sw is not None and sy is not None
        e = read(0, i)
        if bias is not None:
            e = call("add", e, read(slots[5], [i[1]]))
        factor = call("div", call("mul", sx, sw), sy)
        e = call("round", call("mul", cast_to(e, factor.dtype), factor))
        if zero is not None:
            e = call("add", e, cast_to(zero, e.dtype))
        return cast_to(saturated(e, to), to)

    return b.map(inputs, b.shape(total), body, to)


def _output_type(c: Call, k: int) -> DType:
    return c.builder.dtype(c.input(k if c.has(k) else 0))


def _qlinear_matmul(c: Call) -> Sequence[ValueId]:
    b = c.builder
    total = integer_matmul(c, c.input(0), c.input(3), _zero(c, 2), _zero(c, 5))
    last = len(b.shape(total)) - 1
    row = last - (len(b.shape(c.input(3))) > 1)
    parameters = (c.input(1), c.input(4), c.input(6), _zero(c, 7))
    return [_requantized(b, total, parameters, (row, last, last, last), None, _output_type(c, 7))]


def _qlinear_conv(c: Call) -> Sequence[ValueId]:
    b = c.builder
    total = integer_conv(c, c.input(0), c.input(3), _zero(c, 2), _zero(c, 5))
    bias = c.input(8) if c.has(8) else None
    parameters = (c.input(1), c.input(4), c.input(6), _zero(c, 7))
    return [_requantized(b, total, parameters, (1, 1, 1, 1), bias, _output_type(c, 7))]


def _matmul_integer(c: Call) -> Sequence[ValueId]:
    return [integer_matmul(c, c.input(0), c.input(1), _zero(c, 2), _zero(c, 3))]


def _conv_integer(c: Call) -> Sequence[ValueId]:
    return [integer_conv(c, c.input(0), c.input(1), _zero(c, 2), _zero(c, 3))]


def _f(*values: float) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], np.float32)


def _u(value: int, dtype: str = U8) -> np.ndarray:
    return np.array(value, dtype)


_IMAGE, _KERNEL = (U8, (1, 4, 6, 6)), (U8, (2, 4, 3, 3))

INTEGER_PRODUCTS: tuple[Op, ...] = (
    Op(
        "MatMulInteger",
        _matmul_integer,
        (
            Sample(((U8, (3, 4)), (U8, (4, 5)), _u(7), _u(3)), low=0, high=255),
            Sample(((U8, (3, 4)), (I8, (4, 5))), low=0, high=127),
            Sample(((U8, (2, 3, 4)), (U8, (4, 5)), _u(0)), low=0, high=255, constant=(2,)),
            Sample(((U8, (3, 4)), (U8, (4, 2)), np.array([[7], [1], [0]], U8), np.array([3, 9], U8)), low=0, high=255),
            Sample(((U8, (4,)), (U8, (4, 5)), _u(7)), low=0, high=255),
            Sample(((U8, (3, 4)), (I8, (4,))), low=0, high=127),
        ),
    ),
    Op(
        "ConvInteger",
        _conv_integer,
        (
            Sample((_IMAGE, _KERNEL, _u(7)), {"pads": [1, 1, 1, 1]}, low=0, high=255),
            Sample((_IMAGE, _KERNEL), {"strides": [2, 2]}, low=0, high=255),
        ),
    ),
    Op(
        "QLinearMatMul",
        _qlinear_matmul,
        (
            Sample(((U8, (3, 4)), _f(0.02), _u(7), (U8, (4, 5)), _f(0.03), _u(3), _f(0.5), _u(9)), low=0, high=255),
            Sample(
                ((I8, (3, 4)), _f(0.02), _u(7, I8), (I8, (4, 5)), _f(0.03), _u(3, I8), _f(0.5), _u(-9, I8)),
                low=-128,
                high=127,
            ),
            Sample(
                (
                    (U8, (2, 4)),
                    _f(0.02, 0.01).reshape(2, 1),
                    np.array([[7], [5]], U8),
                    (U8, (4, 3)),
                    _f(0.03, 0.02, 0.01),
                    np.array([3, 1, 0], U8),
                    _f(0.5),
                    _u(9),
                ),
                low=0,
                high=255,
            ),
        ),
    ),
    Op(
        "QLinearConv",
        _qlinear_conv,
        (
            Sample(
                (_IMAGE, _f(0.02), _u(7), _KERNEL, _f(0.03), _u(3), _f(0.9), _u(9)), {"pads": [1] * 4}, low=0, high=255
            ),
            Sample(
                (
                    _IMAGE,
                    _f(0.02),
                    _u(7),
                    _KERNEL,
                    _f(0.03, 0.01),
                    np.array([3, 1], U8),
                    _f(0.9),
                    _u(9),
                    ("int32", (2,)),
                ),
                low=0,
                high=255,
            ),
        ),
    ),
)
