"""Quantised arithmetic: to integers and back, and products of integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.cast import element_type
from autofuse.ops.common import F16, F32, I8, U8, axis_in, like, reduce_axes
from autofuse.ops.convolution import conv_window, grouped_channel
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.linear import broadcast_index

Place = Callable[[Index], Index]


def _place(c: Call, v: ValueId, axis: int) -> Place:
    """Where a scale or zero point stands for an element: one for all, one an index of `axis`, or one a block."""
    b = c.builder
    dims, shape = b.shape(v), b.shape(c.input(0))
    block = int(c.attr("block_size", 0) or 0)
    if block:
        if len(dims) != len(shape):
            raise Unsupported(f"scales of shape {dims} for blocks of {block} in {shape}")
        return lambda i: tuple(ix.floor_div(e, block) if k == axis else e for k, e in enumerate(i))
    if int(np.prod(dims)) == 1:
        return lambda i: tuple(const(0) for _ in dims)
    if len(dims) != 1:
        raise Unsupported(f"scales of shape {dims}")
    return lambda i: (i[axis],)


def saturated(e: Expr, to: DType) -> Expr:
    """A float clipped to an integer type's range."""
    return call("minimum", call("maximum", e, like(e, to.min_value)), like(e, to.max_value))


def _quantize(c: Call) -> Sequence[ValueId]:
    """saturate(round(x / scale) + zero point), rounding halves to even."""
    b = c.builder
    x, scale = c.input(0), c.input(1)
    shape = b.shape(x)
    axis = axis_in(int(c.attr("axis", 1)), len(shape)) if len(b.shape(scale)) else 0
    to = DType.UINT8
    if c.has(2):
        to = b.dtype(c.input(2))
    elif c.attr("output_dtype", 0):
        to = element_type(int(c.attr("output_dtype")))
    if not to.is_integer:
        raise Unsupported(f"quantization to {to.value}")
    place = _place(c, scale, axis)
    given = c.attr("precision", 0)
    precision = element_type(int(given)).compute if given else b.dtype(scale).compute

    def body(i: Index, read: Reader) -> Expr:
        e = call("div", cast_to(read(0, i), precision), cast_to(read(1, place(i)), precision))
        e = call("round", e)
        if c.has(2):
            e = call("add", e, cast_to(read(2, place(i)), precision))
        return cast_to(saturated(e, to), to)

    return [b.map([x, scale, *([c.input(2)] if c.has(2) else [])], shape, body, to)]


def _dequantize(c: Call) -> Sequence[ValueId]:
    """(x - zero point) scale."""
    b = c.builder
    x, scale = c.input(0), c.input(1)
    shape = b.shape(x)
    axis = axis_in(int(c.attr("axis", 1)), len(shape)) if len(b.shape(scale)) else 0
    place = _place(c, scale, axis)
    to = element_type(int(c.attr("output_dtype"))) if c.attr("output_dtype", 0) else b.dtype(scale)
    zero = c.input(2) if c.has(2) else None
    narrow = b.dtype(x).itemsize < 4

    def body(i: Index, read: Reader) -> Expr:
        e = cast_to(read(0, i), DType.INT32) if narrow else read(0, i)
        if zero is not None:
            e = call("sub", e, cast_to(read(2, place(i)), e.dtype))
        return call("mul", cast_to(e, to.compute), cast_to(read(1, place(i)), to.compute))

    return [b.map([x, scale, *([zero] if zero is not None else [])], shape, body, to)]


