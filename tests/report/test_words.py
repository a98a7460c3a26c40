"""Explanations, comparisons, estimates, plots and the HTML file."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import outcomes
import pandas as pd
import pytest

from autofuse.errors import UsageError
from autofuse.fusion.partition import edges_of
from autofuse.report import compare, estimate, summary, terminal
from autofuse.report.console import render
from autofuse.report.edges import edge_table
from autofuse.report.explain import explain_text
from autofuse.report.folder import write_results
from autofuse.report.html import html_report
from autofuse.report.results import Results, open_results
from autofuse.search.exact.reasons import FAILED, FUSED, ILLEGAL, LIMIT, OPEN, SLOWER
from autofuse.search.outcome import PlanRow, TuneOutcome


def states(outcome: TuneOutcome) -> pd.Series:
    return edge_table(outcome)["state"]


def test_every_edge_has_a_verdict(transformer_results: Results) -> None:
    edges = transformer_results.verdicts
    assert len(edges) == len(edges_of(outcomes.transformer().graph))
    assert set(edges["state"]) <= {FUSED, ILLEGAL, LIMIT, SLOWER, FAILED, OPEN}
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
    assert by_index in transformer_results.explain_text([row["value_name"]])
    assert by_index in transformer_results.explain_text([row["producer_name"]])
    ends = [row["producer_name"], row["consumer_name"]]
    assert transformer_results.explain_text(ends) == by_index
    assert transformer_results.explain_text(ends[::-1]) == by_index
    assert transformer_results.explain_text([str(row["producer"]), str(row["consumer"])]) == by_index


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
