"""The table of edges: for each, whether the best plan fuses it, and if not, why not and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Edge, edges_of
from autofuse.fusion.region import Verdict
from autofuse.ir.graph import Graph, NodeId
from autofuse.report.frame import columns, typed
from autofuse.report.naming import node_name, value_name
from autofuse.search.exact.reasons import FAILED, FUSED, OPEN, SLOWER, Reason, fuses, refused, together
from autofuse.search.outcome import Calibration, PlanRow, TuneOutcome

EDGE_COLUMNS = columns(
    "edge:i value:i value_name shape dtype bytes:i producer:i producer_name producer_label consumer:i consumer_name "
    "consumer_label state rule reason nodes price_us:f other_us:f other_measured_us:f other_least_us:f plans_fusing:i "
    "best_fusing_ms:f studies"
)


@dataclass(frozen=True)
class Evidence:
    """What the measured plans say of an edge: how many fused it, the best median of those, why the others failed."""

    plans: int
    best_ms: float
    failure: str


Regions = Mapping[NodeId, frozenset[int]]


def edge_price_us(graph: Graph, e: Edge, rates: Calibration) -> float:
    """What the edge costs by the model where it is not fused: its bytes loaded, its share of the store, one launch."""
    readers = len(graph.consumers.get(e.value, ())) or 1
    store = 0.0 if e.value in graph.output_set else 1.0 / readers
    moved = graph.values[e.value].nbytes * (1.0 + store)
    return (moved / rates.bandwidth if rates.bandwidth else 0.0) * 1e6 + rates.launch * 1e6


def edge_table(outcome: TuneOutcome) -> pd.DataFrame:
    """A row per edge between two nodes that have kernels, judged by the best plan, the solver, and all that was measured."""
    best = together(outcome.best)
    best_ms = _best_ms(outcome)
    tried = [(p, together(p.plan)) for p in outcome.plans]

    def judge(e: Edge) -> tuple[Reason, Evidence]:
        evidence = _evidence(e, tried)
        found = outcome.reasons.get(e)
        if fuses(best, e):
            return (found if found is not None and found.state == FUSED else Reason(FUSED)), evidence
        if found is None or found.state == FUSED:  # not asked, or asked of another best plan
            verdict = outcome.refusals.get(e)
            found = _UNASKED if verdict is None else refused(verdict)
        return _with_evidence(found, evidence, best_ms), evidence

    return _table(outcome.graph, outcome.calibration, judge)


_UNASKED = Reason(OPEN, "", "no plan that fuses it was measured before the budget ended")


def _with_evidence(found: Reason, evidence: Evidence, best_ms: float) -> Reason:
    """A reason together with what whole plans that fuse the edge showed: a plan that ran says more than a bound."""
    if evidence.plans and not np.isnan(evidence.best_ms):
        seen = _slower(evidence, best_ms)
        if found.state == SLOWER:
            return replace(found, text=f"{found.text}; end to end, {seen}")
        return replace(found, state=SLOWER, rule="", text=f"end to end, {seen}")
    if evidence.plans and found.state in (OPEN, FAILED):
        seen = f"every plan that fused it failed: {evidence.failure}"
        text = f"{found.text}; {seen}" if found.state == FAILED else seen
        return replace(found, state=FAILED, rule="", text=text)
    return found


def planned_edge_table(graph: Graph, plan: Plan, refusals: Mapping[Edge, Verdict], rates: Calibration) -> pd.DataFrame:
    """The same table with no measurement behind it: by the rules alone."""
    regions = together(plan)
    nothing = Evidence(0, float("nan"), "")

    def judge(e: Edge) -> tuple[Reason, Evidence]:
        if fuses(regions, e):
            return Reason(FUSED), nothing
        verdict = refusals.get(e)
        if verdict is not None:
            return refused(verdict), nothing
        return Reason(OPEN, "", "the rules allow it; only a tune can tell whether it pays"), nothing

    return _table(graph, rates, judge)


Judge = Callable[[Edge], tuple[Reason, Evidence]]


def _table(graph: Graph, rates: Calibration, judge: Judge) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for k, e in enumerate(edges_of(graph)):
        reason, evidence = judge(e)
        value = graph.values[e.value]
        rows.append(
            {
                "edge": k,
                "value": e.value,
                "value_name": value_name(graph, e.value),
                "shape": "?" if value.shape is None else "x".join(map(str, value.shape)) or "scalar",
                "dtype": value.dtype.value,
                "bytes": value.nbytes,
                "producer": e.producer,
                "producer_name": node_name(graph, e.producer),
                "producer_label": graph.nodes[e.producer].label,
                "consumer": e.consumer,
                "consumer_name": node_name(graph, e.consumer),
                "consumer_label": graph.nodes[e.consumer].label,
                "state": reason.state,
                "rule": reason.rule,
                "reason": reason.text,
                "nodes": ", ".join(node_name(graph, n) for n in reason.nodes),
                "price_us": edge_price_us(graph, e, rates),
                "other_us": _microseconds(reason.price),
                "other_measured_us": _microseconds(reason.measured),
                "other_least_us": _microseconds(reason.least),
                "plans_fusing": evidence.plans,
                "best_fusing_ms": evidence.best_ms,
                "studies": "; ".join(reason.studies),
            }
        )
    return typed(rows, EDGE_COLUMNS)


def _microseconds(seconds: float) -> float:
    """NaN for what is not known or can't be had."""
    return seconds * 1e6 if np.isfinite(seconds) else float("nan")


def _evidence(e: Edge, tried: Sequence[tuple[PlanRow, Regions]]) -> Evidence:
    best = float("nan")
    count = 0
    failure = ""
    for row, regions in tried:
        if not fuses(regions, e):
            continue
        count += 1
        if row.status == "ok" and len(row.samples_ns):
            ms = float(np.median(row.samples_ns)) / 1e6
            best = ms if np.isnan(best) else min(best, ms)
        else:
            failure = failure or f"{row.status}: {row.reason}".rstrip(": ")
    return Evidence(count, best, failure)


def _best_ms(outcome: TuneOutcome) -> float:
    """The median of the best plan in its last measurement: the deciding one."""
    found = [p for p in outcome.plans if p.status == "ok" and p.samples_ns and p.plan.key == outcome.best.key]
    return float(np.median(found[-1].samples_ns)) / 1e6 if found else float("nan")


def _slower(evidence: Evidence, best_ms: float) -> str:
    plans = "one plan fused it and" if evidence.plans == 1 else f"{evidence.plans} plans fused it; the best of them"
    text = f"{plans} took {evidence.best_ms:.4g} ms"
    if np.isnan(best_ms):
        return text
    verb = "no faster than" if evidence.best_ms >= best_ms else "within the noise of"
    return f"{text}, {verb} the best plan's {best_ms:.4g} ms"
