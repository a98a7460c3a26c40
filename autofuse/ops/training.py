"""One step of an optimiser for each of several tensors: Adagrad, Adam, Momentum; and Dropout, which matters in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F32, F64, like, square
from autofuse.ops.declare import Call, Op, Sample, Unsupported

DOMAIN = "ai.onnx.preview.training"
Step = Callable[[Call, Expr, Expr, Sequence[Expr]], Sequence[Expr]]
"""(the call, learning rate, count of updates, the tensor, its gradient and states) -> the new tensor and states."""


def _mul(a: Expr, b: Expr) -> Expr:
    return call("mul", a, b)


def _regularised(c: Call, x: Expr, g: Expr) -> Expr:
    """The gradient with that of the regularisation term."""
    return call("add", _mul(like(x, float(c.attr("norm_coefficient", 0.0))), x), g)


def _adagrad(c: Call, rate: Expr, count: Expr, tensors: Sequence[Expr]) -> Sequence[Expr]:
    x, g, h = tensors
    one = like(rate, 1)
    decay = call("add", one, _mul(cast_to(count, rate.dtype), like(rate, float(c.attr("decay_factor", 0.0)))))
    g = _regularised(c, x, g)
    total = call("add", h, square(g))
    root = call("add", call("sqrt", total), like(x, float(c.attr("epsilon", 1e-6))))
    return call("sub", x, call("div", _mul(cast_to(call("div", rate, decay), x.dtype), g), root)), total


def _adam(c: Call, rate: Expr, count: Expr, tensors: Sequence[Expr]) -> Sequence[Expr]:
    x, g, v, h = tensors
    alpha, beta = float(c.attr("alpha", 0.9)), float(c.attr("beta", 0.999))
    g = _regularised(c, x, g)
    first = call("add", _mul(like(x, alpha), v), _mul(like(x, 1 - alpha), g))
    second = call("add", _mul(like(x, beta), h), _mul(like(x, 1 - beta), square(g)))
    root = call("add", call("sqrt", second), like(x, float(c.attr("epsilon", 1e-6))))
    # the correction of the moments' bias is that of double, as 1 - beta^t cancels
    times = cast_to(count, DType.FLOAT64)
    one = like(times, 1)
    power = [call("sub", one, call("pow", like(times, p), times)) for p in (alpha, beta)]
    wide = cast_to(rate, DType.FLOAT64)
    corrected = call("div", _mul(wide, call("sqrt", power[1])), power[0])
    step = select(call("gt", count, like(count, 0)), corrected, wide)
    moved = call("sub", x, _mul(cast_to(step, x.dtype), call("div", first, root)))
    return _mul(like(x, 1 - float(c.attr("norm_coefficient_post", 0.0))), moved), first, second


def _momentum(c: Call, rate: Expr, count: Expr, tensors: Sequence[Expr]) -> Sequence[Expr]:
    x, g, v = tensors
    alpha = like(x, float(c.attr("alpha")))
    g = _regularised(c, x, g)
    beta = select(call("gt", count, like(count, 0)), like(x, float(c.attr("beta"))), like(x, 1))
    moved = call("add", _mul(alpha, v), _mul(beta, g))
    step = call("add", g, _mul(alpha, moved)) if str(c.attr("mode")) == "nesterov" else moved
    return call("sub", x, _mul(cast_to(rate, x.dtype), step)), moved


def _optimiser(step: Step, states: int) -> Callable[[Call], Sequence[ValueId]]:
    """The inputs are the rate, the count, then all tensors, all gradients, all of each state; the outputs all tensors, all of each state."""
    kinds = 2 + states

    def emit(c: Call) -> Sequence[ValueId]:
        b = c.builder
        count = (len(c.inputs) - 2) // kinds
        scalars = [c.input(0), c.input(1)]

        def part(which: int) -> Callable[[Index, Reader], Expr]:
            def body(i: Index, read: Reader) -> Expr:
                rate, times = (read(s, (const(0),) * len(b.shape(v))) for s, v in enumerate(scalars))
                return step(c, rate, times, [read(2 + j, i) for j in range(kinds)])[which]

            return body

        groups = [[c.input(2 + k + j * count) for j in range(kinds)] for k in range(count)]
        return [
            b.map([*scalars, *group], b.shape(group[0]), part(which), b.dtype(group[0]))
            for which in range(1 + states)
            for group in groups
        ]

    return emit


def _dropout(c: Call) -> Sequence[ValueId | None]:
    """Inference passes the data on; the mask is all ones. Training draws the mask from the seed, as the standard's own evaluator does."""
    b = c.builder
    x = c.input(0)
    mode = c.constant(2)
    training = bool(mode.reshape(-1)[0]) if mode is not None else c.opset < 7 and not c.attr("is_test", 0)
    known = c.builder.known(c.input(1)) if c.has(1) else None
    never = known is not None and not known.reshape(-1)[0]
    wants_mask = len(c.wanted) > 1 and c.wanted[1]
    if not training or never:
        mask = b.constant(np.ones(b.shape(x), np.bool_)) if wants_mask else None
        return [x, mask][: max(len(c.wanted), 1)]
    if c.attr("seed") is None:
        raise Unsupported("Dropout in training mode without a seed")
    ratio = c.input(1) if c.has(1) else b.constant(np.array(0.5, np.float32))
    drawn = b.constant(np.random.RandomState(int(c.attr("seed"))).uniform(0, 1, b.shape(x)))
    at = (const(0),) * len(b.shape(ratio))

    def keep(i: Index, read: Reader) -> Expr:
        return call("ge", read(0, i), cast_to(read(1, at), DType.FLOAT64))

    def scale(i: Index, read: Reader) -> Expr:
        e = read(0, i)
        kept = cast_to(read(1, i), e.dtype)
        rest = call("sub", like(e, 1), cast_to(read(2, at), e.dtype))
        return call("div", _mul(e, kept), rest)

    mask = b.map([drawn, ratio], b.shape(x), keep)
    return [b.map([x, mask, ratio], b.shape(x), scale, b.dtype(x)), mask][: max(len(c.wanted), 1)]


