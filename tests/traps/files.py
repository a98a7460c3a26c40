"""Files as they come."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.traps.trap import BOOL, FLOAT, RNG, N, Trap, f32, make


def nodes_out_of_order_with_equal_names() -> Trap:
    x = RNG.normal(size=(2, 3)).astype(np.float32)
    nodes = [
        N("Add", ["b", "a"], ["y"], name="same"),
        N("Exp", ["a"], ["b"], name="same"),
        N("Neg", ["x"], ["a"], name=""),
    ]
    model = make(nodes, {"x": x}, {"y": (FLOAT, x.shape)}, checked=False)
    return Trap("nodes_out_of_order_with_equal_names", model, {"x": x}, [np.exp(-x) - x])


def optional_input_left_out_in_the_middle() -> Trap:
    x = f32(-3, 0.2, 3)
    nodes = [N("Neg", ["x"], ["n"]), N("Clip", ["n", "", "top"], ["y"])]
    model = make(nodes, {"x": x}, {"y": (FLOAT, (3,))}, {"top": np.array(0.5, np.float32)})
    return Trap("optional_input_left_out_in_the_middle", model, {"x": x}, [f32(0.5, -0.2, -3)])


def initializer_that_is_input_and_output() -> Trap:
    x, w = f32(1, 2, 3), f32(4, 5, 6)
    model = make([N("Mul", ["x", "w"], ["y"])], {"x": x}, {"y": (FLOAT, (3,)), "w": (FLOAT, (3,))}, {"w": w})
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, (3,)))
    return Trap("initializer_that_is_input_and_output", model, {"x": x}, [x * w, w])


def outputs_that_nobody_reads() -> Trap:
    x = RNG.normal(size=(1, 1, 6)).astype(np.float32)
    nodes = [
        N("MaxPool", ["x"], ["p", "unread"], kernel_shape=[2], strides=[2]),
        N("Split", ["x"], ["a", "", "c"], axis=2, num_outputs=3),
        N("Concat", ["p", "a", "c"], ["y"], axis=2),
    ]
    model = make(nodes, {"x": x}, {"y": (FLOAT, (1, 1, 7))}, checked=False)
    y = np.concatenate([x.reshape(1, 1, 3, 2).max(3), x[..., :2], x[..., 4:]], axis=2)
    return Trap("outputs_that_nobody_reads", model, {"x": x}, [y])


def batch_norm_in_training_mode() -> Trap:
    x = RNG.normal(size=(4, 3, 5)).astype(np.float32)
    s, b, m, v = (RNG.uniform(0.5, 1.5, 3).astype(np.float32) for _ in range(4))
    nodes = [
        N("BatchNormalization", ["x", "s", "b", "m", "v"], ["n", "mean", "var"], training_mode=1, momentum=0.8),
        N("Relu", ["n"], ["y"]),
    ]
    outputs = {"y": (FLOAT, x.shape), "mean": (FLOAT, (3,)), "var": (FLOAT, (3,))}
    model = make(nodes, {"x": x}, outputs, {"s": s, "b": b, "m": m, "v": v})
    mean, var = x.mean((0, 2)), x.var((0, 2))
    n = (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * s[:, None] + b[:, None]
    expected = [np.maximum(n, 0), 0.8 * m + 0.2 * mean, 0.8 * v + 0.2 * var]
    return Trap("batch_norm_in_training_mode", model, {"x": x}, expected, atol=1e-5)


def dropout_and_its_mask() -> Trap:
    x = f32(1, -2, 3)
    nodes = [N("Dropout", ["x"], ["d", "mask"]), N("Where", ["mask", "d", "zero"], ["y"])]
    model = make(nodes, {"x": x}, {"y": (FLOAT, (3,)), "mask": (BOOL, (3,))}, {"zero": f32(0)})
    return Trap("dropout_and_its_mask", model, {"x": x}, [x, np.ones(3, bool)])
