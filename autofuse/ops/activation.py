"""Activations: element-wise functions of one tensor (and of per-channel slopes)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autofuse.ir.expr import Expr, call, select
from autofuse.ir.graph import ValueId
from autofuse.ops.common import F32, like
from autofuse.ops.declare import Call, Op, Sample


def unary(name: str, fn: Callable[[Expr, Call], Expr], *samples: Sample) -> Op:
    """An element-wise operator of its first input."""

    def emit(c: Call) -> Sequence[ValueId]:
        return [c.builder.elementwise([c.input(0)], lambda x: fn(x, c))]

    return Op(name, emit, samples or (Sample(((F32, (2, 3, 5)),)), Sample((("float16", (7,)),))))


def relu(x: Expr) -> Expr:
    """max(x, 0) that keeps NaN."""
    return call("maximum", x, like(x, 0))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x))."""
    return call("div", like(x, 1), call("add", like(x, 1), call("exp", call("neg", x))))


def _elu(x: Expr, c: Call) -> Expr:
    alpha = like(x, c.attr("alpha", 1.0))
    return select(call("lt", x, like(x, 0)), call("mul", alpha, call("sub", call("exp", x), like(x, 1))), x)


def gelu_erf(x: Expr) -> Expr:
    """0.5 x (1 + erf(x / sqrt 2))."""
    half = call("mul", x, like(x, 0.5))
    return call("mul", half, call("add", like(x, 1), call("erf", call("mul", x, like(x, math.sqrt(0.5))))))


def gelu_tanh(x: Expr) -> Expr:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    cube = call("mul", call("mul", x, x), x)
    inner = call("mul", like(x, math.sqrt(2 / math.pi)), call("add", x, call("mul", like(x, 0.044715), cube)))
    return call("mul", call("mul", like(x, 0.5), x), call("add", like(x, 1), call("tanh", inner)))


def _gelu(x: Expr, c: Call) -> Expr:
    return gelu_tanh(x) if c.attr("approximate", "none") == "tanh" else gelu_erf(x)


def _prelu(c: Call) -> Sequence[ValueId]:
    def fn(x: Expr, slope: Expr) -> Expr:
        return select(call("lt", x, like(x, 0)), call("mul", slope, x), x)

    return [c.builder.elementwise([c.input(0), c.input(1)], fn)]


ACTIVATIONS: tuple[Op, ...] = (
    unary("Relu", lambda x, c: relu(x), Sample(((F32, (2, 3, 5)),)), Sample((("int32", (4, 3)),))),
    unary("Sigmoid", lambda x, c: sigmoid(x)),
    unary("Elu", _elu),
    unary("Gelu", _gelu, Sample(((F32, (3, 7)),)), Sample(((F32, (3, 7)),), {"approximate": "tanh"})),
    Op("PRelu", _prelu, (Sample(((F32, (2, 3, 4)), (F32, (3, 1)))),)),
)
