"""Questions to a result folder: fusions forced and forbidden, by what was measured."""

from __future__ import annotations

import math
from functools import partial

import pytest
from replay import ReplayBench

from autofuse.devices.cpuinfo import host_target
from autofuse.errors import PlanError, UsageError
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.space import load_spaces
from autofuse.report.folder import write_results
from autofuse.report.results import Results, open_results
from autofuse.search.budget import Budget
from autofuse.search.exact.regions import Limits
from autofuse.search.exact.sampler import ExactPlanSampler
from autofuse.search.tune import Task, tune_on

SPACES = load_spaces("cpu")


def cost(variant: Variant, schedule: Schedule) -> float:
    """Nanoseconds: much for a launch, so that fusing pays."""
    return 5e6 + 1000 * len(variant.program.steps) + len(schedule.text())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    graph = import_model(load_model("sample:mlp"))
    bench = ReplayBench(graph, cost)
    bench.target = host_target(2)
    task = Task("sample:mlp", {}, {}, 60.0, "default", 0, "exact", None, None, None, None, None, "")
    outcome = tune_on(graph, bench, SPACES, task, Budget(60.0, bench.clock))
    return open_results(write_results(outcome, tmp_path_factory.mktemp("what-if")))


def fused_edge(results: Results) -> str:
    row = results.verdicts[results.verdicts["state"] == "fused"].iloc[0]
    return f"e{row['edge']}"


def test_what_the_best_plan_does_already_costs_nothing(results: Results) -> None:
    answer = results.what_if(fuse=[fused_edge(results)])
    assert answer.result.price == pytest.approx(0.0, abs=1e-9) and answer.result.verdict
    assert "does so already" in str(answer)
    assert answer.texts[0] == answer.texts[1] != ()


def test_forbidding_a_fusion_costs_a_launch(results: Results) -> None:
    answer = results.what_if(split=[fused_edge(results)])
    assert answer.result.price == pytest.approx(5e-3, rel=0.1)
    assert "slower" in str(answer) and "by measured kernels" in str(answer)
    assert len(answer.texts[1]) == len(answer.texts[0]) + 1


def test_what_the_rules_forbid_is_said_with_the_rule(results: Results) -> None:
    contractions = results.regions[results.regions["kind"] == "contract"]["nodes"]
    first, last = contractions.iloc[0][0], contractions.iloc[-1][0]
    answer = results.what_if(fuse=[str(first), str(last)])
    assert "impossible [contractions]" in str(answer) and not answer.result.verdict


def test_what_makes_no_sense_is_refused(results: Results) -> None:
    with pytest.raises(UsageError, match="either fuse or split"):
        results.what_if()
    with pytest.raises(UsageError, match="nothing between kernels"):
        results.what_if(fuse=["nonsense"])
    with pytest.raises(PlanError, match="not the model that was tuned"):
        results.what_if(fuse=[fused_edge(results)], model="sample:softmax")


def test_a_folder_is_only_read(results: Results) -> None:
    before = sorted((p.name, p.stat().st_mtime_ns) for p in results.path.rglob("*"))
    results.what_if(fuse=[fused_edge(results)])
    assert before == sorted((p.name, p.stat().st_mtime_ns) for p in results.path.rglob("*"))


def test_an_answer_in_detail(results: Results) -> None:
    """Figures for now and then, the verdict, and both kernels side by side."""
    edge = fused_edge(results)
    answer = results.what_if(split=[edge])
    text = answer.detail(120)
    assert "kernels, measured alone" in text and "allowed by the rules" in text and "the edge: fused" in text
    assert "as it is" in text and "as it would be" in text and " | " in text
    assert answer.result.measured_price == pytest.approx(answer.result.price, rel=1e-6)
    data = answer.as_json()
    assert data["price_seconds"] == answer.result.price and len(data["texts_then"]) == len(data["texts_now"]) + 1  # type: ignore[arg-type]
    impossible = results.what_if(
        fuse=[str(n[0]) for n in results.regions.loc[results.regions["kind"] == "contract", "nodes"]][:2]
    )
    assert "refused [contractions]" in impossible.detail() and "as it would be" not in impossible.detail()


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A tune in which every fusion was much slower."""
    graph = import_model(load_model("sample:mlp"))
    bench = ReplayBench(graph, lambda v, s: 1e6 * len(v.program.steps) ** 2 + len(s.text()))
    bench.target = host_target(2)
    task = Task("sample:mlp", {}, {}, 60.0, "default", 0, "exact", None, None, None, None, None, "")
    outcome = tune_on(graph, bench, SPACES, task, Budget(60.0, bench.clock))
    return open_results(write_results(outcome, tmp_path_factory.mktemp("apart")))


def with_little_enumerated(results: Results, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The folder opened anew, by a search that knows the regions of the best plan and single nodes, and with no kernel measured."""
    monkeypatch.setattr("autofuse.report.what_if.ExactPlanSampler", partial(ExactPlanSampler, limits=Limits(size=1)))
    monkeypatch.setattr("autofuse.fusion.partition.Partitioner.greedy", Partitioner.unfused)
    fresh = open_results(results.path)
    fresh.__dict__["kernels"] = results.kernels.head(0)
    fresh.__dict__["trade_offs"] = results.trade_offs.head(0)
    return fresh


def legal_edge(results: Results) -> str:
    """An edge between two operators of the model that the best plan does not fuse and the rules allow."""
    edges = results.verdicts
    between = edges["producer_name"].str.partition("#")[0] != edges["consumer_name"].str.partition("#")[0]
    rows = edges[(edges["state"] != "fused") & (edges["rule"] == "") & between]
    return f"e{rows.iloc[0]['edge']}"


def test_a_fusion_that_the_search_did_not_come_to_is_formed_and_priced(
    apart: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = with_little_enumerated(apart, monkeypatch)
    edge = legal_edge(apart)
    answer = few.what_if(fuse=[edge])
    r = answer.result
    assert (
        r.formed
        and r.verdict
        and math.isfinite(r.seconds)
        and r.open
        and "had not come to such a region" in str(answer)
    )
    assert r.plan is not None and any(set(r.nodes) <= set(p.region.nodes) for p in r.plan.regions)
    assert 0 < len(answer.texts[1]) < len(answer.texts[0]) and "as it would be" in answer.detail()
    again = few.what_if(fuse=[edge]).result
    assert again.formed and (again.seconds, again.best) == (r.seconds, r.best)
    contractions = apart.regions[apart.regions["kind"] == "contract"]["nodes"]
    refused = few.what_if(fuse=[str(contractions.iloc[0][0]), str(contractions.iloc[-1][0])])
    assert "impossible [contractions]" in str(refused) and not refused.result.formed


def test_what_is_open_in_an_answer_can_be_measured(apart: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    few = with_little_enumerated(apart, monkeypatch)
    answer = few.what_if(fuse=[legal_edge(apart)], measure=60.0)
    r = answer.result
    assert r.formed and r.open == 0 and r.best_open == 0
    assert math.isfinite(r.measured) and math.isfinite(r.best_measured) and "(by measured kernels)" in str(answer)
    assert r.measured != r.best_measured
