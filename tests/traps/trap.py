"""What a trap is: a small model that fusing compilers got wrong in public, with its right value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    outputs: Mapping[str, tuple[int, Sequence[int | str] | None]],
    constants: Arrays | None = None,
    opset: int = 18,
    symbols: Mapping[str, Sequence[int | str]] | None = None,
    checked: bool = True,
) -> ModelProto:
    """A model from nodes; input types follow from the arrays that are fed.

    `symbols` gives the shapes of inputs that have open dimensions. `checked` is off for what the checker refuses and files hold all the same.
    """
    shapes = {k: a.shape for k, a in inputs.items()} | dict(symbols or {})
    ins = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), shapes[k]) for k, a in inputs.items()
    ]
    outs = [helper.make_tensor_value_info(k, t, s) for k, (t, s) in outputs.items()]
    graph = helper.make_graph(
        list(nodes), "trap", ins, outs, [numpy_helper.from_array(a, k) for k, a in (constants or {}).items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    if checked:
        checker.check_model(model)
    return model


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


N = helper.make_node
FLOAT, BOOL, INT32, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
RNG = np.random.default_rng(5)


Make = Callable[[], Trap]

N = helper.make_node
FLOAT, FLOAT16, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL
INT8, INT32, INT64 = TensorProto.INT8, TensorProto.INT32, TensorProto.INT64
RNG = np.random.default_rng(5)
