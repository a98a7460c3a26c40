"""Spatial sampling at positions that are data: GridSample, AffineGrid, DeformConv."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F16, F32, F64, I32, like
from autofuse.ops.convolution import conv_window, grouped_channel, with_bias
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.interpolation import cubic_taps, interpolated, linear_taps

MODES = {"bilinear": "linear", "linear": "linear", "bicubic": "cubic", "cubic": "cubic", "nearest": "nearest"}
"""Names of opset 16 and of opset 20."""

MOST_AXES = 3
"""Spatial axes up to which a cubic sample's taps (4 an axis) make an expression that compilers handle."""


def _denormalised(x: Expr, n: int, corners: bool) -> Expr:
    """A coordinate in [-1, 1] as a position along an axis of n elements."""
    one = like(x, 1)
    if corners:
        return call("mul", call("add", x, one), like(x, (n - 1) / 2))
    return call("mul", call("sub", call("mul", call("add", x, one), like(x, n)), one), like(x, 0.5))


def _mirrored(x: Expr, n: int, corners: bool) -> Expr:
    """A float position reflected at the first and last elements' centres, or (without `corners`) at their outer edges."""
    span, first = (n - 1, 0.0) if corners else (n, -0.5)
    if span == 0:
        return like(x, 0)
    t = call("sub", x, like(x, first))
    turns = call("floor", call("mul", t, like(x, 0.5 / span)))
    t = call("sub", t, call("mul", turns, like(x, 2 * span)))
    folded = call("sub", like(x, span), call("abs", call("sub", t, like(x, span))))
    return call("add", folded, like(x, first))


def _mirrored_index(i: Expr, n: int, corners: bool) -> Expr:
    """The same for an integer position; the result lies in [0, n)."""
    if n == 1:
        return const(0)
    period = 2 * (n - 1) if corners else 2 * n
    m = ix.floor_mod(i, period)
    return ix.minimum(m, ix.sub(const(period if corners else period - 1), m))


def _held(x: Expr, low: float, high: float) -> Expr:
    return call("minimum", call("maximum", x, like(x, low)), like(x, high))


def _position(x: Expr, n: int, mode: str, padding: str, corners: bool) -> Expr:
    """A normalised coordinate as the float position that is sampled, brought back to the tensor as the padding says."""
    x = _denormalised(x, n, corners)
    if mode == "nearest":
        x = call("round", x)
    if padding == "zeros":  # all that lies further out is as zero as this, and fits an integer
        return _held(x, -3.0, n + 2.0)
    if padding == "reflection":
        return _mirrored(x, n, corners)
    low, high = (0.0, n - 1.0) if corners else (-0.5, n - 0.5)
    inside = call("and", call("ge", x, like(x, low)), call("le", x, like(x, high)))
    return select(inside, x, _held(x, 0.0, n - 1.0))


def _grid_sample(c: Call) -> Sequence[ValueId]:
    """X[N, C, D1..Dk] at grid[N, O1..Ok, k], whose last axis counts the spatial axes from the last one.

    The formulas are those of the standard's reference and of PyTorch's grid_sample, which it cites: coordinates outside are
    brought back before the taps are chosen, and each tap outside once more.
    """
    b = c.builder
    x, grid = c.input(0), c.input(1)
    shape, places, dtype = b.shape(x), b.shape(grid), b.dtype(x)
    sizes, out = shape[2:], places[1:-1]
    rank = len(sizes)
    mode = MODES.get(str(c.attr("mode", "linear")), "")
    padding, corners = str(c.attr("padding_mode", "zeros")), bool(c.attr("align_corners", 0))
    if not mode or padding not in ("zeros", "border", "reflection"):
        raise Unsupported(f"sampling of mode {c.attr('mode')!r} with {padding!r} padding")
    if rank == 0 or len(out) != rank or places[-1] != rank or places[0] != shape[0]:
        raise Unsupported(f"a grid of shape {places} for a tensor of shape {shape}")
    if rank > MOST_AXES:
        raise Unsupported(f"sampling along {rank} axes")
    if not b.dtype(grid).is_float or (mode != "nearest" and not dtype.is_float):
        raise Unsupported("interpolation of integers")
    if 0 in sizes:
        raise Unsupported("sampling of nothing")

    def coordinate(i: Index, read: Reader) -> Expr:
        found = [_position(read(0, i), n, mode, padding, corners) for n in reversed(sizes)]
        e = found[-1]
        for k in reversed(range(rank - 1)):
            e = select(call("eq", i[-1], const(k)), found[k], e)
        return e

    positions = b.map([grid], places, coordinate, b.dtype(grid).compute)

    def body(i: Index, read: Reader) -> Expr:
        n, channel, *o = i
        at = [read(1, (n, *o, const(rank - 1 - k))) for k in range(rank)]

        def pixel(where: Sequence[Expr]) -> Expr:
            if padding == "zeros":
                return (read.raw if mode == "nearest" else read)(0, (n, channel, *where), fill=0)
            if padding == "reflection":
                kept = [_mirrored_index(w, s, corners) for w, s in zip(where, sizes, strict=True)]
            else:
                kept = [ix.minimum(ix.maximum(w, const(0)), const(s - 1)) for w, s in zip(where, sizes, strict=True)]
            return (read.raw if mode == "nearest" else read)(0, (n, channel, *kept))

        if mode == "nearest":
            return pixel([cast_to(e, INDEX) for e in at])
        taps = linear_taps if mode == "linear" else cubic_taps
        return interpolated([[(p, cast_to(w, dtype.compute)) for p, w in taps(e)] for e in at], pixel)

    return [b.map([x, positions], (*shape[:2], *out), body, dtype)]


