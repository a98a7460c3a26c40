"""Pooling of regions of interest: RoiAlign and MaxRoiPool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.common import F32, F64, like, scaled, wrapped
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.interpolation import interpolated, linear_taps

NEAR = 6
"""Samples looked at for one element along one axis where their number depends on data: they lie more than half an element apart (or
there is but one), so at most four meet an interval of length two; one more at each side allows for rounding."""


@dataclass(frozen=True)
class _Axis:
    """One spatial axis: where a region's two ends stand in `rois`, how many elements, and bins that it has."""

    first: int
    last: int
    size: int
    bins: int


@dataclass(frozen=True)
class _Regions:
    """What the attributes say of a RoiAlign."""

    scale: float
    offset: float
    ratio: int
    axes: tuple[_Axis, _Axis]

    def span(self, read: Reader, slot: int, n: Expr, axis: _Axis) -> tuple[Expr, Expr]:
        """Where a region begins along an axis, and the width of one of its bins, in elements."""

        def end(column: int) -> Expr:
            e = read(slot, (n, const(column)))
            return call("sub", call("mul", e, like(e, self.scale)), like(e, self.offset))

        start, stop = end(axis.first), end(axis.last)
        length = call("sub", stop, start)
        if self.offset == 0.0:  # without the half pixel a malformed region counts as one element
            length = call("maximum", length, like(length, 1))
        return start, call("div", length, like(length, axis.bins))


def _outside(p: Expr, n: int) -> Expr:
    return call("or", call("lt", p, like(p, -1)), call("gt", p, like(p, n)))


def _held(p: Expr, n: int) -> Expr:
    return call("minimum", call("maximum", p, like(p, 0)), like(p, n - 1))


def _fixed(b: Builder, inputs: Sequence[ValueId], r: _Regions, shape: Sequence[int], mode: str) -> ValueId:
    """ratio x ratio samples a bin: one reduction, each sample interpolated between four elements."""
    images = b.shape(inputs[0])[0]
    compute = b.dtype(inputs[0]).compute

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        n, channel, *bins = out
        image = _image(read, 2, n, images)
        taps, outside = [], []
        for axis, bin_, k in zip(r.axes, bins, reduced, strict=True):
            start, width = r.span(read, 1, n, axis)
            begin = call("add", start, call("mul", cast_to(bin_, start.dtype), width))
            part = call("mul", call("add", cast_to(k, start.dtype), like(start, 0.5)), width)
            p = call("add", begin, call("div", part, like(part, r.ratio)))
            outside.append(_outside(p, axis.size))
            (low, near), (high, far) = linear_taps(_held(p, axis.size))
            last = const(axis.size - 1)
            taps.append([(_inside(low, last), cast_to(near, compute)), (_inside(high, last), cast_to(far, compute))])

        def pixel(at: tuple[Expr, ...]) -> Expr:
            return read(0, (image, channel, *at))

        if mode == "avg":
            e = interpolated(taps, pixel)
        else:
            parts = [call("mul", call("mul", wy, wx), pixel((y, x_))) for y, wy in taps[0] for x_, wx in taps[1]]
            e = reduce(lambda p, q: call("maximum", p, q), parts)
        return select(call("or", *outside), like(e, 0), e)

    over = (r.ratio, r.ratio)
    if mode == "max":
        return b.reduce(inputs, shape, over, Combine.MAX, body, b.dtype(inputs[0]))
    total = b.reduce(inputs, shape, over, Combine.SUM, body, compute)
    return b.elementwise([total], lambda e: scaled(e, r.ratio * r.ratio), b.dtype(inputs[0]))


def _inside(i: Expr, last: Expr) -> Expr:
    return ix.minimum(ix.maximum(i, const(0)), last)


# ---- as many samples as a bin has elements
#
# Their number is ceil(width of a bin), which is data. Both ways of pooling split into the axes, so it is worked out for each element
# of an axis what the samples of a bin do to it: the samples next to an element are few, whatever their number.


