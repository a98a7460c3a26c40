"""Reads at computed and at data-dependent places: Gather and its kin, Compress, Trilu, OneHot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.common import F16, F32, I64, axis_in, like, wrapped
from autofuse.ops.declare import Call, Op, Sample, Unsupported

Reads = Callable[[Sequence[Expr], Reader], Expr]


def progression(known: np.ndarray) -> tuple[int, tuple[int, ...]] | None:
    """(start, step along each axis) where the numbers are an affine function of their position."""
    start = int(known.reshape(-1)[0])
    steps = tuple(
        int(np.take(known, 1, axis=a).reshape(-1)[0]) - start if n > 1 else 0 for a, n in enumerate(known.shape)
    )
    rebuilt = np.full(known.shape, start, np.int64)
    for a, step in enumerate(steps):
        rebuilt += step * np.arange(known.shape[a]).reshape([-1 if k == a else 1 for k in range(known.ndim)])
    return (start, steps) if np.array_equal(rebuilt, known) else None


def positions(b: Builder, v: ValueId, slot: int, n: int) -> Reads:
    """How to read indices into a dimension of n elements.

    Known ones are checked here, and where they count up evenly they become arithmetic; others are wrapped when they are read.
    """
    known = b.known(v)
    if known is None or known.size == 0:
        return lambda at, read: wrapped(read(slot, at), n)
    if known.min() < -n or known.max() >= n:
        raise Unsupported(f"an index outside a dimension of {n} elements")
    counted = np.where(known < 0, known + n, known)
    found = progression(counted)
    if found is not None:
        start, steps = found
        return lambda at, read: ix.add(const(start), *(ix.mul(e, s) for e, s in zip(at, steps, strict=True) if s))
    if known.min() < 0:
        return lambda at, read: wrapped(read(slot, at), n)
    return lambda at, read: cast_to(read(slot, at), INDEX)


def _gather(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x, indices = c.input(0), c.input(1)
    shape, where = b.shape(x), b.shape(indices)
    axis = axis_in(int(c.attr("axis", 0)), len(shape))
    position = positions(b, indices, 1, shape[axis])

    def body(i: Index, read: Reader) -> Expr:
        middle = i[axis : axis + len(where)]
        return read.raw(0, (*i[:axis], position(middle, read), *i[axis + len(where) :]))

    return [b.map([x, indices], (*shape[:axis], *where, *shape[axis + 1 :]), body)]


def _compress(c: Call) -> Sequence[ValueId]:
    """The condition decides about the shape; elements beyond its end are left out."""
    b = c.builder
    x = c.input(0)
    shape = b.shape(x)
    known = c.constant(1)
    kept = np.flatnonzero(known) if known is not None else np.empty(0, np.int64)
    indices = b.constant(kept.astype(np.int64))
    if "axis" not in c.attributes:
        position = positions(b, indices, 1, math.prod(shape))
        return [b.map([x, indices], (len(kept),), lambda i, read: read.raw(0, ix.unflatten(position(i, read), shape)))]
    axis = axis_in(int(c.attr("axis")), len(shape))
    position = positions(b, indices, 1, shape[axis])

    def body(i: Index, read: Reader) -> Expr:
        return read.raw(0, (*i[:axis], position(i[axis : axis + 1], read), *i[axis + 1 :]))

    return [b.map([x, indices], (*shape[:axis], len(kept), *shape[axis + 1 :]), body)]


def _gather_elements(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x, indices = c.input(0), c.input(1)
    axis = axis_in(int(c.attr("axis", 0)), len(b.shape(x)))
    position = positions(b, indices, 1, b.shape(x)[axis])

    def body(i: Index, read: Reader) -> Expr:
        return read.raw(0, (*i[:axis], position(i, read), *i[axis + 1 :]))

    return [b.map([x, indices], b.shape(indices), body)]


def _gather_nd(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x, indices = c.input(0), c.input(1)
    shape, where = b.shape(x), b.shape(indices)
    lead = int(c.attr("batch_dims", 0))
    depth = where[-1]
    outer = len(where) - 1

    def body(i: Index, read: Reader) -> Expr:
        at = [wrapped(read(1, (*i[:outer], const(k))), shape[lead + k]) for k in range(depth)]
        return read.raw(0, (*i[:lead], *at, *i[outer:]))

    return [b.map([x, indices], (*where[:-1], *shape[lead + depth :]), body)]


def _trilu(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    given = c.ints(1)
    k = given[0] if given else 0
    upper = bool(c.attr("upper", 1))

    def body(i: Index, read: Reader) -> Expr:
        *_, row, column = i
        diagonal = ix.add(row, const(k))
        outside = ix.less(column, diagonal) if upper else ix.less(diagonal, column)
        e = read.raw(0, i)
        return select(outside, like(e, 0), e)

    return [b.map([x], b.shape(x), body)]


def _one_hot(c: Call) -> Sequence[ValueId]:
    """An index outside [-depth, depth) gives a row of the off value."""
    b = c.builder
    indices, values = c.input(0), c.input(2)
    given = c.constant(1)
    if given is None:
        raise Unsupported("no depth is given")
    depth = int(given.reshape(-1)[0])
    shape = b.shape(indices)
    axis = axis_in(int(c.attr("axis", -1)), len(shape) + 1)

    def body(i: Index, read: Reader) -> Expr:
        k = cast_to(read(0, (*i[:axis], *i[axis + 1 :])), INDEX)
        k = select(ix.less(k, const(0)), ix.add(k, const(depth)), k)
        return select(call("eq", k, i[axis]), read.raw(1, (const(1),)), read.raw(1, (const(0),)))

    return [b.map([indices, values], (*shape[:axis], depth, *shape[axis:]), body)]


_X = (F32, (4, 5, 3))
_SOME = np.array([[3, 0], [-1, 2]], np.int64)

INDEXING: tuple[Op, ...] = (
    Op(
        "Gather",
        _gather,
        (
            Sample((_X, _SOME)),
            Sample((_X, _SOME), {"axis": 1}, constant=(1,)),
            Sample((_X, np.array([2, 0, 1], np.int32)), {"axis": -1}, constant=(1,)),
            Sample((_X, np.array(-2, np.int64)), {"axis": 1}, constant=(1,)),
            Sample((_X, np.array([0, 2, 4], np.int64)), {"axis": 1}, constant=(1,)),
            Sample(((F16, (4, 5)), np.array([1], np.int64))),
        ),
    ),
    Op(
        "Compress",
        _compress,
        (
            Sample((_X, np.array([True, False, True, True])), {"axis": 0}, constant=(1,)),
            Sample((_X, np.array([False, True, True])), {"axis": -2}, constant=(1,)),
            Sample((_X, np.array([False, True, True, False, False, True, False])), constant=(1,)),
            Sample((_X, np.array([False, False, False])), {"axis": 2}, constant=(1,)),
        ),
    ),
    Op(
        "GatherElements",
        _gather_elements,
        (
            Sample(((F32, (3, 4)), np.array([[0, 2, -1, 1], [1, 1, 0, 0]], np.int64))),
            Sample(((F32, (3, 4)), np.array([[0, 3], [1, -1], [2, 2]], np.int32)), {"axis": 1}),
        ),
    ),
    Op(
        "GatherND",
        _gather_nd,
        (
            Sample(((F32, (2, 3, 4)), np.array([[0, 1], [1, -1]], np.int64))),
            Sample(((F32, (2, 3, 4)), np.array([[[1], [0]], [[2], [1]]], np.int64)), {"batch_dims": 1}),
        ),
    ),
    Op(
        "Trilu",
        _trilu,
        (
            Sample(((F32, (2, 3, 4)),)),
            Sample(((F32, (3, 4)), np.array(-1, np.int64)), {"upper": 0}, constant=(1,)),
            Sample(((I64, (4, 3)), np.array(1, np.int64)), constant=(1,), low=-9, high=9),
        ),
    ),
    Op(
        "OneHot",
        _one_hot,
        (
            Sample((_SOME, np.array(4, np.int64), (F32, (2,))), constant=(1,)),
            Sample((_SOME, np.array(4, np.int64), np.array([5, 1], np.int32)), {"axis": 0}, constant=(1,)),
        ),
    ),
)
