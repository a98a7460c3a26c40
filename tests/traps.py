"""Small models that fusing compilers got wrong in public, each with its right value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Trap:
    """A model, what to feed, and what must come out."""

    name: str
    model: ModelProto
    inputs: Arrays
    expected: Sequence[np.ndarray]
    rtol: float = 1e-5
    atol: float = 1e-6


def make(
    nodes: Sequence[Any],
    inputs: Arrays,
    outputs: Mapping[str, tuple[int, Sequence[int] | None]],
    constants: Arrays | None = None,
    opset: int = 18,
) -> ModelProto:
    """A model from nodes; input types follow from the arrays that are fed."""
    ins = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in inputs.items()
    ]
    outs = [helper.make_tensor_value_info(k, t, s) for k, (t, s) in outputs.items()]
    graph = helper.make_graph(
        list(nodes), "trap", ins, outs, [numpy_helper.from_array(a, k) for k, a in (constants or {}).items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    checker.check_model(model)
    return model


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


N = helper.make_node
FLOAT, BOOL, INT32, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
RNG = np.random.default_rng(5)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def intermediate_outputs() -> Trap:
    x = RNG.normal(size=(3, 33)).astype(np.float32)
    nodes = [N("Mul", ["x", "c"], ["m"]), N("Sigmoid", ["m"], ["s"]), N("Mul", ["x", "s"], ["y"])]
    outputs = dict.fromkeys(("m", "s", "y"), (FLOAT, x.shape))
    model = make(nodes, {"x": x}, outputs, {"c": f32(1.702)})
    m = x * np.float32(1.702)
    return Trap("intermediate_outputs", model, {"x": x}, [m, _sigmoid(m), x * _sigmoid(m)])


def pool_read_twice() -> Trap:
    x = RNG.normal(size=(1, 3, 6, 6)).astype(np.float32)
    nodes = [
        N("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        N("Relu", ["p"], ["r"]),
        N("Add", ["p", "r"], ["y"]),
    ]
    p = x.reshape(1, 3, 3, 2, 3, 2).max(axis=(3, 5))
    return Trap("pool_read_twice", make(nodes, {"x": x}, {"y": (FLOAT, p.shape)}), {"x": x}, [p + np.maximum(p, 0)])


def would_be_cycle() -> Trap:
    x, w = RNG.normal(size=(5, 5)).astype(np.float32), RNG.normal(size=(5, 5)).astype(np.float32)
    nodes = [N("Relu", ["x"], ["a"]), N("MatMul", ["a", "w"], ["b"]), N("Add", ["a", "b"], ["y"])]
    a = np.maximum(x, 0)
    return Trap(
        "would_be_cycle", make(nodes, {"x": x}, {"y": (FLOAT, (5, 5))}, {"w": w}), {"x": x}, [a + a @ w], atol=1e-5
    )


def layer_norm_far_from_zero() -> Trap:
    x = np.array([[40000, 40001, 40002, 40003], [7, 7, 7, 7]], np.float32)
    nodes = [N("LayerNormalization", ["x", "s"], ["y"], axis=-1, epsilon=1e-5)]
    y = np.array([[-1.342, -0.447, 0.447, 1.342], [0, 0, 0, 0]], np.float32)
    model = make(nodes, {"x": x}, {"y": (FLOAT, x.shape)}, {"s": np.ones(4, np.float32)})
    return Trap("layer_norm_far_from_zero", model, {"x": x}, [y], atol=1e-3)


def layer_norm_without_kept_axes() -> Trap:
    x = RNG.normal(size=(4, 4)).astype(np.float32)
    nodes = [
        N("ReduceMean", ["x", "one"], ["m"], keepdims=0),
        N("Sub", ["x", "m"], ["d"]),
        N("Mul", ["d", "d"], ["q"]),
        N("ReduceMean", ["q", "one"], ["v"], keepdims=0),
        N("Add", ["v", "e"], ["ve"]),
        N("Sqrt", ["ve"], ["s"]),
        N("Div", ["d", "s"], ["y"]),
    ]
    constants = {"one": np.array([1]), "e": f32(1e-5)}
    d = x - x.mean(1)  # broadcasts along the other axis: this is no LayerNorm
    y = d / np.sqrt((d * d).mean(1) + 1e-5)
    return Trap(
        "layer_norm_without_kept_axes", make(nodes, {"x": x}, {"y": (FLOAT, x.shape)}, constants), {"x": x}, [y]
    )


def grouped_conv_and_full_addend() -> Trap:
    x = RNG.normal(size=(1, 4, 5, 5)).astype(np.float32)
    z = RNG.normal(size=(1, 4, 5, 5)).astype(np.float32)
    w = RNG.normal(size=(4, 1, 3, 3)).astype(np.float32)
    nodes = [N("Conv", ["x", "w"], ["c"], group=4, pads=[1, 1, 1, 1]), N("Add", ["c", "z"], ["y"])]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    c = sum(padded[:, :, i : i + 5, j : j + 5] * w[None, :, 0, i, j, None, None] for i in range(3) for j in range(3))
    model = make(nodes, {"x": x, "z": z}, {"y": (FLOAT, x.shape)}, {"w": w})
    return Trap("grouped_conv_and_full_addend", model, {"x": x, "z": z}, [c + z], atol=1e-5)


def addend_enlarges_the_product() -> Trap:
    a, w = RNG.normal(size=(3, 2)).astype(np.float32), RNG.normal(size=(2, 1)).astype(np.float32)
    z = f32(1, 2, 3, 4).reshape(1, 4)
    nodes = [N("MatMul", ["a", "w"], ["p"]), N("Add", ["p", "z"], ["y"])]
    return Trap(
        "addend_enlarges_the_product",
        make(nodes, {"a": a}, {"y": (FLOAT, (3, 4))}, {"w": w, "z": z}),
        {"a": a},
        [a @ w + z],
    )


def square_addend_along_the_right_axis() -> Trap:
    a, w = RNG.normal(size=(4, 2)).astype(np.float32), RNG.normal(size=(2, 4)).astype(np.float32)
    z = f32(1, 2, 3, 4).reshape(4, 1)
    nodes = [N("MatMul", ["a", "w"], ["p"]), N("Add", ["p", "z"], ["y"])]
    return Trap(
        "square_addend_along_the_right_axis",
        make(nodes, {"a": a}, {"y": (FLOAT, (4, 4))}, {"w": w, "z": z}),
        {"a": a},
        [a @ w + z],
    )


def negative_pad_is_a_crop() -> Trap:
    x = RNG.normal(size=(1, 2, 5)).astype(np.float32)
    nodes = [N("Pad", ["x", "p"], ["c"]), N("Relu", ["c"], ["y"])]
    model = make(nodes, {"x": x}, {"y": (FLOAT, (1, 2, 4))}, {"p": np.array([0, 0, -2, 0, 0, 1])})
    y = np.maximum(np.pad(x[:, :, 2:], ((0, 0), (0, 0), (0, 1))), 0)
    return Trap("negative_pad_is_a_crop", model, {"x": x}, [y])


def max_pool_pads_with_nothing() -> Trap:
    x = -np.abs(RNG.normal(size=(1, 1, 4, 4))).astype(np.float32) - 1
    nodes = [N("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    y = np.max([padded[:, :, i : i + 4, j : j + 4] for i in range(3) for j in range(3)], axis=0)
    return Trap("max_pool_pads_with_nothing", make(nodes, {"x": x}, {"y": (FLOAT, y.shape)}), {"x": x}, [y])


def many_arguments() -> Trap:
    x = RNG.normal(size=(1, 8)).astype(np.float32)
    count = 300
    inputs = {f"x{k}": x + k for k in range(count)}
    nodes = [N("Mul", [f"x{k}", "two"], [f"m{k}"]) for k in range(count)]
    nodes.append(N("Concat", [f"m{k}" for k in range(count)], ["y"], axis=1))
    model = make(nodes, inputs, {"y": (FLOAT, (1, 8 * count))}, {"two": f32(2)})
    return Trap("many_arguments", model, inputs, [np.concatenate([2 * a for a in inputs.values()], axis=1)])


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


def zero_times_infinity() -> Trap:
    x, m = f32(np.inf, np.nan, 1, -np.inf), np.array([True, False, True, False])
    nodes = [N("Mul", ["x", "zero"], ["y"]), N("Where", ["m", "x", "zero"], ["w"])]
    with np.errstate(invalid="ignore"):
        expected = [x * np.float32(0), np.where(m, x, np.float32(0))]
    model = make(nodes, {"x": x, "m": m}, {"y": (FLOAT, (4,)), "w": (FLOAT, (4,))}, {"zero": f32(0)})
    with np.errstate(invalid="ignore"):
        return Trap("zero_times_infinity", model, {"x": x, "m": m}, expected)


def shared_weight_with_one_batch_norm() -> Trap:
    x = RNG.normal(size=(1, 3, 4, 4)).astype(np.float32)
    w = RNG.normal(size=(5, 3, 1, 1)).astype(np.float32)
    s, b, m, v = (RNG.uniform(0.5, 1.5, 5).astype(np.float32) for _ in range(4))
    nodes = [
        N("Conv", ["x", "w"], ["c"]),
        N("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        N("Conv", ["x", "w"], ["d"]),
        N("Add", ["n", "d"], ["y"]),
    ]
    c = np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0])
    shape = (1, 5, 1, 1)
    n = (c - m.reshape(shape)) / np.sqrt(v.reshape(shape) + 1e-5) * s.reshape(shape) + b.reshape(shape)
    model = make(nodes, {"x": x}, {"y": (FLOAT, n.shape)}, {"w": w, "s": s, "b": b, "m": m, "v": v})
    return Trap("shared_weight_with_one_batch_norm", model, {"x": x}, [n + c], atol=1e-5)


def empty_contraction_and_reduction() -> Trap:
    a, b = np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32)
    nodes = [N("MatMul", ["a", "b"], ["p"]), N("ReduceProd", ["a", "one"], ["q"], keepdims=0)]
    model = make(nodes, {"a": a, "b": b}, {"p": (FLOAT, (3, 4)), "q": (FLOAT, (3,))}, {"one": np.array([1])})
    return Trap(
        "empty_contraction_and_reduction",
        model,
        {"a": a, "b": b},
        [np.zeros((3, 4), np.float32), np.ones(3, np.float32)],
    )


def old_softmax_flattens() -> Trap:
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    flat = x.reshape(2, 12)
    e = np.exp(flat - flat.max(1, keepdims=True))
    model = make([N("Softmax", ["x"], ["y"])], {"x": x}, {"y": (FLOAT, x.shape)}, opset=11)
    return Trap("old_softmax_flattens", model, {"x": x}, [(e / e.sum(1, keepdims=True)).reshape(x.shape)])


def tails_of_a_product() -> Trap:
    a = RNG.normal(size=(513, 257)).astype(np.float32) / 16
    w = RNG.normal(size=(257, 1000)).astype(np.float32) / 16
    nodes = [N("MatMul", ["a", "w"], ["p"]), N("Relu", ["p"], ["y"])]
    y = np.maximum(a.astype(np.float64) @ w, 0)
    return Trap(
        "tails_of_a_product",
        make(nodes, {"a": a}, {"y": (FLOAT, y.shape)}, {"w": w}),
        {"a": a},
        [y],
        rtol=1e-3,
        atol=1e-4,
    )


def a_view_of_an_input_is_an_output() -> Trap:
    x = RNG.normal(size=(2, 6)).astype(np.float32)
    nodes = [N("Reshape", ["x", "s"], ["y"]), N("Identity", ["x"], ["z"]), N("Relu", ["y"], ["r"])]
    model = make(
        nodes, {"x": x}, {"y": (FLOAT, (3, 4)), "z": (FLOAT, (2, 6)), "r": (FLOAT, (3, 4))}, {"s": np.array([3, 4])}
    )
    y = x.reshape(3, 4)
    return Trap("a_view_of_an_input_is_an_output", model, {"x": x}, [y, x, np.maximum(y, 0)])


def concat_of_one_value_twice() -> Trap:
    x = RNG.normal(size=(1, 3, 4)).astype(np.float32)
    nodes = [
        N("Relu", ["x"], ["a"]),
        N("Neg", ["x"], ["b"]),
        N("Concat", ["a", "b", "a"], ["c"], axis=1),
        N("Concat", ["b", "a"], ["d"], axis=1),
        N("Relu", ["c"], ["y"]),
        N("Neg", ["d"], ["z"]),
    ]
    a, b = np.maximum(x, 0), -x
    outputs = {"y": (FLOAT, (1, 9, 4)), "z": (FLOAT, (1, 6, 4))}
    expected = [np.maximum(np.concatenate([a, b, a], 1), 0), -np.concatenate([b, a], 1)]
    return Trap("concat_of_one_value_twice", make(nodes, {"x": x}, outputs), {"x": x}, expected)


def first_of_equal_maxima() -> Trap:
    x = np.array([[1, 3, 3, 0], [np.nan, 1, np.nan, 2], [5, 5, 5, 5]], np.float32)
    nodes = [N("ArgMax", ["x"], ["i"], axis=1, keepdims=0), N("ArgMin", ["x"], ["j"], axis=0, keepdims=1)]
    model = make(nodes, {"x": x}, {"i": (INT64, (3,)), "j": (INT64, (1, 4))})
    return Trap("first_of_equal_maxima", model, {"x": x}, [x.argmax(1), x.argmin(0)[None]])


TRAPS = (
    intermediate_outputs,
    pool_read_twice,
    would_be_cycle,
    layer_norm_far_from_zero,
    layer_norm_without_kept_axes,
    grouped_conv_and_full_addend,
    addend_enlarges_the_product,
    square_addend_along_the_right_axis,
    negative_pad_is_a_crop,
    max_pool_pads_with_nothing,
    many_arguments,
    nan_is_kept,
    integers,
    casts_are_operations,
    narrow_types_round,
    zero_times_infinity,
    shared_weight_with_one_batch_norm,
    empty_contraction_and_reduction,
    old_softmax_flattens,
    tails_of_a_product,
    a_view_of_an_input_is_an_output,
    concat_of_one_value_twice,
    first_of_equal_maxima,
)
