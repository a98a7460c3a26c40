"""Explanations, comparisons, estimates, plots and the HTML file."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import onnx
import outcomes
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "importer"))

from exported import exported

from autofuse.devices.cpuinfo import host_target
from autofuse.errors import UsageError
from autofuse.fusion.partition import Edge, edges_of
from autofuse.importer.importing import import_model
from autofuse.importer.samples.basic import mlp
from autofuse.importer.samples.chains import gelu
from autofuse.measure.calibrate import NAMES, key_of
from autofuse.measure.records import Records
from autofuse.measure.result import Measurement, Status
from autofuse.report import compare, estimate, explain, leftovers, summary, terminal
from autofuse.report.console import render
from autofuse.report.edges import edge_table
from autofuse.report.explain import explain_text
from autofuse.report.folder import write_results
from autofuse.report.html import html_report
from autofuse.report.results import Results, open_results
from autofuse.report.units import milliseconds_text, off_text
from autofuse.search.exact.reasons import BOUNDED, FAILED, FUSED, ILLEGAL, LIMIT, OPEN, SLOWER, Reason
from autofuse.search.outcome import Calibration, PlanRow, TuneOutcome
from autofuse.search.tune import identity_of


def states(outcome: TuneOutcome) -> pd.Series:
    return edge_table(outcome)["state"]


def test_every_edge_has_a_verdict(transformer_results: Results) -> None:
    edges = transformer_results.verdicts
    assert len(edges) == len(edges_of(outcomes.transformer().graph))
    assert set(edges["state"]) <= {FUSED, ILLEGAL, LIMIT, SLOWER, FAILED, OPEN}
    assert (edges.loc[edges["state"] == LIMIT, "reason"].str.contains("too many")).all()
    refused = edges[edges["state"] == ILLEGAL]
    assert (refused["rule"] != "").all() and (refused["reason"] != "").all()
    assert (edges["price_us"] > 0).all()


def test_measurements_speak_before_rules() -> None:
    """With the unfused plan as the best, edges that the greedy plan fused were measured; without it they were not tried."""
    outcome = outcomes.small()
    unfused, greedy = outcome.plans[0], outcome.plans[3]

    def judged(*plans: PlanRow) -> pd.DataFrame:
        return edge_table(dataclasses.replace(outcome, best=unfused.plan, plans=plans, refusals={}))

    slower = judged(unfused, dataclasses.replace(greedy, samples_ns=(10**9,)))
    assert SLOWER in set(slower["state"]) and slower["reason"].str.contains("no faster than").any()
    failed = judged(unfused, dataclasses.replace(greedy, status="crashed", reason="signal 11", samples_ns=()))
    assert FAILED in set(failed["state"]) and failed["reason"].str.contains("crashed: signal 11").any()
    assert set(judged(unfused)["state"]) <= {OPEN, FUSED}


def test_explaining_everything_counts_and_lists(transformer_results: Results) -> None:
    text = transformer_results.explain_text()
    edges = transformer_results.verdicts
    assert text.startswith(f"{len(edges)} edges between kernels: {(edges['state'] == FUSED).sum()} fused")
    for k in edges.loc[edges["state"] != FUSED, "edge"]:
        assert re.search(rf"^e{k} ", text, re.MULTILINE)


def test_explaining_one_edge_by_index_value_or_node(transformer_results: Results) -> None:
    edges = transformer_results.verdicts
    row = edges[edges["state"] == ILLEGAL].iloc[0]
    by_index = transformer_results.explain_text([f"e{row['edge']}"])
    assert row["reason"] in by_index and row["rule"] in by_index and by_index.count("\n") == 1
    assert row["nodes"] and f"(at {row['nodes']})" in by_index
    assert by_index in transformer_results.explain_text([row["value_name"]])
    assert by_index in transformer_results.explain_text([row["producer_name"]])
    ends = [row["producer_name"], row["consumer_name"]]
    assert transformer_results.explain_text(ends) == by_index
    assert transformer_results.explain_text(ends[::-1]) == by_index
    assert transformer_results.explain_text([str(row["producer"]), str(row["consumer"])]) == by_index


def test_a_fusion_that_was_slower_says_how_far_its_kernels_were_searched(transformer_results: Results) -> None:
    edges = transformer_results.verdicts.copy()
    row = edges.index[edges["state"] == SLOWER][0]
    edges.loc[row, "studies"] = "0123abcd closed: 32 trials in a row gained less than the noise of 1.2%"
    text = explain_text(edges, [f"e{edges.loc[row, 'edge']}"])
    assert text.endswith("studies of the kernels that fuse it: " + str(edges.loc[row, "studies"]))
    edges.loc[row, "state"] = OPEN
    assert "studies" not in explain_text(edges, [f"e{edges.loc[row, 'edge']}"])


def test_explaining_what_lies_between(transformer_results: Results) -> None:
    edges = transformer_results.verdicts
    text = transformer_results.explain_text([str(edges["producer"].min()), str(edges["consumer"].max())])
    assert "edges apart" in text


@pytest.mark.parametrize("names", [["e9999"], ["nobody"], ["a", "b", "c"], ["0", "nobody"]])
def test_unknown_names_are_usage_errors(transformer_results: Results, names: list[str]) -> None:
    with pytest.raises(UsageError):
        transformer_results.explain_text(names)


def test_a_graph_without_edges_explains_itself() -> None:
    empty = edge_table(outcomes.small()).head(0)
    assert explain_text(empty).startswith("0 edges")


def test_comparing_two_plans_of_one_model(
    transformer_results: Results, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outcome = outcomes.transformer()
    other = dataclasses.replace(outcome, best=outcome.plans[0].plan)
    unfused = open_results(write_results(other, tmp_path_factory.mktemp("unfused")))
    c = compare.compare(unfused, transformer_results)
    assert c.same_graph and not len(c.only_b) and len(c.only_a) > 10
    assert c.verdict.startswith("B is ")
    figures = c.totals.set_index("figure")
    assert figures.loc["launches", "a"] > figures.loc["launches", "b"]
    text = compare.text(c)
    assert "Stored by A and not by B" in text and "Where the time goes" in text
    mirrored = compare.compare(transformer_results, unfused)
    assert list(mirrored.only_b["value"]) == list(c.only_a["value"])


def test_what_one_stores_and_the_other_does_not_is_known_by_hand(
    small_results: Results, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An MLP of three layers: unfused, products, biases and Relus are kernels; fused, each layer is one and stores one value."""
    outcome = outcomes.small()
    unfused = open_results(
        write_results(dataclasses.replace(outcome, best=outcome.plans[0].plan), tmp_path_factory.mktemp("unfused"))
    )
    c = compare.compare(unfused, small_results)
    stored = [{v for r in p.regions for v in r.region.outputs} for p in (outcome.plans[0].plan, outcome.best)]
    lost = {v: outcome.graph.values[v].nbytes for v in stored[0] - stored[1] - outcome.graph.output_set}
    assert len(lost) == 2
    assert dict(zip(c.only_a["value"], c.only_a["bytes"], strict=True)) == lost and not len(c.only_b)
    assert (c.only_a["loads"] == 1).all() and (c.only_a["bytes_moved"] == 2 * c.only_a["bytes"]).all()
    assert (c.only_a["launches"] == 2).all()
    assert [list(ns) for ns in c.parts["nodes"]] == [[0, 1, 2], [3, 4, 5]]
    figures = c.totals.set_index("figure")
    for name in ("launches", "regions"):
        gained = c.parts[f"{name}_a"].sum() - c.parts[f"{name}_b"].sum()
        assert gained == figures.loc[name, "a"] - figures.loc[name, "b"]
    assert c.same_weights and "structure: the same" in compare.text(c) and "weights: the same" in compare.text(c)


