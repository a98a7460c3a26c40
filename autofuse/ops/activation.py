"""Activations: element-wise functions of one tensor (and of per-channel slopes)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, select
from autofuse.ir.graph import ValueId
from autofuse.ops.common import F32, like
from autofuse.ops.declare import Call, Op, Sample


def unary(name: str, fn: Callable[[Expr, Call], Expr], *samples: Sample, since: int = 1) -> Op:
    """An element-wise operator of its first input."""

    def emit(c: Call) -> Sequence[ValueId]:
        return [c.builder.elementwise([c.input(0)], lambda x: fn(x, c))]

    return Op(name, emit, samples or (Sample(((F32, (2, 3, 5)),)), Sample((("float16", (7,)),))), since=since)


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
    """Below opset 7 a slope of several elements holds one for each channel, which is the second axis."""
    b, x, slope = c.builder, c.input(0), c.input(1)
    if c.opset < 7 and len(b.shape(slope)) == 1 and b.shape(slope) != (1,):
        shape = (*b.shape(slope), *([1] * (len(b.shape(x)) - 2)))
        slope = b.map([slope], shape, lambda i, read: read.raw(0, i[:1]))

    def fn(x: Expr, slope: Expr) -> Expr:
        return select(call("lt", x, like(x, 0)), call("mul", slope, x), x)

    return [b.elementwise([x, slope], fn)]


def _literal(fn: Callable[[Expr, Call], Expr]) -> Callable[[Expr, Call], Expr]:
    """Integers go through double, as fractional parameters have no integer form."""

    def body(x: Expr, c: Call) -> Expr:
        return fn(x, c) if x.dtype.is_float else cast_to(fn(cast_to(x, DType.FLOAT64), c), x.dtype)

    return body


def _leaky(x: Expr, c: Call) -> Expr:
    return select(call("lt", x, like(x, 0)), call("mul", like(x, c.attr("alpha", 0.01)), x), x)


def _selu(x: Expr, c: Call) -> Expr:
    alpha = c.attr("alpha", 1.67326319217681884765625)
    gamma = c.attr("gamma", 1.05070102214813232421875)
    negative = call("mul", like(x, alpha), call("sub", call("exp", x), like(x, 1)))
    return call("mul", like(x, gamma), select(call("lt", x, like(x, 0)), negative, x))


def _celu(x: Expr, c: Call) -> Expr:
    alpha = like(x, c.attr("alpha", 1.0))
    negative = call("mul", alpha, call("sub", call("exp", call("div", x, alpha)), like(x, 1)))
    return select(call("lt", x, like(x, 0)), negative, x)


def _line(x: Expr, alpha: float, beta: float) -> Expr:
    """alpha x + beta, clipped to 0 ... 1."""
    line = call("add", call("mul", x, like(x, alpha)), like(x, beta))
    return call("maximum", call("minimum", line, like(x, 1)), like(x, 0))


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), written so that exp never overflows."""
    tail = call("log1p", call("exp", call("neg", call("abs", x))))
    return call("add", call("maximum", x, like(x, 0)), tail)


def silu(x: Expr, alpha: float = 1.0) -> Expr:
    """x sigmoid(alpha x)."""
    return call("mul", x, sigmoid(x if alpha == 1.0 else call("mul", x, like(x, alpha))))


def _shrink(x: Expr, c: Call) -> Expr:
    lambd, bias = c.attr("lambd", 0.5), like(x, c.attr("bias", 0.0))
    high = select(call("gt", x, like(x, lambd)), call("sub", x, bias), like(x, 0))
    return select(call("lt", x, like(x, -lambd)), call("add", x, bias), high)


def _threshold(x: Expr, c: Call) -> Expr:
    return select(call("gt", x, like(x, c.attr("alpha", 1.0))), x, like(x, 0))


_X = ((F32, (2, 3, 5)),)
_NAN = np.array([1.0, np.nan, -np.inf, np.inf, -0.0, -3.0], np.float32)

ACTIVATIONS: tuple[Op, ...] = (
    unary("Relu", lambda x, c: relu(x), Sample(_X), Sample((("int32", (4, 3)),)), Sample((_NAN,))),
    unary("Sigmoid", lambda x, c: sigmoid(x), Sample(_X), Sample((("float16", (7,)),)), Sample((_NAN,))),
    unary("Elu", _elu, Sample(_X), Sample(_X, {"alpha": 0.3})),
    unary("LeakyRelu", _leaky, Sample(_X), Sample(_X, {"alpha": 0.3}), Sample((("float64", (9,)),))),
    unary("Selu", _selu, Sample(_X), Sample(_X, {"alpha": 2.0, "gamma": 3.0})),
    unary("Celu", _celu, Sample(_X), Sample(_X, {"alpha": 2.0}), since=12),
    unary(
        "HardSigmoid",
        lambda x, c: _line(x, c.attr("alpha", 0.2), c.attr("beta", 0.5)),
        Sample(_X, low=-4, high=4),
        Sample(_X, {"alpha": 0.6, "beta": 0.4}),
    ),
    unary(
        "HardSwish",
        lambda x, c: call("mul", x, _line(x, 1 / 6, 0.5)),
        Sample(_X, low=-5, high=5),
        Sample((("float16", (7,)),)),
        since=14,
    ),
    unary("Softplus", lambda x, c: softplus(x), Sample(_X), Sample((np.array([-90, 0, 60], np.float32),))),
    unary("Softsign", lambda x, c: call("div", x, call("add", like(x, 1), call("abs", x)))),
    unary("ThresholdedRelu", _threshold, Sample(_X), Sample(_X, {"alpha": 0.3}), since=10),
    unary("Mish", lambda x, c: call("mul", x, call("tanh", softplus(x))), Sample(_X), since=18),
    unary(
        "Swish",
        lambda x, c: silu(x, float(c.attr("alpha", 1.0))),
        Sample(_X, opset=24),
        Sample(_X, {"alpha": 0.5}, opset=24),
        since=24,
    ),
    unary("Gelu", _gelu, Sample(((F32, (3, 7)),)), Sample(((F32, (3, 7)),), {"approximate": "tanh"}), since=20),
    unary("Shrink", _literal(_shrink), Sample(_X), Sample(_X, {"bias": 1.5, "lambd": 1.0}), Sample((("int32", (9,)),))),
    Op(
        "PRelu",
        _prelu,
        (Sample(((F32, (2, 3, 4)), (F32, (3, 1)))), Sample(((F32, (2, 3, 4)), (F32, (1,)))), Sample(_X + _X)),
    ),
)
