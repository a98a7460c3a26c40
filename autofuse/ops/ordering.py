"""Along an axis, in order: TopK, running sums and products, ReverseSequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine, Running, Sort
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F16, F32, F64, I8, I32, I64, U8, axis_in, like
from autofuse.ops.declare import Call, Op, Sample, Unsupported

SHORT = 16
"""Up to this length every element of a running sum is its own sum: quadratic, but it fuses with what is around it."""


def _top_k(c: Call) -> Sequence[ValueId | None]:
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    given = [int(c.attr("k"))] if c.attr("k") is not None else c.ints(1)
    if given is None:
        raise Unsupported("no k is given")
    if dtype is DType.BOOL:
        raise Unsupported("an order of booleans")
    axis = axis_in(int(c.attr("axis", -1)), len(shape))
    if shape[axis] >= 2**31:
        raise Unsupported(f"rows of {shape[axis]} elements: a sort counts positions in 32 bits")
    if not 0 <= given[0] <= shape[axis]:
        raise Unsupported(f"the first {given[0]} of {shape[axis]} elements")
    return b.alone([x], Sort(shape, dtype, axis, given[0], bool(c.attr("largest", 1))))[: max(len(c.wanted), 1)]


def _running(combine: Combine) -> Callable[[Call], Sequence[ValueId]]:
    empty = 0 if combine is Combine.SUM else 1

    def emit(c: Call) -> Sequence[ValueId]:
        b = c.builder
        x = c.input(0)
        shape, dtype = b.shape(x), b.dtype(x)
        given = c.ints(1)
        if given is None:
            raise Unsupported("no axis is given")
        axis = axis_in(given[0], len(shape))
        exclusive, reverse = bool(c.attr("exclusive", 0)), bool(c.attr("reverse", 0))
        if not shape:
            raise Unsupported("a running sum of a scalar")
        if shape[axis] > SHORT:
            return b.alone([x], Running(shape, dtype, axis, combine, exclusive, reverse))

        def body(out: Index, reduced: Index, read: Reader) -> Expr:
            i, r = out[axis], reduced[0]
            low, high = (i, r) if reverse else (r, i)
            outside = call("le", high, low) if exclusive else call("lt", high, low)
            e = read(0, (*out[:axis], r, *out[axis + 1 :]))
            return select(outside, like(e, empty), e)

        return [b.reduce([x], shape, [shape[axis]], combine, body, dtype)]

    return emit


def _reverse_sequence(c: Call) -> Sequence[ValueId]:
    """The first elements of each sequence turned around; a length outside of the tensor is taken for the nearest one inside."""
    b = c.builder
    x, lengths = c.input(0), c.input(1)
    shape = b.shape(x)
    batch, time = (axis_in(int(c.attr(n, d)), len(shape)) for n, d in (("batch_axis", 1), ("time_axis", 0)))
    if batch == time or b.shape(lengths) != (shape[batch],):
        raise Unsupported(f"lengths of shape {b.shape(lengths)} for batches along axis {batch} of {shape}")
    steps = const(shape[time])

    def body(i: Index, read: Reader) -> Expr:
        length = ix.minimum(ix.maximum(cast_to(read(1, (i[batch],)), INDEX), const(0)), steps)
        mirrored = ix.sub(ix.sub(length, const(1)), i[time])
        at = select(ix.less(i[time], length), mirrored, i[time])
        at = ix.minimum(ix.maximum(at, const(0)), const(max(shape[time] - 1, 0)))
        return read.raw(0, tuple(at if a == time else e for a, e in enumerate(i)))

    return [b.map([x, lengths], shape, body)]


def _k(n: int) -> np.ndarray:
    return np.array([n], np.int64)


_TIES = np.array([[2, 7, 7, 1], [7, 1, 7, 7], [0, 0, 0, 0]], np.float32)
_NAN = np.array([1.0, np.nan, -np.inf, np.nan, np.inf, 0.0, 5.0], np.float32)

_AXIS = {k: np.array(k, np.int64) for k in (0, 1, -1)}


def _running_samples(low: float, high: float, opset: int) -> tuple[Sample, ...]:
    made = (
        Sample(((F32, (3, 4)), _AXIS[1]), constant=(1,), low=low, high=high, opset=opset),
        Sample(((F32, (3, 4)), _AXIS[0]), {"exclusive": 1}, constant=(1,), low=low, high=high, opset=opset),
        Sample(((F32, (3, 4)), np.array(-1, np.int32)), {"reverse": 1}, constant=(1,), low=low, high=high, opset=opset),
        Sample(((I32, (3, 4)), _AXIS[1]), {"reverse": 1, "exclusive": 1}, constant=(1,), low=-9, high=9, opset=opset),
        Sample(((F32, (2, 70, 19)), _AXIS[1]), constant=(1,), low=low, high=high, opset=opset),
        Sample(((F64, (600, 3)), _AXIS[0]), {"exclusive": 1}, constant=(1,), low=low, high=high, opset=opset),
        Sample(((F32, (3, 1100)), _AXIS[-1]), {"reverse": 1}, constant=(1,), low=low, high=high, opset=opset),
        Sample(((I64, (530,)), _AXIS[0]), {"reverse": 1, "exclusive": 1}, constant=(1,), low=-9, high=9, opset=opset),
        Sample(((I32, (2, 40)), _AXIS[1]), constant=(1,), low=-9, high=9, opset=opset),
        Sample(((F64, (40, 0)), _AXIS[0]), constant=(1,), opset=opset),
    )
    return made


ORDERING: tuple[Op, ...] = (
    Op(
        "TopK",
        _top_k,
        (
            Sample(((F32, (3, 40)), _k(5)), outputs=2, constant=(1,)),
            Sample(((F32, (3, 40)), _k(30)), {"largest": 0}, outputs=2, constant=(1,)),
            Sample(((F32, (5, 30, 3)), _k(20)), {"axis": 1}, outputs=2, constant=(1,)),
            Sample((_TIES, _k(3)), outputs=2, constant=(1,)),
            Sample((_TIES, _k(4)), {"largest": 0}, outputs=2, constant=(1,)),
            Sample((np.concatenate([_NAN] * 3), _k(6)), outputs=2, constant=(1,)),
            Sample((np.concatenate([_NAN] * 3), _k(20)), outputs=2, constant=(1,)),
            Sample((np.concatenate([_NAN] * 3), _k(21)), {"largest": 0}, outputs=2, constant=(1,)),
            Sample(((F16, (2, 33)), _k(18)), outputs=2, constant=(1,)),
            Sample(((I64, (2, 64)), _k(1)), {"axis": 0}, outputs=2, constant=(1,), low=-9, high=9),
            Sample(((U8, (300,)), _k(2)), {"largest": 0}, outputs=2, constant=(1,), low=0, high=99),
            Sample(((I8, (300,)), _k(200)), outputs=2, constant=(1,), low=-9, high=9),
            Sample(((F32, (4, 6)),), {"k": 3}, opset=9, outputs=2),
            Sample(((F32, (3, 4)), _k(0)), outputs=2, constant=(1,)),
        ),
    ),
    Op("CumSum", _running(Combine.SUM), _running_samples(-2.0, 2.0, 21), since=11),
    Op("CumProd", _running(Combine.PROD), _running_samples(0.9, 1.1, 26), since=26),
    Op(
        "ReverseSequence",
        _reverse_sequence,
        (
            Sample(((F32, (4, 3, 2)), np.array([4, 2, 0], np.int64))),
            Sample(((I64, (3, 5)), np.array([1, 5, 3], np.int64)), {"batch_axis": 0, "time_axis": 1}, low=-9, high=9),
        ),
        since=10,
    ),
)
