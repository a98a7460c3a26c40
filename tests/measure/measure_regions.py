"""Small regions for tests, built through the operator builder."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder

F32 = DType.FLOAT32


def build(make: Callable[[Builder], list[ValueId]]) -> Graph:
    """A graph whose outputs are the values that `make` gives."""
    b = Builder()
    outs = make(b)
    return b.graph([(f"y{k}", v) for k, v in enumerate(outs)])


def program(graph: Graph) -> RegionProgram:
    """The whole graph as one region."""
    return program_of(graph, Region.of(graph, range(len(graph.nodes))))


def unary(fn: str, shape: tuple[int, ...] = (8, 16), dtype: DType = F32) -> Graph:
    return build(lambda b: [b.elementwise([b.input("x", dtype, shape)], lambda x: call(fn, x))])


def matmul(b: Builder, x: ValueId, w: ValueId) -> ValueId:
    """x @ w."""
    (m, k), (_, n) = b.shape(x), b.shape(w)
    return b.reduce(
        [x, w],
        (m, n),
        (k,),
        Combine.SUM,
        lambda i, r, read: call("mul", read(0, (i[0], r[0])), read(1, (r[0], i[1]))),
    )


def relu(x: Expr) -> Expr:
    return call("maximum", x, const(0.0, x.dtype))


def mlp(batch: int = 8, widths: tuple[int, ...] = (32, 64, 16), seed: int = 0) -> Graph:
    """Matrix product, bias and Relu, layer after layer; every node is an operator of its own."""
    generator = np.random.default_rng(seed)

    def make(b: Builder) -> list[ValueId]:
        v = b.input("x", F32, (batch, widths[0]))
        for k, n in itertools.pairwise(widths):
            w = b.constant((generator.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32))
            bias = b.constant(generator.standard_normal(n).astype(np.float32))
            b.origin += 1
            v = matmul(b, v, w)
            b.origin += 1
            v = b.elementwise([v, bias], lambda x, y: call("add", x, y))
            b.origin += 1
            v = b.elementwise([v], relu)
        return [v]

    return build(make)


def softmax(rows: int = 16, columns: int = 64) -> Graph:
    """Softmax over the last axis, as four nodes."""

    def make(b: Builder) -> list[ValueId]:
        x = b.input("x", F32, (rows, columns))
        b.origin = 0
        top = b.reduce([x], (rows, 1), (columns,), Combine.MAX, lambda i, r, read: read(0, (i[0], r[0])))
        b.origin = 1
        e = b.elementwise([x, top], lambda a, m: call("exp", call("sub", a, m)))
        b.origin = 2
        total = b.reduce([e], (rows, 1), (columns,), Combine.SUM, lambda i, r, read: read(0, (i[0], r[0])))
        b.origin = 3
        return [b.elementwise([e, total], lambda a, s: call("div", a, s))]

    return build(make)


def gather(rows: int = 5) -> Graph:
    """table[index]: the index must stay in bounds."""

    def make(b: Builder) -> list[ValueId]:
        table = b.input("table", F32, (rows, 3))
        index = b.input("index", DType.INT64, (7,))
        return [b.map([table, index], (7, 3), lambda i, read: read(0, (read(1, (i[0],)), i[1])))]

    return build(make)


def argmax(rows: int = 6, columns: int = 50) -> Graph:
    def make(b: Builder) -> list[ValueId]:
        x = b.input("x", F32, (rows, columns))
        return [b.reduce([x], (rows,), (columns,), Combine.ARGMAX, lambda i, r, read: read(0, (i[0], r[0])))]

    return build(make)


def rounded(n: int = 100) -> Graph:
    """float -> int, which truncates: near an edge either neighbour is right."""
    return build(
        lambda b: [
            b.elementwise(
                [b.input("x", F32, (n,))], lambda x: cast_to(call("mul", x, const(3.0, F32)), DType.INT32), DType.INT32
            )
        ]
    )
