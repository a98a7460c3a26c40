"""Moving elements without looking at them: reshape, transpose, slice, concatenate, pad and their kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, const, select
from autofuse.ir.graph import ValueId
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.common import F16, F32, I64, B, axes_in, axis_in
from autofuse.ops.declare import Call, Op, Sample, Unsupported

CHAIN = 64
"""Inputs of a Concat up to which its selects form a chain; beyond, they form a balanced tree to bound their depth."""


def moved(b: Builder, v: ValueId, shape: Sequence[int], where: Callable[[Index], Sequence[Expr]]) -> ValueId:
    """out[i] = v[where(i)], in the stored type."""
    return b.map([v], shape, lambda i, read: read.raw(0, where(i)))


def reshaped(b: Builder, v: ValueId, shape: Sequence[int]) -> ValueId:
    """The same elements in row-major order under another shape; the value itself where the shape is the same."""
    old, new = b.shape(v), tuple(shape)
    if old == new:
        return v
    if int(np.prod(old, dtype=np.int64)) != int(np.prod(new, dtype=np.int64)):
        raise Unsupported(f"{old} cannot be reshaped to {new}")

    def where(i: Index) -> Index:
        # axes of one element say nothing, and would only hide that the rest is affine
        plain = [const(0) if n == 1 else e for e, n in zip(i, new, strict=True)]
        return ix.unflatten(ix.flatten(plain, new), old)

    return moved(b, v, new, where)


def _reshape(c: Call) -> Sequence[ValueId]:
    old = c.builder.shape(c.input(0))
    wanted = c.ints(1, "shape")
    if wanted is None:
        raise Unsupported("no shape is given")
    keeps_zero = bool(c.attr("allowzero", 0))
    new = [old[k] if n == 0 and not keeps_zero and k < len(old) else n for k, n in enumerate(wanted)]
    if -1 in new:
        rest = int(np.prod([n for n in new if n != -1], dtype=np.int64))
        new[new.index(-1)] = int(np.prod(old, dtype=np.int64)) // rest if rest else 0
    return [reshaped(c.builder, c.input(0), new)]


def _flatten(c: Call) -> Sequence[ValueId]:
    shape = c.builder.shape(c.input(0))
    axis = int(c.attr("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    split = (int(np.prod(shape[:axis], dtype=np.int64)), int(np.prod(shape[axis:], dtype=np.int64)))
    return [reshaped(c.builder, c.input(0), split)]


def _squeeze(c: Call) -> Sequence[ValueId]:
    shape = c.builder.shape(c.input(0))
    given = c.ints(1, "axes")
    axes = axes_in(given, len(shape)) if given is not None else [k for k, n in enumerate(shape) if n == 1]
    if any(shape[a] != 1 for a in axes):
        raise Unsupported(f"axes {list(axes)} of {shape} are not all of size 1")
    return [reshaped(c.builder, c.input(0), [n for k, n in enumerate(shape) if k not in axes])]


def _unsqueeze(c: Call) -> Sequence[ValueId]:
    shape = c.builder.shape(c.input(0))
    given = c.ints(1, "axes") or []
    rank = len(shape) + len(given)
    axes = axes_in(given, rank)
    rest = iter(shape)
    return [reshaped(c.builder, c.input(0), [1 if k in axes else next(rest) for k in range(rank)])]


def _transpose(c: Call) -> Sequence[ValueId]:
    shape = c.builder.shape(c.input(0))
    perm = [int(p) for p in c.attr("perm") or reversed(range(len(shape)))]
    if perm == list(range(len(shape))):
        return [c.input(0)]
    return [moved(c.builder, c.input(0), [shape[p] for p in perm], lambda i: [i[perm.index(k)] for k in range(len(i))])]


def _slice(c: Call) -> Sequence[ValueId]:
    shape = c.builder.shape(c.input(0))
    starts, ends = c.ints(1, "starts"), c.ints(2, "ends")
    if starts is None or ends is None:
        raise Unsupported("starts or ends are left out")
    axes = c.ints(3, "axes")
    chosen = [axis_in(a, len(shape)) for a in axes] if axes is not None else list(range(len(starts)))
    steps = c.ints(4) or [1] * len(starts)
    ranges = [range(n) for n in shape]
    for axis, start, end, step in zip(chosen, starts, ends, steps, strict=True):
        if step == 0:
            raise Unsupported("a slice with step 0")
        ranges[axis] = range(shape[axis])[slice(start, _end(end, step, shape[axis]), step)]
    if ranges == [range(n) for n in shape]:
        return [c.input(0)]

    def where(i: Index) -> Index:
        return tuple(ix.add(ix.mul(e, r.step), const(r.start)) for e, r in zip(i, ranges, strict=True))

    return [moved(c.builder, c.input(0), [len(r) for r in ranges], where)]


def _end(end: int, step: int, n: int) -> int | None:
    """With a negative step an end before the first element means: to the very first one."""
    return None if step < 0 and end < -n else end


def _concat(c: Call) -> Sequence[ValueId]:
    return [concat(c.builder, [c.input(k) for k in range(len(c.inputs))], int(c.attr("axis", 1)))]


def concat(b: Builder, parts: Sequence[ValueId], axis: int) -> ValueId:
    """select(i < end of the first, first[i], select(...)): each part is read where its range is met."""
    shapes = [b.shape(v) for v in parts]
    axis = axis_in(axis, len(shapes[0]))
    filled = [v for v in parts if b.shape(v)[axis]] or list(parts[:1])
    if len(filled) == 1:
        return filled[0]
    begins = [0]
    for v in filled:
        begins.append(begins[-1] + b.shape(v)[axis])
    shape = [*shapes[0][:axis], begins[-1], *shapes[0][axis + 1 :]]

    def body(i: Index, read: Reader) -> Expr:
        def part(k: int) -> Expr:
            return read.raw(k, [ix.sub(e, const(begins[k])) if a == axis else e for a, e in enumerate(i)])

        def between(first: int, stop: int) -> Expr:
            if stop - first == 1:
                return part(first)
            middle = first + 1 if len(filled) <= CHAIN else (first + stop) // 2
            return select(ix.less(i[axis], const(begins[middle])), between(first, middle), between(middle, stop))

        return between(0, len(filled))

    return b.map(filled, shape, body)


def _split(c: Call) -> Sequence[ValueId | None]:
    b = c.builder
    shape = b.shape(c.input(0))
    axis = axis_in(int(c.attr("axis", 0)), len(shape))
    sizes = c.ints(1, "split")
    if not sizes:
        parts = int(c.attr("num_outputs", len(c.wanted)))
        each = -(-shape[axis] // parts)
        sizes = [max(0, min(each, shape[axis] - k * each)) for k in range(parts)]
    if sum(sizes) != shape[axis] or min(sizes) < 0:
        raise Unsupported(f"parts of sizes {list(sizes)} for a dimension of {shape[axis]}")
    out: list[ValueId | None] = []
    begin = 0
    for k, n in enumerate(sizes):
        out.append(_part(b, c.input(0), axis, begin, n) if k < len(c.wanted) and c.wanted[k] else None)
        begin += n
    return out


def _part(b: Builder, v: ValueId, axis: int, begin: int, n: int) -> ValueId:
    shape = b.shape(v)
    if n == shape[axis]:
        return v

    def where(i: Index) -> Index:
        return tuple(ix.add(e, const(begin)) if a == axis else e for a, e in enumerate(i))

    return moved(b, v, [*shape[:axis], n, *shape[axis + 1 :]], where)


def broadcast_to(b: Builder, v: ValueId, shape: Sequence[int]) -> ValueId:
    """numpy's broadcasting, both ways."""
    old = b.shape(v)
    new = np.broadcast_shapes(old, tuple(shape))
    if new == old:
        return v

    def where(i: Index) -> Index:
        tail = i[len(i) - len(old) :]
        return tuple(const(0) if n == 1 else e for e, n in zip(tail, old, strict=True))

    return moved(b, v, new, where)


