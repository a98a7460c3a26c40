"""What can be said of a model without tuning it: floor, launches, bytes, and the edges that hold what fusion can save."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from autofuse.engine import options as engine_options
from autofuse.engine.assign import assign
from autofuse.engine.lowering import variant_of
from autofuse.engine.plan import Plan
from autofuse.errors import StorageError
from autofuse.fusion.partition import Edge, Partitioner
from autofuse.fusion.region import Verdict
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.measure.calibrate import NAMES, SIGNATURE, key_of, reached
from autofuse.measure.oracle import graph_flops
from autofuse.measure.records import Records, default_path
from autofuse.report import structure
from autofuse.report.edges import planned_edge_table
from autofuse.report.structure import Cost
from autofuse.search.exact.reasons import FUSED
from autofuse.search.outcome import Calibration
from autofuse.search.rows import bound, boundary_bytes, floor_ns
from autofuse.search.tune import identity_of


@dataclass(frozen=True, eq=False)
class Case:
    """One of the two landmarks: every operator on its own, and all fused that may be."""

    name: str
    plan: Plan
    cost: Cost
    seconds: float
    regions: int


@dataclass(frozen=True, eq=False)
class Estimate:
    """A model on a device by arithmetic, bytes and launches; nothing was run. `all_edges` are judged by the rules alone."""

    graph: Graph
    target: Target
    threads: int
    calibration: Calibration
    floor_seconds: float
    bound: str
    boundary_bytes: int
    flops: int
    unfused: Case
    greedy: Case
    all_edges: pd.DataFrame
    host_nodes: tuple[str, ...]
    measured_rates: bool = False
    """Whether the rates are what this device reached in a tune, or the usual ones of its kind."""

    @property
    def avoidable_bytes(self) -> int:
        """What the unfused plan moves beyond what every plan must."""
        return max(0, self.unfused.cost.bytes - self.boundary_bytes)

    @property
    def most_seconds(self) -> float:
        """What fusion can save at most: all avoidable bytes, and all launches but one. Other algorithms and schedules are no part of it."""
        launches = max(0, self.unfused.cost.launches - 1) * self.calibration.launch
        return self.avoidable_bytes / self.calibration.bandwidth + launches

    @property
    def greedy_seconds(self) -> float:
        """What fusing all that may be saves of that."""
        saved = (self.unfused.cost.bytes - self.greedy.cost.bytes) / self.calibration.bandwidth
        return saved + (self.unfused.cost.launches - self.greedy.cost.launches) * self.calibration.launch

    def holding(self, share: float = 0.8) -> int:
        """How many of the edges that fusion removes, dearest first, hold a share of what all of them cost."""
        prices = self.edges["price_us"].cumsum()
        if not len(prices):
            return 0
        return int((prices < share * float(prices.iloc[-1])).sum()) + 1

    @property
    def edges(self) -> pd.DataFrame:
        """The edges that greedy fusion removes, dearest first."""
        rows = self.all_edges[self.all_edges["state"] == FUSED]
        return rows.sort_values(["price_us", "edge"], ascending=[False, True])


def assumed(target: Target, threads: int) -> Calibration:
    """The rates that are assumed where nothing was measured."""
    r = engine_options.rates(target, threads)
    return Calibration(r.bytes, r.flops, r.launch)


def known_rates(target: Target, threads: int) -> tuple[Calibration, bool]:
    """What tunes on this device measured that it reaches, else what is assumed; whether it was measured. Nothing is run or written."""
    path = default_path()
    if path.exists():
        try:
            with Records(identity_of(target), threads, path) as records:
                keys = {key_of(name): name for name in NAMES}
                rows = {keys[k]: m for k, m in records.find(list(keys), "warm", SIGNATURE).items()}
        except StorageError:
            rows = {}
        found = reached(rows, target, threads)
        if found.measured:
            return Calibration(found.bandwidth, found.flops, found.launch), True
    return assumed(target, threads), False


def estimate(
    graph: Graph,
    target: Target,
    threads: int,
    accuracy: str = "default",
    calibration: Calibration | None = None,
) -> Estimate:
    """Work out both landmarks, at the given rates (of a calibrated device) or assumed ones. Takes seconds for a network of a thousand nodes."""
    measured = calibration is not None
    calibration = calibration or assumed(target, threads)
    rates = engine_options.Rates(calibration.flops, calibration.bandwidth, calibration.launch)
    partitioner = Partitioner(graph, target)
    options = engine_options.heuristic_options(target, threads, accuracy)

    def case(name: str) -> tuple[Case, dict[Edge, Verdict]]:
        partition = partitioner.unfused() if name == "unfused" else partitioner.greedy()
        plan = assign(graph, partition, target, threads, accuracy, options, name)
        seconds = sum(
            engine_options.estimate(variant_of(graph, r, target), target, threads, rates)
            for r in plan.regions
            if r.has_kernels
        )
        cost = structure.plan_cost(graph, plan, target)
        return Case(name, plan, cost, seconds, len(partition.regions)), dict(partition.refusals)

    unfused, _ = case("unfused")
    greedy, refusals = case("greedy")
    nbytes = boundary_bytes(graph)
    # Winograd has less arithmetic than the graph's own count.
    flops = min([graph_flops(graph), *(c.cost.flops for c in (unfused, greedy) if c.cost.flops)])
    table = planned_edge_table(graph, greedy.plan, refusals, calibration)
    return Estimate(
        graph,
        target,
        threads,
        calibration,
        floor_ns(nbytes, flops, calibration) * 1e-9,
        bound(nbytes, flops, 1, calibration),
        nbytes,
        flops,
        unfused,
        greedy,
        table,
        tuple(f"{n.op}#{n.id}" for n in graph.host_nodes),
        measured,
    )


def as_json(e: Estimate, edges: int = 20) -> dict[str, object]:
    """The estimate as plain data."""

    def case(c: Case) -> dict[str, object]:
        return {
            "regions": c.regions,
            "launches": c.cost.launches,
            "bytes_model": c.cost.bytes,
            "flops": c.cost.flops,
            "seconds_estimated": c.seconds,
        }

    shown = ["edge", "value_name", "producer_name", "consumer_name", "shape", "dtype", "bytes", "price_us"]
    return {
        "predicted": True,
        "model": e.graph.name,
        "graph": e.graph.structural_hash,
        "device": e.target.name,
        "threads": e.threads,
        "floor_seconds": e.floor_seconds,
        "bound": e.bound,
        "boundary_bytes": e.boundary_bytes,
        "flops": e.flops,
        "rates": {"bandwidth": e.calibration.bandwidth, "flops": e.calibration.flops, "launch": e.calibration.launch},
        "rates_measured": e.measured_rates,
        "avoidable_bytes": e.avoidable_bytes,
        "most_seconds_saved": e.most_seconds,
        "greedy_seconds_saved": e.greedy_seconds,
        "edges_holding_80_percent": e.holding(),
        "unfused": case(e.unfused),
        "greedy": case(e.greedy),
        "edges": e.edges[shown].head(edges).to_dict(orient="records"),
        "host_nodes": list(e.host_nodes),
    }
