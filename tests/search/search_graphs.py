"""Small graphs whose best partitions can be found by trying all."""

from __future__ import annotations

import numpy as np

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, const
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder

F32 = DType.FLOAT32


def relu(x: Expr) -> Expr:
    return call("maximum", x, const(0.0, x.dtype))


def matmul(b: Builder, x: ValueId, w: ValueId) -> ValueId:
    (m, k), (_, n) = b.shape(x), b.shape(w)
    return b.reduce(
        [x, w],
        (m, n),
        (k,),
        Combine.SUM,
        lambda i, r, read: call("mul", read(0, (i[0], r[0])), read(1, (r[0], i[1]))),
    )


def mlp() -> Graph:
    """Two layers: product, bias, Relu."""
    generator = np.random.default_rng(0)
    b = Builder()
    v = b.input("x", F32, (8, 32))
    for k, n in ((32, 48), (48, 16)):
        w = b.constant(generator.standard_normal((k, n)).astype(np.float32))
        bias = b.constant(generator.standard_normal(n).astype(np.float32))
        b.origin += 1
        v = matmul(b, v, w)
        b.origin += 1
        v = b.elementwise([v, bias], lambda x, y: call("add", x, y))
        b.origin += 1
        v = b.elementwise([v], relu)
    return b.graph([("y", v)])


def softmax() -> Graph:
    """Four nodes, two reductions."""
    b = Builder()
    x = b.input("x", F32, (16, 64))
    b.origin = 0
    top = b.reduce([x], (16, 1), (64,), Combine.MAX, lambda i, r, read: read(0, (i[0], r[0])))
    b.origin = 1
    e = b.elementwise([x, top], lambda a, m: call("exp", call("sub", a, m)))
    b.origin = 2
    total = b.reduce([e], (16, 1), (64,), Combine.SUM, lambda i, r, read: read(0, (i[0], r[0])))
    b.origin = 3
    return b.graph([("y", b.elementwise([e, total], lambda a, s: call("div", a, s)))])


def chain(length: int = 6) -> Graph:
    """Element-wise operators with a skip over all of them."""
    b = Builder()
    x = b.input("x", F32, (64, 64))
    v = x
    for k, fn in enumerate(("tanh", "neg", "abs", "sqrt", "exp", "floor")[:length]):
        b.origin = k
        v = b.elementwise([v], lambda a, fn=fn: call(fn, a))
    b.origin = length
    return b.graph([("y", b.elementwise([v, x], lambda a, c: call("add", a, c)))])
