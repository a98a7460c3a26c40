"""What an export left behind: which nodes break chains that would otherwise be one kernel, what they cost a run, and which can go.

Costs are predicted: plans of the model with and without a leftover, by arithmetic, bytes and launches at the device's rates; fused as far as
the rules allow (where it costs what fusion can't remove), and with each operator on its own (what it costs where nothing is fused).
Where a result is there, the time of kernels that do nothing but move data was measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto

from autofuse.engine.plan import Plan, PlannedRegion
from autofuse.importer.cleaning import Cleaned, Leftover, clean
from autofuse.importer.idle import MOVES
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.report.estimate import estimate
from autofuse.report.naming import node_name
from autofuse.report.results import Results
from autofuse.report.structure import Cost, cost_of
from autofuse.report.units import bytes_text, microseconds_text
from autofuse.report.what_if import target_of
from autofuse.search.outcome import Calibration
from autofuse.search.rows import floor_ns

ONE_BY_ONE_SECONDS = 15.0
"""After so long the rest of the leftovers are not priced one by one."""


@dataclass(frozen=True)
class Saving:
    """What is left out of a run without something: launches, bytes, predicted seconds."""

    launches: int
    bytes: int
    seconds: float


NOTHING = Saving(0, 0, 0.0)


@dataclass(frozen=True)
class Priced:
    """A leftover. `fused` and `unfused` are what it costs in plans of either kind, None where it was not priced on its own; `measured` are
    the seconds of kernels of the best plan that do nothing but what it says (NaN: it has none of its own, or nothing was measured)."""

    leftover: Leftover
    fused: Saving | None
    unfused: Saving | None
    measured: float

    @property
    def breaks(self) -> bool:
        """Whether it parts what would otherwise be one kernel."""
        return self.fused is not None and self.fused.launches > 0


@dataclass(frozen=True)
class Mover:
    """A kernel of the plan that does nothing but move data, between two others."""

    region: int
    nodes: str
    between: str
    predicted: float
    measured: float
    reason: str


@dataclass(frozen=True)
class Leftovers:
    """`fused` and `unfused` are what cleaning all of them saves. `measured_rates`: whether predictions stand on a measured calibration."""

    found: tuple[Priced, ...]
    kept: tuple[tuple[str, str], ...]
    fused: Saving
    unfused: Saving
    movers: tuple[Mover, ...]
    measured_rates: bool


def of_model(
    proto: ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    target: Target,
    threads: int,
    rates: Calibration,
    measured_rates: bool = False,
) -> Leftovers:
    """The leftovers of a model without results: movers are those of the greedy plan."""
    graph = import_model(proto, dict(shapes))
    return _found(proto, shapes, graph, _greedy(graph, target, threads), (), target, threads, rates, measured_rates)


def of_results(r: Results, model: str | None = None) -> Leftovers:
    """The leftovers of a model that was tuned, with what its best plan measured. AutofuseError where the model can't be read."""
    shapes = {name: tuple(dims) for name, dims in r.run["shapes"].items()}
    proto = load_model(model or str(r.run["model"]))
    graph = import_model(proto, shapes)
    times = [float(t) * 1e-6 for t in r.regions["time_us"]]
    target = target_of(r.run)
    return _found(proto, shapes, graph, r.plan, times, target, int(r.run["threads"]), r.calibration, True)