def test_other_weights_are_told_by_their_digest(
    small_results: Results, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outcome = outcomes.small()
    constants = {v: a + 1 if a.dtype.kind == "f" else a for v, a in outcome.graph.constants.items()}
    tuned = dataclasses.replace(outcome, graph=dataclasses.replace(outcome.graph, constants=constants))
    other = open_results(write_results(tuned, tmp_path_factory.mktemp("finer")))
    c = compare.compare(other, small_results)
    assert c.same_graph and not c.same_weights and "weights: different (A " in compare.text(c)
    assert not len(c.parts)


def test_a_tie_is_called_a_tie(transformer_results: Results) -> None:
    assert compare.compare(transformer_results, transformer_results).verdict.startswith("a tie")


def test_different_models_have_no_winner(small_results: Results, transformer_results: Results) -> None:
    c = compare.compare(small_results, transformer_results)
    assert "neither wins" in c.verdict
    assert any("model structure" in d for d in compare.differences(small_results, transformer_results))


def test_estimate_of_a_transformer() -> None:
    outcome = outcomes.transformer()
    e = estimate.estimate(outcome.graph, outcomes.TARGET, 2)
    assert e.greedy.cost.launches < e.unfused.cost.launches
    assert e.boundary_bytes < e.greedy.cost.bytes < e.unfused.cost.bytes
    assert 0 < e.floor_seconds < e.greedy.seconds <= e.unfused.seconds
    assert list(e.edges["price_us"]) == sorted(e.edges["price_us"], reverse=True)
    assert set(e.all_edges["state"]) <= {FUSED, ILLEGAL, LIMIT, OPEN}
    assert "Predicted" in render(terminal.estimate(e))
    data = estimate.as_json(e)
    assert data["predicted"] is True and data["unfused"]["launches"] == e.unfused.cost.launches  # type: ignore[index]


def test_what_fusion_can_save_at_most_is_arithmetic() -> None:
    """A chain of element-wise operators: everything but its input and output is avoidable, and one launch is left."""
    graph = import_model(gelu(64, 1024))
    rates = Calibration(1e10, 1e12, 1e-5)
    e = estimate.estimate(graph, outcomes.TARGET, 2, calibration=rates)
    size = 4 * 64 * 1024
    assert 2 * size <= e.boundary_bytes <= 4 * size and e.unfused.cost.launches > 1 == e.greedy.cost.launches
    assert e.avoidable_bytes == e.unfused.cost.bytes - e.boundary_bytes
    assert e.most_seconds == pytest.approx(e.avoidable_bytes / 1e10 + 1e-5 * (e.unfused.cost.launches - 1))
    assert e.greedy_seconds == pytest.approx(e.most_seconds, rel=0.01)
    assert 0 < e.holding(0.5) <= e.holding(0.8) <= e.holding(1.0) <= len(e.edges)
    prices = list(e.edges["price_us"])
    assert sum(prices[: e.holding(0.8)]) >= 0.8 * sum(prices) > sum(prices[: e.holding(0.8) - 1])
    assert "measured rates" in render(terminal.estimate(e))


def test_rates_are_those_of_earlier_tunes_where_there_were_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOFUSE_DATA", str(tmp_path))
    assert estimate.known_rates(outcomes.TARGET, 2) == (estimate.assumed(outcomes.TARGET, 2), False)
    assert not list(tmp_path.iterdir())
    ok = {"samples_ns": (1000, 2000), "flops": 10**6, "bytes_model": 10**6}
    rows = [Measurement(key_of(n), "calibration", "", "", "", "", Status.OK, **ok) for n in NAMES]  # type: ignore[arg-type]
    with Records(identity_of(outcomes.TARGET), 2) as records:
        records.add(rows)
    rates, measured = estimate.known_rates(outcomes.TARGET, 2)
    assert measured and rates.bandwidth == rates.flops == pytest.approx(1e12) and rates.launch == pytest.approx(1e-6)
    assert not estimate.known_rates(outcomes.TARGET, 1)[1]


def reason_of(outcome: TuneOutcome, reason: Reason) -> pd.Series:
    """The row of an edge that the unfused plan leaves open, with a reason from the solver."""
    unfused = dataclasses.replace(outcome, best=outcome.plans[0].plan, plans=outcome.plans[:1], refusals={})
    edge = open_edge(outcome)
    table = edge_table(dataclasses.replace(unfused, reasons={edge: reason}))
    return table[(table["producer"] == edge.producer) & (table["consumer"] == edge.consumer)].iloc[0]


def open_edge(outcome: TuneOutcome) -> Edge:
    """The first edge between two ONNX nodes."""
    nodes = outcome.graph.nodes
    return next(e for e in edges_of(outcome.graph) if nodes[e.producer].origin != nodes[e.consumer].origin)


def test_reasons_of_the_solver_are_told_with_their_prices() -> None:
    outcome = outcomes.small()
    row = reason_of(outcome, Reason(BOUNDED, "", "at their bounds", (), 2e-6, math.inf, 1e-6))
    text = explain.line(row)
    assert "bounded out: at their bounds" in text and "fused instead, all else chosen anew" in text
    assert "+2.00 us likely, at least +1.00 us by the bounds" in text and "measured kernels" not in text
    row = reason_of(
        outcome, Reason(LIMIT, "arguments", "300 arguments (44 too many)", (0, 1), math.inf, math.inf, math.inf)
    )
    text = explain.line(row)
    assert "over a limit [arguments]: 300 arguments (44 too many) (at " in text and "instead" not in text
    # a whole plan that ran with the edge fused says more than a bound
    edge = open_edge(outcome)
    both = dataclasses.replace(outcome, best=outcome.plans[0].plan, reasons={edge: Reason(BOUNDED, "", "bounds")})
    table = edge_table(both)
    row = table[(table["producer"] == edge.producer) & (table["consumer"] == edge.consumer)].iloc[0]
    assert row["state"] == SLOWER and "end to end" in row["reason"]


def test_texts_stand_side_by_side() -> None:
    text = explain.side_by_side("a\nb" + "x" * 20, "c", ("now", "then"), 23)
    assert text.splitlines() == [
        "now        | then", "--------   | --------", "a          | c", "bxxxxxxxxx |", "xxxxxxxxxx |", "x          |",
    ]  # fmt: skip


def test_leftovers_are_named_priced_and_measured(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = exported(size=16, channels=5)
    path = tmp_path_factory.mktemp("exported") / "m.onnx"
    onnx.save(model, path)
    outcome = outcomes.outcome_of(model, str(path))
    target = host_target(2)
    unfused = dataclasses.replace(outcome, best=outcome.plans[0].plan, target=target)
    found = leftovers.of_results(open_results(write_results(unfused, tmp_path_factory.mktemp("left"))))
    around = [p for p in found.found if "around" in p.leftover.kind]
    assert len(found.found) == 7 and len(around) == 2 and found.kept[0][0] == "Cast 'from_half'"
    # unfused, the four Transposes are four launches that each load and store the tensor; fused they are none
    size = 4 * 5 * 16 * 16
    assert found.unfused.launches == 4 and found.fused.launches == 0
    assert sum(p.unfused.launches for p in around if p.unfused) == 4
    for p in around:
        assert p.unfused is not None and p.unfused.bytes >= 4 * size and p.measured > 0
    assert len(found.movers) >= 4 and all(m.measured > 0 for m in found.movers)
    rows = outcome.plans[1].region_ns  # the last measurement of that plan
    transposes = sum(rows[m.region] for m in found.movers if "to_last0" in m.nodes or "to_first0" in m.nodes)
    assert around[0].measured == pytest.approx(transposes * 1e-9)
    text = leftovers.text(found)
    assert "its own kernels in the best plan were measured" in text and "rounded to float16 and back" in text
    assert "Conv 'conv0' -> ... -> Add 'residual0'" in text
    data = leftovers.as_json(found)
    assert data["all"]["unfused"]["launches"] == 4  # type: ignore[index]


def test_a_model_without_leftovers_says_so() -> None:
    found = leftovers.of_model(mlp(4, (16, 8)), {}, outcomes.TARGET, 2, outcomes.RATES)
    assert "No node of the model is a leftover" in leftovers.text(found)
    broken = dataclasses.replace(
        leftovers.of_model(exported(6, 4), {}, outcomes.TARGET, 2, outcomes.RATES).found[0],
        fused=leftovers.Saving(1, 8, 1e-6),
    )
    whole = dataclasses.replace(found, found=(broken,))
    assert broken.breaks and "it breaks the chain" in leftovers.text(whole)


def test_nothing_gained_is_said_plainly(transformer_results: Results, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert "over the unfused plan" in summary.verdict(transformer_results)
    outcome = outcomes.transformer()
    samples = outcome.plans[0].samples_ns
    slow = dataclasses.replace(outcome.plans[3], samples_ns=samples[::-1])
    same = dataclasses.replace(outcome, plans=(outcome.plans[0], slow))
    results = open_results(write_results(same, tmp_path_factory.mktemp("same")))
    assert summary.verdict(results).startswith("Nothing gained beyond the noise")
    assert summary.as_json(results)["gained"] is False
    assert "no gain" in html_report(results)


def test_peers_are_told_as_they_are(transformer_results: Results) -> None:
    line = summary.peers(transformer_results)[0]
    assert line.startswith("slower (") and "onnxruntime" in line


def test_the_additive_figure_stands_beside_the_measured_one(transformer_results: Results) -> None:
    rows = transformer_results.trade_offs
    text = render(terminal.trade_offs(rows))
    for row in rows[rows["status"] == "ok"].itertuples():
        line = next(x for x in text.splitlines() if milliseconds_text(row.median_ms) in x)
        assert milliseconds_text(row.estimate_ms) in line and off_text(row.additive_error) in line
    assert "-14 %" in text and "-10 %" in text
    html = html_report(transformer_results)
    assert "kernels summed" in html and "-14 %" in html
    unknown = rows.assign(additive_error=float("nan"))
    assert "-14 %" not in render(terminal.trade_offs(unknown))
    assert render(terminal.trade_offs(rows.drop(columns=["additive_error"])))  # of an earlier version


def test_terminal_report_shows_failures_and_the_best(transformer_results: Results) -> None:
    text = render(terminal.results(transformer_results))
    for part in (
        "other algorithm",
        "onnxruntime",
        "floor",
        "wrong",
        "3e-2",
        "Regions of the best plan",
        "Note: a note",
    ):
        assert part in text


PLOTS = ("pareto", "trials", "roofline", "gains", "launches_bytes", "additive")


@pytest.mark.parametrize("name", PLOTS)
def test_plots_have_labelled_axes(transformer_results: Results, name: str) -> None:
    figure = getattr(transformer_results, f"plot_{name}")()
    for axes in figure.axes:
        assert axes.get_xlabel()
    assert figure.axes[0].get_title(loc="left")


@pytest.mark.parametrize("name", PLOTS)
def test_plots_of_nothing_say_so(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome = dataclasses.replace(outcomes.small(), plans=(), kernels=(), baselines={})
    results = open_results(write_results(outcome, tmp_path_factory.mktemp("nothing")))
    assert getattr(results, f"plot_{name}")().axes
    assert "No plan ran right" in html_report(results)
    assert render(terminal.results(results))


class Reader(HTMLParser):
    """Collects tags and addresses; complains about tags that are not closed in order."""

    VOID = frozenset({"meta", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_one_well_formed_file_with_everything_inside(transformer_results: Results) -> None:
    text = html_report(transformer_results)
    reader = Reader()
    reader.feed(text)
    assert not reader.open and "script" not in reader.tags
    assert len(reader.addresses) == 7 and all(a.startswith("data:image/svg+xml;base64,") for a in reader.addresses)
    assert "a CPU &lt;of&gt; tests" in text and "<of>" not in text
    assert len(text) < 2_000_000


def test_names_of_a_model_are_escaped(tmp_path_factory: pytest.TempPathFactory) -> None:
    evil = "<script>alert(1)</script>[bold]"
    outcome = dataclasses.replace(outcomes.small(), model=evil, notes=(evil,))
    results = open_results(write_results(outcome, tmp_path_factory.mktemp("evil")))
    text = html_report(results)
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "[bold]" in render(terminal.results(results))
