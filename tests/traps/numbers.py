"""Numbers that changed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import TensorProto

from tests.traps.trap import BOOL, FLOAT, FLOAT16, INT32, INT64, RNG, N, Trap, f32, make


def layer_norm_far_from_zero() -> Trap:
    x = np.array([[40000, 40001, 40002, 40003], [7, 7, 7, 7]], np.float32)
    nodes = [N("LayerNormalization", ["x", "s"], ["y"], axis=-1, epsilon=1e-5)]
    y = np.array([[-1.342, -0.447, 0.447, 1.342], [0, 0, 0, 0]], np.float32)
    model = make(nodes, {"x": x}, {"y": (FLOAT, x.shape)}, {"s": np.ones(4, np.float32)})
    return Trap("layer_norm_far_from_zero", model, {"x": x}, [y], atol=1e-3)


def nan_is_kept() -> Trap:
    x = RNG.normal(size=(40, 40)).astype(np.float32)
    x[3, 5], x[39, 39], x[20, 0] = np.nan, np.nan, np.nan
    nodes = [
        N("Relu", ["x"], ["r"]),
        N("ReduceMax", ["r", "one"], ["m"], keepdims=1),
        N("ReduceMin", ["x", "zero"], ["n"], keepdims=0),
        N("Max", ["x", "c"], ["y"]),
    ]
    outputs = {"r": (FLOAT, (40, 40)), "m": (FLOAT, (40, 1)), "n": (FLOAT, (40,)), "y": (FLOAT, (40, 40))}
    r = np.maximum(x, 0)
    expected = [r, r.max(1, keepdims=True), x.min(0), np.maximum(x, np.float32(0.5))]
    constants = {"one": np.array([1]), "zero": np.array([0]), "c": f32(0.5)}
    return Trap("nan_is_kept", make(nodes, {"x": x}, outputs, constants), {"x": x}, expected)


def integers() -> Trap:
    a, b = np.array([-7, 7, -8, 5, 6], np.int32), np.array([2, -2, 3, 3, -4], np.int32)
    nodes = [N("Div", ["a", "b"], ["q"]), N("Mod", ["a", "b"], ["m"]), N("Mod", ["a", "b"], ["f"], fmod=1)]
    outputs = dict.fromkeys("qmf", (INT32, a.shape))
    expected = [np.trunc(a / b).astype(np.int32), np.mod(a, b), np.fmod(a, b)]
    return Trap("integers", make(nodes, {"a": a, "b": b}, outputs), {"a": a, "b": b}, expected)


def casts_are_operations() -> Trap:
    x = f32(0.5, -1.7, 3.2, 70000.0, 0.0)
    nodes = [
        N("Cast", ["x"], ["i"], to=INT32),
        N("Cast", ["i"], ["t"], to=FLOAT),
        N("Cast", ["i"], ["b"], to=BOOL),
        N("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        N("Cast", ["h"], ["y"], to=FLOAT),
    ]
    with np.errstate(over="ignore"):
        expected = [np.trunc(x), x.astype(np.int32) != 0, x.astype(np.float16).astype(np.float32)]
    outputs = {"t": (FLOAT, x.shape), "b": (BOOL, x.shape), "y": (FLOAT, x.shape)}
    return Trap("casts_are_operations", make(nodes, {"x": x}, outputs), {"x": x}, expected)


def zero_times_infinity() -> Trap:
    x, m = f32(np.inf, np.nan, 1, -np.inf), np.array([True, False, True, False])
    nodes = [N("Mul", ["x", "zero"], ["y"]), N("Where", ["m", "x", "zero"], ["w"])]
    with np.errstate(invalid="ignore"):
        expected = [x * np.float32(0), np.where(m, x, np.float32(0))]
    model = make(nodes, {"x": x, "m": m}, {"y": (FLOAT, (4,)), "w": (FLOAT, (4,))}, {"zero": f32(0)})
    with np.errstate(invalid="ignore"):
        return Trap("zero_times_infinity", model, {"x": x, "m": m}, expected)


def old_softmax_flattens() -> Trap:
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    flat = x.reshape(2, 12)
    e = np.exp(flat - flat.max(1, keepdims=True))
    model = make([N("Softmax", ["x"], ["y"])], {"x": x}, {"y": (FLOAT, x.shape)}, opset=11)
    return Trap("old_softmax_flattens", model, {"x": x}, [(e / e.sum(1, keepdims=True)).reshape(x.shape)])


def first_of_equal_maxima() -> Trap:
    x = np.array([[1, 3, 3, 0], [np.nan, 1, np.nan, 2], [5, 5, 5, 5]], np.float32)
    nodes = [N("ArgMax", ["x"], ["i"], axis=1, keepdims=0), N("ArgMin", ["x"], ["j"], axis=0, keepdims=1)]
    model = make(nodes, {"x": x}, {"i": (INT64, (3,)), "j": (INT64, (1, 4))})
    return Trap("first_of_equal_maxima", model, {"x": x}, [x.argmax(1), x.argmin(0)[None]])


def integer_reciprocal() -> Trap:
    """a * (1 / b) in integers is not a / b."""
    a, b = np.array([7, 8, 9, 0], np.int32), np.array([1, 2, -1, 5], np.int32)
    nodes = [N("Div", ["one", "b"], ["r"]), N("Mul", ["a", "r"], ["y"])]
    model = make(nodes, {"a": a, "b": b}, {"y": (INT32, (4,))}, {"one": np.array([1], np.int32)})
    return Trap("integer_reciprocal", model, {"a": a, "b": b}, [np.array([7, 0, -9, 0], np.int32)])


def half_types_accumulate_in_single() -> Trap:
    x = np.ones((2, 4096), np.float16)
    w = np.ones((4096, 3), np.float16)
    nodes = [N("ReduceSum", ["x", "axis"], ["s"], keepdims=0), N("MatMul", ["x", "w"], ["p"])]
    outputs = {"s": (FLOAT16, (2,)), "p": (FLOAT16, (2, 3))}
    model = make(nodes, {"x": x}, outputs, {"w": w, "axis": np.array([1])})
    expected = [np.full(2, 4096, np.float16), np.full((2, 3), 4096, np.float16)]
    return Trap("half_types_accumulate_in_single", model, {"x": x}, expected)


def half_types_round_between_operators() -> Trap:
    """2048 + 0.5 is 2048 in half precision: fusing the two operators must not keep the half."""
    x = np.array([2048, 2050, 1, -2048], np.float16)
    nodes = [N("Add", ["x", "half"], ["a"]), N("Sub", ["a", "x"], ["y"])]
    model = make(nodes, {"x": x}, {"y": (FLOAT16, (4,))}, {"half": np.array([0.5], np.float16)})
    return Trap("half_types_round_between_operators", model, {"x": x}, [np.array([0, 0, 0.5, 0], np.float16)])


def reduced_half_types_round() -> Trap:
    """A sum is stored in half precision before the next operator sees it: 2049 becomes 2048."""
    x = np.full((1, 2049), 1, np.float16)
    nodes = [N("ReduceSum", ["x", "axis"], ["s"], keepdims=1), N("Sub", ["s", "c"], ["y"])]
    constants = {"axis": np.array([1]), "c": np.array([[2048]], np.float16)}
    model = make(nodes, {"x": x}, {"y": (FLOAT16, (1, 1))}, constants)
    return Trap("reduced_half_types_round", model, {"x": x}, [np.array([[0]], np.float16)])


def softmax_keeps_its_axis() -> Trap:
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    nodes = [N("Softmax", ["x"], ["y"], axis=1), N("Softmax", ["x"], ["z"])]
    last = np.exp(x - x.max(2, keepdims=True))
    model = make(nodes, {"x": x}, dict.fromkeys("yz", (FLOAT, x.shape)), opset=13)
    return Trap(
        "softmax_keeps_its_axis", model, {"x": x}, [e / e.sum(1, keepdims=True), last / last.sum(2, keepdims=True)]
    )


def two_gelus() -> Trap:
    x = f32(2, -1, 0)
    nodes = [N("Gelu", ["x"], ["y"]), N("Gelu", ["x"], ["z"], approximate="tanh")]
    model = make(nodes, {"x": x}, dict.fromkeys("yz", (FLOAT, (3,))), opset=20)
    expected = [f32(1.9544997, -0.15865525, 0), f32(1.9545977, -0.15880801, 0)]
    return Trap("two_gelus", model, {"x": x}, expected, rtol=1e-6)


def truncated_to_a_boolean() -> Trap:
    """0.5 becomes 0 before it becomes False; as a float it is True."""
    x = f32(0.5, -0.5, 1.5, 0)
    nodes = [
        N("Cast", ["x"], ["i"], to=INT64),
        N("Cast", ["i"], ["b"], to=BOOL),
        N("Cast", ["x"], ["d"], to=BOOL),
    ]
    model = make(nodes, {"x": x}, dict.fromkeys("bd", (BOOL, (4,))))
    expected = [np.array([False, False, True, False]), np.array([True, True, True, False])]
    return Trap("truncated_to_a_boolean", model, {"x": x}, expected)


def narrow_types_round() -> Trap:
    """What an 8-bit float or a 4-bit integer keeps of a value is what the model asks for, also where nothing is stored."""
    x = np.concatenate([RNG.normal(size=(2, 30)), [[1e4, -0.001], [460, -470]]], axis=1).astype(np.float32)
    w = RNG.integers(-8, 8, (32, 5))
    scale = RNG.uniform(0.1, 0.5, (4, 5)).astype(np.float32)
    e4m3, int4 = ml_dtypes.float8_e4m3fn, ml_dtypes.int4
    nodes = [
        N("Cast", ["x"], ["h"], to=TensorProto.FLOAT8E4M3FN),
        N("Cast", ["h"], ["y"], to=FLOAT),
        N("Transpose", ["h"], ["t"], perm=[1, 0]),
        N("Cast", ["t"], ["z"], to=FLOAT),
        N("DequantizeLinear", ["w", "scale"], ["d"], axis=0, block_size=8),
        N("MatMul", ["y", "d"], ["p"]),
        N("QuantizeLinear", ["p", "step"], ["q"], output_dtype=TensorProto.INT4),
        N("DequantizeLinear", ["q", "step"], ["r"]),
    ]
    y = np.clip(x, -448, 448).astype(e4m3).astype(np.float32)
    p = y @ (w * np.repeat(scale, 8, axis=0)).astype(np.float32)
    step = np.float32(np.abs(p).max() / 5)
    r = np.clip(np.rint(p / step), -8, 7).astype(np.float32) * step
    outputs = {"y": (FLOAT, y.shape), "z": (FLOAT, y.T.shape), "r": (FLOAT, r.shape)}
    constants = {"w": w.astype(np.float32).astype(int4), "scale": scale, "step": np.array(step)}
    model = make(nodes, {"x": x}, outputs, constants, opset=21)
    return Trap("narrow_types_round", model, {"x": x}, [y, y.T, r], 1e-4, 1e-4)
