"""Operators of the domain com.microsoft, which onnxruntime's optimiser writes into models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autofuse.ir.expr import Expr, call
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.activation import gelu_erf, gelu_tanh, relu, sigmoid, silu
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F32, like
from autofuse.ops.convolution import conv
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.linear import broadcast_index
from autofuse.ops.normalization import layer_norm, rms_norm

DOMAIN = "com.microsoft"


def _fused_matmul(c: Call) -> Sequence[ValueId]:
    """alpha op(x) op(y) with numpy's broadcasting of the leading dimensions."""
    b = c.builder
    x, y = c.input(0), c.input(1)
    if c.attr("transBatchA", 0) or c.attr("transBatchB", 0):
        raise Unsupported("transposed batches")
    ta, tb, alpha = bool(c.attr("transA", 0)), bool(c.attr("transB", 0)), float(c.attr("alpha", 1.0))
    left, right, dtype = b.shape(x), b.shape(y), b.dtype(x)
    if len(left) < 2 or len(right) < 2:
        raise Unsupported("a product with a vector")
    rows, depth = left[:-3:-1] if ta else left[-2:]
    columns = right[-2] if tb else right[-1]
    batch = np.broadcast_shapes(left[:-2], right[:-2])

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        *lead, m, n = out
        k = reduced[0]
        a = read(0, (*broadcast_index(lead, left[:-2]), *((k, m) if ta else (m, k))))
        return call("mul", a, read(1, (*broadcast_index(lead, right[:-2]), *((n, k) if tb else (k, n)))))

    stored = dtype if alpha == 1.0 else dtype.compute
    made = b.reduce([x, y], (*batch, rows, columns), [depth], Combine.SUM, body, stored)
    if alpha == 1.0:
        return [made]
    return [b.elementwise([made], lambda e: call("mul", e, like(e, alpha)), dtype)]


def _unary(fn: Callable[[Expr, Call], Expr]) -> Callable[[Call], Sequence[ValueId]]:
    """A function of the first input, to which a second one is added first where it is given."""

    def emit(c: Call) -> Sequence[ValueId]:
        b = c.builder
        if not c.has(1):
            return [b.elementwise([c.input(0)], lambda e: fn(e, c), b.dtype(c.input(0)))]
        both = [c.input(0), c.input(1)]
        return [b.elementwise(both, lambda e, t: fn(call("add", e, t), c), b.dtype(c.input(0)))]

    return emit


def _skip_sum(c: Call, bias: int) -> tuple[ValueId, ValueId]:
    """input + skip + bias, as it is kept and as the node's extra output."""
    b = c.builder
    inputs = [c.input(0), c.input(1), *([c.input(bias)] if c.has(bias) else [])]

    def add(e: Expr, *others: Expr) -> Expr:
        for other in others:
            e = call("add", e, other)
        return e

    dtype = b.dtype(c.input(0))
    total = b.elementwise(inputs, add, dtype)
    if b.shape(total) != b.shape(c.input(0)):
        raise Unsupported("a skip connection that enlarges the input")
    return total, total


def _skip_layer_norm(c: Call) -> Sequence[ValueId | None]:
    total, extra = _skip_sum(c, 4)
    axes = [len(c.builder.shape(total)) - 1]
    bias = c.input(3) if c.has(3) else None
    y, mean, inverse = layer_norm(c.builder, total, axes, float(c.attr("epsilon", 1e-12)), c.input(2), bias)
    return [y, mean, inverse, extra][: len(c.wanted)]


def _skip_rms_norm(c: Call) -> Sequence[ValueId | None]:
    total, extra = _skip_sum(c, 3)
    axes = [len(c.builder.shape(total)) - 1]
    y, inverse = rms_norm(c.builder, total, axes, float(c.attr("epsilon", 1e-12)), c.input(2))
    return [y, None, inverse, extra][: len(c.wanted)]