def _affine_grid(c: Call) -> Sequence[ValueId]:
    """grid[n, ..., d] = sum over j of theta[n, d, j] base[..., j], the base being the coordinates (x first) of each output and 1."""
    b = c.builder
    theta = c.input(0)
    size = c.ints(1)
    if size is None:
        raise Unsupported("no size is given")
    out = size[2:]
    rank = len(out)
    if rank not in (2, 3) or b.shape(theta) != (size[0], rank, rank + 1):
        raise Unsupported(f"a transformation of shape {b.shape(theta)} for the size {size}")
    corners = bool(c.attr("align_corners", 0))

    def base(i: Expr, n: int, dtype: DType) -> Expr:
        """-1 + (2 i + 1) / n, or with `corners` -1 + 2 i / (n - 1), each from an exact integer."""
        spread = max(n - 1, 1) if corners else n
        numerator = ix.add(ix.mul(i, 2), const(1 - n))
        return call("mul", cast_to(numerator, dtype), const(1.0 / spread, dtype))

    def body(i: Index, read: Reader) -> Expr:
        n, *o, d = i
        total = read(0, (n, d, const(rank)))
        for j in reversed(range(rank)):
            axis = rank - 1 - j
            total = call("add", total, call("mul", read(0, (n, d, const(j))), base(o[axis], out[axis], total.dtype)))
        return total

    return [b.map([theta], (size[0], *out, rank), body, b.dtype(theta))]


