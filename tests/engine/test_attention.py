"""Two contractions in one kernel in whole models: against onnx's reference evaluator, with masks and numbers that are not finite, between guard pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autofuse.devices.base import Device
from autofuse.engine.assign import assign, heuristic_plan
from autofuse.engine.engine import Engine
from autofuse.engine.options import heuristic_options
from autofuse.fusion.partition import Partitioner, verify_partition
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.importer.samples import transformers
from autofuse.ir.graph import Graph

N = helper.make_node
SOFTMAX = (
    N("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
    N("MatMul", ["q", "kt"], ["s"]),
    N("Add", ["s", "mask"], ["masked"]),
    N("Softmax", ["masked"], ["p"], axis=-1),
    N("MatMul", ["p", "v"], ["y"]),
)


def model(nodes: Sequence[NodeProto], inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray]) -> ModelProto:
    ins = [helper.make_tensor_value_info(k, TensorProto.FLOAT, a.shape) for k, a in inputs.items()]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    kept = [numpy_helper.from_array(a, k) for k, a in constants.items()]
    graph = helper.make_graph(nodes, "attention", ins, outs, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def fused(
    graph: Graph, device: Device, inputs: dict[str, np.ndarray], accuracy: str = "default"
) -> dict[str, np.ndarray]:
    """The outputs of a plan in which every two contractions that may share a kernel do."""
    partitioner = Partitioner(graph, device.target)
    assert partitioner.chains
    partition = verify_partition(graph, partitioner.merge([], partitioner.chains), device.target)
    options = heuristic_options(device.target, device.threads, accuracy)
    plan = assign(graph, partition, device.target, device.threads, accuracy, options)
    assert sum(r.family == "attention_host" for r in plan.regions) == len(partitioner.chains)
    with Engine.build(graph, plan, device) as engine:
        return engine.run(inputs)


def numbers(heads: int, queries: int, keys: int, width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(queries)
    shapes = {"q": (1, heads, queries, width), "k": (1, heads, keys, width), "v": (1, heads, keys, width)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("accuracy", ("default", "exact"))
@pytest.mark.parametrize("shape", ((2, 16, 16, 16), (1, 21, 35, 5), (3, 47, 19, 33)), ids=str)
def test_what_is_not_finite(shape: tuple[int, int, int, int], accuracy: str, cpu: Device) -> None:
    """Rows that are masked altogether, -inf masks, Inf and NaN in each operand come out as the operators say, and stay in their rows."""
    heads, queries, keys, _ = shape
    x = numbers(*shape)
    mask = np.zeros((heads, queries, keys), np.float32)
    mask[:, :, keys // 2 :] = -np.inf
    mask[0, 1] = -np.inf
    mask[0, 2, 1] = np.nan
    mask[0, 3, 0] = np.inf
    x["q"][0, 0, 4, 0] = np.inf
    x["k"][0, -1, keys - 1, 0] = np.nan if heads > 1 else 1.0
    x["v"][0, -1, 0, 1] = np.inf
    x["v"][0, -1, 1, 2] = np.nan
    m = model(SOFTMAX, {**x, "mask": mask}, {})
    (expected,) = ReferenceEvaluator(m).run(None, {**x, "mask": mask})
    assert np.isnan(expected).any() and np.isfinite(expected).any()
    found = fused(import_model(m), cpu, {**x, "mask": mask}, accuracy)["y"]
    np.testing.assert_allclose(found, expected, 2e-5, 2e-6)


def test_large_scores(cpu: Device) -> None:
    """The row's maximum is taken off before exp: scores far beyond what exp can take give no Inf."""
    x = numbers(2, 18, 33, 8)
    x["q"] *= 1e3
    m = model(SOFTMAX, x, {"mask": np.zeros((1,), np.float32)})
    double = {k: a.astype(np.float64) for k, a in x.items()}
    scores = double["q"] @ double["k"].swapaxes(-1, -2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ double["v"]
    np.testing.assert_allclose(fused(import_model(m), cpu, x)["y"], expected, 1e-3, 1e-3)


@pytest.mark.parametrize("name", ("bert_block", "gpt_block"))
@pytest.mark.parametrize("sequence", (19, 64))
def test_blocks(name: str, sequence: int, cpu: Device) -> None:
    """Transformer blocks as exporters write them: masks, rotary embedding, heads side by side."""
    m = getattr(transformers, name)(sequence, 64, 2)
    rng = np.random.default_rng(1)
    x = {"x": rng.standard_normal((1, sequence, 64)).astype(np.float32)}
    if name == "bert_block":
        x["attention_mask"] = (np.arange(sequence) < sequence - 3).astype(np.float32)[None]
    expected = ReferenceEvaluator(m).run(None, x)[0]
    (found,) = fused(import_model(m), cpu, x).values()
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


def test_the_plan_without_measuring(cpu: Device) -> None:
    """It fuses a whole attention, and none whose lanes would be mostly empty."""
    long = import_model(transformers.bert_block())
    assert sum(r.family == "attention_host" for r in heuristic_plan(long, cpu.target, 2).regions) == 1
    short = import_model(transformers.bert_block(3, 64, 2))
    assert Partitioner(short, cpu.target).chains
    assert not any(r.family == "attention_host" for r in heuristic_plan(short, cpu.target, 2).regions)


def test_heads_are_put_together_in_the_kernel(cpu: Device) -> None:
    """What is read by the quotient and the remainder of an axis is still read at the point where it is computed."""
    graph = import_model(transformers.bert_block(64, 64, 2))
    partitioner = Partitioner(graph, cpu.target)
    (chain,) = partitioner.chains
    (join,) = (n.id for n in graph.consumers[graph.nodes[max(chain)].outputs[0]])
    assert "floor_mod" in graph.nodes[join].compute.text()
    assert partitioner.verdict(chain | {join})


def test_one_row_has_nothing_to_share(cpu: Device) -> None:
    """A single query uses every key once: the reason says so."""
    partitioner = Partitioner(import_model(transformers.gpt_block(1, 64, 2)), cpu.target)
    assert not partitioner.chains


def test_why_not(cpu: Device, emulated: Device) -> None:
    """Edges inside of it are refused with the reason of the whole: no CUDA kernel does it; values between that are read elsewhere stay."""
    graph = import_model(load_model("sample:bert_block"))
    reasons = {v.reason for v in Partitioner(graph, emulated.target).greedy().refusals.values()}
    assert "no CUDA kernel computes two contractions" in reasons
    assert not Partitioner(graph, emulated.target).chains
    nodes = [
        *SOFTMAX[:-1],
        N("MatMul", ["p", "v"], ["z"]),
        N("ReduceSum", ["p"], ["o"], keepdims=0),
        N("Add", ["z", "o"], ["y"]),
    ]
    read = import_model(model(nodes, numbers(1, 16, 32, 16), {"mask": np.zeros((1,), np.float32)}))
    partitioner = Partitioner(read, cpu.target)
    assert not partitioner.chains
    reasons = {v.reason for v in partitioner.greedy().refusals.values()}
    assert any("between two contractions of one kernel" in r for r in reasons), reasons


def test_keys_that_are_computed_on_the_way_are_refused(cpu: Device) -> None:
    """They would be computed anew for each block of queries."""
    nodes = [N("Mul", ["k", "k"], ["k2"]), N("Transpose", ["k2"], ["kt"], perm=[0, 1, 3, 2]), *SOFTMAX[1:]]
    graph = import_model(model(nodes, numbers(1, 64, 64, 16), {"mask": np.zeros((1,), np.float32)}))
    partitioner = Partitioner(graph, cpu.target)
    (chain,) = partitioner.chains
    everything = frozenset(range(len(graph.nodes)))
    assert everything > chain
    verdict = partitioner.verdict(everything)
    assert (verdict.ok, verdict.rule) == (False, "recomputation") and "keys" in verdict.reason


@pytest.mark.parametrize("attributes", ({}, {"is_causal": 1}), ids=str)
@pytest.mark.parametrize("shared", (4, 2), ids=lambda n: f"{n} heads of keys")
def test_the_operator(shared: int, attributes: dict[str, int], cpu: Device) -> None:
    """ONNX's own Attention falls into the same parts, also where heads of queries share those of keys."""
    shapes = {"q": (1, 4, 20, 16), "k": (1, shared, 24, 16), "v": (1, shared, 24, 16)}
    ins = [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in shapes.items()]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([N("Attention", ["q", "k", "v"], ["y"], **attributes)], "attention", ins, outs)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    rng = np.random.default_rng(2)
    x = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    (expected,) = ReferenceEvaluator(m).run(None, x)
    np.testing.assert_allclose(fused(import_model(m), cpu, x)["y"], expected, 1e-5, 1e-6)
