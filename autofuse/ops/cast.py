"""Conversions between element types. A cast is an operation of the model: it is never folded away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from autofuse.ir.dtype import NARROW_FLOATS, DType, from_numpy
from autofuse.ir.expr import Expr, bitcast_to, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ops.common import F16, F32, F64, I32, I64, B
from autofuse.ops.declare import Call, Op, Sample, Unsupported

_EXACT_IN_SINGLE = frozenset(
    {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.BOOL}
)
_SATURATING = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ})
"""The types for which `saturate` chooses between the largest value and what the format has beyond it; the narrower ones always saturate."""

_LEAST_POWER, _TOP_POWER = 0x00400000, 254
"""FLOAT8E8M0 holds 2^-127 (its bits as a float) and up, by codes to this one; the next is NaN."""
_ROUND_UP_FROM: dict[str, tuple[int, int]] = {
    "up": (0x00000001, 0x00400001),
    "nearest": (0x00400000, 0x00600000),
    "down": (0x00800000, 0x00800000),
}
"""The mantissa from which a float goes to the next power of two, by mode: among normal numbers, and below them."""


def element_type(code: int) -> DType:
    """The type behind a number of TensorProto.DataType."""
    try:
        found = from_numpy(np.dtype(helper.tensor_dtype_to_np_dtype(code)))
    except KeyError as error:
        raise Unsupported(f"element type number {code}") from error
    if found is DType.STRING:
        raise Unsupported("a tensor of strings")
    return found


def power_of_two(e: Expr, saturate: bool, mode: str) -> Expr:
    """A FLOAT8E8M0 of a float32's magnitude, rounded up, down or to the nearest (ties up), as ONNX's Cast defines it.

    With `saturate` what is out of range is the nearest value that there is, otherwise NaN; NaN stays NaN.
    """
    if mode not in _ROUND_UP_FROM:
        raise Unsupported(f"round_mode {mode!r}: up, down and nearest are defined")

    def whole(value: int) -> Expr:
        return const(value, DType.UINT32)

    bits = call("bit_and", bitcast_to(e, DType.UINT32), whole(0x7FFFFFFF))
    mantissa = call("bit_and", bits, whole(0x007FFFFF))
    normal = call("ge", bits, whole(0x00800000))
    above, below = _ROUND_UP_FROM[mode]
    up = call("ge", mantissa, select(normal, whole(above), whole(below)))
    code = call("add", call("shift_right", bits, whole(23)), cast_to(up, DType.UINT32))
    if saturate:
        code = call("minimum", code, whole(_TOP_POWER))
        code = select(call("gt", bits, whole(0x7F800000)), whole(255), code)
    else:
        code = call("minimum", code, whole(255))
        code = select(call("lt", bits, whole(_LEAST_POWER)), whole(255), code)
    return bitcast_to(cast_to(code, DType.UINT8), DType.FLOAT8E8M0)


def rounded(e: Expr, to: DType, saturate: bool = True, mode: str = "up") -> Expr:
    """An element in another type, a float out of range as `saturate` says; `mode` is FLOAT8E8M0's rounding.

    Half types are reached through float32, where that rounds once, and directly elsewhere; narrow types always through the
    type that they compute in.
    """
    if e.dtype is to:
        return e
    through = to.compute if e.dtype in _EXACT_IN_SINGLE or e.dtype.is_narrow or to.is_narrow else to
    if e.dtype.is_narrow:
        e = cast_to(e, e.dtype.compute)
    e = cast_to(e, through)
    if to is DType.FLOAT8E8M0:
        return power_of_two(e, saturate, mode)
    if saturate and to in _SATURATING:
        top = NARROW_FLOATS[to].largest
        e = call("minimum", call("maximum", e, const(-top, e.dtype)), const(top, e.dtype))
    # Cast to the half type in the body itself: a rounding that the model asks for survives fusion.
    return cast_to(e, to)


def converted(c: Call, v: ValueId, to: DType) -> ValueId:
    """The tensor in another type, by the attributes `saturate` and `round_mode`; the value itself where it has that type."""
    b = c.builder
    if b.dtype(v) is to:
        return v
    saturate, mode = bool(c.attr("saturate", 1)), str(c.attr("round_mode", "up"))
    return b.map([v], b.shape(v), lambda i, read: rounded(read.raw(0, i), to, saturate, mode), to)


def _cast(c: Call) -> Sequence[ValueId]:
    to = c.attr("to")
    if isinstance(to, str):  # opset 1 to 5 name the type
        to = TensorProto.DataType.Value(to.upper())
    return [converted(c, c.input(0), element_type(int(to)))]


def _cast_like(c: Call) -> Sequence[ValueId]:
    return [converted(c, c.input(0), c.builder.dtype(c.input(1)))]


def _bit_cast(c: Call) -> Sequence[ValueId]:
    """The bits as another type of the same size. A boolean is a byte of 0 or 1; any other byte is true."""
    b = c.builder
    x, to = c.input(0), element_type(int(c.attr("to")))
    have = b.dtype(x)
    if have is to:
        return [x]
    if have.bits != to.bits:
        raise Unsupported(f"{have.value} has {have.bits} bits, {to.value} has {to.bits}")

    def body(e: Expr) -> Expr:
        e = cast_to(e, DType.UINT8) if have is DType.BOOL else e
        if to is DType.BOOL:
            return cast_to(bitcast_to(e, DType.UINT8), DType.BOOL)
        return bitcast_to(e, to)

    return [b.map([x], b.shape(x), lambda i, read: body(read.raw(0, i)), to)]


_FLOATS = np.array([-1.7, -0.5, 0.0, 0.5, 1.7, 100.3], np.float32)
_DOUBLES = np.array([1.0 + 2.0**-11 + 2.0**-30, 65504.0, 1e-8, -3.3], np.float64)
_FINITE = (0.0, -0.0, 1e-9, -1e-9, 0.25, -0.75, 1.0625, 2.5, 5.0, 7.75, -30.0, 232, 248, 448, 464, 480, -5e4, 6e4, 1e6)
_EDGES = np.array([*_FINITE, np.nan, np.inf, -np.inf], np.float32)
_SMALL = np.array([-9, -8, -2.7, -1, -0.3, 0, 0.9, 1, 2, 3.5, 7, 8, 15], np.float32)
_POWERS = np.array([0.124, 0.25, 1.0, 1.1, 1.5, 1.75, 3.0, 448.0, 1.5 * 2.0**127, 2.0**-126, np.nan], np.float32)
"""Where the standard and its reference evaluator say the same: they differ in infinities and subnormal numbers."""


def _codes(dtype: DType) -> np.ndarray:
    """Every code of a narrow type."""
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)


def _to(dtype: str) -> dict[str, int]:
    return {"to": int(helper.np_dtype_to_tensor_dtype(DType(dtype).numpy))}


CASTS: tuple[Op, ...] = (
    Op(
        "Cast",
        _cast,
        (
            Sample((_FLOATS,), _to(I32)),
            Sample((_FLOATS,), _to(B)),
            Sample((_FLOATS,), _to(F16)),
            Sample((_FLOATS,), _to("bfloat16")),
            Sample((_FLOATS,), _to(F64)),
            Sample((_DOUBLES,), _to(F16)),
            Sample((_FLOATS.astype(np.float16),), _to(I64)),
            Sample(((B, (3, 4)),), _to(F32)),
            Sample(((I64, (3, 4)),), _to(F32), low=-99, high=99),
            Sample(((I32, (3, 4)),), _to(B), low=-1, high=2),
            Sample((np.array([300, -1, 7], np.int32),), _to("uint8")),
            *(Sample((_EDGES,), {**_to(t), "saturate": s}) for t in sorted(_SATURATING) for s in (0, 1)),
            Sample((_EDGES,), _to("float4e2m1"), opset=25),
            *(Sample((_SMALL,), _to(t), opset=25) for t in ("int4", "uint2")),
            *(Sample((_POWERS,), {**_to("float8e8m0"), "round_mode": m}, opset=25) for m in ("up", "down", "nearest")),
            *(Sample((_codes(DType(t)),), _to(F32), opset=25) for t in ("float8e8m0", "float6e2m3", "uint4", "int2")),
            Sample((_codes(DType.FLOAT8E5M2),), _to("float8e4m3fn"), opset=25),
            Sample((_codes(DType.FLOAT8E4M3FN),), _to(B)),
            Sample((_codes(DType.INT4),), _to("float16")),
            Sample((np.array([-9, 7, 300], np.int64),), _to("int4")),
            Sample((np.array([1e9, -0.3, 1.0625 + 2.0**-40], np.float64),), _to("float8e4m3fn")),
        ),
    ),
    Op(
        "CastLike",
        _cast_like,
        (
            Sample((_FLOATS, np.zeros(1, np.int64))),
            Sample(((I32, (3,)), (F32, (2,)))),
            Sample((_EDGES, _codes(DType.FLOAT8E4M3FNUZ)), opset=25),
            Sample((_SMALL, _codes(DType.UINT4)), opset=25),
        ),
    ),
    Op(
        "BitCast",
        _bit_cast,
        (
            Sample((_FLOATS,), _to(I32), opset=26),
            Sample((_DOUBLES,), _to(I64), opset=26),
            Sample((_FLOATS.astype(np.float16),), _to("uint16"), opset=26),
            Sample((_codes(DType.FLOAT8E4M3FN),), _to("int8"), opset=26),
            Sample((_codes(DType.INT4),), _to("uint4"), opset=26),
            Sample((np.array([True, False]),), _to("uint8"), opset=26),
        ),
        since=26,
    ),
)
