"""Reductions that the CUDA families implement: what their tests run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from cuda_case import BOOL, F16, F32, F64, I8, I64, U8, Emit, lit

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, const
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder


def over_last(b: Builder, v: ValueId, combine: Combine, fn: Callable[[Expr], Expr] = lambda e: e) -> ValueId:
    *kept, n = b.shape(v)
    return b.reduce([v], (*kept, 1), (n,), combine, lambda i, r, read: fn(read(0, (*i[:-1], r[0]))))


def softmax_of(b: Builder, x: ValueId) -> ValueId:
    m = over_last(b, x, Combine.MAX)
    e = b.elementwise([x, m], lambda p, q: call("exp", call("sub", p, q)), F32)
    s = over_last(b, e, Combine.SUM)
    return b.elementwise([e, s], lambda p, q: call("div", p, q), b.dtype(x))


def softmax(b: Builder) -> Sequence[ValueId]:
    return [softmax_of(b, b.input("x", F32, (6, 100)))]


def softmax_half(b: Builder) -> Sequence[ValueId]:
    x, mask = b.input("x", F16, (2, 3, 64)), b.input("m", F16, (2, 1, 64))
    y = b.elementwise([x, mask], lambda p, q: call("add", call("mul", p, lit(p, 0.125)), q), F16)
    return [softmax_of(b, y)]


def softmax_long(b: Builder) -> Sequence[ValueId]:
    return [softmax_of(b, b.input("x", F32, (2, 4100)))]


def mean(b: Builder, v: ValueId, fn: Callable[[Expr], Expr] = lambda e: e) -> ValueId:
    n = b.shape(v)[-1]
    return b.elementwise([over_last(b, v, Combine.SUM, fn)], lambda p: call("mul", p, lit(p, 1 / n)))


def layernorm(b: Builder) -> Sequence[ValueId]:
    return layernorm_of(b, 5, 96)


def layernorm_of(b: Builder, rows: int, n: int) -> Sequence[ValueId]:
    """The normalised rows and the inverse of their spread."""
    x, g, h = b.input("x", F32, (rows, n)), b.input("g", F32, (n,)), b.input("b", F32, (n,))
    d = b.elementwise([x, mean(b, x)], lambda p, q: call("sub", p, q))
    v = mean(b, d, lambda p: call("mul", p, p))
    r = b.elementwise([v], lambda p: call("div", lit(p, 1), call("sqrt", call("add", p, lit(p, 1e-5)))))
    n = b.elementwise([d, r], lambda p, q: call("mul", p, q))
    return [b.elementwise([n, g, h], lambda p, q, s: call("add", call("mul", p, q), s)), r]


def rmsnorm(b: Builder) -> Sequence[ValueId]:
    """Residual and RMSNorm, both results delivered."""
    x, y, g = b.input("x", F16, (7, 128)), b.input("y", F16, (7, 128)), b.input("g", F16, (128,))
    s = b.elementwise([x, y], lambda p, q: call("add", p, q), F16)
    v = over_last(b, s, Combine.SUM, lambda p: call("mul", p, p))
    r = b.elementwise(
        [v], lambda p: call("div", lit(p, 1), call("sqrt", call("add", call("mul", p, lit(p, 1 / 128)), lit(p, 1e-5))))
    )
    return [s, b.elementwise([s, r, g], lambda p, q, w: call("mul", call("mul", p, q), w), F16)]


def groupnorm(b: Builder) -> Sequence[ValueId]:
    x, g = b.input("x", F32, (2, 8, 6, 5)), b.input("g", F32, (8, 1, 1))
    y = b.map([x], (2, 4, 60), lambda i, read: read(0, ix.unflatten(ix.flatten(i, (2, 4, 60)), (2, 8, 6, 5))))
    m = mean(b, y)
    d = b.elementwise([y, m], lambda p, q: call("sub", p, q))
    v = mean(b, d, lambda p: call("mul", p, p))
    n = b.elementwise([d, v], lambda p, q: call("div", p, call("sqrt", call("add", q, lit(q, 1e-5)))))
    z = b.map([n], (2, 8, 6, 5), lambda i, read: read(0, ix.unflatten(ix.flatten(i, (2, 8, 6, 5)), (2, 4, 60))))
    return [b.elementwise([z, g], lambda p, q: call("mul", p, q))]


def channel_norm(b: Builder) -> Sequence[ValueId]:
    """A normalisation over an axis that is not the contiguous one."""
    x = b.input("x", F32, (2, 20, 35))
    s = b.reduce([x], (2, 1, 35), (20,), Combine.MAX, lambda i, r, read: read(0, (i[0], r[0], i[2])))
    e = b.elementwise([x, s], lambda p, q: call("exp", call("sub", p, q)))
    t = b.reduce([e], (2, 1, 35), (20,), Combine.SUM, lambda i, r, read: read(0, (i[0], r[0], i[2])))
    return [b.elementwise([e, t], lambda p, q: call("div", p, q)), t]


def kept_beside(b: Builder) -> Sequence[ValueId]:
    """A pass that makes exponentials of its inputs to keep and needs the inputs besides."""
    x = b.input("x", F32, (5, 90))
    m = over_last(b, x, Combine.MAX)
    e = b.elementwise([x, m], lambda p, q: call("exp", call("sub", p, q)))
    s = over_last(b, e, Combine.SUM)
    d = b.elementwise([x, m], lambda p, q: call("abs", call("sub", p, q)))
    t = over_last(b, d, Combine.SUM)
    return [b.elementwise([e, s, t], lambda p, q, r: call("div", p, call("add", q, r)))]


def columns_long(b: Builder) -> Sequence[ValueId]:
    """Mean and spread of long columns."""
    x = b.input("x", F32, (600, 45))
    m = b.reduce([x], (1, 45), (600,), Combine.SUM, lambda i, r, read: read(0, (r[0], i[1])))
    d = b.elementwise([x, m], lambda p, q: call("sub", p, call("mul", q, lit(q, 1 / 600))))
    v = b.reduce(
        [d], (1, 45), (600,), Combine.SUM, lambda i, r, read: call("mul", read(0, (r[0], i[1])), read(0, (r[0], i[1])))
    )
    return [v, b.elementwise([d, v], lambda p, q: call("div", p, call("sqrt", q)))]


def columns(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (70, 45))
    return [b.reduce([x], (45,), (70,), Combine.SUM, lambda i, r, read: read(0, (r[0], i[0])))]


def both_ways(b: Builder) -> Sequence[ValueId]:
    """Two sums and an extreme of the same rows in one pass."""
    x = b.input("x", F32, (9, 77))
    s = over_last(b, x, Combine.SUM)
    q = over_last(b, x, Combine.SUM, lambda p: call("mul", p, p))
    return [s, q, over_last(b, x, Combine.MIN)]


def whole(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (20, 25, 16))
    return [b.reduce([x], (), (20, 25, 16), Combine.SUM, lambda i, r, read: call("mul", read(0, r), read(0, r)))]


def product(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F64, (3, 5000))
    return [over_last(b, x, Combine.PROD, lambda p: call("add", lit(p, 1), call("mul", p, lit(p, 0.001))))]


def counted(b: Builder) -> Sequence[ValueId]:
    """Integers wrap around; booleans are put together as or and and."""
    x, y = b.input("x", I8, (4, 50)), b.input("y", BOOL, (4, 50))
    s = over_last(b, x, Combine.SUM, lambda p: call("mul", p, lit(p, 17)))
    any_, all_ = over_last(b, y, Combine.MAX), over_last(b, y, Combine.MIN)
    top = over_last(b, x, Combine.MAX)
    return [s, top, any_, all_]


def wide_sum(b: Builder) -> Sequence[ValueId]:
    return [over_last(b, b.input("x", I64, (3, 40)), Combine.SUM, lambda p: call("mul", p, lit(p, 3_000_000_000_007)))]


def positions(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (6, 70))
    return [over_last(b, x, c) for c in (Combine.ARGMAX, Combine.ARGMIN, Combine.ARGMAX_LAST, Combine.ARGMIN_LAST)]


def ties(x: np.ndarray) -> np.ndarray:
    """Rows with ties, NaN in two places, infinities only."""
    x = np.round(x)
    x[1, [5, 40]] = np.nan
    x[2] = -np.inf
    x[3] = np.inf
    x[4, 3:] = x[4, 3]
    return x


def column_positions(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", U8, (40, 33))
    return [
        b.reduce([x], (33,), (40,), c, lambda i, r, read: read(0, (r[0], i[0])))
        for c in (Combine.ARGMAX, Combine.ARGMIN_LAST)
    ]


def window_of(b: Builder, x: ValueId, combine: Combine, fill: float) -> ValueId:
    n, c, _, _ = b.shape(x)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        y, z = (ix.add(ix.mul(o, 2), k, const(-1)) for o, k in zip(i[2:], r, strict=True))
        return read(0, (i[0], i[1], y, z), fill)

    return b.reduce([x], (n, c, 5, 5), (3, 3), combine, body)


def maxpool(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (2, 4, 10, 10))
    r = b.elementwise([x], lambda p: call("maximum", p, lit(p, 0)))
    return [window_of(b, r, Combine.MAX, -math.inf)]


def avgpool(b: Builder) -> Sequence[ValueId]:
    s = window_of(b, b.input("x", F32, (2, 4, 10, 10)), Combine.SUM, 0.0)
    return [b.elementwise([s], lambda p: call("mul", p, lit(p, 1 / 9)))]


def empty_rows(b: Builder) -> Sequence[ValueId]:
    """Nothing to sum up gives the identity."""
    return [over_last(b, b.input("x", F32, (4, 0)), Combine.SUM)]


def dot(b: Builder) -> Sequence[ValueId]:
    """A matrix times a vector, which is a reduction as much as a contraction."""
    x, y = b.input("x", F32, (9, 130)), b.input("y", F32, (130, 3))
    return [
        b.reduce(
            [x, y],
            (9, 3),
            (130,),
            Combine.SUM,
            lambda i, r, read: call("mul", read(0, (i[0], r[0])), read(1, (r[0], i[1]))),
        )
    ]


REDUCTIONS: dict[str, Emit] = {
    f.__name__: f
    for f in (
        softmax,
        softmax_half,
        softmax_long,
        layernorm,
        rmsnorm,
        groupnorm,
        channel_norm,
        kept_beside,
        columns,
        columns_long,
        both_ways,
        whole,
        product,
        counted,
        wide_sum,
        positions,
        column_positions,
        maxpool,
        avgpool,
        empty_rows,
        dot,
    )
}