def _deform_conv(c: Call) -> Sequence[ValueId]:
    """A convolution whose taps are moved by offsets and scaled by a mask (Zhu et al., Deformable ConvNets v2).

    columns[n, ch, tap..., o...] is the input read linearly at the moved tap, then one contraction with the weights.
    """
    b = c.builder
    x, w, offset = c.input(0), c.input(1), c.input(2)
    bias, mask = c.input(3) if c.has(3) else None, c.input(4) if c.has(4) else None
    xs, ws, os, dtype = b.shape(x), b.shape(w), b.shape(offset), b.dtype(x)
    g = conv_window(c, xs, ws)
    rank = len(g.kernel)
    groups, parts = int(c.attr("group", 1)), int(c.attr("offset_group", 1))
    taps = int(np.prod(g.kernel, dtype=np.int64))
    if xs[1] % parts or os != (xs[0], parts * taps * rank, *g.out):
        raise Unsupported(f"offsets of shape {os} in {parts} groups for an input of shape {xs}")
    if mask is not None and b.shape(mask) != (xs[0], parts * taps, *g.out):
        raise Unsupported(f"a mask of shape {b.shape(mask)} for offsets of shape {os}")
    compute = dtype.compute

    def column(i: Index, read: Reader) -> Expr:
        n, ch, *rest = i
        tap, o = rest[:rank], rest[rank:]
        part = ix.floor_div(ch, xs[1] // parts)
        number = ix.add(ix.mul(part, taps), ix.flatten(tap, g.kernel))
        where = []
        for k, plain in enumerate(g.index(tuple(o), tuple(tap))):
            moved = read(1, (n, ix.add(ix.mul(number, rank), const(k)), *o))
            # further out than this every tap lies outside
            where.append(_held(call("add", cast_to(plain, compute), moved), -2.0, g.sizes[k] + 1.0))
        e = interpolated([linear_taps(p) for p in where], lambda p: read(0, (n, ch, *p), fill=0.0))
        return e if mask is None else call("mul", e, read(2, (n, number, *o)))

    inputs = [x, offset] if mask is None else [x, offset, mask]
    columns = b.map(inputs, (*xs[:2], *g.kernel, *g.out), column, compute)

    def product(out: Index, reduced: Index, read: Reader) -> Expr:
        (n, m, *o), (ch, *tap) = out, reduced
        channel = grouped_channel(m, ch, ws[0], groups, ws[1])
        return call("mul", read(0, (n, channel, *tap, *o)), cast_to(read(1, (m, ch, *tap)), compute))

    stored = dtype if bias is None else compute
    total = b.reduce([columns, w], (xs[0], ws[0], *g.out), (ws[1], *g.kernel), Combine.SUM, product, stored)
    return [with_bias(b, total, bias, dtype)]


def _grid(rank: int, n: int = 2, size: int = 5) -> np.ndarray:
    """Coordinates in and around [-1, 1], away from the ties between two elements."""
    rng = np.random.default_rng(7)
    return (rng.uniform(-1.6, 1.6, (n, *range(size, size + rank), rank))).astype(np.float32)


def _sampled(rank: int = 2, dtype: str = F32, opset: int = 20, **attributes: object) -> Sample:
    """Other types than float32 sample at multiples of 1/8, which oracles that compute positions in another type have exactly."""
    grid = _grid(rank) if dtype == F32 else np.round(_grid(rank) * 8) / 8
    return Sample(((dtype, (2, 3, 4, 6, 5)[: 2 + rank]), grid.astype(dtype)), attributes, opset)


_MODES_2D = tuple(
    _sampled(mode=mode, padding_mode=padding, align_corners=corners)
    for mode in ("linear", "nearest", "cubic")
    for padding in ("zeros", "border", "reflection")
    for corners in (0, 1)
)

SAMPLINGS: tuple[Op, ...] = (
    Op(
        "GridSample",
        _grid_sample,
        (
            *_MODES_2D,
            _sampled(3),
            _sampled(3, mode="nearest", padding_mode="reflection"),
            _sampled(3, mode="linear", padding_mode="border", align_corners=1),
            _sampled(1, mode="cubic"),
            _sampled(dtype=F64),
            _sampled(dtype=F16),
            Sample(((I32, (2, 3, 4, 6)), _grid(2)), {"mode": "nearest"}, 20, low=-99, high=99),
            _sampled(opset=16, mode="bilinear"),
            _sampled(opset=16, mode="bicubic", align_corners=1),
        ),
        since=16,
    ),
    Op(
        "AffineGrid",
        _affine_grid,
        tuple(
            Sample(((F32, (2, d, d + 1)), np.array([2, 3, *range(4, 4 + d)], np.int64)), attributes, 20, constant=(1,))
            for d in (2, 3)
            for attributes in ({}, {"align_corners": 1})
        ),
        since=20,
    ),
    Op(
        "DeformConv",
        _deform_conv,
        (
            Sample(((F32, (2, 4, 6, 7)), (F32, (3, 4, 3, 2)), (F32, (2, 12, 4, 6))), opset=19),
            Sample(
                (
                    (F32, (2, 4, 6, 7)),
                    (F32, (4, 2, 2, 2)),
                    (F32, (2, 16, 4, 4)),
                    (F32, (4,)),
                    (F32, (2, 8, 4, 4)),
                ),
                {"group": 2, "offset_group": 2, "strides": [2, 2], "pads": [1, 1, 1, 0]},
                opset=19,
            ),
            Sample(
                ((F32, (1, 2, 7, 7)), (F32, (3, 2, 2, 2)), (F32, (1, 8, 5, 3)), None, (F32, (1, 4, 5, 3))),
                {"dilations": [2, 4]},
                opset=19,
            ),
        ),
        since=19,
    ),
)
