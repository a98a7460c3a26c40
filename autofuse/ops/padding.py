"""Padding with a constant, by reflection, with the edge or around; negative pads crop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, const, select
from autofuse.ir.graph import ValueId
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F32, I32, axis_in
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.shaping import ints, moved, with_parameters


def _reflect(t: Expr, n: int, reach: int) -> Expr:
    """Mirrored at the edges, which are not repeated."""
    if n == 1:
        return const(0)
    if reach >= n:
        period = 2 * (n - 1)
        m = ix.floor_mod(t, period)
        return ix.minimum(m, ix.sub(const(period), m))
    positive = ix.maximum(t, ix.mul(t, -1))
    return ix.minimum(positive, ix.sub(const(2 * (n - 1)), positive))


def _edge(t: Expr, n: int, reach: int) -> Expr:
    return ix.minimum(ix.maximum(t, const(0)), const(n - 1))


_BORDERS: dict[str, Callable[[Expr, int, int], Expr]] = {
    "reflect": _reflect,
    "edge": _edge,
    "wrap": lambda t, n, reach: ix.floor_mod(t, n),
}


def _pad(c: Call) -> Sequence[ValueId]:
    """Negative pads crop."""
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    given = c.ints(1, "pads") or [int(p) for p in c.attr("paddings", ())]
    axes = c.ints(3)
    chosen = [axis_in(a, len(shape)) for a in axes] if axes is not None else list(range(len(shape)))
    if len(given) != 2 * len(chosen):
        raise Unsupported(f"{len(given)} pads for {len(chosen)} axes")
    begin, end = [0] * len(shape), [0] * len(shape)
    for k, a in enumerate(chosen):
        begin[a], end[a] = given[k], given[k + len(chosen)]
    if not any(begin) and not any(end):
        return [x]
    out = [max(0, n + p + q) for n, p, q in zip(shape, begin, end, strict=True)]

    def shifted(i: Index) -> list[Expr]:
        return [ix.sub(e, const(p)) for e, p in zip(i, begin, strict=True)]

    mode = str(c.attr("mode", "constant"))
    if mode in _BORDERS:
        if 0 in shape:
            raise Unsupported(f"{mode} padding of nothing")
        border = _BORDERS[mode]

        def inside(i: Index) -> list[Expr]:
            reach = [max(p, q) for p, q in zip(begin, end, strict=True)]
            return [
                border(t, n, r) if p > 0 or q > 0 else t
                for t, n, r, p, q in zip(shifted(i), shape, reach, begin, end, strict=True)
            ]

        return [moved(b, x, out, inside)]
    if mode != "constant":
        raise Unsupported(f"padding of mode {mode!r}")
    known = b.known(c.input(2)) if c.has(2) else np.asarray(c.attr("value", 0.0))
    if known is not None:
        literal = known.reshape(-1)[0] if known.size else 0
        fill = float(literal) if dtype.is_float else int(literal)
        return [b.map([x], out, lambda i, read: read.raw(0, shifted(i), fill=fill))]

    def guarded(i: Index, read: Reader) -> Expr:
        at = shifted(i)
        return select(ix.in_range(at, shape), read.raw(0, at), read.raw(1, [const(0)] * len(b.shape(c.input(2)))))

    return [b.map([x, c.input(2)], out, guarded)]


def _center_crop_pad(c: Call) -> Sequence[ValueId]:
    """The middle of a larger axis, or a smaller one in the middle of zeros; what is odd is left over at the end."""
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    wanted = c.ints(1)
    if wanted is None:
        raise Unsupported("no shape is given")
    axes = c.attr("axes")
    chosen = [axis_in(int(a), len(shape)) for a in axes] if axes is not None else list(range(len(shape)))
    if len(wanted) != len(chosen):
        raise Unsupported(f"{len(wanted)} sizes for {len(chosen)} axes")
    out = list(shape)
    for a, n in zip(chosen, wanted, strict=True):
        out[a] = n
    if out == list(shape):
        return [x]
    # where output 0 reads: inside a larger input, before a smaller one
    first = [(n - m) // 2 if n > m else -((m - n) // 2) for n, m in zip(shape, out, strict=True)]
    zero = 0.0 if dtype.is_float else 0

    def body(i: Index, read: Reader) -> Expr:
        return read.raw(0, [ix.add(e, const(f)) for e, f in zip(i, first, strict=True)], fill=zero)

    return [b.map([x], out, body)]


_X = (F32, (2, 3, 4))

PADDINGS: tuple[Op, ...] = (
    Op(
        "Pad",
        _pad,
        (
            with_parameters(_X, ints(0, 1, 2, 1, 0, 1), np.array(1.5, np.float32)),
            with_parameters(_X, ints(0, -1, 2, 0, 0, -1)),
            with_parameters((F32, (4, 5)), ints(2, 3, 1, 4), mode="reflect"),
            with_parameters((F32, (4, 5)), ints(2, 3, 1, 4), mode="edge"),
            with_parameters((F32, (4, 5)), ints(2, 3, 1, 4), mode="wrap"),
            with_parameters(_X, ints(1, 2), None, ints(-1)),
            with_parameters((I32, (3,)), ints(1, 1), np.array(7, np.int32)),
            Sample((_X, ints(0, 1, 2, 1, 0, 1), np.array(1.5, np.float32)), constant=(1,)),
            Sample((_X,), {"pads": [0, 0, 1, 0, 1, 0], "value": 2.0}, opset=10),
        ),
    ),
    Op(
        "CenterCropPad",
        _center_crop_pad,
        (
            with_parameters((F32, (5, 4, 7)), ints(2, 7, 7), opset=18),
            with_parameters((F32, (5, 4, 7)), ints(8, 3), axes=[2, -2], opset=18),
            with_parameters((I32, (4,)), ints(7), opset=18),
        ),
        since=18,
    ),
)
