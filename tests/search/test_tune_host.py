"""Short tunes on the host: real kernels, real time, and real faults."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from search_graphs import mlp, softmax

from autofuse.devices.cpu import CpuDevice
from autofuse.engine.engine import Engine
from autofuse.errors import UsageError
from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import program_of
from autofuse.ir.graph import Graph
from autofuse.kernels.families import family, lower, variants
from autofuse.measure.device_bench import Limits
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.oracle import whole_reference
from autofuse.search.outcome import TuneOutcome
from autofuse.search.tune import tune

sys.path.insert(0, str(Path(__file__).parent.parent / "measure"))
from faulty import FaultyDevice, FaultyFactory


@pytest.fixture(autouse=True)
def kernel_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One cache of compiled kernels for all tests of a run."""
    monkeypatch.setenv("AUTOFUSE_CACHE", str(tmp_path_factory.getbasetemp().parent / "autofuse-kernels"))


def check(graph: Graph, outcome: TuneOutcome) -> None:
    """The best plan runs and gives the reference's numbers."""
    with Engine.build(graph, outcome.best, CpuDevice(threads=1)) as engine:
        inputs = graph_inputs(graph)
        wanted = whole_reference(graph, inputs)
        for name, got in engine.run(inputs).items():
            np.testing.assert_allclose(got, wanted[name], rtol=1e-3, atol=1e-4)


def test_a_tune_finds_a_valid_plan_and_a_second_one_carries_on(tmp_path: Path) -> None:
    graph = softmax()
    records = tmp_path / "records.sqlite"
    one = tune(graph, CpuDevice(threads=1), model="softmax", budget_seconds=6, records=records)
    check(graph, one)
    assert one.plans[0].step == "unfused" and one.plans[0].status == "ok" and one.plans[0].error < 1e-4
    assert one.best_text and all(t for t in one.best_text.values())
    assert "numbers were compared with the whole model in float64 numpy" in one.notes
    assert one.plans[0].region_ns and len(one.plans[0].region_ns) == len(one.plans[0].plan.regions)
    two = tune(graph, CpuDevice(threads=1), model="softmax", budget_seconds=6, records=records, previous=one.best)
    check(graph, two)
    assert two.plans[0].plan.key == one.best.key
    if any(k.status == "ok" for k in one.kernels):
        assert any(k.cached for k in two.kernels)


@pytest.mark.parametrize("fault", ["crash", "hang", "wrong", "memory", "compile"])
def test_faults_of_kernels_do_not_end_a_tune(tmp_path: Path, fault: str) -> None:
    """A kernel of the unfused plan fails under every schedule: the tune ends with a valid plan, and says what happened."""
    graph = softmax()
    target = CpuDevice(threads=1).target
    program = program_of(graph, Partitioner(graph, target).unfused().regions[1])
    v = next(v for v in variants(program, target) if v.family != "view")
    kernel = lower(v, family(v.family).heuristic(v, target), target).launches[0].kernel
    faults = {-kernel.flops: fault}
    outcome = tune(
        graph,
        FaultyDevice(1, faults),
        model="softmax",
        budget_seconds=8,
        records=tmp_path / "records.sqlite",
        factory=FaultyFactory(faults),
        limits=Limits(open=3, shoot=3),
    )
    check(graph, outcome)
    failed = [p for p in outcome.plans if p.status != "ok"]
    assert failed and failed[0].plan.origin == "unfused" and failed[0].reason and not failed[0].samples_ns
    statuses = {"crash": "crashed", "hang": "timeout", "wrong": "wrong", "memory": "out-of-memory"}
    assert failed[0].status == statuses.get(fault, "compile-failed")
    assert any(k.status != "ok" and k.reason for k in outcome.kernels)


def test_an_mlp_is_tuned_beside_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    graph = mlp()
    weights = [graph.constants[v] for v in sorted(graph.constants)]
    nodes, value = [], "x"
    for k in range(2):
        nodes += [
            helper.make_node("MatMul", [value, f"w{k}"], [f"m{k}"]),
            helper.make_node("Add", [f"m{k}", f"b{k}"], [f"a{k}"]),
            helper.make_node("Relu", [f"a{k}"], ["y" if k else "r0"]),
        ]
        value = "r0"
    stored = [numpy_helper.from_array(w, n) for w, n in zip(weights, ("w0", "b0", "w1", "b1"), strict=True)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 16])
    model = helper.make_model(
        helper.make_graph(nodes, "mlp", [x], [y], stored), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    outcome = tune(
        graph,
        CpuDevice(threads=1),
        model="mlp",
        budget_seconds=6,
        records=tmp_path / "records.sqlite",
        baseline="onnxruntime",
        onnx_model=model.SerializeToString(),
    )
    check(graph, outcome)
    assert len(outcome.baselines["onnxruntime"]) >= 5


def test_wrong_arguments_are_refused_before_anything_runs() -> None:
    graph, device = softmax(), CpuDevice(threads=1)
    with pytest.raises(UsageError, match="accuracy"):
        tune(graph, device, model="m", accuracy="sloppy")
    with pytest.raises(UsageError, match="sampler"):
        tune(graph, device, model="m", sampler="magic")
    with pytest.raises(UsageError, match="baseline"):
        tune(graph, device, model="m", baseline="tensorrt")
    with pytest.raises(UsageError, match="needs the ONNX model"):
        tune(graph, device, model="m", baseline="onnxruntime")


def test_records_that_cannot_be_written_are_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    graph = softmax()
    outcome = tune(graph, CpuDevice(threads=1), model="m", budget_seconds=2, records=tmp_path / "file" / "r.sqlite")
    check(graph, outcome)
    assert any("Nothing is remembered" in n for n in outcome.notes)
