"""Small models for the importer's tests, and the comparison with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from autofuse.importer.importing import import_model
from autofuse.importer.reference import run_reference
from autofuse.ir.graph import Graph
from autofuse.ir.stage import Kind

F32 = TensorProto.FLOAT
I64 = TensorProto.INT64
BOOL = TensorProto.BOOL


def node(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any) -> NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def info(name: str, shape: Sequence[int | str | None] | None, dtype: int = F32) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]] | Sequence[Any],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    ir: int = 8,
    functions: Sequence[Any] = (),
    domains: Mapping[str, int] | None = None,
) -> ModelProto:
    infos = [info(n, s) for n, s in inputs.items()] if isinstance(inputs, Mapping) else list(inputs)
    graph = helper.make_graph(
        list(nodes),
        "test",
        infos,
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    made = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    made.ir_version = ir
    return made


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def feeds(graph: Graph, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for v in graph.inputs:
        value = graph.values[v]
        found[value.name] = np.asarray(rng.standard_normal(value.dims) * 2).astype(value.dtype.numpy)
    return found


def onnxruntime(m: ModelProto, given: Mapping[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return list(ort.InferenceSession(m.SerializeToString(), options).run(None, dict(given)))


def check(m: ModelProto, simplify: bool = True, given: Mapping[str, Any] | None = None) -> Graph:
    """Import, and compare every output with onnxruntime's."""
    graph = import_model(m, simplify=simplify)
    data = feeds(graph) if given is None else given
    assert graph.output_names == tuple(o.name for o in m.graph.output)
    for mine, theirs in zip(run_reference(graph, data), onnxruntime(m, data), strict=True):
        assert mine.dtype == theirs.dtype
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(mine, theirs)
        assert mine.shape == theirs.shape
    return graph


def kinds(graph: Graph) -> list[Kind]:
    return [n.kind for n in graph.nodes]


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def noted(graph: Graph, *words: str) -> bool:
    """Whether one note holds all the words."""
    return any(all(w in n for w in words) for n in graph.notes)
