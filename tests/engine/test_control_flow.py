"""Control flow in engines: branches and bodies are engines of their own, compared with onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autofuse.api.choosing import heuristic_plan
from autofuse.api.profile import profile
from autofuse.devices.base import Device
from autofuse.engine.engine import Engine
from autofuse.engine.plan import check_plan, load_plan, plan_from_json
from autofuse.errors import LaunchError, PlanError
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from tests.control_models import (
    CASES,
    Case,
    after_nonzero,
    if_on_data,
    loop_that_grows,
    loop_until,
    loop_with_an_if,
    numbers,
    one_branch_fits,
)
from tests.importer.importer_models import onnxruntime


def built(case: Case, device: Device) -> Engine:
    graph = import_model(case.model)
    return Engine.build(graph, heuristic_plan(graph, device), device)


def compare(case: Case, given: Mapping[str, np.ndarray], found: Mapping[str, Any]) -> None:
    for mine, theirs in zip(found.values(), onnxruntime(case.model, given), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(CASES))
def test_every_way_through(name: str, device: Device) -> None:
    case = CASES[name]()
    launches = 0
    with built(case, device) as engine:
        for given in case.feeds:
            compare(case, given, engine.run(given))
            launches += engine.launches
        chosen = {"NonZero", "Compress"} if name == "after nonzero" else set()
        assert {n.op for n in engine.host_nodes} == chosen
        assert launches > 0


def test_a_run_leaves_its_inputs_alone_and_owns_its_outputs(cpu: Device) -> None:
    """Without a step, what a loop gives is what it was fed."""
    case = loop_until()
    with built(case, cpu) as engine:
        given = {k: v.copy() for k, v in case.feeds[1].items()}
        found = engine.run(given)
        found["y"][:] = 7
        found["same"][:] = 7
        compare(case, given, engine.run(given))
        np.testing.assert_array_equal(given["x"], case.feeds[1]["x"])


def test_the_launch_log_counts_what_ran(cpu: Device) -> None:
    case = loop_with_an_if()
    with built(case, cpu) as engine:
        counts = []
        for given in case.feeds:
            engine.run(given)
            counts.append(engine.launches)
            assert len(engine.launch_log) == engine.launches
            assert not any(line.host for line in engine.launch_log)
        outside = sum(x.times for x in engine.counted if engine.plan.regions[x.position].family != "control")
        assert counts[0] == outside
        assert counts[1] > outside
        assert counts[2] - outside >= 4 * (counts[1] - outside) > 0
        taken = {x.times for x in engine.counted if engine.plan.regions[x.position].family == "control"}
        assert 5 in taken
        rows = profile(engine, case.feeds[2], 2)
        assert len(rows) == len(engine.counted)
        assert (rows["time_us"] > 0).all() or 0 in taken


def test_a_branch_that_is_not_taken_launches_nothing(cpu: Device) -> None:
    case = if_on_data()
    with built(case, cpu) as engine:
        engine.run(case.feeds[0])
        times = [x.times for x in engine.counted]
        assert 0 in times
        assert 1 in times


def test_shapes_without_end_go_to_the_host_and_say_so(cpu: Device) -> None:
    case = loop_that_grows(12)
    with built(case, cpu) as engine:
        with pytest.warns(UserWarning, match="Loop .* met more than 8 sets of shapes"):
            found = engine.run(case.feeds[0])
        compare(case, case.feeds[0], found)
        assert [n.op for n in engine.host_nodes] == ["Loop"]
        assert [line.what for line in engine.launch_log if line.host] == ["Loop"] * 4


def test_the_same_sizes_again_compile_nothing(cpu: Device) -> None:
    case = after_nonzero()
    with built(case, cpu) as engine:
        engine.run(case.feeds[0])
        inside = [e for c in engine.controls.values() for e in c.engines]
        engine.run({**case.feeds[0], "x": case.feeds[0]["x"] * 2})
        assert [e for c in engine.controls.values() for e in c.engines] == inside
        engine.run(case.feeds[2])
        assert len([e for c in engine.controls.values() for e in c.engines]) == len(inside) + 1


def test_a_branch_that_does_not_fit_is_in_nobodys_way(cpu: Device) -> None:
    case = one_branch_fits(5)
    graph = import_model(case.model, {"x": (5, 3)})
    with Engine.build(graph, heuristic_plan(graph, cpu), cpu) as engine:
        compare(case, case.feeds[0], engine.run(case.feeds[0]))
        assert not any(line.host for line in engine.launch_log)
        with pytest.warns(UserWarning, match="does not fit"), pytest.raises(LaunchError, match="If"):
            engine.run({"x": -case.feeds[0]["x"]})


# ---- plans


def test_a_plan_holds_the_plans_of_its_graphs(cpu: Device, tmp_path: Path) -> None:
    case = if_on_data()
    graph = import_model(case.model)
    plan = heuristic_plan(graph, cpu)
    (region,) = (r for r in plan.regions if r.family == "control")
    assert region.algorithm == "if"
    assert len(region.bodies) == 2
    plan.save(tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert again == plan
    assert again.key == plan.key
    assert check_plan(again, graph, cpu.target, cpu.threads) == ()
    with Engine.build(graph, again, cpu) as engine:
        compare(case, case.feeds[0], engine.run(case.feeds[0]))


def test_damaged_plans_of_graphs_inside_are_refused(cpu: Device) -> None:
    graph = import_model(if_on_data().model)
    data = json.loads(json.dumps(heuristic_plan(graph, cpu).to_json()))
    (k,) = (k for k, r in enumerate(data["regions"]) if r["family"] == "control")
    for inside, message in [
        (["nothing", None], "damaged plan"),
        ([{}, None], "damaged plan"),
        ([], "control-flow node"),
        ([None, None], "not complete"),
        (data["regions"][k]["bodies"][::-1], "another model structure"),
    ]:
        changed = json.loads(json.dumps(data))
        changed["regions"][k]["bodies"] = inside
        with pytest.raises(PlanError, match=message):
            check_plan(plan_from_json(changed, "here"), graph, cpu.target, cpu.threads)


def test_fusion_stops_at_control_flow_and_says_why(cpu: Device) -> None:
    graph = import_model(if_on_data().model)
    partitioner = Partitioner(graph, cpu.target)
    control = next(n for n in graph.nodes if n.op == "If")
    relu = graph.nodes[-1]
    verdict = partitioner.verdict(frozenset({control.id, relu.id}))
    assert not verdict
    assert verdict.rule == "control"
    assert "run time" in verdict.reason
    assert any(r.nodes == (control.id,) for r in partitioner.greedy().regions)


def test_numbers_of_another_size_run_with_the_plan_of_the_first(cpu: Device) -> None:
    """Captured values of another size are another graph inside: the same file of a model, imported anew."""
    case = if_on_data()
    case.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    for g in [a.g for n in case.model.graph.node for a in n.attribute if a.name.endswith("branch")]:
        g.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    for rows in (2, 7):
        graph = import_model(case.model, {"x": (rows, 3)})
        given = {"x": numbers(rows, 3, seed=rows)}
        with Engine.build(graph, heuristic_plan(graph, cpu), cpu) as engine:
            compare(case, given, engine.run(given))