_RATE, _COUNT = np.array(0.1, np.float32), np.array(3, np.int64)
_NONE = np.array(0, np.int64)


def _tensors(states: int, *shapes: tuple[int, ...], dtype: str = F32) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((dtype, s) for _ in range(2 + states) for s in shapes)


_X = (F32, (2, 3, 4))
_YES = np.array(True)

TRAINING: tuple[Op, ...] = (
    Op(
        "Adagrad",
        _optimiser(_adagrad, 1),
        (
            Sample(
                (_RATE, _COUNT, *_tensors(1, (3, 4))),
                {"norm_coefficient": 0.001, "epsilon": 1e-5, "decay_factor": 0.1},
                low=0.1,
                outputs=2,
            ),
            Sample((_RATE, _NONE, *_tensors(1, (1,), (2,))), {"epsilon": 1e-5}, low=0.1, outputs=4),
        ),
        DOMAIN,
    ),
    Op(
        "Adam",
        _optimiser(_adam, 2),
        (
            Sample(
                (_RATE, _COUNT, *_tensors(2, (3, 4), (5,))),
                {"norm_coefficient": 0.001, "alpha": 0.95, "beta": 0.1, "epsilon": 1e-7, "norm_coefficient_post": 0.01},
                low=0.1,
                outputs=6,
            ),
            Sample((_RATE, _NONE, *_tensors(2, (1,), (2,))), {"epsilon": 1e-2}, low=0.1, outputs=6),
        ),
        DOMAIN,
    ),
    Op(
        "Momentum",
        _optimiser(_momentum, 1),
        tuple(
            Sample(
                (_RATE, count, *_tensors(1, *shapes)),
                {"norm_coefficient": 0.001, "alpha": 0.95, "beta": 0.85, "mode": mode},
                outputs=2 * len(shapes),
            )
            for mode, count, shapes in (
                ("standard", _COUNT, ((3, 4),)),
                ("nesterov", _COUNT, ((5,),)),
                ("standard", _NONE, ((1,), (2,))),
            )
        ),
        DOMAIN,
    ),
    Op(
        "Dropout",
        _dropout,
        (
            Sample((_X,)),
            Sample((_X,), outputs=2),
            Sample((_X,), {"ratio": 0.3}, opset=10),
            Sample((_X, np.array(0.75, np.float32), _YES), {"seed": 7}, outputs=2, constant=(2,)),
            Sample(((F64, (9,)), np.array(0.25, np.float64), _YES), {"seed": 0}, constant=(2,)),
            Sample((_X, np.array(0.0, np.float32), _YES), outputs=2, constant=(1, 2)),
        ),
    ),
)