def _table(
    b: Builder, rois: ValueId, r: _Regions, axis: _Axis, dtype: DType, total: Callable[[list[tuple[Expr, Expr]]], Expr]
) -> ValueId:
    """table[region, bin, element] = total of (whether the sample counts, its linear weight) over the samples near an element."""
    count = b.shape(rois)[0]

    def body(i: Index, read: Reader) -> Expr:
        n, bin_, element = i
        begin, step, samples = _samples(r, axis, read, 0, n, bin_)
        at = cast_to(element, begin.dtype)
        # the first sample that may lie beyond the element before this one
        first = call(
            "floor", call("sub", call("div", call("sub", at, call("add", begin, like(at, 1))), step), like(at, 1))
        )
        first = call("maximum", first, like(at, 0))
        found = []
        for j in range(NEAR):
            k = call("add", first, like(first, j))
            p = call("add", begin, call("mul", call("add", k, like(k, 0.5)), step))
            distance = call("abs", call("sub", _held(p, axis.size), at))
            weight = call("sub", like(p, 1), distance)
            counts = call("and", call("lt", k, samples), call("not", _outside(p, axis.size)))
            found.append((call("and", counts, call("ge", weight, like(weight, 0))), weight))
        return cast_to(total(found), dtype)

    return b.map([rois], (count, axis.bins, axis.size), body, dtype)


def _samples(r: _Regions, axis: _Axis, read: Reader, slot: int, n: Expr, bin_: Expr) -> tuple[Expr, Expr, Expr]:
    """Where a bin begins, the distance of its samples, and how many it has (a float; none for an empty region)."""
    start, width = r.span(read, slot, n, axis)
    begin = call("add", start, call("mul", cast_to(bin_, start.dtype), width))
    samples = call("ceil", width)
    return begin, call("div", width, call("maximum", samples, like(samples, 1))), samples


def _combined(fn: str, none: float) -> Callable[[list[tuple[Expr, Expr]]], Expr]:
    """The sum, greatest or least of the weights; `none` stands for a sample that does not count."""

    def total(found: list[tuple[Expr, Expr]]) -> Expr:
        return reduce(lambda p, q: call(fn, p, q), [select(counts, w, like(w, none)) for counts, w in found])

    return total


def _image(read: Reader, slot: int, region: Expr, images: int) -> Expr:
    """Which image a region lies in."""
    return wrapped(read.raw(slot, (region,)), images)


def _adaptive_mean(b: Builder, inputs: Sequence[ValueId], r: _Regions, shape: Sequence[int]) -> ValueId:
    """Two contractions, one an axis, with the sums of the samples' weights; then divided by the number of samples."""
    x, rois, where = inputs
    images, dtype = b.shape(x)[0], b.dtype(x)
    compute = dtype.compute
    vertical, horizontal = r.axes
    rows = _table(b, rois, r, vertical, compute, _combined("add", 0.0))
    columns = _table(b, rois, r, horizontal, compute, _combined("add", 0.0))
    n, channels, *_ = shape

    def across(out: Index, reduced: Index, read: Reader) -> Expr:
        region, channel, y, bin_ = out
        e = read(0, (_image(read, 2, region, images), channel, y, reduced[0]))
        return call("mul", e, read(1, (region, bin_, reduced[0])))

    def down(out: Index, reduced: Index, read: Reader) -> Expr:
        region, channel, row, bin_ = out
        return call("mul", read(0, (region, channel, reduced[0], bin_)), read(1, (region, row, reduced[0])))

    half = b.reduce(
        [x, columns, where],
        (n, channels, vertical.size, horizontal.bins),
        [horizontal.size],
        Combine.SUM,
        across,
        compute,
    )
    total = b.reduce([half, rows], shape, [vertical.size], Combine.SUM, down, compute)

    def mean(i: Index, read: Reader) -> Expr:
        e = read(0, i)
        (_, _, height), (_, _, width) = (_samples(r, a, read, 1, i[0], const(0)) for a in r.axes)
        count = call("maximum", call("mul", height, width), like(height, 1))
        return call("div", e, cast_to(count, e.dtype))

    return b.map([total, rois], shape, mean, dtype)


