"""Quantisation: to narrow types and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import NARROW_FLOATS, DType
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Index, Reader
from autofuse.ops.cast import element_type, rounded
from autofuse.ops.common import F16, F32, I8, U8, axis_in, like, reduce_axes
from autofuse.ops.declare import Call, Op, Sample, Unsupported

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
    """saturate(round(x / scale) + zero point), rounding halves to even; to a float type there is no rounding but that to the type.

    The zero point of an 8-bit float is 0 and says nothing but the type. The division is done in the type of the scale, unless `precision`
    names another; for integer scales in float64, which holds their quotients. In a half type the quotient is rounded to it, where x has
    that type too or `precision` asks for it: a float32 x keeps its digits.
    """
    b = c.builder
    x, scale = c.input(0), c.input(1)
    shape = b.shape(x)
    axis = axis_in(int(c.attr("axis", 1)), len(shape)) if len(b.shape(scale)) else 0
    to = DType.UINT8
    if c.has(2):
        to = b.dtype(c.input(2))
    elif c.attr("output_dtype", 0):
        to = element_type(int(c.attr("output_dtype")))
    if not (to.is_integer or to in NARROW_FLOATS):
        raise Unsupported(f"quantization to {to.value}")
    place = _place(c, scale, axis)
    given = c.attr("precision", 0)
    kind = element_type(int(given)) if given else b.dtype(scale)
    precision = kind.compute if kind.is_float else DType.FLOAT64
    rounds = kind.is_half and (bool(given) or b.dtype(x) is kind)
    zero = c.input(2) if c.has(2) and (to.is_integer or to.bits < 8) else None
    zero_place = place if zero is None else _place(c, zero, axis)
    saturate = bool(c.attr("saturate", 1))

    def body(i: Index, read: Reader) -> Expr:
        parts = [read.raw(0, i), read.raw(1, place(i))]
        if given:
            parts = [rounded(e, kind) for e in parts]
        e = call("div", *(cast_to(cast_to(e, e.dtype.compute), precision) for e in parts))
        if rounds:
            e = cast_to(cast_to(e, kind), precision)
        if to.is_integer:
            e = call("round", e)
        if zero is not None:
            e = call("add", e, cast_to(read(2, zero_place(i)), precision))
        return cast_to(saturated(e, to), to) if to.is_integer else rounded(e, to, saturate)

    return [b.map([x, scale, *([zero] if zero is not None else [])], shape, body, to)]


def _dequantize(c: Call) -> Sequence[ValueId]:
    """(x - zero point) scale, in the output's type (half types in float32)."""
    b = c.builder
    x, scale = c.input(0), c.input(1)
    shape = b.shape(x)
    axis = axis_in(int(c.attr("axis", 1)), len(shape)) if len(b.shape(scale)) else 0
    place = _place(c, scale, axis)
    to = element_type(int(c.attr("output_dtype"))) if c.attr("output_dtype", 0) else b.dtype(scale)
    if to not in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64):
        raise Unsupported(f"dequantization to {to.value}")
    have = b.dtype(x)
    zero = c.input(2) if c.has(2) and not (have.is_float and have.bits == 8) else None
    zero_place = place if zero is None else _place(c, zero, axis)
    wide = have.compute if have.itemsize >= 4 or have.is_float else DType.INT32

    def body(i: Index, read: Reader) -> Expr:
        e = cast_to(read(0, i), wide)
        if zero is not None:
            e = call("sub", e, cast_to(read(2, zero_place(i)), e.dtype))
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


def _f(*values: float) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], np.float32)


def _u(value: int, dtype: str = U8) -> np.ndarray:
    return np.array(value, dtype)


def _narrow(dtype: str, *values: float) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], np.float32).astype(DType(dtype).numpy)


_X = (F32, (2, 3, 4))
_LARGE = np.array([0.0, 1.1, -2.5, 7.3, 9.2, -30.0, 1e5, np.inf, np.nan], np.float32)
_ZEROS = np.array([1, 128, 200], np.uint8)

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
            *(
                Sample((_LARGE, _f(0.02), np.zeros((), DType(t).numpy)), {"saturate": s})
                for t in ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
                for s in (0, 1)
            ),
            Sample((_X, _f(0.3, 0.5, 0.2), _narrow("float4e2m1", 0, 0, 0))),
            Sample((_X, _f(0.2, 0.1), _narrow("int4", 1, -2)), {"axis": 0}),
            Sample((_X, _f(0.2), _narrow("uint4", 8))),
            Sample((_X, _f(0.9), _narrow("int2", 0)), opset=25),
            Sample((_X, _f(0.9), _narrow("uint2", 1)), opset=25),
            Sample((_X, np.full((2, 3, 2), 0.01, np.float32)), {"axis": 2, "block_size": 2, "output_dtype": 3}),
            Sample((_X, np.full((2, 3, 2), 0.25, np.float32)), {"axis": -1, "block_size": 3, "output_dtype": 22}),
            Sample((_X, _f(0.02).astype(F16)), {"precision": 1, "output_dtype": 3}, opset=23),
            Sample((_X, _f(0.02)), {"precision": 10, "output_dtype": 3}, opset=23),
            Sample(((F16, (3, 200)), _f(0.0137).astype(F16)), {"output_dtype": 3}),
            Sample(((F32, (3, 200)), _f(0.0137).astype(F16)), {"output_dtype": 3}),
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
            *(
                Sample((_narrow(t, 1, 2.5, -0.5, 6, 0), _f(0.3)))
                for t in ("float8e4m3fn", "float8e5m2fnuz", "float4e2m1")
            ),
            Sample((_narrow("int4", -8, 7, 0, 3), _f(0.3), _narrow("int4", -3))),
            Sample((_narrow("uint4", 0, 15, 4), _f(0.3, 0.1, 2.0), _narrow("uint4", 8, 0, 15)), {"axis": 0}),
            Sample((_narrow("int2", -2, -1, 0, 1), _f(0.3), _narrow("int2", 1)), opset=25),
            Sample(
                (_narrow("int4", *range(-8, 8)).reshape(2, 8), np.full((2, 3), 0.25, np.float32)),
                {"axis": 1, "block_size": 3},
            ),
            Sample((_narrow("int4", -8, 7), np.array(0.5, np.float32)), {"output_dtype": 10}, opset=23),
        ),
    ),
    Op("DynamicQuantizeLinear", _dynamic, (Sample((_X,), outputs=3), Sample((_X,), outputs=3, low=0.5))),
)
