"""Shapes and indices."""

from __future__ import annotations

import numpy as np

from tests.traps.trap import FLOAT, INT64, RNG, N, Trap, f32, make


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


def reductions_over_no_axes() -> Trap:
    x = f32(-3, 2, 0.5)
    nodes = [
        N("ReduceSumSquare", ["x", "none"], ["q"], noop_with_empty_axes=1),
        N("ReduceL1", ["x", "none"], ["a"], noop_with_empty_axes=1),
        N("ReduceSum", ["x", "none"], ["s"], noop_with_empty_axes=0, keepdims=0),
    ]
    outputs = {"q": (FLOAT, (3,)), "a": (FLOAT, (3,)), "s": (FLOAT, ())}
    model = make(nodes, {"x": x}, outputs, {"none": np.zeros(0, np.int64)})
    return Trap("reductions_over_no_axes", model, {"x": x}, [x * x, np.abs(x), np.float32(-0.5)])


def counted_from_the_end() -> Trap:
    x = f32(0, 1, 2, 3, 4)
    nodes = [
        N("Neg", ["x"], ["n"]),
        N("Gather", ["n", "at"], ["g"]),
        N("Slice", ["n", "last", "far", "zero", "back"], ["s"]),
        N("Slice", ["n", "three", "one"], ["e"]),
    ]
    constants = {"at": [-1, 0, -5], "last": [-1], "far": [-99], "zero": [0], "back": [-2], "three": [3], "one": [1]}
    outputs = {"g": (FLOAT, (3,)), "s": (FLOAT, (3,)), "e": (FLOAT, (0,))}
    model = make(nodes, {"x": x}, outputs, {k: np.array(v) for k, v in constants.items()})
    return Trap("counted_from_the_end", model, {"x": x}, [f32(-4, 0, 0), f32(-4, -2, 0), f32()])


def no_window_starts_in_the_end_padding() -> Trap:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    nodes = [
        N("MaxPool", ["x"], ["y"], kernel_shape=[1], strides=[2], ceil_mode=1),
        N("Slice", ["x", "zero", "three", "axis"], ["c"]),
        N("AveragePool", ["c"], ["z"], kernel_shape=[2], strides=[2], ceil_mode=1),
    ]
    constants = {"zero": np.array([0]), "three": np.array([3]), "axis": np.array([2])}
    model = make(nodes, {"x": x}, dict.fromkeys("yz", (FLOAT, (1, 1, 2))), constants, opset=19)
    return Trap(
        "no_window_starts_in_the_end_padding",
        model,
        {"x": x},
        [f32(0, 2).reshape(1, 1, 2), f32(0.5, 2).reshape(1, 1, 2)],
    )


def transposed_convolution_pads() -> Trap:
    x, w = f32(1, 2).reshape(1, 1, 2), f32(1, 1, 1).reshape(1, 1, 3)
    nodes = [
        N("ConvTranspose", ["x", "w"], ["p"], strides=[2], output_padding=[1]),
        N("ConvTranspose", ["x", "w"], ["u"], strides=[2], auto_pad="SAME_UPPER"),
        N("ConvTranspose", ["x", "w"], ["l"], strides=[2], auto_pad="SAME_LOWER"),
    ]
    outputs = {"p": (FLOAT, (1, 1, 6)), "u": (FLOAT, (1, 1, 4)), "l": (FLOAT, (1, 1, 4))}
    expected = [f32(1, 1, 3, 2, 2, 0), f32(1, 1, 3, 2), f32(1, 3, 2, 2)]
    model = make(nodes, {"x": x}, outputs, {"w": w})
    return Trap("transposed_convolution_pads", model, {"x": x}, [e.reshape(1, 1, -1) for e in expected])


def same_lower_with_dilation() -> Trap:
    x, w = np.arange(1, 8, dtype=np.float32).reshape(1, 1, 7), f32(1, 10).reshape(1, 1, 2)
    nodes = [N("Conv", ["x", "w"], ["y"], auto_pad="SAME_LOWER", dilations=[3])]
    padded = np.pad(x[0, 0], (2, 1))
    y = (padded[:7] + 10 * padded[3:]).reshape(1, 1, 7)
    return Trap("same_lower_with_dilation", make(nodes, {"x": x}, {"y": (FLOAT, (1, 1, 7))}, {"w": w}), {"x": x}, [y])


def resize_ties() -> Trap:
    x = f32(1, 2, 3, 4).reshape(1, 1, 4)
    nodes = [
        N("Resize", ["x", "", "scales"], ["f"], nearest_mode="round_prefer_floor"),
        N("Resize", ["x", "", "scales"], ["c"], nearest_mode="round_prefer_ceil"),
    ]
    model = make(nodes, {"x": x}, dict.fromkeys("fc", (FLOAT, (1, 1, 2))), {"scales": f32(1, 1, 0.5)})
    return Trap("resize_ties", model, {"x": x}, [f32(1, 3).reshape(1, 1, 2), f32(2, 4).reshape(1, 1, 2)])


def dilated_pooling_indices() -> Trap:
    x = f32(1, 9, 2, 8, 3).reshape(1, 1, 5)
    nodes = [N("MaxPool", ["x"], ["y", "i"], kernel_shape=[2], dilations=[2])]
    model = make(nodes, {"x": x}, {"y": (FLOAT, (1, 1, 3)), "i": (INT64, (1, 1, 3))})
    return Trap("dilated_pooling_indices", model, {"x": x}, [f32(2, 9, 3).reshape(1, 1, 3), np.array([[[2, 1, 4]]])])


def zeros_in_a_target_shape() -> Trap:
    x, z = RNG.normal(size=(2, 3)).astype(np.float32), np.zeros((0, 3), np.float32)
    nodes = [
        N("Reshape", ["z", "three_zero"], ["e"], allowzero=1),
        N("Reshape", ["x", "keep"], ["k"]),
        N("Relu", ["k"], ["y"]),
    ]
    outputs = {"e": (FLOAT, (3, 0)), "y": (FLOAT, (2, 3, 1))}
    constants = {"three_zero": np.array([3, 0]), "keep": np.array([0, 3, 1])}
    model = make(nodes, {"x": x, "z": z}, outputs, constants)
    expected = [np.zeros((3, 0), np.float32), np.maximum(x, 0).reshape(2, 3, 1)]
    return Trap("zeros_in_a_target_shape", model, {"x": x, "z": z}, expected)


def _open_dimension(n: int) -> Trap:
    x, w = RNG.normal(size=(n, 3)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)
    nodes = [
        N("MatMul", ["x", "w"], ["p"]),
        N("Relu", ["p"], ["r"]),
        N("ReduceSum", ["r", "axis"], ["s"], keepdims=1),
        N("Add", ["r", "s"], ["y"]),
        N("Softmax", ["p"], ["z"], axis=-1),
    ]
    outputs = {"y": (FLOAT, ("n", 4)), "s": (FLOAT, (1, 4)), "z": (FLOAT, ("n", 4))}
    model = make(nodes, {"x": x}, outputs, {"w": w, "axis": np.array([0])}, symbols={"x": ("n", 3)})
    p = x @ w
    r = np.maximum(p, 0)
    s = r.sum(0, keepdims=True)
    e = np.exp(p)
    return Trap(f"open_dimension_of_size_{n}", model, {"x": x}, [r + s, s, e / e.sum(1, keepdims=True)], atol=1e-5)


def open_dimension_of_size_zero() -> Trap:
    return _open_dimension(0)


def open_dimension_of_size_one() -> Trap:
    return _open_dimension(1)
