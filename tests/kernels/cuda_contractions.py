"""Contractions that the CUDA families implement: what their tests run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from cuda_case import F16, F32, F64, I8, I32, U8, Emit, gelu, lit

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder


def product_of(b: Builder, x: ValueId, y: ValueId, dtype: DType | None = None) -> ValueId:
    (m, k), (_, n) = b.shape(x), b.shape(y)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        return call("mul", read(0, (i[0], r[0])), read(1, (r[0], i[1])))

    return b.reduce([x, y], (m, n), (k,), Combine.SUM, body, dtype)


def matmul(b: Builder) -> Sequence[ValueId]:
    """Tails along all three axes."""
    return [product_of(b, b.input("x", F32, (37, 41)), b.input("y", F32, (41, 45)))]


def matmul_even(b: Builder) -> Sequence[ValueId]:
    """Every access may be a vector, and the sum is long enough to be split."""
    return [product_of(b, b.input("x", F32, (24, 256)), b.input("y", F32, (256, 40)))]


def matmul_half(b: Builder) -> Sequence[ValueId]:
    return [product_of(b, b.input("x", F16, (24, 64)), b.input("y", F16, (64, 40)), F16)]


def matmul_double(b: Builder) -> Sequence[ValueId]:
    return [product_of(b, b.input("x", F64, (20, 36)), b.input("y", F64, (36, 34)))]


def matmul_bytes(b: Builder) -> Sequence[ValueId]:
    """Bytes with a zero point, summed up in 32-bit integers."""
    x, y = b.input("x", U8, (18, 48)), b.input("y", I8, (48, 36))

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        p, q = cast_to(read(0, (i[0], r[0])), I32), cast_to(read(1, (r[0], i[1])), I32)
        return call("mul", p, q)

    return [b.reduce([x, y], (18, 36), (48,), Combine.SUM, body)]


def batched(b: Builder) -> Sequence[ValueId]:
    """Queries times keys: the second operand is transposed, and shared by pairs of heads."""
    x, y = b.input("x", F32, (2, 4, 17, 16)), b.input("y", F32, (2, 2, 19, 16))

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        return call("mul", read(0, (*i[:3], r[0])), read(1, (i[0], ix.floor_div(i[1], 2), i[3], r[0])))

    s = b.reduce([x, y], (2, 4, 17, 19), (16,), Combine.SUM, body)
    return [b.elementwise([s], lambda p: call("mul", p, lit(p, 0.25)))]


def prologue(b: Builder) -> Sequence[ValueId]:
    """An activation on the way in, one on the way out, a bias and a residual; weights are constant."""
    x, r = b.input("x", F32, (33, 48)), b.input("r", F32, (33, 36))
    rng = np.random.default_rng(3)
    w = b.constant(rng.standard_normal((36, 48)).astype(np.float32))
    bias = b.constant(rng.standard_normal(36).astype(np.float32))
    e = b.elementwise([x], lambda p: call("tanh", p))

    def body(i: tuple[Expr, ...], k: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        return call("mul", read(0, (i[0], k[0])), read(1, (i[1], k[0])))

    s = b.reduce([e, w], (33, 36), (48,), Combine.SUM, body)
    g = b.elementwise([s, bias], lambda p, q: gelu(call("add", p, q)))
    return [b.elementwise([g, r], lambda p, q: call("add", p, q))]


def convolution(b: Builder, x: ValueId, w: ValueId, stride: int, pad: int, groups: int) -> ValueId:
    n, _, height, width = b.shape(x)
    out, depth, kh, kw = b.shape(w)
    size = tuple((e + 2 * pad - k) // stride + 1 for e, k in ((height, kh), (width, kw)))

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        at = tuple(ix.add(ix.mul(o, stride), k, const(-pad)) for o, k in zip(i[2:], r[1:], strict=True))
        group = ix.floor_div(i[1], out // groups) if groups > 1 else const(0)
        channel = ix.add(ix.mul(group, depth), r[0])
        return call("mul", read(0, (i[0], channel, *at), 0.0), read(1, (i[1], *r)))

    return b.reduce([x, w], (n, out, *size), (depth, kh, kw), Combine.SUM, body)


def conv(b: Builder) -> Sequence[ValueId]:
    """3x3, padded, with bias and Relu; constant weights."""
    x = b.input("x", F32, (2, 5, 9, 8))
    rng = np.random.default_rng(4)
    w = b.constant(rng.standard_normal((12, 5, 3, 3)).astype(np.float32))
    bias = b.constant(rng.standard_normal((12, 1, 1)).astype(np.float32))
    s = convolution(b, x, w, 1, 1, 1)
    return [b.elementwise([s, bias], lambda p, q: call("maximum", call("add", p, q), lit(p, 0)))]


def conv_strided(b: Builder) -> Sequence[ValueId]:
    return [convolution(b, b.input("x", F32, (1, 4, 11, 10)), b.input("w", F32, (6, 4, 3, 3)), 2, 1, 1)]


def conv_grouped(b: Builder) -> Sequence[ValueId]:
    w = b.constant(np.random.default_rng(5).standard_normal((6, 2, 3, 3)).astype(np.float32))
    return [convolution(b, b.input("x", F32, (2, 4, 7, 7)), w, 1, 1, 2)]


def conv_depthwise(b: Builder) -> Sequence[ValueId]:
    w = b.constant(np.random.default_rng(6).standard_normal((6, 1, 3, 3)).astype(np.float32))
    return [convolution(b, b.input("x", F32, (1, 6, 8, 8)), w, 1, 1, 6)]


def conv_pointwise(b: Builder) -> Sequence[ValueId]:
    return [convolution(b, b.input("x", F32, (2, 16, 6, 6)), b.input("w", F32, (20, 16, 1, 1)), 1, 0, 1)]


def vector_product(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", F32, (70,)), b.input("y", F32, (70, 33))
    return [
        b.reduce([x, y], (33,), (70,), Combine.SUM, lambda i, r, read: call("mul", read(0, r), read(1, (r[0], i[0]))))
    ]


CONTRACTIONS: dict[str, Emit] = {
    f.__name__: f
    for f in (
        matmul,
        matmul_even,
        matmul_half,
        matmul_double,
        matmul_bytes,
        batched,
        prologue,
        conv,
        conv_strided,
        conv_grouped,
        conv_depthwise,
        conv_pointwise,
        vector_product,
    )
}