def _found(
    proto: ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    graph: Graph,
    plan: Plan,
    times: Sequence[float],
    target: Target,
    threads: int,
    rates: Calibration,
    measured_rates: bool,
) -> Leftovers:
    cleaned = clean(proto)
    priced: list[Priced] = []
    whole = (NOTHING, NOTHING)
    if cleaned.removed:
        base = _costs(graph, target, threads, rates)
        known: dict[str, tuple[Saving, Saving]] = {graph.structural_hash: whole}

        def saving(model: ModelProto) -> tuple[Saving, Saving]:
            other = import_model(model, dict(shapes))
            if other.structural_hash not in known:
                less = _costs(other, target, threads, rates)
                known[other.structural_hash] = (_less(base[0], less[0]), _less(base[1], less[1]))
            return known[other.structural_hash]

        whole = saving(cleaned.model)
        end = time.monotonic() + ONE_BY_ONE_SECONDS
        for x in cleaned.removed:
            mine: tuple[Saving | None, Saving | None] = (None, None)
            if whole == (
                NOTHING,
                NOTHING,
            ):  # cleaning all of it leaves the graph that there is: none of it is in the way
                mine = whole
            elif time.monotonic() < end:
                mine = saving(clean(proto, {x.key}).model)
            priced.append(Priced(x, *mine, _own_time(graph, plan, times, x.labels)))
    movers = _movers(graph, plan, times, target, rates, cleaned)
    return Leftovers(tuple(priced), cleaned.kept, *whole, movers, measured_rates)


def _greedy(graph: Graph, target: Target, threads: int) -> Plan:
    return estimate(graph, target, threads).greedy.plan


def _costs(graph: Graph, target: Target, threads: int, rates: Calibration) -> tuple[Saving, Saving]:
    """What the greedy and the unfused plan cost."""
    e = estimate(graph, target, threads, calibration=rates)
    found = [Saving(c.cost.launches, c.cost.bytes, c.seconds) for c in (e.greedy, e.unfused)]
    return found[0], found[1]


def _seconds(cost: Cost, rates: Calibration) -> float:
    return floor_ns(cost.bytes, cost.flops, rates) * 1e-9 + cost.launches * rates.launch if cost.launches else 0.0


def _less(a: Saving, b: Saving) -> Saving:
    return Saving(a.launches - b.launches, a.bytes - b.bytes, a.seconds - b.seconds)


def _own_time(graph: Graph, plan: Plan, times: Sequence[float], labels: Collection[str]) -> float:
    """The measured time of regions that hold nothing but nodes with these labels."""
    own = [
        times[k]
        for k, r in enumerate(plan.regions)
        if k < len(times) and r.region.nodes and all(graph.nodes[n].label in labels for n in r.region.nodes)
    ]
    found = [t for t in own if not math.isnan(t)]
    return sum(found) if found else math.nan


def _movers(
    graph: Graph, plan: Plan, times: Sequence[float], target: Target, rates: Calibration, cleaned: Cleaned
) -> tuple[Mover, ...]:
    made = {v: r for r in plan.regions for v in r.region.outputs}
    found: list[Mover] = []
    why = dict(cleaned.kept)
    removable = {label for x in cleaned.removed for label in x.labels}
    for k, r in enumerate(plan.regions):
        nodes = [graph.nodes[n] for n in r.region.nodes]
        if not nodes or not r.has_kernels or any(n.op not in MOVES for n in nodes):
            continue
        before = [made[v] for v in r.region.inputs if v in made]
        after = [o for o in plan.regions if set(o.region.inputs) & set(r.region.outputs)]
        if not before or not after:
            continue
        cost = cost_of(graph, r, target)
        reasons = [text for n in nodes for node, text in why.items() if n.label and repr(n.label) in node]
        reason = reasons[0] if reasons else "nothing undoes it"
        if all(n.label in removable for n in nodes):
            reason = "it can go"
        names = " + ".join(f"{node_name(graph, n.id)} {n.label!r}" for n in nodes)
        measured = times[k] if k < len(times) else math.nan
        between = f"{_named(graph, before)} and {_named(graph, after)}"
        found.append(Mover(k, names, between, _seconds(cost, rates), measured, reason))
    return tuple(found)


def _named(graph: Graph, regions: Sequence[PlannedRegion]) -> str:
    nodes = [r.region.nodes for r in regions if r.region.nodes]
    return ", ".join(dict.fromkeys(node_name(graph, ns[-1]) for ns in nodes)) or "a reorder"


