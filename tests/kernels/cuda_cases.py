"""Small programs of every kind that the CUDA families implement, with inputs: what their tests run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.stage import Combine, Stage
from autofuse.ops.builder import Builder
from autofuse.ops.evaluate import evaluate

F32, F16, BF16, F64 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64
I8, I32, I64, U8, BOOL = DType.INT8, DType.INT32, DType.INT64, DType.UINT8, DType.BOOL

Emit = Callable[[Builder], Sequence[ValueId]]


@dataclass(frozen=True)
class Case:
    """A program with its inputs and the outputs that float64 arithmetic gives."""

    program: RegionProgram
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]


def case(emit: Emit, special: Callable[[np.ndarray], np.ndarray] | None = None) -> Case:
    """All nodes that `emit` adds as one region. `special` changes the first input's numbers."""
    b = Builder()
    outputs = emit(b)
    graph = b.graph([(f"out{k}", v) for k, v in enumerate(outputs)])
    region = Region.of(graph, range(len(graph.nodes)), outputs)
    rng = np.random.default_rng(7)
    values: dict[ValueId, np.ndarray] = dict(graph.constants)
    for n, v in enumerate(graph.inputs):
        a = _random(rng, graph.values[v].dtype, graph.values[v].dims)
        values[v] = special(a) if special is not None and n == 0 else a
    inputs = tuple(values[v] for v in region.inputs)
    found = reference(graph, values)
    return Case(program_of(graph, region), inputs, tuple(found[v] for v in region.outputs))


def _random(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    if dtype is BOOL:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        low = 0 if not dtype.is_signed else -9
        return rng.integers(low, 10, shape).astype(dtype.numpy)
    return rng.standard_normal(shape).astype(dtype.numpy)


def reference(
    graph: Graph, values: dict[ValueId, np.ndarray], nodes: Sequence[int] | None = None
) -> dict[ValueId, np.ndarray]:
    """Every value that some nodes (or all) make, in float64 arithmetic."""
    known = dict(values)
    for k in range(len(graph.nodes)) if nodes is None else nodes:
        node = graph.nodes[k]
        assert isinstance(node.compute, Stage)
        known[node.outputs[0]] = evaluate(node.compute, [known[v] for v in node.inputs], wide=True)
    return known


def lit(x: Expr, value: float) -> Expr:
    return const(value, x.dtype)


def gelu(x: Expr) -> Expr:
    return call(
        "mul", call("mul", x, lit(x, 0.5)), call("add", lit(x, 1), call("erf", call("mul", x, lit(x, math.sqrt(0.5)))))
    )


# ---- maps


def broadcast(b: Builder) -> Sequence[ValueId]:
    x, y, z = b.input("x", F32, (3, 1, 20)), b.input("y", F32, (4, 20)), b.input("z", F32, (3, 4, 1))
    s = b.elementwise([x, y], lambda p, q: call("add", p, q))
    return [s, b.elementwise([s, z], lambda p, q: call("mul", gelu(p), q))]


def transposed(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", F32, (2, 33, 40)), b.input("y", F32, (40,))
    t = b.map([x], (2, 40, 33), lambda i, read: read(0, (i[0], i[2], i[1])))
    return [b.map([t, y], (2, 40, 33), lambda i, read: call("add", read(0, i), read(1, (i[1],))))]


def two_transposed(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", F16, (8, 9, 35)), b.input("y", F16, (35, 72))
    return [
        b.map(
            [x, y],
            (35, 72),
            lambda i, read: call("mul", read(0, (ix.floor_div(i[1], 9), ix.floor_mod(i[1], 9), i[0])), read(1, i)),
            F16,
        )
    ]


def concatenated(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", F32, (5, 7)), b.input("y", F32, (5, 9))

    def body(i: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        return select(ix.less(i[1], const(7)), read(0, i), call("exp", read(1, (i[0], ix.add(i[1], const(-7))))))

    return [b.map([x, y], (5, 16), body)]


def padded(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (3, 6, 6))
    return [
        b.map([x], (3, 8, 8), lambda i, read: read(0, (i[0], ix.add(i[1], const(-1)), ix.add(i[2], const(-1))), 0.5))
    ]


def sliced(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (6, 21))
    return [b.map([x], (6, 16), lambda i, read: call("neg", read(0, (i[0], ix.add(i[1], const(3))))))]


def gathered(b: Builder) -> Sequence[ValueId]:
    table, where = b.input("t", F16, (11, 16)), b.input("i", I64, (5, 3))

    def body(i: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        k = ix.minimum(ix.maximum(cast_to(read(1, i[:2]), I64), const(0)), const(10))
        return read(0, (k, i[2]))

    return [b.map([table, where], (5, 3, 16), body, F16)]


def integers(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", I8, (4, 33)), b.input("y", I8, (33,))
    s = b.elementwise([x, y], lambda p, q: call("mul", call("mul", p, q), q))
    return [s, b.elementwise([s], lambda p: call("gt", p, lit(p, 3)))]


def large(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", F16, (37, 256)), b.input("y", F16, (256,))
    return [b.elementwise([x, y], lambda p, q: call("add", gelu(p), q), F16)]


def scalar(b: Builder) -> Sequence[ValueId]:
    return [b.elementwise([b.input("x", F32, ())], lambda p: call("exp", p))]


MAPS: dict[str, Emit] = {
    f.__name__: f
    for f in (broadcast, transposed, two_transposed, concatenated, padded, sliced, gathered, integers, large, scalar)
}


# ---- reductions


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


# ---- contractions


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