def _expand(c: Call) -> Sequence[ValueId]:
    return [broadcast_to(c.builder, c.input(0), c.ints(1) or [])]


def _tile(c: Call) -> Sequence[ValueId]:
    shape = c.builder.shape(c.input(0))
    repeats = c.ints(1) or []
    if c.opset < 6 or len(repeats) != len(shape):
        raise Unsupported("repeats that do not fit the rank")
    if all(r == 1 for r in repeats):
        return [c.input(0)]

    def where(i: Index) -> Index:
        return tuple(e if r == 1 else ix.floor_mod(e, max(n, 1)) for e, n, r in zip(i, shape, repeats, strict=True))

    return [moved(c.builder, c.input(0), [n * r for n, r in zip(shape, repeats, strict=True)], where)]


def _depth_to_space(c: Call) -> Sequence[ValueId]:
    n, depth, h, w = c.builder.shape(c.input(0))
    s = int(c.attr("blocksize"))
    channels = depth // (s * s)
    columns = str(c.attr("mode", "DCR")) == "CRD"

    def where(i: Index) -> Index:
        block = ix.add(ix.mul(ix.floor_mod(i[2], s), s), ix.floor_mod(i[3], s))
        channel = ix.add(ix.mul(i[1], s * s), block) if columns else ix.add(ix.mul(block, channels), i[1])
        return i[0], channel, ix.floor_div(i[2], s), ix.floor_div(i[3], s)

    return [moved(c.builder, c.input(0), (n, channels, h * s, w * s), where)]


