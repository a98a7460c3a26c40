"""The floor of a memory-bound model, as a model: it reads inputs and writes outputs of the same sizes, and does next to nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper


def boundary(model: ModelProto) -> ModelProto:
    """The first output is the sum of all inputs: of the parts of those that are larger than it, with those that are smaller repeated. Each
    further one is the one before with its sign changed. Names and sizes are the model's, shapes are not.

    ValueError where types are not float32, sizes are no multiples of each other, the outputs' sizes differ or are larger than every input.
    """
    weights = {t.name for t in model.graph.initializer}
    values = [*(i for i in model.graph.input if i.name not in weights), *model.graph.output]
    if any(v.type.tensor_type.elem_type != TensorProto.FLOAT for v in values):
        raise ValueError("inputs and outputs of another type than float32")
    sizes = {v.name: math.prod(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
    outputs = [o.name for o in model.graph.output]
    inputs = sorted((v.name for v in values if v.name not in outputs), key=lambda name: -sizes[name])
    n, row = sizes[outputs[0]], min(sizes.values())
    if (
        sizes[inputs[0]] < n
        or any(max(s, n) % min(s, n) for s in sizes.values())
        or any(sizes[o] != n for o in outputs)
    ):
        raise ValueError(f"sizes that do not fit: {sizes}")
    shapes = {name: [s // n] * (s > n) + [min(s, n) // row, row] for name, s in sizes.items()}
    parts: list[str] = []
    nodes, constants = [], []
    for name in inputs:
        if sizes[name] <= n:
            parts.append(name)
            continue
        for k in range(sizes[name] // n):
            constants.append(numpy_helper.from_array(np.array(k), f"index_{name}_{k}"))
            nodes.append(helper.make_node("Gather", [name, constants[-1].name], [f"part_{name}_{k}"], axis=0))
            parts.append(f"part_{name}_{k}")
    if len(parts) == 1:
        nodes.append(helper.make_node("Neg", parts, outputs[:1]))  # a plain copy would need no kernel at all
    total = parts[0]
    for k, part in enumerate(parts[1:], 1):
        result = outputs[0] if k == len(parts) - 1 else f"sum_{k}"
        nodes.append(helper.make_node("Add", [total, part], [result]))
        total = result
    nodes += [helper.make_node("Neg", [a], [b]) for a, b in itertools.pairwise(outputs)]
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(
        nodes, "boundary", [infos[i] for i in inputs], [infos[o] for o in outputs], initializer=constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
