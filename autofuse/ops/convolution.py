"""Convolutions: one contraction each, in any rank."""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.common import F16, F32, F64, Window, like, window
from autofuse.ops.declare import Call, Op, Sample, Unsupported


def grouped_channel(k: Expr, c: Expr, out_channels: int, groups: int, per_group: int) -> Expr:
    """The input channel that output channel k meets at position c of its group."""
    if groups == 1:
        return c
    group = ix.floor_div(k, max(out_channels // groups, 1))
    return ix.add(ix.mul(group, per_group), c)


def conv_window(c: Call, x: tuple[int, ...], w: tuple[int, ...]) -> Window:
    """The geometry of a convolution of an input and a weight of these shapes."""
    if len(x) < 3 or len(x) != len(w):
        raise Unsupported(f"a convolution of ranks {len(x)} and {len(w)}")
    groups = int(c.attr("group", 1))
    if x[1] != w[1] * groups or w[0] % groups:
        raise Unsupported(f"{groups} groups do not fit input {x} and weight {w}")
    return window(c, x[2:], w[2:])


def with_bias(b: Builder, v: ValueId, bias: ValueId | None, dtype: DType) -> ValueId:
    """v + bias[channel], the channel being axis 1."""
    if bias is None:
        return v
    return b.map([v, bias], b.shape(v), lambda i, read: call("add", read(0, i), read(1, (i[1],))), dtype)


def conv(c: Call, x: ValueId, w: ValueId, bias: ValueId | None) -> ValueId:
    """The contraction, then the bias."""
    b = c.builder
    xs, ws, dtype = b.shape(x), b.shape(w), b.dtype(x)
    g = conv_window(c, xs, ws)
    groups = int(c.attr("group", 1))

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        (n, k, *o), (ch, *tap) = out, reduced
        channel = grouped_channel(k, ch, ws[0], groups, ws[1])
        a = read(0, (n, channel, *g.index(tuple(o), tuple(tap))), fill=0.0)
        return call("mul", a, read(1, (k, ch, *tap)))

    stored = dtype if bias is None else dtype.compute
    shape, over = (xs[0], ws[0], *g.out), (ws[1], *ws[2:])
    return with_bias(b, b.reduce([x, w], shape, over, Combine.SUM, body, stored), bias, dtype)


def _conv(c: Call) -> Sequence[ValueId]:
    return [conv(c, c.input(0), c.input(1), c.input(2) if c.has(2) else None)]


def _transposed_geometry(c: Call, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """Strides, dilations, pads at the beginning and the output size of a transposed convolution."""
    rank = len(sizes)
    strides = [int(s) for s in c.attr("strides") or [1] * rank]
    dilations = [int(d) for d in c.attr("dilations") or [1] * rank]
    extra = [int(p) for p in c.attr("output_padding") or [0] * rank]
    pads = [int(p) for p in c.attr("pads") or [0] * (2 * rank)]
    mode = str(c.attr("auto_pad", "NOTSET") or "NOTSET")
    wanted = c.attr("output_shape")
    given = [int(n) for n in wanted][-rank:] if wanted is not None and len(wanted) else None
    begin, out = [], []
    for k, n in enumerate(sizes):
        full = strides[k] * (n - 1) + extra[k] + (kernel[k] - 1) * dilations[k] + 1
        if given is None and mode in ("NOTSET", "VALID"):
            p, q = (pads[k], pads[k + rank]) if mode == "NOTSET" else (0, 0)
            begin.append(p)
            out.append(max(full - p - q, 0))
            continue
        size = given[k] if given is not None else n * strides[k]
        total = max(full - size, 0)
        # the odd element of padding goes to the end for SAME_UPPER, and to the beginning otherwise
        begin.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
        out.append(size)
    spare = (0,) * rank
    return Window(tuple(sizes), tuple(kernel), tuple(strides), tuple(dilations), tuple(begin), spare, tuple(out))


def _conv_transpose(c: Call) -> Sequence[ValueId]:
    """In gather form: output o sums x[i] w[k] over the taps with s i + d k = o + p.

    With dilation 1 these are k = (o + p) mod s + s j and i = (o + p) // s - j, for j from 0 on: a plain contraction with ceil(k/s)
    taps. A dilated and strided one tests each tap instead.
    """
    b = c.builder
    x, w = c.input(0), c.input(1)
    xs, ws, dtype = b.shape(x), b.shape(w), b.dtype(x)
    groups = int(c.attr("group", 1))
    if len(xs) < 3 or len(xs) != len(ws) or xs[1] != ws[0] or ws[0] % groups:
        raise Unsupported(f"a transposed convolution of {xs} and {ws} in {groups} groups")
    g = _transposed_geometry(c, xs[2:], ws[2:])
    out_channels, per_group = ws[1] * groups, ws[0] // groups
    taps = [-(-k // s) if d == 1 else k for k, s, d in zip(g.kernel, g.strides, g.dilations, strict=True)]

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        (n, m, *o), (ch, *tap) = out, reduced
        channel = grouped_channel(m, ch, out_channels, groups, per_group)
        at, weight, tests = [], [], []
        for k, (pos, j) in enumerate(zip(o, tap, strict=True)):
            s, d, t = g.strides[k], g.dilations[k], ix.add(pos, const(g.begin[k]))
            if d == 1:
                at.append(ix.sub(ix.floor_div(t, s), j))
                weight.append(ix.add(ix.floor_mod(t, s), ix.mul(j, s)))
                continue
            t = ix.sub(t, ix.mul(j, d))
            if s > 1:
                tests.append(call("eq", ix.floor_mod(t, s), const(0)))
            at.append(ix.floor_div(t, s))
            weight.append(j)
        e = read(0, (n, channel, *at), fill=0.0)
        for test in tests:
            e = select(test, e, like(e, 0))
        inner = m if groups == 1 else ix.floor_mod(m, ws[1])
        return call("mul", e, read(1, (channel, inner, *weight), fill=0.0))

    bias = c.input(2) if c.has(2) else None
    stored = dtype if bias is None else dtype.compute
    made = b.reduce([x, w], (xs[0], out_channels, *g.out), (per_group, *taps), Combine.SUM, body, stored)
    return [with_bias(b, made, bias, dtype)]


def _s(x: tuple[int, ...], w: tuple[int, ...], bias: int = 0, dtype: str = F32, **attributes: object) -> Sample:
    inputs = [(dtype, x), (dtype, w)] + ([(dtype, (bias,))] if bias else [])
    return Sample(tuple(inputs), attributes)


CONVOLUTIONS: tuple[Op, ...] = (
    Op(
        "Conv",
        _conv,
        (
            _s((2, 3, 7, 8), (4, 3, 3, 3), 4, pads=[1, 1, 1, 1]),
            _s((1, 3, 9, 9), (4, 3, 3, 2), strides=[2, 3], pads=[0, 1, 2, 1]),
            _s((1, 4, 6, 6), (6, 2, 3, 3), 6, group=2, pads=[1, 1, 1, 1]),
            _s((1, 4, 6, 6), (4, 1, 3, 3), group=4),
            _s((1, 4, 6, 6), (8, 1, 3, 3), group=4, strides=[2, 2]),
            _s((1, 2, 9, 9), (3, 2, 3, 3), dilations=[2, 3]),
            _s((1, 2, 10), (3, 2, 3), 3, auto_pad="SAME_UPPER", strides=[2]),
            _s((1, 2, 10), (3, 2, 4), auto_pad="SAME_LOWER"),
            _s((1, 2, 5, 4, 6), (3, 2, 2, 2, 2), auto_pad="VALID"),
            _s((1, 3, 6, 6), (2, 3, 3, 3), 2, dtype=F16),
            _s((1, 3, 6, 6), (2, 3, 3, 3), dtype=F64),
        ),
    ),
    Op(
        "ConvTranspose",
        _conv_transpose,
        (
            _s((1, 2, 5, 5), (2, 3, 3, 3), 3),
            _s((1, 2, 4, 5), (2, 3, 3, 3), strides=[2, 3]),
            _s((1, 2, 4, 5), (2, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
            _s((1, 2, 4, 5), (2, 3, 2, 2), strides=[2, 2], dilations=[2, 1]),
            _s((1, 2, 4, 4), (2, 3, 3, 3), dilations=[2, 2]),
            _s((1, 4, 4), (4, 2, 3), 4, strides=[2], group=2),
            _s((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), strides=[2, 2, 2]),
            _s((1, 1, 3, 3), (1, 2, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
            _s((1, 1, 3, 3), (1, 2, 3, 3), output_shape=[10, 8], strides=[3, 2]),
        ),
    ),
)