def _space_to_depth(c: Call) -> Sequence[ValueId]:
    n, channels, h, w = c.builder.shape(c.input(0))
    s = int(c.attr("blocksize"))
    depth_first = str(c.attr("mode", "DCR")) == "CRD"

    def where(i: Index) -> Index:
        inner = s * s if depth_first else max(channels, 1)
        outer, rest = ix.floor_div(i[1], inner), ix.floor_mod(i[1], inner)
        channel, block = (outer, rest) if depth_first else (rest, outer)
        y = ix.add(ix.mul(i[2], s), ix.floor_div(block, s))
        x = ix.add(ix.mul(i[3], s), ix.floor_mod(block, s))
        return i[0], channel, y, x

    return [moved(c.builder, c.input(0), (n, channels * s * s, h // s, w // s), where)]


def _identity(c: Call) -> Sequence[ValueId]:
    return [c.input(0)]


def ints(*values: int) -> np.ndarray:
    """A constant of 64-bit integers, as shapes and axes are."""
    return np.array(values, np.int64)


_X = (F32, (2, 3, 4))


def with_parameters(
    x: tuple[str, tuple[int, ...]], *parameters: np.ndarray | None, opset: int = 21, **attributes: object
) -> Sample:
    return Sample((x, *parameters), attributes, opset, constant=tuple(range(1, len(parameters) + 1)))


SHAPING: tuple[Op, ...] = (
    Op("Identity", _identity, (Sample((_X,)),)),
    Op(
        "Reshape",
        _reshape,
        (
            with_parameters(_X, ints(4, 6)),
            with_parameters(_X, ints(0, -1)),
            with_parameters(_X, ints(2, 1, 3, 1, 4)),
            with_parameters((F32, (0, 3)), ints(3, 0), allowzero=1),
            with_parameters((I64, (6,)), ints(3, 2)),
            with_parameters((F16, (6,)), ints(-1, 3)),
        ),
    ),
    Op("Flatten", _flatten, (Sample((_X,)), Sample((_X,), {"axis": 0}), Sample((_X,), {"axis": -1}))),
    Op(
        "Squeeze",
        _squeeze,
        (
            with_parameters((F32, (1, 3, 1, 4)), ints(0, -2)),
            Sample(((F32, (1, 3, 1)),)),
            Sample(((F32, (1, 3, 1)),), {"axes": [0]}, opset=11),
        ),
    ),
    Op("Unsqueeze", _unsqueeze, (with_parameters(_X, ints(0, -1)), Sample((_X,), {"axes": [1, 4]}, opset=11))),
    Op("Transpose", _transpose, (Sample((_X,)), Sample((_X,), {"perm": [1, 2, 0]}), Sample(((B, (2, 3)),)))),
    Op(
        "Slice",
        _slice,
        (
            with_parameters(_X, ints(1, 0), ints(3, -1), ints(1, -1)),
            with_parameters(_X, ints(-1, 3), ints(-100, 0), ints(1, 2), ints(-1, -2)),
            with_parameters(_X, ints(0, 0, 1), ints(2, 9, 1)),
            with_parameters((F32, (5,)), ints(4), ints(np.iinfo(np.int64).min), ints(0), ints(-1)),
            Sample((_X,), {"starts": [1], "ends": [3], "axes": [2]}, opset=9),
        ),
    ),
    Op(
        "Concat",
        _concat,
        (
            Sample((_X, (F32, (2, 5, 4)), (F32, (2, 1, 4))), {"axis": 1}),
            Sample((_X, (F32, (2, 3, 0)), _X), {"axis": -1}),
            Sample((_X,), {"axis": 0}),
            Sample(tuple((F32, (1, 2)) for _ in range(70)), {"axis": 0}),
        ),
    ),
    Op(
        "Split",
        _split,
        (
            Sample(((F32, (2, 7)), ints(3, 4)), {"axis": 1}, outputs=2, constant=(1,)),
            Sample(((F32, (7, 2)),), {"num_outputs": 3}, outputs=3),
            Sample(((F32, (6, 2)),), opset=13, outputs=2),
            Sample(((F32, (6, 2)),), {"split": [1, 2, 3]}, opset=11, outputs=3),
        ),
    ),
    Op("Expand", _expand, (with_parameters((F32, (3, 1)), ints(2, 1, 4)), with_parameters((F32, (3, 4)), ints(1)))),
    Op("Tile", _tile, (with_parameters((F32, (2, 3)), ints(2, 3)), with_parameters((F32, (2, 3)), ints(1, 2)))),
    Op(
        "DepthToSpace",
        _depth_to_space,
        (
            Sample(((F32, (1, 8, 2, 3)),), {"blocksize": 2}),
            Sample(((F32, (1, 8, 2, 3)),), {"blocksize": 2, "mode": "CRD"}),
        ),
    ),
    Op("SpaceToDepth", _space_to_depth, (Sample(((F32, (1, 2, 4, 6)),), {"blocksize": 2}),)),
)
