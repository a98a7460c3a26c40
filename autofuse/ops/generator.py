"""Tensors made from nothing or from a shape: all known when the model is imported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from autofuse.ir.graph import ValueId
from autofuse.ops.cast import element_type
from autofuse.ops.common import F32, I64
from autofuse.ops.declare import Call, Op, Sample, Unsupported


def _shape(c: Call) -> Sequence[ValueId]:
    shape = c.builder.shape(c.input(0))
    start, end = int(c.attr("start", 0)), c.attr("end")
    return [c.builder.constant(np.array(shape[start : None if end is None else int(end)], np.int64))]


def _size(c: Call) -> Sequence[ValueId]:
    return [c.builder.constant(np.array(np.prod(c.builder.shape(c.input(0)), dtype=np.int64), np.int64))]


def _constant(c: Call) -> Sequence[ValueId]:
    for name, dtype in (("value", None), ("value_float", np.float32), ("value_floats", np.float32)):
        if name in c.attributes:
            return [c.builder.constant(np.array(c.attributes[name], dtype))]
    for name in ("value_int", "value_ints"):
        if name in c.attributes:
            return [c.builder.constant(np.array(c.attributes[name], np.int64))]
    raise Unsupported("a constant of strings, or a sparse one")


def _constant_of_shape(c: Call) -> Sequence[ValueId]:
    shape = c.ints(0)
    value = np.asarray(c.attr("value", np.zeros(1, np.float32)))
    return [c.builder.constant(np.full(shape or (), value.reshape(-1)[0], value.dtype))]


def _range(c: Call) -> Sequence[ValueId]:
    start, limit, delta = (c.constant(k) for k in range(3))
    if start is None or limit is None or delta is None:
        raise Unsupported("start, limit or delta is left out")
    first, last, step = start.reshape(-1)[0], limit.reshape(-1)[0], delta.reshape(-1)[0]
    count = max(0, int(np.ceil((float(last) - float(first)) / float(step))))
    return [c.builder.constant((first + np.arange(count) * step).astype(start.dtype))]


def _eye_like(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    dtype = element_type(int(c.attr("dtype"))) if c.attr("dtype") is not None else b.dtype(x)
    rows, columns = b.shape(x)
    return [b.constant(np.eye(rows, columns, int(c.attr("k", 0)), dtype=dtype.numpy))]


_SHAPE = np.array([2, 3], np.int64)

GENERATORS: tuple[Op, ...] = (
    Op(
        "Shape",
        _shape,
        (
            Sample(((F32, (2, 3, 4)),)),
            Sample(((F32, (2, 3, 4)),), {"start": 1, "end": -1}),
            Sample(((F32, (2, 3, 4)),), {"start": -2}),
        ),
    ),
    Op("Size", _size, (Sample(((F32, (2, 3, 4)),)), Sample(((F32, ()),)))),
    Op(
        "Constant",
        _constant,
        (
            Sample((), {"value": np.array([[1.5, 2.0]], np.float32)}),
            Sample((), {"value_float": 1.5}),
            Sample((), {"value_int": 3}),
            Sample((), {"value_ints": [1, 2]}),
            Sample((), {"value_floats": [0.5]}),
        ),
    ),
    Op(
        "ConstantOfShape",
        _constant_of_shape,
        (Sample((_SHAPE,), constant=(0,)), Sample((_SHAPE,), {"value": np.array([7], np.int32)}, constant=(0,))),
    ),
    Op(
        "Range",
        _range,
        (
            Sample((np.array(1, np.int64), np.array(9, np.int64), np.array(3, np.int64)), constant=(0, 1, 2)),
            Sample((np.array(5, np.int32), np.array(-2, np.int32), np.array(-2, np.int32)), constant=(0, 1, 2)),
            Sample((np.array(0, np.float32), np.array(1, np.float32), np.array(0.3, np.float32)), constant=(0, 1, 2)),
        ),
    ),
    Op(
        "EyeLike",
        _eye_like,
        (Sample(((F32, (3, 4)),)), Sample(((I64, (3, 3)),), {"k": 1, "dtype": int(TensorProto.FLOAT)}, low=-9, high=9)),
    ),
)