def _rms_norm(c: Call) -> Sequence[ValueId | None]:
    rank = len(c.builder.shape(c.input(0)))
    axes = range(int(c.attr("axis", -1)) % rank, rank)
    made = rms_norm(c.builder, c.input(0), axes, float(c.attr("epsilon", 1e-5)), c.input(1))
    return made[: len(c.wanted)]


def _fused_conv(c: Call) -> Sequence[ValueId]:
    """activation(conv + addend)."""
    b = c.builder
    made = conv(c, c.input(0), c.input(1), c.input(2) if c.has(2) else None)
    name = str(c.attr("activation", ""))
    given = [float(p) for p in c.attr("activation_params") or ()]
    functions: dict[str, Callable[[Expr], Expr]] = {
        "": lambda e: e,
        "Relu": relu,
        "Sigmoid": sigmoid,
        "Tanh": lambda e: call("tanh", e),
        "LeakyRelu": lambda e: call("add", call("maximum", e, like(e, 0)), _scaled_negative(e, given)),
        "Clip": lambda e: call("minimum", call("maximum", e, like(e, given[0])), like(e, given[1])),
    }
    if name not in functions:
        raise Unsupported(f"a convolution fused with {name}")
    inputs = [made, *([c.input(3)] if c.has(3) else [])]
    fn = functions[name]

    def body(e: Expr, *addend: Expr) -> Expr:
        return fn(call("add", e, addend[0]) if addend else e)

    return [b.elementwise(inputs, body, b.dtype(c.input(0)))]


def _scaled_negative(e: Expr, given: Sequence[float]) -> Expr:
    alpha = given[0] if given else 0.01
    return call("mul", call("minimum", e, like(e, 0)), like(e, alpha))


_X = (F32, (2, 3, 4))
_V = (F32, (4,))


def _op(name: str, emit: Callable[[Call], Sequence[ValueId | None]], *samples: Sample) -> Op:
    return Op(name, emit, samples, DOMAIN)


_IMAGE, _KERNEL = (F32, (1, 3, 5, 5)), (F32, (4, 3, 3, 3))

MICROSOFT: tuple[Op, ...] = (
    _op(
        "FusedMatMul",
        _fused_matmul,
        Sample(((F32, (2, 4, 3)), (F32, (2, 4, 5))), {"transA": 1, "alpha": 0.5}),
        Sample(((F32, (2, 3, 4)), (F32, (5, 4))), {"transB": 1}),
    ),
    _op("Gelu", _unary(lambda e, c: gelu_erf(e)), Sample((_X,))),
    _op("BiasGelu", _unary(lambda e, c: gelu_erf(e)), Sample((_X, _V))),
    _op("FastGelu", _unary(lambda e, c: gelu_tanh(e)), Sample((_X,)), Sample((_X, _V))),
    _op(
        "QuickGelu",
        _unary(lambda e, c: silu(e, float(c.attr("alpha", 1.702)))),
        Sample((_X,)),
        Sample((_X,), {"alpha": 1.0}),
    ),
    _op(
        "SkipLayerNormalization",
        _skip_layer_norm,
        Sample((_X, _X, _V, _V, _V), {"epsilon": 1e-5}),
        Sample((_X, _X, _V, _V), {"epsilon": 1e-5}),
    ),
    _op("SkipSimplifiedLayerNormalization", _skip_rms_norm, Sample((_X, _X, _V), {"epsilon": 1e-5})),
    Op("SimplifiedLayerNormalization", _rms_norm, (Sample((_X, _V), {"axis": -1}, opset=17),)),
    _op(
        "FusedConv",
        _fused_conv,
        Sample((_IMAGE, _KERNEL, (F32, (4,))), {"activation": "Relu", "pads": [1] * 4}),
        Sample((_IMAGE, _KERNEL, None, (F32, (1, 4, 3, 3))), {"activation": "LeakyRelu", "activation_params": [0.1]}),
        Sample((_IMAGE, _KERNEL), {"activation": "Clip", "activation_params": [-1.0, 1.0]}),
    ),
)
