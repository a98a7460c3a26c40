"""Fusions that were not legal."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, NodeProto, helper

from tests.traps.trap import FLOAT, INT8, RNG, N, Trap, f32, make


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


def convolution_with_two_consumers() -> Trap:
    x = RNG.normal(size=(1, 3, 5, 5)).astype(np.float32)
    w = RNG.normal(size=(4, 3, 1, 1)).astype(np.float32)
    nodes = [
        N("Conv", ["x", "w"], ["c"]),
        N("Relu", ["c"], ["r"]),
        N("Sigmoid", ["c"], ["s"]),
        N("Add", ["r", "s"], ["y"]),
    ]
    c = np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0])
    model = make(nodes, {"x": x}, {"y": (FLOAT, c.shape), "r": (FLOAT, c.shape)}, {"w": w})
    r = np.maximum(c, 0)
    return Trap("convolution_with_two_consumers", model, {"x": x}, [r + _sigmoid(c), r], atol=1e-5)


def captured_by_a_branch() -> Trap:
    """What a branch reads from outside is used, though no edge of the graph says so."""
    x = RNG.normal(size=(3, 4)).astype(np.float32)

    def branch(node: NodeProto) -> GraphProto:
        return helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("z", FLOAT, x.shape)])

    nodes = [
        N("Relu", ["x"], ["a"]),
        N("Exp", ["a"], ["e"]),
        N(
            "If",
            ["c"],
            ["b"],
            then_branch=branch(N("Add", ["a", "e"], ["z"])),
            else_branch=branch(N("Neg", ["a"], ["z"])),
        ),
        N("Add", ["e", "b"], ["y"]),
    ]
    inputs = {"x": x, "c": np.array(True)}
    a = np.maximum(x, 0)
    return Trap("captured_by_a_branch", make(nodes, inputs, {"y": (FLOAT, x.shape)}), inputs, [2 * np.exp(a) + a])


def scale_enlarges_the_norm() -> Trap:
    x, s = RNG.normal(size=(1, 4)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)
    d = x - x.mean(1, keepdims=True)
    y = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * s
    model = make(_layer_norm(), {"x": x}, {"y": (FLOAT, (3, 4))}, _norm_constants([1], [1]) | {"s": s})
    return Trap("scale_enlarges_the_norm", model, {"x": x}, [y])


def variance_over_another_axis() -> Trap:
    x, s = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(4,)).astype(np.float32)
    d = x - x.mean(1, keepdims=True)
    y = d / np.sqrt((d * d).mean(0, keepdims=True) + 1e-5) * s
    model = make(_layer_norm(), {"x": x}, {"y": (FLOAT, (3, 4))}, _norm_constants([1], [0]) | {"s": s})
    return Trap("variance_over_another_axis", model, {"x": x}, [y])


def _layer_norm() -> list[NodeProto]:
    """A LayerNorm written out, with axes that need not agree."""
    return [
        N("ReduceMean", ["x", "mean"], ["m"], keepdims=1),
        N("Sub", ["x", "m"], ["d"]),
        N("Mul", ["d", "d"], ["q"]),
        N("ReduceMean", ["q", "variance"], ["v"], keepdims=1),
        N("Add", ["v", "e"], ["ve"]),
        N("Sqrt", ["ve"], ["r"]),
        N("Div", ["d", "r"], ["n"]),
        N("Mul", ["n", "s"], ["y"]),
    ]


def _norm_constants(mean: list[int], variance: list[int]) -> dict[str, np.ndarray]:
    return {"mean": np.array(mean), "variance": np.array(variance), "e": f32(1e-5)}


def average_pool_counts_what_a_pad_added() -> Trap:
    x = RNG.normal(size=(1, 2, 3, 3)).astype(np.float32)
    nodes = [
        N("Pad", ["x", "p"], ["c"]),
        N("AveragePool", ["c"], ["y"], kernel_shape=[3, 3], count_include_pad=0),
    ]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = sum(padded[:, :, i : i + 3, j : j + 3] for i in range(3) for j in range(3)) / np.float32(9)
    model = make(nodes, {"x": x}, {"y": (FLOAT, y.shape)}, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])})
    return Trap("average_pool_counts_what_a_pad_added", model, {"x": x}, [y])


def relu_before_signed_quantization() -> Trap:
    x = f32(-1.0, -0.3, 0.3, 1.0)
    nodes = [N("Relu", ["x"], ["r"]), N("QuantizeLinear", ["r", "scale", "zero"], ["y"])]
    constants = {"scale": np.array(0.01, np.float32), "zero": np.array(0, np.int8)}
    model = make(nodes, {"x": x}, {"y": (INT8, (4,))}, constants)
    return Trap("relu_before_signed_quantization", model, {"x": x}, [np.array([0, 0, 30, 100], np.int8)])
