"""A short way to write a model down: nodes by name, weights from a seeded generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
FLOAT = TensorProto.FLOAT


class Writer:
    """Collects nodes and initializers; every call of `op` gives back the name of the value that it makes."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[Any] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: int = FLOAT) -> str:
        """Declare a graph input."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        """An initializer with the given contents."""
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def weight(self, *shape: int, gain: float = 1.0) -> str:
        """A random matrix that keeps the variance of what it is multiplied with (the first axis is summed over)."""
        values = self.rng.standard_normal(shape, dtype=np.float32)
        return self.const(values * np.float32(gain / np.sqrt(shape[0])))

    def vector(self, n: int, centre: float = 0.0, spread: float = 0.1) -> str:
        """A random bias or scale."""
        return self.const(centre + spread * self.rng.standard_normal(n))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with several outputs."""
        k = len(self.nodes)
        made = [f"t{k}" if outputs == 1 else f"t{k}_{j}" for j in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=f"{kind}_{k}", **attributes))
        return made

    def linear(self, x: str, n: int, m: int, bias: bool = True, gain: float = 1.0) -> str:
        """x @ W, and + b."""
        y = self.op("MatMul", x, self.weight(n, m, gain=gain))
        return self.op("Add", y, self.vector(m)) if bias else y

    def model(self, outputs: Sequence[tuple[str, str, Sequence[int | str]]]) -> ModelProto:
        """The finished model. `outputs` are (value, name given to it, shape)."""
        rename = {value: name for value, name, _ in outputs}
        for n in self.nodes:
            n.input[:] = [rename.get(i, i) for i in n.input]
            n.output[:] = [rename.get(o, o) for o in n.output]
        infos = [helper.make_tensor_value_info(name, FLOAT, list(shape)) for _, name, shape in outputs]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, infos, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="autofuse")
        model.ir_version = IR_VERSION
        return model