def _adaptive_max(b: Builder, inputs: Sequence[ValueId], r: _Regions, shape: Sequence[int]) -> ValueId:
    """The maximum of weight times element: by the greatest weights for what is positive, by the least for what is negative."""
    x, rois, where = inputs
    images, dtype = b.shape(x)[0], b.dtype(x)
    compute = dtype.compute
    tables = [
        _table(b, rois, r, a, compute, _combined(*how)) for how in (("maximum", -1.0), ("minimum", 2.0)) for a in r.axes
    ]

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        region, channel, row, column = out
        y, x = reduced
        e = read(0, (_image(read, 5, region, images), channel, y, x))
        top, left = read(1, (region, row, y)), read(2, (region, column, x))
        bottom, right = read(3, (region, row, y)), read(4, (region, column, x))
        met = call("and", call("ge", top, like(top, 0)), call("ge", left, like(left, 0)))
        weight = select(call("ge", e, like(e, 0)), call("mul", top, left), call("mul", bottom, right))
        return select(met, call("mul", weight, e), like(e, dtype.min_value))

    best = b.reduce([x, *tables, where], shape, [a.size for a in r.axes], Combine.MAX, body, compute)

    def finish(i: Index, read: Reader) -> Expr:
        e = read(0, i)
        beyond: Expr = ix.FALSE
        empty: Expr = ix.FALSE
        for axis, bin_ in zip(r.axes, i[2:], strict=True):
            begin, step, samples = _samples(r, axis, read, 1, i[0], bin_)
            first = call("add", begin, call("mul", step, like(step, 0.5)))
            last = call("add", begin, call("mul", call("sub", samples, like(samples, 0.5)), step))
            beyond = call("or", beyond, call("or", _outside(first, axis.size), _outside(last, axis.size)))
            empty = call("or", empty, call("le", samples, like(samples, 0)))
        zero = like(e, 0)
        return select(empty, zero, select(beyond, call("maximum", e, zero), e))

    return b.map([best, rois], shape, finish, dtype)


def _roi_align(c: Call) -> Sequence[ValueId]:
    """After Mask R-CNN's (He et al., 2017), by the formulas of the standard's reference.

    A sample more than one element outside counts as zero, one between there and the border as the border.
    """
    b = c.builder
    x, rois, images = c.input(0), c.input(1), c.input(2)
    shape, dtype = b.shape(x), b.dtype(x)
    if len(shape) != 4 or len(b.shape(rois)) != 2 or 0 in shape:
        raise Unsupported(f"regions of shape {b.shape(rois)} of a tensor of shape {shape}")
    half = str(c.attr("coordinate_transformation_mode", "half_pixel" if c.opset >= 16 else "output_half_pixel"))
    mode = str(c.attr("mode", "avg")).lower()
    if mode not in ("avg", "max"):
        raise Unsupported(f"regions pooled by {mode!r}")
    height, width = int(c.attr("output_height", 1)), int(c.attr("output_width", 1))
    axes = (_Axis(1, 3, shape[2], height), _Axis(0, 2, shape[3], width))
    ratio = int(c.attr("sampling_ratio", 0))
    offset = 0.5 if half.lower() == "half_pixel" else 0.0
    r = _Regions(float(c.attr("spatial_scale", 1.0)), offset, ratio, axes)
    made = (b.shape(rois)[0], shape[1], height, width)
    inputs = [x, rois, images]
    if not dtype.is_float:
        raise Unsupported("interpolation of integers")
    if ratio > 0:
        return [_fixed(b, inputs, r, made, mode)]
    return [(_adaptive_mean if mode == "avg" else _adaptive_max)(b, inputs, r, made)]


