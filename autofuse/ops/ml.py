"""Operators of ai.onnx.ml on numbers: Binarizer, ArrayFeatureExtractor, LabelEncoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F32, I32, I64, like
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.indexing import positions

DOMAIN = "ai.onnx.ml"


def _binarizer(c: Call) -> Sequence[ValueId]:
    """1 above the threshold, else 0."""
    threshold = float(c.attr("threshold", 0.0))
    x = c.input(0)

    def body(e: Expr) -> Expr:
        # an integer is above a fraction where it is above the next integer below
        limit = threshold if e.dtype.is_float else int(np.floor(threshold))
        return select(call("gt", e, like(e, limit)), like(e, 1), like(e, 0))

    return [c.builder.elementwise([x], body)]


def _array_feature_extractor(c: Call) -> Sequence[ValueId]:
    """Columns of the last axis by number; a vector counts as one row."""
    b = c.builder
    x, columns = c.input(0), c.input(1)
    shape, where = b.shape(x), b.shape(columns)
    if not shape:
        raise Unsupported("features of a scalar")
    count = int(np.prod(where, dtype=np.int64))
    position = positions(b, columns, 1, shape[-1])
    lead = shape[:-1] or (1,)

    def body(i: Index, read: Reader) -> Expr:
        at = position(ix.unflatten(i[-1], where), read)
        return read.raw(0, (*i[: len(shape) - 1], at))

    return [b.map([x, columns], (*lead, count), body)]


def _table(c: Call, name: str) -> np.ndarray | None:
    """The keys or values of a LabelEncoder."""
    for suffix, dtype in (("floats", np.float32), ("int64s", np.int64)):
        given = c.attr(f"{name}_{suffix}")
        if given is not None and len(given):
            return np.asarray(given, dtype)
    tensor: Any = c.attr(f"{name}_tensor")
    found = None if tensor is None else np.asarray(tensor)
    if found is not None and found.dtype.kind not in "fiu":
        return None
    return None if found is None else found.reshape(-1)


def _label_encoder(c: Call) -> Sequence[ValueId]:
    """The place of each element among the keys, where the last of equal keys counts, then the value at that place."""
    b = c.builder
    x = c.input(0)
    keys, values = _table(c, "keys"), _table(c, "values")
    if keys is None or values is None or keys.size != values.size or not keys.size:
        raise Unsupported("labels that are strings")
    if keys.dtype != b.dtype(x).numpy:
        raise Unsupported(f"keys of {keys.dtype} for elements of {b.dtype(x).value}")
    default: Any = c.attr("default_float" if values.dtype == np.float32 else "default_int64")
    if c.attr("values_tensor") is not None:
        default = c.attr("default_tensor")
    if default is None:
        default = -0.0 if values.dtype.kind == "f" else -1
    otherwise = np.asarray(default, values.dtype).reshape(-1)[0].item()
    shape = b.shape(x)

    def place(i: Index, over: Index, read: Reader) -> Expr:
        e, key = read(0, i), read(1, over)
        same = call("eq", e, key)
        if e.dtype.is_float:
            same = call("or", same, ix.both(call("isnan", e), call("isnan", key)))
        return select(same, over[0], const(-1))

    def value(i: Index, read: Reader) -> Expr:
        at = read(0, i)
        known = ix.negate(ix.less(at, const(0)))
        e = read.raw(1, (ix.minimum(ix.maximum(at, const(0)), const(values.size - 1)),))
        return select(known, e, like(e, otherwise))

    found = b.reduce([x, b.constant(keys)], shape, [keys.size], Combine.MAX, place)
    return [b.map([found, b.constant(values)], shape, value)]


_X = np.array([[3, 1, 7], [-2, 3, 9]], np.int64)

ML: tuple[Op, ...] = (
    Op(
        "Binarizer",
        _binarizer,
        (
            Sample(((F32, (3, 4)),), {"threshold": 0.5}),
            Sample(((F32, (7,)),)),
            Sample(((I32, (9,)),), {"threshold": 1.5}, low=-4, high=5),
        ),
        DOMAIN,
    ),
    Op(
        "ArrayFeatureExtractor",
        _array_feature_extractor,
        (
            Sample(((F32, (3, 4)), np.array([0, 1], np.int64))),
            Sample(((F32, (2, 3, 4)), np.array([[3, 0, 3]], np.int64)), constant=(1,)),
            Sample(((I64, (5,)), np.array([2], np.int64)), low=-9, high=9),
        ),
        DOMAIN,
    ),
    Op(
        "LabelEncoder",
        _label_encoder,
        (
            Sample((_X,), {"keys_int64s": [3, 7, -2], "values_floats": [0.5, 1.5, 2.5], "default_float": -7.0}),
            Sample((_X,), {"keys_int64s": [3, 7, 3], "values_int64s": [10, 20, 30]}),
            Sample(
                (np.array([0.5, 2.0, 3.0], np.float32),),
                {"keys_floats": [3.0, 0.5], "values_int64s": [4, 5], "default_int64": 9},
            ),
            Sample(
                (_X,),
                {
                    "keys_tensor": np.array([1, 9], np.int64),
                    "values_tensor": np.array([5, 6], np.int16),
                    "default_tensor": np.array([8], np.int16),
                },
            ),
        ),
        DOMAIN,
    ),
)
