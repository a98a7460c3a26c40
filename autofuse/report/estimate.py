"""What can be said of a model without tuning it: floor, launches, bytes, and the edges that hold what fusion can save."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from autofuse.engine import options as engine_options
from autofuse.engine.assign import assign
from autofuse.engine.build import variant_of
from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Edge, Partitioner
from autofuse.fusion.region import Verdict
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.measure.oracle import graph_flops
from autofuse.report import structure
from autofuse.report.edges import FUSED, planned_edge_table
from autofuse.report.structure import Cost
from autofuse.search.outcome import Calibration
from autofuse.search.rows import bound, boundary_bytes, floor_ns


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

    @property
    def edges(self) -> pd.DataFrame:
        """The edges that greedy fusion removes, dearest first."""
        rows = self.all_edges[self.all_edges["state"] == FUSED]
        return rows.sort_values(["price_us", "edge"], ascending=[False, True])


def assumed(target: Target, threads: int) -> Calibration:
    """The rates that are assumed where nothing was measured."""
    r = engine_options.rates(target, threads)
    return Calibration(r.bytes, r.flops, r.launch)


def estimate(graph: Graph, target: Target, threads: int, accuracy: str = "default") -> Estimate:
    """Work out both landmarks. Takes seconds for a network of a thousand nodes."""
    calibration = assumed(target, threads)
    partitioner = Partitioner(graph, target)
    options = engine_options.heuristic_options(target, threads, accuracy)

    def case(name: str) -> tuple[Case, dict[Edge, Verdict]]:
        partition = partitioner.unfused() if name == "unfused" else partitioner.greedy()
        plan = assign(graph, partition, target, threads, accuracy, options, name)
        seconds = sum(
            engine_options.estimate(variant_of(graph, r, target), target, threads)
            for r in plan.regions
            if r.has_kernels
        )
        cost = structure.plan_cost(graph, plan, target)
        return Case(name, plan, cost, seconds, len(partition.regions)), dict(partition.refusals)

    unfused, _ = case("unfused")
    greedy, refusals = case("greedy")
    nbytes, flops = boundary_bytes(graph), graph_flops(graph)
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
        "assumed": {"bandwidth": e.calibration.bandwidth, "flops": e.calibration.flops, "launch": e.calibration.launch},
        "unfused": case(e.unfused),
        "greedy": case(e.greedy),
        "edges": e.edges[shown].head(edges).to_dict(orient="records"),
        "host_nodes": list(e.host_nodes),
    }
