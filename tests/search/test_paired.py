"""The benchmarks' paired measurement: real engines, a moment of real time; what it finds is not asserted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from search_graphs import mlp

from autofuse.api.choosing import heuristic_plan
from autofuse.devices.cpu import CpuDevice
from autofuse.engine.assign import assign
from autofuse.engine.options import heuristic_options
from autofuse.fusion.partition import Partitioner
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.noise import Noise

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from model_tables import summary
from paired import Paired, measure, ratio_text


def test_plans_are_measured_beside_a_copy_of_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("AUTOFUSE_CACHE", str(tmp_path_factory.getbasetemp().parent / "autofuse-kernels"))
    graph, device = mlp(), CpuDevice(threads=1)
    options = heuristic_options(device.target, 1, "default")
    unfused = assign(
        graph, Partitioner(graph, device.target).unfused(), device.target, 1, "default", options, "unfused"
    )
    plans = {"best": heuristic_plan(graph, device), "unfused": unfused}
    seen = measure(graph, plans, graph_inputs(graph), device, 0.5)
    assert set(seen.samples) == set(plans) and seen.rounds >= 3
    assert all(len(s) == seen.rounds * seen.repeats for s in seen.samples.values())
    assert seen.noise.copies == 2 and seen.noise.rounds == seen.rounds
    c = seen.against("best", "unfused", 0.01)
    assert c.pairs == seen.rounds and c.low <= c.ratio <= c.high and f"{seen.rounds} rounds" in ratio_text(c)


def test_rounds_are_told_apart_by_how_near_the_cores_were() -> None:
    """What is as fast in one state and slower in the other must not be one median."""
    noise = Noise(1.0, 0.99, 1.01, 0.01, 0.01, 40, 2, 2, 100.0)
    exchange = [60, 330] * 20
    a = [x for ns in exchange for x in ((100, 102) if ns == 60 else (170, 171))]
    b = [x for ns in exchange for x in ((101, 102) if ns == 60 else (200, 201))]
    parts = Paired({"a": a, "b": b}, 2, noise, tuple(exchange)).by_nearness()
    assert set(parts) == {"near", "apart"} and all(p.rounds == 20 for p in parts.values())
    assert parts["near"].against("a", "b", 0.01).tie
    assert parts["apart"].against("a", "b", 0.01).winner == "a"
    assert Paired({"a": a, "b": b}, 2, noise, (60,) * 40).by_nearness() == {}


def test_a_summary_tells_the_ratios_of_both_states() -> None:
    """One model was timed in both states, another only with its cores apart, which its own rounds alone would not show."""
    both = {"best": [100, 170] * 10, "onnxruntime": [150, 340] * 10}
    apart = {"best": [100] * 6, "onnxruntime": [300] * 6}
    rows = [{"times_ns": both, "exchange_ns": [60, 330] * 10}, {"times_ns": apart, "exchange_ns": [320] * 6}]
    said = summary(rows)
    assert "apart in 16 of 26 rounds" in said
    assert (
        "with cores near (a cache line there and back in 60 ns) the better of the two / best: geometric mean 1.50x over 1 models"
        in said
    )
    assert f"geometric mean {(2 * 3) ** 0.5:.2f}x over 2 models, least 2.00x" in said
    assert "cores" not in summary([{"times_ns": both, "exchange_ns": [60] * 20}])
