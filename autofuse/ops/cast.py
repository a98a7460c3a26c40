"""Conversions between element types. A cast is an operation of the model: it is never folded away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper

from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.expr import Expr, cast_to
from autofuse.ir.graph import ValueId
from autofuse.ops.common import F16, F32, F64, I32, I64, B
from autofuse.ops.declare import Call, Op, Sample, Unsupported

_EXACT_IN_SINGLE = frozenset(
    {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.BOOL}
)


def element_type(code: int) -> DType:
    """The type behind a number of TensorProto.DataType."""
    try:
        found = from_numpy(np.dtype(helper.tensor_dtype_to_np_dtype(code)))
    except KeyError as error:
        raise Unsupported(f"element type number {code}") from error
    if found is DType.STRING:
        raise Unsupported("a tensor of strings")
    return found


def converted(c: Call, v: ValueId, to: DType) -> ValueId:
    """The tensor in another type; the value itself where it has that type.

    Half types are reached through float32, where that rounds once, and directly elsewhere.
    """
    b = c.builder
    have = b.dtype(v)
    if have is to:
        return v
    through = to.compute if have in _EXACT_IN_SINGLE else to

    def body(e: Expr) -> Expr:
        # Cast to the half type in the body itself: a rounding that the model asks for survives fusion.
        return cast_to(cast_to(e, through), to)

    return b.map([v], b.shape(v), lambda i, read: body(read.raw(0, i)), to)


def _cast(c: Call) -> Sequence[ValueId]:
    to = c.attr("to")
    if isinstance(to, str):  # opset 1 to 5 name the type
        return [converted(c, c.input(0), DType(to.lower()))]
    return [converted(c, c.input(0), element_type(int(to)))]


def _cast_like(c: Call) -> Sequence[ValueId]:
    return [converted(c, c.input(0), c.builder.dtype(c.input(1)))]


_FLOATS = np.array([-1.7, -0.5, 0.0, 0.5, 1.7, 100.3], np.float32)
_DOUBLES = np.array([1.0 + 2.0**-11 + 2.0**-30, 65504.0, 1e-8, -3.3], np.float64)


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
        ),
    ),
    Op("CastLike", _cast_like, (Sample((_FLOATS, np.zeros(1, np.int64))), Sample(((I32, (3,)), (F32, (2,)))))),
)
