"""Two objectives and limits, on a replayed bench."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from replay import HOST, ReplayBench
from search_graphs import chain, softmax
from test_tune_on import run, simple

from autofuse.engine.build import planned_needs
from autofuse.engine.lowering import plainly
from autofuse.engine.plan import Plan
from autofuse.importer.importing import import_model
from autofuse.ir.graph import Graph
from autofuse.kernels.base import Schedule, Variant
from autofuse.search.front import Candidate, spread
from autofuse.search.outcome import PlanRow, TuneOutcome


def needs(graph: Graph, plan: Plan) -> tuple[int, int]:
    found = planned_needs(graph, plan, plainly(HOST), 2)
    return found.memory, found.weights


def pressed(variant: Variant, schedule: Schedule) -> float:
    """Fused kernels are slower, but store less."""
    return simple(variant, schedule) + 3000 * (len(variant.program.steps) - 1)


def convolutions() -> Graph:
    """Two convolutions for which Winograd's algorithm may be used."""
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(generator.standard_normal((k, c, 3, 3)).astype(np.float32), f"w{k}")
        for k, c in ((32, 16), (48, 32))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w32"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w48"], ["y"], pads=[1] * 4),
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [1, 16, 12, 12]), ("y", [1, 48, 12, 12]))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ports[:1], ports[1:], weights), opset_imports=[helper.make_opsetid("", 17)]
    )
    return import_model(model, {})


def winograd_pays(variant: Variant, schedule: Schedule) -> float:
    sizes = {"winograd-f2": 0.6, "winograd-f4": 0.3}
    product = 10000 if any(t.constant for t in variant.program.inputs) else 500
    return product * sizes.get(variant.algorithm, 1.0) + 0.01 * simple(variant, schedule)


def rounding(variant: Variant) -> float:
    return {"winograd-f2": 1e-6, "winograd-f4": 2e-5}.get(variant.algorithm, 1e-7)


def ms(p: PlanRow) -> float:
    return float(np.median(p.samples_ns))


def front(outcome: TuneOutcome, second: str) -> list[PlanRow]:
    good = sorted((p for p in outcome.plans if p.status == "ok"), key=lambda p: (ms(p), getattr(p, second)))
    out: list[PlanRow] = []
    for p in good:
        if not out or getattr(p, second) < getattr(out[-1], second):
            out.append(p)
    return out


@pytest.mark.parametrize("make", [softmax, chain])
def test_memory_is_traded_for_latency(make: object) -> None:
    graph: Graph = make()  # type: ignore[operator]
    bench = ReplayBench(graph, pressed, needs=lambda p: needs(graph, p))
    outcome = run(graph, bench, 60, objectives=("latency", "memory"))
    found = front(outcome, "peak_bytes")
    assert len(found) >= 2 and found[0].plan == outcome.best
    assert found[-1].peak_bytes < found[0].peak_bytes
    assert outcome.objectives == ("latency", "memory")


def test_error_is_traded_for_latency() -> None:
    graph = convolutions()
    bench = ReplayBench(graph, winograd_pays, error=rounding, seconds=0.25)
    outcome = run(graph, bench, 25, objectives=("latency", "error"))
    errors = [p.error for p in front(outcome, "error")]
    assert errors == sorted(errors, reverse=True) and len(errors) >= 3
    assert errors[0] == 2e-5 and 1e-6 in errors and errors[-1] == 1e-7
    assert outcome.best == front(outcome, "error")[0].plan


def test_a_limit_on_memory_is_met_where_it_can_be() -> None:
    graph = softmax()
    fastest = run(graph, ReplayBench(graph, pressed, needs=lambda p: needs(graph, p)), 30)
    peak = next(p.peak_bytes for p in fastest.plans if p.plan == fastest.best)
    limited = run(graph, ReplayBench(graph, pressed, needs=lambda p: needs(graph, p)), 30, memory=peak - 1)
    row = next(p for p in limited.plans if p.plan == limited.best)
    fitting = [p for p in limited.plans if p.status == "ok" and p.peak_bytes < peak]
    assert row.peak_bytes < peak and ms(row) == min(map(ms, fitting))
    assert any("was not chosen" in n and "intermediates" in n for n in limited.notes)


def test_prepared_weights_do_not_grow_without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofuse.search.trading._FEW_WEIGHTS", 0)
    graph = convolutions()
    stored = sum(a.nbytes for a in graph.constants.values())
    outcome = run(graph, ReplayBench(graph, winograd_pays, needs=lambda p: needs(graph, p), seconds=0.25), 25)
    assert needs(graph, outcome.best)[1] <= 2.5 * stored
    assert any("prepared weights" in n for n in outcome.notes)


def test_both_ends_of_a_front_are_run() -> None:
    plan = Plan("g", "cpu", "a", 1, "default", ())
    points = [Candidate(plan, float(k), 10.0 ** (9 - k)) for k in range(10)]
    chosen = spread(points, 4)
    assert chosen[0] is points[0] and chosen[-1] is points[-1] and 4 <= len(chosen) <= 5
    assert spread(points[:3], 4) == points[:3]