def _max_roi_pool(c: Call) -> Sequence[ValueId]:
    """After Fast R-CNN (Girshick, 2015): ends rounded to elements, bins that may share elements; an empty bin gives 0.

    First the maximum over columns for each row, then over rows.
    """
    b = c.builder
    x, rois = c.input(0), c.input(1)
    shape, dtype = b.shape(x), b.dtype(x)
    pooled = [int(n) for n in c.attr("pooled_shape")]
    scale = float(c.attr("spatial_scale", 1.0))
    if len(shape) != 4 or len(pooled) != 2 or b.shape(rois)[1:] != (5,):
        raise Unsupported(f"regions of shape {b.shape(rois)} of a tensor of shape {shape}")
    count, channels = b.shape(rois)[0], shape[1]

    def ends(read: Reader, n: Expr, axis: int, bin_: Expr) -> tuple[Expr, Expr]:
        """The first element of a bin and the one after its last."""
        size, bins = shape[2 + axis], pooled[axis]

        def end(column: int) -> Expr:
            e = read(1, (n, const(column)))
            e = call("mul", e, like(e, scale))
            away = call("floor", call("add", call("abs", e), like(e, 0.5)))  # half away from zero, as C's round
            return cast_to(call("mul", call("sign", e), away), INDEX)

        start, stop = end(2 - axis), end(4 - axis)
        length = ix.maximum(ix.add(stop, ix.mul(start, -1), const(1)), const(1))
        low = ix.add(ix.floor_div(ix.mul(bin_, length), bins), start)
        high = ix.add(ix.floor_div(ix.add(ix.mul(ix.add(bin_, const(1)), length), const(bins - 1)), bins), start)
        return tuple(ix.minimum(ix.maximum(e, const(0)), const(size)) for e in (low, high))  # type: ignore[return-value]

    def within(i: Expr, bounds: tuple[Expr, Expr]) -> Expr:
        return call("and", call("le", bounds[0], i), call("lt", i, bounds[1]))

    def across(out: Index, reduced: Index, read: Reader) -> Expr:
        n, channel, y, bin_ = out
        image = wrapped(read(1, (n, const(0))), shape[0])
        e = read(0, (image, channel, y, reduced[0]))
        return select(within(reduced[0], ends(read, n, 1, bin_)), e, like(e, dtype.min_value))

    def down(out: Index, reduced: Index, read: Reader) -> Expr:
        n, channel, row, bin_ = out
        e = read(0, (n, channel, reduced[0], bin_))
        return select(within(reduced[0], ends(read, n, 0, row)), e, like(e, dtype.min_value))

    half = b.reduce([x, rois], (count, channels, shape[2], pooled[1]), [shape[3]], Combine.MAX, across, dtype)
    best = b.reduce([half, rois], (count, channels, *pooled), [shape[2]], Combine.MAX, down, dtype)

    def finish(i: Index, read: Reader) -> Expr:
        e = read(0, i)
        some: Expr = ix.TRUE
        for axis in range(2):
            low, high = ends(read, i[0], axis, i[2 + axis])
            some = ix.both(some, call("lt", low, high))
        return select(some, e, like(e, 0))

    return [b.map([best, rois], (count, channels, *pooled), finish, dtype)]


_ROIS = np.array(
    [
        [0.317, 0.441, 5.123, 4.259],
        [1.283, 0.719, 9.347, 8.611],
        [-3.137, -2.291, 2.433, 1.937],
        [4.451, 3.373, 4.919, 3.643],
        [2.659, 4.133, 13.717, 6.881],
        [6.247, 5.189, 3.371, 2.447],
    ],
    np.float32,
)
"""Inside, outside, smaller than a bin, and inside out; with no sample on the point where it passes to the next element."""

_IMAGES = np.array([0, 1, 1, 0, 1, 1], np.int64)


def _aligned(dtype: str = F32, opset: int = 16, **attributes: object) -> Sample:
    given = {"output_height": 3, "output_width": 2, **attributes}
    return Sample(((dtype, (2, 3, 7, 8)), _ROIS.astype(dtype), _IMAGES), given, opset)


def _pooled(**attributes: object) -> Sample:
    rois = np.concatenate([_IMAGES[:, None].astype(np.float32), _ROIS], axis=1)
    return Sample(((F32, (2, 3, 7, 8)), rois), {"pooled_shape": [3, 2], **attributes})


ROIS: tuple[Op, ...] = (
    Op(
        "RoiAlign",
        _roi_align,
        (
            _aligned(sampling_ratio=2),
            _aligned(sampling_ratio=3, coordinate_transformation_mode="output_half_pixel", spatial_scale=0.5),
            _aligned(sampling_ratio=2, mode="max"),
            _aligned(),
            _aligned(coordinate_transformation_mode="output_half_pixel"),
            _aligned(spatial_scale=2.0),
            _aligned(mode="max"),
            _aligned(mode="max", spatial_scale=2.0, coordinate_transformation_mode="output_half_pixel"),
            _aligned(opset=10, sampling_ratio=2),
            _aligned(dtype=F64, sampling_ratio=2),
            _aligned(dtype=F64),
        ),
        since=10,
    ),
    Op("MaxRoiPool", _max_roi_pool, (_pooled(), _pooled(spatial_scale=0.5))),
)
