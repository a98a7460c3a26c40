"""Small graphs for tests: a generator of random ones, and hand-made ones that fusing compilers got wrong."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from autofuse.importer.rules import dead_code
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import call, const, select
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.index import less
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder

F32 = DType.FLOAT32


class GraphMaker:
    """Builds a random graph of float32 tensors; every choice comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.b = Builder(f"random{seed}")
        self.live: list[ValueId] = []

    def weights(self, shape: tuple[int, ...]) -> ValueId:
        return self.b.constant(self.numbers.normal(0, 0.5, shape).astype(np.float32))

    def pick(self, rank: int | None = None) -> ValueId:
        fitting = [v for v in self.live if rank is None or len(self.b.shape(v)) == rank]
        shaped = [v for v in fitting if self.b.shape(v)] or fitting
        return self.rng.choice(shaped[-4:] if self.rng.random() < 0.7 else shaped)

    def step(self) -> None:
        moves: list[Callable[[], ValueId]] = [
            self.unary,
            self.unary,
            self.binary,
            self.binary,
            self.softmax,
            self.normalise,
            self.reduce,
            self.matmul,
            self.transpose,
            self.reshape,
            self.concat,
            self.slice,
            self.broadcast,
        ]
        self.b.origin = len(self.b.nodes)
        self.b.op = "step"
        move = self.rng.choice(moves)
        scalars = not self.b.shape(self.live[-1])
        self.live.append(self.unary() if scalars else move())

    def unary(self) -> ValueId:
        fn = self.rng.choice(["tanh", "exp_neg_abs", "relu", "square", "affine"])
        one = const(1.0, F32)

        def body(x):  # type: ignore[no-untyped-def]
            match fn:
                case "tanh":
                    return call("tanh", x)
                case "exp_neg_abs":
                    return call("exp", call("neg", call("abs", x)))
                case "relu":
                    return call("maximum", x, const(0.0, F32))
                case "square":
                    return call("mul", x, call("minimum", call("abs", x), one))
                case _:
                    return call("add", call("mul", x, const(0.7, F32)), const(0.1, F32))

        return self.b.elementwise([self.pick()], body)

    def binary(self) -> ValueId:
        x = self.pick()
        same = [v for v in self.live if self.b.shape(v) == self.b.shape(x)]
        fn = self.rng.choice(["add", "sub", "maximum", "mul_bounded"])

        def body(a, b):  # type: ignore[no-untyped-def]
            return call("mul", a, call("tanh", b)) if fn == "mul_bounded" else call(fn, a, b)

        return self.b.elementwise([x, self.rng.choice(same)], body)

    def broadcast(self) -> ValueId:
        x = self.pick()
        shape = tuple(n if self.rng.random() < 0.5 else 1 for n in self.b.shape(x))
        return self.b.elementwise([x, self.weights(shape)], lambda a, b: call("add", a, b))

    def softmax(self) -> ValueId:
        b, x = self.b, self.pick()
        shape = b.shape(x)
        axis = self.rng.randrange(len(shape))
        kept = tuple(1 if k == axis else n for k, n in enumerate(shape))

        def at(i, r, read):  # type: ignore[no-untyped-def]
            return read(0, [*i[:axis], r[0], *i[axis + 1 :]])

        m = b.reduce([x], kept, (shape[axis],), Combine.MAX, at)
        e = b.elementwise([x, m], lambda a, c: call("exp", call("sub", a, c)))
        s = b.reduce([e], kept, (shape[axis],), Combine.SUM, at)
        return b.elementwise([e, s], lambda a, c: call("div", a, c))

    def normalise(self) -> ValueId:
        b, x = self.b, self.pick()
        shape = b.shape(x)
        n = shape[-1]
        kept = (*shape[:-1], 1)

        def at(i, r, read):  # type: ignore[no-untyped-def]
            return read(0, [*i[:-1], r[0]])

        total = b.reduce([x], kept, (n,), Combine.SUM, at)
        mean = b.elementwise([total], lambda t: call("mul", t, const(1 / n, F32)))
        centred = b.elementwise([x, mean], lambda a, m: call("sub", a, m))
        square = b.elementwise([centred], lambda c: call("mul", c, c))
        var = b.reduce([square], kept, (n,), Combine.SUM, at)
        return b.elementwise(
            [centred, var],
            lambda c, v: call("div", c, call("sqrt", call("add", call("mul", v, const(1 / n, F32)), const(1e-3, F32)))),
        )

    def reduce(self) -> ValueId:
        b, x = self.b, self.pick()
        shape = b.shape(x)
        axes = sorted(self.rng.sample(range(len(shape)), self.rng.randint(1, len(shape))))
        keep = self.rng.random() < 0.7
        combine = self.rng.choice([Combine.MAX, Combine.MIN, Combine.SUM])
        out = (
            tuple(1 if k in axes else n for k, n in enumerate(shape))
            if keep
            else tuple(n for k, n in enumerate(shape) if k not in axes)
        )
        free = [k for k in range(len(shape)) if k not in axes]

        def at(i, r, read):  # type: ignore[no-untyped-def]
            index = [None] * len(shape)
            for j, k in enumerate(axes):
                index[k] = r[j]
            for j, k in enumerate(free):
                index[k] = i[k] if keep else i[j]
            return call("mul", read(0, index), const(0.3, F32))

        return b.reduce([x], out, [shape[k] for k in axes], combine, at)

    def matmul(self) -> ValueId:
        b, x = self.b, self.pick()
        shape = b.shape(x)
        if not shape:
            return self.unary()
        k, n = shape[-1], self.rng.choice([1, 3, 16, 20, 33])
        w = self.weights((k, n))
        return b.reduce(
            [x, w],
            (*shape[:-1], n),
            (k,),
            Combine.SUM,
            lambda i, r, read: call("mul", read(0, [*i[:-1], r[0]]), read(1, [r[0], i[-1]])),
        )

    def transpose(self) -> ValueId:
        b, x = self.b, self.pick()
        shape = b.shape(x)
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        inverse = [order.index(k) for k in range(len(shape))]
        return b.map(
            [x], [shape[k] for k in order], lambda i, read: read(0, [i[inverse[k]] for k in range(len(shape))])
        )

    def reshape(self) -> ValueId:
        b, x = self.b, self.pick()
        shape = b.shape(x)
        if len(shape) >= 2:
            k = self.rng.randrange(len(shape) - 1)
            new = (*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :])
        else:
            new = (1, *shape)
        return b.map([x], new, lambda i, read: read(0, ix.unflatten(ix.flatten(i, new), shape)))

    def concat(self) -> ValueId:
        b, x = self.b, self.pick()
        shape = b.shape(x)
        if not shape:
            return self.unary()
        axis = self.rng.randrange(len(shape))
        fitting = [
            v
            for v in self.live
            if len(b.shape(v)) == len(shape)
            and all(m == n for k, (m, n) in enumerate(zip(b.shape(v), shape, strict=True)) if k != axis)
        ]
        y = self.rng.choice(fitting)
        first = shape[axis]
        out = tuple(n + (b.shape(y)[axis] if k == axis else 0) for k, n in enumerate(shape))

        def body(i, read):  # type: ignore[no-untyped-def]
            late = [*i[:axis], i[axis], *i[axis + 1 :]]
            late[axis] = call("sub", i[axis], const(first))
            return select(less(i[axis], const(first)), read(0, i), read(1, late))

        return b.map([x, y], out, body)

    def slice(self) -> ValueId:
        b, x = self.b, self.pick()
        shape = b.shape(x)
        if not shape or max(shape) < 3:
            return self.unary()
        axis = shape.index(max(shape))
        step = self.rng.choice([1, 1, 2, -1])
        size = (shape[axis] - 1) // abs(step)
        start = shape[axis] - 1 if step < 0 else self.rng.randint(0, 1) if abs(step) == 1 else 0
        out = tuple(size if k == axis else n for k, n in enumerate(shape))

        def body(i, read):  # type: ignore[no-untyped-def]
            index = list(i)
            index[axis] = call("add", const(start), call("mul", i[axis], const(step)))
            return read(0, index)

        return b.map([x], out, body)

    def build(self, steps: int) -> Graph:
        rank = self.rng.choice([1, 2, 3, 4])
        shape = tuple(self.rng.choice([1, 2, 3, 5, 8, 16, 17]) for _ in range(rank))
        for k in range(self.rng.choice([1, 2])):
            self.live.append(self.b.input(f"x{k}", F32, shape))
        for _ in range(steps):
            self.step()
        made = [v for v in self.live if v not in self.b.inputs]
        chosen = {made[-1], *self.rng.sample(made, min(len(made), self.rng.choice([0, 1, 2])))}
        return dead_code.apply(self.b.graph([(f"y{k}", v) for k, v in enumerate(sorted(chosen))])).graph


def random_graph(seed: int, steps: int = 7) -> Graph:
    """A random graph; equal seeds give equal graphs."""
    return GraphMaker(seed).build(steps)


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Standard normal inputs by name."""
    rng = np.random.default_rng(seed)
    values = [graph.values[v] for v in graph.inputs]
    return {v.name: rng.normal(size=v.dims).astype(v.dtype.numpy) for v in values}
