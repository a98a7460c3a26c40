"""A model as exporters leave it: layouts of another framework around every operator, copies, casts to the same type, Dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[tuple[str, Sequence[int | str | None]]],
    outputs: Sequence[tuple[str, Sequence[int | str | None]]],
    constants: Sequence[tuple[str, np.ndarray]] = (),
    opset: int = 17,
    types: dict[str, int] | None = None,
) -> ModelProto:
    """A model of float inputs and outputs (or of `types` by name)."""

    def info(name: str, shape: Sequence[int | str | None]) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, (types or {}).get(name, TensorProto.FLOAT), shape)

    stored = [numpy_helper.from_array(a, n) for n, a in constants]
    graph = helper.make_graph(nodes, "exported", [info(*i) for i in inputs], [info(*o) for o in outputs], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def exported(size: int = 56, channels: int = 32, blocks: int = 2) -> ModelProto:
    """Convolutions whose bias and activation were written channels last: Conv, Transpose, Add, Clip, Identity, Transpose; then a residual,
    a Dropout, a Reshape to the same shape, two Casts, and a pair of Casts that has to stay since it rounds."""
    rng = np.random.default_rng(0)
    nodes: list[NodeProto] = []
    constants: list[tuple[str, np.ndarray]] = [("low", np.array(0, np.float32)), ("high", np.array(6, np.float32))]
    shape = (1, channels, size, size)
    constants.append(("same", np.asarray(shape, np.int64)))
    x = "x"

    def add(op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    for k in range(blocks):
        weight = rng.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)
        constants.append((f"w{k}", weight.astype(np.float32)))
        constants.append((f"bias{k}", rng.standard_normal(channels).astype(np.float32)))
        v = add("Conv", [x, f"w{k}"], f"conv{k}", pads=[1, 1, 1, 1])
        v = add("Transpose", [v], f"to_last{k}", perm=TO_LAST)
        v = add("Add", [v, f"bias{k}"], f"bias_add{k}")
        v = add("Clip", [v, "low", "high"], f"relu6_{k}")
        v = add("Identity", [v], f"copy{k}")
        v = add("Transpose", [v], f"to_first{k}", perm=TO_FIRST)
        x = add("Add", [v, x], f"residual{k}")
    x = add("Dropout", [x], "dropout")
    x = add("Reshape", [x, "same"], "same_shape")
    x = add("Cast", [x], "same_type", to=TensorProto.FLOAT)
    x = add("Cast", [x], "to_half", to=TensorProto.FLOAT16)
    x = add("Cast", [x], "from_half", to=TensorProto.FLOAT)
    nodes.append(helper.make_node("Sigmoid", [x], ["y"], "sigmoid"))
    return model_of(nodes, [("x", shape)], [("y", shape)], constants)