def text(found: Leftovers, listed: int = 20) -> str:
    """In words."""
    lines: list[str] = []
    if not found.found:
        lines.append("No node of the model is a leftover of its export that can go.")
    else:
        lines.append(f"Leftovers of the export that can go: {len(found.found)}")
        shown = sorted(found.found, key=lambda p: (-(p.fused or NOTHING).seconds, -(p.unfused or NOTHING).seconds))
        for p in shown[:listed]:
            lines += _priced_text(p)
        if len(shown) > listed:
            lines.append(f"  ... and {len(shown) - listed} more")
        lines.append(_whole_text(found))
    if found.kept:
        lines += ["", "What looks like one, but has to stay:"]
        lines += [f"  {node}: {why}" for node, why in found.kept[:listed]]
    if found.movers:
        lines += ["", "Kernels of the plan that only move data between two others:"]
        for m in found.movers[:listed]:
            measured = "not measured" if math.isnan(m.measured) else f"measured {microseconds_text(m.measured * 1e6)}"
            lines.append(f"  region {m.region}: {m.nodes}, between {m.between}")
            lines.append(
                f"      about {microseconds_text(m.predicted * 1e6)} a run by the model, {measured}; {m.reason}"
            )
    return "\n".join(lines)


def _priced_text(p: Priced) -> list[str]:
    x = p.leftover
    chain = f"{' and '.join(x.before) or 'an input'} -> ... -> {' and '.join(x.after) or 'an output'}"
    if p.fused is None or p.unfused is None:
        cost = "not priced on its own, for lack of time"
    elif p.fused == p.unfused == NOTHING:
        cost = f"in {chain}; it costs nothing here: the import drops it, or it shares memory (other runtimes may copy)"
    else:
        apart = f"with each operator on its own it costs {_saving_text(p.unfused)}"
        if p.breaks:
            cost = f"it breaks the chain {chain}, which would otherwise fuse: {_saving_text(p.fused)}; {apart}"
        elif p.fused == NOTHING:
            cost = f"in {chain}; fused it costs nothing, {apart}"
        else:
            cost = f"in {chain}; fused it costs {_saving_text(p.fused)}, {apart}"
    if not math.isnan(p.measured):
        cost += f"; its own kernels in the best plan were measured: {microseconds_text(p.measured * 1e6)} a run"
    return [f"  {' + '.join(x.nodes)} ({x.kind}): {x.reason}", f"      {cost}"]


def _saving_text(s: Saving) -> str:
    launches = "1 launch" if s.launches == 1 else f"{s.launches} launches"
    return f"{launches}, {bytes_text(s.bytes)}, about {microseconds_text(s.seconds * 1e6)} a run"


def _whole_text(found: Leftovers) -> str:
    write = "`--cleaned OUT.onnx` writes the model without them."
    if found.fused == found.unfused == NOTHING:
        return f"Without all of them every plan is the same. {write}"
    how = "measured" if found.measured_rates else "assumed"
    fused = "nothing" if found.fused == NOTHING else _saving_text(found.fused)
    unfused = _saving_text(found.unfused)
    return f"All of them cost, by {how} rates: fused {fused}; each operator on its own {unfused}. {write}"


def as_json(found: Leftovers) -> dict[str, object]:
    """For machines."""
    return {
        "removable": [
            {
                "kind": p.leftover.kind,
                "nodes": list(p.leftover.nodes),
                "reason": p.leftover.reason,
                "before": list(p.leftover.before),
                "after": list(p.leftover.after),
                "breaks": p.breaks,
                "fused": _saving_json(p.fused),
                "unfused": _saving_json(p.unfused),
                "measured_seconds": p.measured,
            }
            for p in found.found
        ],
        "kept": [{"node": n, "reason": why} for n, why in found.kept],
        "all": {"fused": _saving_json(found.fused), "unfused": _saving_json(found.unfused)},
        "movers": [
            {"region": m.region, "nodes": m.nodes, "predicted_seconds": m.predicted, "measured_seconds": m.measured}
            for m in found.movers
        ],
        "rates_measured": found.measured_rates,
    }


def _saving_json(s: Saving | None) -> dict[str, object] | None:
    return None if s is None else {"launches": s.launches, "bytes": s.bytes, "predicted_seconds": s.seconds}
