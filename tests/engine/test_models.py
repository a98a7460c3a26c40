"""Whole models: the sample networks, blocks and chains against onnxruntime without its optimisations, unfused and greedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from autofuse.devices.base import Device
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from autofuse.importer.samples import build, chains, transformers
from autofuse.ir.graph import Graph
from tests.engine.test_traps import run

SMALL: Mapping[str, Callable[[], ModelProto]] = {
    "chain_gelu": lambda: chains.gelu(5, 72),
    "chain_layernorm": lambda: chains.layernorm(6, 100),
    "chain_rmsnorm": lambda: chains.rmsnorm(6, 96),
    "chain_softmax": lambda: chains.softmax(2, 6, 70),
    "chain_swiglu": lambda: chains.swiglu(5, 136),
    "chain_rotary": lambda: chains.rotary(2, 10, 32),
    "chain_groupnorm": lambda: chains.groupnorm(8, 6, 10, 4),
    "bert_block": lambda: transformers.bert_block(12, 32, 2),
}
"""Small enough to be emulated."""

MODELS: Mapping[str, Callable[[], ModelProto]] = {
    **SMALL,
    "gpt_block": lambda: transformers.gpt_block(24, 96, 3),
    "squeezenet": lambda: build("squeezenet"),
    "shufflenet": lambda: build("shufflenet"),
}


def resized(model: ModelProto, side: int) -> ModelProto:
    """A network for smaller images; shapes that the file states for inner values no longer hold."""
    weights = {t.name for t in model.graph.initializer}
    (image,) = (i for i in model.graph.input if i.name not in weights)
    for d in image.type.tensor_type.shape.dim[2:]:
        d.dim_value = side
    del model.graph.value_info[:]
    return model


def random_inputs(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    values = [graph.values[v] for v in graph.inputs]
    return {v.name: rng.standard_normal(v.dims).astype(v.dtype.numpy) for v in values}


def oracle(model: ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What onnxruntime gives with every node run as it stands."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, dict(inputs))]


def close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """The default tolerance of a check."""
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-3 * float(np.abs(wanted).max()) + 1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("which", ["unfused", "greedy"])
def test_a_model_equals_onnxruntime(name: str, which: str, cpu: Device) -> None:
    model = MODELS[name]()
    graph = import_model(model)
    partitioner = Partitioner(graph, cpu.target)
    partition = partitioner.unfused() if which == "unfused" else partitioner.greedy()
    inputs = random_inputs(graph)
    close(run(graph, partition, cpu, inputs), oracle(model, inputs))


@pytest.mark.parametrize("name", SMALL)
def test_the_cuda_text_of_a_model_equals_the_host(name: str, cpu: Device, emulated: Device) -> None:
    graph = import_model(SMALL[name]())
    check_emulated(graph, cpu, emulated)


def test_the_cuda_text_of_a_network_equals_the_host(cpu: Device, emulated: Device) -> None:
    check_emulated(import_model(resized(build("squeezenet"), 64)), cpu, emulated)


def check_emulated(graph: Graph, cpu: Device, emulated: Device) -> None:
    inputs = random_inputs(graph)
    expected = run(graph, Partitioner(graph, cpu.target).greedy(), cpu, inputs)
    close(run(graph, Partitioner(graph, emulated.target).greedy(), emulated, inputs), expected)
