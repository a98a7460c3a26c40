"""What is remembered of kernels: the same launches without loops, and nothing where it is damaged or of another version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autofuse.api.choosing import heuristic_plan
from autofuse.devices.cache import KernelCache
from autofuse.devices.cpu import CpuDevice
from autofuse.engine import lowering as module
from autofuse.engine.build import Segment, planned_needs, segments
from autofuse.engine.engine import Engine
from autofuse.engine.lowering import lowering, plainly, ready, variant_of
from autofuse.importer.importing import import_model
from autofuse.ir.graph import Graph
from autofuse.loops.ir import Kernel, Rendered
from autofuse.measure.compiling import compile_choices, compile_plan
from autofuse.measure.inputs import graph_inputs


def small() -> Graph:
    """A convolution that Winograd's algorithm takes, a product, and a view."""
    generator = np.random.default_rng(0)
    weights = {
        "w": generator.standard_normal((16, 16, 3, 3)),
        "m": generator.standard_normal((1024, 10)),
        "s": np.array([1, 1024]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("MatMul", ["b", "m"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 16, 8, 8]), ("y", [1, 10]))]
    stored = [numpy_helper.from_array(a.astype(np.int64 if n == "s" else np.float32), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], stored)
    return import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), {})


@pytest.fixture
def device(tmp_path: Path) -> CpuDevice:
    module._MADE.clear()
    return CpuDevice(1, KernelCache(tmp_path))


def kinds(graph: Graph, device: CpuDevice) -> set[type]:
    module._MADE.clear()
    plan = heuristic_plan(graph, device)
    steps = segments(graph, plan, lowering(device))
    return {type(l.kernel) for s in steps if isinstance(s, Segment) for l in s.program.launches}


def test_the_second_engine_needs_no_loops_and_computes_the_same(device: CpuDevice) -> None:
    graph = small()
    plan, inputs = heuristic_plan(graph, device), graph_inputs(graph, 0)
    with Engine.build(graph, plan, device) as engine:
        first = engine.run(inputs)
        facts = engine.launches, engine.bytes_model, engine.flops, engine.peak_bytes, engine.weight_bytes
    assert kinds(graph, device) == {Rendered}
    module._MADE.clear()
    with Engine.build(graph, plan, device) as engine:
        again = engine.run(inputs)
        assert facts == (engine.launches, engine.bytes_model, engine.flops, engine.peak_bytes, engine.weight_bytes)
    assert all(np.array_equal(first[n], again[n]) for n in first)
    needs = planned_needs(graph, plan, plainly(device.target), device.threads)
    assert (needs.memory, needs.weights) == facts[3:]


def test_what_was_compiled_is_not_lowered_again_by_another_process(
    device: CpuDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small()
    plan, inputs = heuristic_plan(graph, device), graph_inputs(graph, 0)
    choices = [(variant_of(graph, r, device.target), r.schedule) for r in plan.regions if r.family != "view"]
    wanted = [ready(device, *c) for c in choices]
    assert compile_plan(device, graph, plan) is None
    assert all(m.key and not m.reason for m in compile_choices(device, choices))

    def unwanted(*given: object) -> None:
        raise AssertionError(f"{given} is lowered again")

    monkeypatch.setattr(module, "lower", unwanted)
    module._MADE.clear()
    other = CpuDevice(1, KernelCache(tmp_path))
    for (variant, schedule), first in zip(choices, wanted, strict=True):
        found = ready(other, variant, schedule)
        assert found.variant is variant
        assert [k.text for k, _ in found.launches if isinstance(k, Rendered)] == [
            k.text if isinstance(k, Rendered) else device.text(k) for k, _ in first.launches
        ]
    with Engine.build(graph, plan, other) as engine:
        assert engine.run(inputs)["y"].shape == (1, 10)


def test_damaged_records_and_other_code_are_passed_over(
    device: CpuDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small()
    assert kinds(graph, device) == {Kernel}
    for record in tmp_path.rglob("*.rec"):
        record.write_bytes(record.read_bytes()[:-7])
    assert kinds(graph, device) == {Kernel}
    assert kinds(graph, device) == {Rendered}
    monkeypatch.setattr(module, "_makers", lambda: "other code")
    assert kinds(graph, device) == {Kernel}