def _dynamic(c: Call) -> Sequence[ValueId]:
    """Scale and zero point come from the range of the data, widened to hold zero."""
    b = c.builder
    x = c.input(0)
    every = range(len(b.shape(x)))
    top = reduce_axes(b, x, list(every), Combine.MAX, keepdims=False)
    low = reduce_axes(b, x, list(every), Combine.MIN, keepdims=False)

    def width(hi: Expr, lo: Expr) -> Expr:
        span = call("sub", call("maximum", hi, like(hi, 0)), call("minimum", lo, like(lo, 0)))
        return call("div", select(call("eq", span, like(span, 0)), like(span, 1), span), like(span, 255))

    def offset(lo: Expr, s: Expr) -> Expr:
        e = call("sub", like(lo, 0), call("div", call("minimum", lo, like(lo, 0)), s))
        return cast_to(call("round", saturated(e, DType.UINT8)), DType.UINT8)

    scale = b.elementwise([top, low], width)
    zero = b.elementwise([low, scale], offset)

    def body(e: Expr, s: Expr, z: Expr) -> Expr:
        moved = call("add", call("round", call("div", e, s)), cast_to(z, e.dtype))
        return cast_to(saturated(moved, DType.UINT8), DType.UINT8)

    return [b.elementwise([x, scale, zero], body, DType.UINT8), scale, zero]


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
    """The product in 32-bit integers. A zero point of x may be one a row, one of y one a column."""
    b = c.builder
    left, right = b.shape(x), b.shape(y)
    if len(left) < 2 or len(right) < 2:
        raise Unsupported("an integer product with a vector")
    inputs, slots = _slots(x, y, zx, zy)
    batch = np.broadcast_shapes(left[:-2], right[:-2])

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        *lead, m, n = out
        k = reduced[0]

        def parameter(zero: ValueId | None, own: tuple[int, ...], last: Expr, row: bool) -> Sequence[Expr]:
            dims = () if zero is None else b.shape(zero)
            if len(dims) <= 1:
                return [last]
            tail = (m, const(0)) if row else (const(0), n)
            return [*broadcast_index(lead, dims[:-2]), *tail]

        a = read(slots[0], (*broadcast_index(lead, left[:-2]), m, k))
        w = read(slots[1], (*broadcast_index(lead, right[:-2]), k, n))
        za = _shift_of(b, zx, read, slots[2], parameter(zx, left, m, True))
        zw = _shift_of(b, zy, read, slots[3], parameter(zy, right, n, False))
        return call("mul", _shifted(a, za), _shifted(w, zw))

    return b.reduce(inputs, (*batch, left[-2], right[-1]), [left[-1]], Combine.SUM, body, DType.INT32)


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
    b: Builder, total: ValueId, parameters: Sequence[ValueId | None], bias: ValueId | None, to: DType, axis: int
) -> ValueId:
    """saturate(round(total * sx sw / sy) + zero point); parameters are sx, sw, sy and the zero point of y."""
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
                return read(slots[k + 1], [i[axis]])
            return read.broadcast(slots[k + 1], i)

        sx, sw, sy, zero = (one(k) for k in range(4))
        assert sx is not None and sw is not None and sy is not None
        e = read(0, i)
        if bias is not None:
            e = call("add", e, read(slots[5], [i[axis]]))
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
    if len(b.shape(c.input(1))) == 1 and b.shape(c.input(1)) != (1,):
        raise Unsupported("a scale for each row")
    parameters = (c.input(1), c.input(4), c.input(6), _zero(c, 7))
    return [_requantized(b, total, parameters, None, _output_type(c, 7), last)]


def _qlinear_conv(c: Call) -> Sequence[ValueId]:
    b = c.builder
    total = integer_conv(c, c.input(0), c.input(3), _zero(c, 2), _zero(c, 5))
    bias = c.input(8) if c.has(8) else None
    parameters = (c.input(1), c.input(4), c.input(6), _zero(c, 7))
    return [_requantized(b, total, parameters, bias, _output_type(c, 7), 1)]


def _matmul_integer(c: Call) -> Sequence[ValueId]:
    return [integer_matmul(c, c.input(0), c.input(1), _zero(c, 2), _zero(c, 3))]


def _conv_integer(c: Call) -> Sequence[ValueId]:
    return [integer_conv(c, c.input(0), c.input(1), _zero(c, 2), _zero(c, 3))]


def _f(*values: float) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], np.float32)


def _u(value: int, dtype: str = U8) -> np.ndarray:
    return np.array(value, dtype)


_X = (F32, (2, 3, 4))
_ZEROS = np.array([1, 128, 200], np.uint8)
_IMAGE, _KERNEL = (U8, (1, 4, 6, 6)), (U8, (2, 4, 3, 3))

QUANTIZATIONS: tuple[Op, ...] = (
    Op(
        "QuantizeLinear",
        _quantize,
        (
            Sample((_X, _f(0.02), _u(128))),
            Sample((_X, _f(0.02), _u(0, I8))),
            Sample((_X, _f(0.02, 0.1, 0.5), _ZEROS)),
            Sample((_X, _f(0.02, 0.1), np.array([3, -3], np.int8)), {"axis": 0}),
            Sample((_X, _f(0.01))),
        ),
    ),
    Op(
        "DequantizeLinear",
        _dequantize,
        (
            Sample(((U8, (2, 3, 4)), _f(0.02), _u(128)), low=0, high=255),
            Sample(((I8, (2, 3, 4)), _f(0.02, 0.1, 0.5), np.array([0, 1, -5], np.int8)), low=-128, high=127),
            Sample((("int32", (2, 3)), _f(0.02)), low=-999, high=999),
            Sample(((I8, (6,)), np.array(0.5, F16)), low=-128, high=127),
        ),
    ),
    Op("DynamicQuantizeLinear", _dynamic, (Sample((_X,), outputs=3), Sample((_X,), outputs=3, low=0.5))),
    Op(
        "MatMulInteger",
        _matmul_integer,
        (
            Sample(((U8, (3, 4)), (U8, (4, 5)), _u(7), _u(3)), low=0, high=255),
            Sample(((U8, (3, 4)), (I8, (4, 5))), low=0, high=127),
            Sample(((U8, (2, 3, 4)), (U8, (4, 5)), _u(0)), low=0, high=255, constant=(2,)),
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
