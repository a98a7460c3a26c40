"""Writes at computed places: the Scatter operators, TensorScatter, MaxUnpool.

Where it is known when the model is imported what ends up where, they are maps that read from the output's side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F16, F32, I8, I32, I64, axis_in, wrapped
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.indexing import positions, progression

_COMBINES = {"none": None, "add": Combine.SUM, "mul": Combine.PROD, "max": Combine.MAX, "min": Combine.MIN}


def _combine(c: Call) -> Combine | None:
    name = str(c.attr("reduction", "none"))
    if name not in _COMBINES:
        raise Unsupported(f"the reduction {name!r}")
    combine = _COMBINES[name]
    if combine is not None and c.builder.dtype(c.input(0)) is DType.BOOL:
        raise Unsupported(f"the reduction {name!r} of booleans")
    return combine


def _scatter_elements(c: Call) -> Sequence[ValueId]:
    """out[.., indices[u], ..] = updates[u]: the updates move along one axis."""
    b = c.builder
    data, indices, updates = (c.input(k) for k in range(3))
    shape, over = b.shape(data), b.shape(indices)
    axis = axis_in(int(c.attr("axis", 0)), len(shape))
    if b.shape(updates) != over or any(n > m for a, (n, m) in enumerate(zip(over, shape, strict=True)) if a != axis):
        raise Unsupported(f"updates of shape {b.shape(updates)} at indices of shape {over} in data of shape {shape}")
    position = positions(b, indices, 1, shape[axis])
    return [
        b.scatter(
            [data, indices, updates],
            shape,
            over,
            lambda i, read: read.raw(0, i),
            lambda u, read: (*u[:axis], position(u, read), *u[axis + 1 :]),
            lambda u, read: read.raw(2, u),
            _combine(c),
        )
    ]


TABLE = 1 << 16
"""The most places for which a table of what ends up there is kept."""

_FUNCTIONS = {Combine.SUM: "add", Combine.PROD: "mul", Combine.MAX: "maximum", Combine.MIN: "minimum"}


def _winners(known: np.ndarray, sizes: Sequence[int], combine: Combine | None) -> np.ndarray | None:
    """For each place the number of the update that ends up there, -1 where none does; None where several combine in one place."""
    at = known.reshape(-1, known.shape[-1])
    if (at < -np.array(sizes)).any() or (at >= np.array(sizes)).any():
        raise Unsupported(f"an index outside of dimensions {tuple(sizes)}")
    flat = np.ravel_multi_index(tuple(np.where(at < 0, at + sizes, at).T), tuple(sizes))
    if combine is not None and np.unique(flat).size < flat.size:
        return None
    found = np.full(int(np.prod(sizes)), -1, np.int64)
    found[flat] = np.arange(flat.size)
    return found.reshape(tuple(sizes))


def _known_nd(c: Call, combine: Combine | None) -> ValueId | None:
    """A ScatterND at known places as a map: a box of places that count up evenly by arithmetic, others by a table; None where neither fits.

    This is what an assignment to a slice is exported as.
    """
    b = c.builder
    data, indices, updates = (c.input(k) for k in range(3))
    shape, where, known = b.shape(data), b.shape(indices), b.known(indices)
    depth = where[-1]
    if known is None or not known.size or 0 in shape[:depth]:
        return None
    winners = _winners(known, shape[:depth], combine)
    if winners is None:
        return None
    hits = np.argwhere(winners >= 0)
    low, high = hits.min(axis=0), hits.max(axis=0) + 1
    box = winners[tuple(slice(p, q) for p, q in zip(low, high, strict=True))]
    even = progression(box) if (box >= 0).all() else None
    if even is None and winners.size > TABLE:
        return None
    inputs = [data, updates] if even is not None else [data, updates, b.constant(winners)]

    def body(i: Index, read: Reader) -> Expr:
        if even is not None:
            inner = [ix.sub(e, const(int(p))) for e, p in zip(i[:depth], low, strict=True)]
            inside = ix.in_range(inner, box.shape)
            number = ix.add(const(even[0]), *(ix.mul(e, s) for e, s in zip(inner, even[1], strict=True)))
        else:
            number = read.raw(2, i[:depth])
            inside = ix.negate(ix.less(number, const(0)))
        at = (*ix.unflatten(number, where[:-1]), *i[depth:])
        if combine is None:
            return select(inside, read.raw(1, at), read.raw(0, i))
        return select(inside, call(_FUNCTIONS[combine], read(0, i), read(1, at)), read(0, i))

    return b.map(inputs, shape, body, b.dtype(data))


def _scatter_nd(c: Call) -> Sequence[ValueId]:
    """out[indices[i]] = updates[i]: the last axis of the indices holds a place in the first dimensions of the data."""
    b = c.builder
    data, indices, updates = (c.input(k) for k in range(3))
    shape, where = b.shape(data), b.shape(indices)
    outer, depth = len(where) - 1, where[-1]
    if depth > len(shape) or b.shape(updates) != (*where[:-1], *shape[depth:]):
        raise Unsupported(f"updates of shape {b.shape(updates)} at indices of shape {where} in data of shape {shape}")

    combine = _combine(c)
    mapped = _known_nd(c, combine)
    if mapped is not None:
        return [mapped]

    def place(u: Index, read: Reader) -> Sequence[Expr]:
        at = [wrapped(read(1, (*u[:outer], const(k))), shape[k]) for k in range(depth)]
        return (*at, *u[outer:])

    return [
        b.scatter(
            [data, indices, updates],
            shape,
            b.shape(updates),
            lambda i, read: read.raw(0, i),
            place,
            lambda u, read: read.raw(2, u),
            combine,
        )
    ]


def _tensor_scatter(c: Call) -> Sequence[ValueId]:
    """A cache in which each batch's update starts at its own place; `circular` wraps around at the end. Read from the output's side."""
    b = c.builder
    cache, update = c.input(0), c.input(1)
    shape, length = b.shape(cache), b.shape(update)
    axis = axis_in(int(c.attr("axis", -2)), len(shape))
    circular = str(c.attr("mode", "linear")) == "circular"
    if axis == 0 or (*length[:axis], *length[axis + 1 :]) != (*shape[:axis], *shape[axis + 1 :]):
        raise Unsupported(f"an update of shape {length} in a cache of shape {shape} along axis {axis}")
    inputs = [cache, update] + ([c.input(2)] if c.has(2) else [])

    def body(i: Index, read: Reader) -> Expr:
        first = cast_to(read(2, (i[0],)), INDEX) if len(inputs) > 2 else const(0)
        at = ix.sub(i[axis], first)
        if circular:
            at = ix.floor_mod(at, max(shape[axis], 1))
        new = read.raw(1, (*i[:axis], at, *i[axis + 1 :]))
        inside = ix.in_range((at,), (length[axis],))
        return select(inside, new, read.raw(0, i))

    return [b.map(inputs, shape, body)]


def _max_unpool(c: Call) -> Sequence[ValueId]:
    """Elements go back to where MaxPool took them from: flat places in the tensor that the window's geometry gives.

    A larger `output_shape` is filled up with zeros behind it, as the standard's example shows.
    """
    b = c.builder
    x, indices = c.input(0), c.input(1)
    shape = b.shape(x)
    kernel = [int(k) for k in c.attr("kernel_shape")]
    spatial = len(kernel)
    if len(shape) != spatial + 2 or b.shape(indices) != shape:
        raise Unsupported(
            f"a window of rank {spatial} and indices of shape {b.shape(indices)} for a tensor of shape {shape}"
        )
    strides = [int(s) for s in c.attr("strides") or [1] * spatial]
    pads = [int(p) for p in c.attr("pads") or [0] * (2 * spatial)]
    sizes = [
        (n - 1) * s - p - q + k
        for n, s, p, q, k in zip(shape[2:], strides, pads[:spatial], pads[spatial:], kernel, strict=True)
    ]
    inner = (*shape[:2], *sizes)
    total = int(np.prod(inner, dtype=np.int64))
    flat = b.scatter(
        [x, indices],
        (total,),
        shape,
        lambda i, read: const(0, b.dtype(x)),
        lambda u, read: (wrapped(read(1, u), total),),
        lambda u, read: read.raw(0, u),
    )
    wanted = tuple(c.ints(2) or inner)
    if len(wanted) != len(inner) or any(w < n for w, n in zip(wanted, inner, strict=True)):
        raise Unsupported(f"an output of shape {wanted}, smaller than {inner}")

    def body(i: Index, read: Reader) -> Expr:
        return select(ix.in_range(i, inner), read.raw(0, (ix.flatten(i, inner),), 0), const(0, b.dtype(x)))

    return [b.map([flat], wanted, body)]


def _nd(*rows: Sequence[int]) -> np.ndarray:
    return np.array(rows, np.int64)


_DATA = (F32, (4, 5))
_ROWS = np.array([[0, 2, -1, 1, 3], [1, 2, 0, 0, -4]], np.int64)
_TWICE = np.array([[1, 1, -4, 0, 2], [1, 1, 0, 0, 2], [1, 3, 0, 2, 2]], np.int64)
_COLUMNS = np.array([[4, 0], [-1, 1], [2, 3]], np.int32)


def _elements(name: str, since: int) -> Op:
    plain = (
        Sample((_DATA, _ROWS, (F32, (2, 5))), opset=since),
        Sample((_DATA, _COLUMNS, (F32, (3, 2))), {"axis": 1}, opset=since),
        Sample(((I64, (3, 4, 2)), np.zeros((2, 1, 2), np.int64), (I64, (2, 1, 2))), {"axis": -2}, opset=since),
    )
    if name == "Scatter":
        return Op(name, _scatter_elements, plain, since=9)
    reductions = tuple(Sample((_DATA, _TWICE, (F32, (3, 5))), {"reduction": r}) for r in ("add", "mul", "max", "min"))
    others = (
        Sample((_DATA, _TWICE, (F32, (3, 5))), constant=(1,)),
        Sample(((I8, (4, 5)), _TWICE, (I8, (3, 5))), {"reduction": "add"}, low=-99, high=99),
        Sample(((F16, (4, 5)), _TWICE, (F16, (3, 5))), {"reduction": "mul"}),
        Sample(((F32, (7,)), (np.arange(300) * 5 % 7).astype(np.int64), (F32, (300,))), {"reduction": "add"}),
    )
    return Op(name, _scatter_elements, (*plain, *others, *reductions), since=11)


_GRID = np.stack(np.meshgrid([1, 2], [-3, -2, -1], indexing="ij"), -1).astype(np.int64)
_BATCHED = np.array([[[0, 1], [1, -1]], [[0, 1], [0, 0]]], np.int64)

SCATTERING: tuple[Op, ...] = (
    _elements("ScatterElements", 21),
    _elements("Scatter", 9),
    Op(
        "ScatterND",
        _scatter_nd,
        (
            Sample(((F32, (6, 70)), _nd([4], [0], [-2]), (F32, (3, 70)))),
            Sample(((I32, (8,)), _nd([4], [3], [1], [7], [3]), (I32, (5,))), low=-9, high=9),
            Sample(((F32, (2, 3, 4)), _BATCHED, (F32, (2, 2, 4)))),
            Sample(((I32, (8,)), _nd([4], [3], [1], [7], [3]), (I32, (5,))), constant=(1,), low=-9, high=9),
            Sample(((F32, (6, 7)), _nd([2], [3], [-2]), (F32, (3, 7))), constant=(1,)),
            Sample(((F32, (6, 7)), _GRID, (F32, (2, 3))), constant=(1,)),
            Sample(((F16, (6, 7)), _GRID[::-1].copy(), (F16, (2, 3))), {"reduction": "mul"}, constant=(1,)),
            Sample(((F32, (6, 7)), _nd([4], [0], [-2]), (F32, (3, 7))), constant=(1,)),
            Sample(((F32, (6, 7)), _nd([4], [0], [-2]), (F32, (3, 7))), {"reduction": "add"}, constant=(1,)),
            *(
                Sample(((F32, (4, 4, 4)), _nd([0], [2], [0]), (F32, (3, 4, 4))), {"reduction": r})
                for r in ("add", "mul", "max", "min")
            ),
            Sample(
                ((I64, (3, 2)), _nd([0, 1], [2, -1], [0, 1]), (I64, (3,))),
                {"reduction": "add"},
                opset=18,
                low=-9,
                high=9,
            ),
        ),
        since=11,
    ),
    Op(
        "TensorScatter",
        _tensor_scatter,
        (
            Sample(((F32, (2, 4, 5)), (F32, (2, 2, 5)), np.array([1, 2], np.int64)), opset=24),
            Sample(((F16, (2, 3, 4, 5)), (F16, (2, 3, 2, 5))), opset=24),
            Sample(((F32, (2, 4, 5)), (F32, (2, 3, 5)), np.array([1, 3], np.int64)), {"mode": "circular"}, opset=24),
            Sample(((F32, (2, 4, 5)), (F32, (2, 4, 2)), np.array([1, 3], np.int64)), {"axis": 2}, opset=24),
        ),
        since=24,
    ),
    Op(
        "MaxUnpool",
        _max_unpool,
        (
            Sample(
                ((F32, (1, 1, 2, 2)), np.array([[[[5, 7], [13, 15]]]], np.int64)),
                {"kernel_shape": [2, 2], "strides": [2, 2]},
            ),
            Sample(
                ((F32, (1, 1, 2, 2)), np.array([[[[5, 7], [13, 15]]]], np.int64), np.array([1, 1, 5, 5], np.int64)),
                {"kernel_shape": [2, 2], "strides": [2, 2]},
                constant=(2,),
            ),
            Sample(
                ((F32, (1, 2, 3)), np.array([[[0, 3, 5], [7, 8, 10]]], np.int64)), {"kernel_shape": [2], "strides": [2]}
            ),
        ),
        since=9,
    ),
)
