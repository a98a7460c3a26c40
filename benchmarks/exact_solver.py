"""How long the exact plan solver takes against the size of the graph: real models by estimated costs, and made chains with skips.

    python benchmarks/exact_solver.py --sample squeezenet --sample densenet121 --nodes 100 --nodes 1000 --nodes 10000 --layouts 1 --layouts 3

Nothing is measured: costs are the estimates, or drawn. Every value of a sample may lie in as many layouts as the largest --layouts says: to
those that its kernels have, copies with drawn costs are added. A sample gets --sample-limit seconds, a chain --limit. Written are
exact_solver.json and a plot of seconds against nodes; printed is a table.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from autofuse.devices.cpu import CpuDevice
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.target import Target
from autofuse.kernels.space import load_spaces
from autofuse.measure.calibrate import Reached
from autofuse.search.exact.blocks import BlockSolver
from autofuse.search.exact.bounds import Bounds
from autofuse.search.exact.costs import Pricing
from autofuse.search.exact.model import Model, guess
from autofuse.search.exact.problem import PLAIN, Column, Costs, Problem, fault_of
from autofuse.search.exact.regions import enumerate_regions
from autofuse.search.kernel_study import KernelStudies

WIDEST = 4
"""Nodes in the widest region of a made chain."""


def made_chain(nodes: int, layouts: int, seed: int = 0) -> tuple[Problem, Costs]:
    """A chain in which every fifth node reads, besides the one before, what was made four nodes earlier. All runs of up to four nodes are
    regions, but for those over a boundary between layers of twenty nodes; each may take and give every layout."""
    rng = random.Random(seed)
    reads = [(n - 1, n - 5) if n % 5 == 4 and n % 20 > 4 else (n - 1,) for n in range(nodes)]
    readers: dict[int, list[int]] = {}
    for n, r in enumerate(reads):
        for v in r:
            readers.setdefault(v, []).append(n)
    columns: list[Column] = []
    costs: list[float] = []
    for first in range(nodes):
        for last in range(first, min(nodes, first + WIDEST, first - first % 20 + 20)):
            inside = range(first, last + 1)
            outside = sorted({v for n in inside for v in reads[n]} - set(inside))
            given = [n for n in inside if n == nodes - 1 or any(m > last for m in readers.get(n, ()))]
            base = rng.uniform(2.0, 10.0) * len(inside) ** 0.7
            for a in range(layouts):
                for b in {a, PLAIN} if layouts > 1 else {PLAIN}:
                    columns.append(
                        Column(
                            tuple(inside),
                            tuple((v, a if v >= 0 else PLAIN) for v in outside),
                            tuple((v, b) for v in given),
                        )
                    )
                    costs.append(1e-6 * base * rng.uniform(0.8, 1.2))
    once = frozenset(n for n in range(nodes) if n % 3)
    problem = Problem(
        tuple(columns),
        once,
        frozenset({-1}),
        (nodes - 1,),
        {n: n for n in range(nodes)},
        {v: tuple(r) for v, r in readers.items()},
    )
    return problem, Costs(costs, dict.fromkeys(range(-1, nodes), 2e-06))


def with_layouts(problem: Problem, costs: Costs, layouts: int, seed: int = 0) -> tuple[Problem, Costs]:
    """A problem whose columns can be had in more layouts: for each one in a layout of its own, others like it with costs up to a tenth off."""
    rng = random.Random(seed)
    have = 1 + max((layout for c in problem.columns for _, layout in (*c.reads, *c.gives)), default=0)
    columns, seconds = list(problem.columns), list(costs.columns)
    for c, cost in zip(problem.columns, costs.columns, strict=True):
        if c.view or all(layout == PLAIN for _, layout in (*c.reads, *c.gives)):
            continue
        for more in range(have, layouts):
            moved = {1: more}
            reads = tuple((v, moved.get(layout, layout)) for v, layout in c.reads)
            gives = tuple((v, moved.get(layout, layout)) for v, layout in c.gives)
            columns.append(Column(c.nodes, reads, gives, c.level))
            seconds.append(cost * rng.uniform(0.9, 1.1))
    made = Problem(tuple(columns), problem.once, problem.inputs, problem.outputs, problem.producer, problem.readers)
    return made, Costs(seconds, costs.reorders)


@dataclass(frozen=True)
class Nothing:
    """A bench that measures nothing."""

    target: Target
    threads: int


def model_of(name: str) -> tuple[int, float, Problem, Costs]:
    """Nodes of a sample, the seconds to enumerate and price its regions, and its problem by estimates."""
    graph = import_model(load_model(f"sample:{name}"))
    target = CpuDevice(2).target
    start = time.perf_counter()
    partitioner = Partitioner(graph, target)
    studies = KernelStudies(Nothing(target, 2), load_spaces(target.kind))
    enumerated = enumerate_regions(partitioner, (partitioner.unfused(), partitioner.greedy()))
    pricing = Pricing(studies, Bounds.of(Reached(1e15, 1e18, 1e-12, True), target))
    model = Model(partitioner, enumerated, pricing, partitioner.structures.program)
    costs = model.costs(guess)
    return len(graph.nodes), time.perf_counter() - start, model.problem, costs


def plot(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Seconds of splitting and solving against nodes, on logarithmic axes, with a line for growth in proportion."""
    figure, axes = plt.subplots(figsize=(6, 4))
    chains = [r for r in rows if str(r["graph"]).startswith("chain")]
    for kind in dict.fromkeys(str(r["graph"]) for r in chains):
        mine = sorted((float(str(r["nodes"])), _seconds(r)) for r in chains if r["graph"] == kind)
        axes.plot([n for n, _ in mine], [s for _, s in mine], "o-", label=kind)
    for r in (r for r in rows if r not in chains):
        axes.plot(float(str(r["nodes"])), _seconds(r), "s", color="black")
        axes.annotate(str(r["graph"]), (float(str(r["nodes"])), _seconds(r)), xytext=(4, 4), textcoords="offset points")
    if chains:
        first = min(chains, key=lambda r: (float(str(r["nodes"])), _seconds(r)))
        ends = [float(str(first["nodes"])), max(float(str(r["nodes"])) for r in chains)]
        axes.plot(ends, [_seconds(first) * n / ends[0] for n in ends], ":", color="grey", label="in proportion")
        axes.legend()
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="seconds of solving")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _seconds(row: Mapping[str, object]) -> float:
    return float(str(row["split_seconds"])) + float(str(row["solve_seconds"]))


def solved(problem: Problem, costs: Costs, limit: float) -> dict[str, float]:
    """Seconds to split and to solve, the gap, and what the solution costs."""
    start = time.perf_counter()
    solver = BlockSolver(problem)
    split = time.perf_counter()
    found, lower = solver.solve(costs, limit)
    end = time.perf_counter()
    assert found is None or fault_of(problem, found.columns) is None
    return {
        "columns": len(problem.columns),
        "blocks": len(solver.parts),
        "programs": solver.solved,
        "split_seconds": split - start,
        "solve_seconds": end - split,
        "gap": 1 - lower / found.seconds if found is not None else 1.0,
    }


def main() -> None:
    """Solve all that is asked for, and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="append", default=[])
    parser.add_argument("--nodes", action="append", type=int, default=[])
    parser.add_argument("--layouts", action="append", type=int, default=[])
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a chain")
    parser.add_argument("--sample-limit", type=float, default=60.0, help="seconds for a sample")
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/exact-solver.svg"))
    parser.add_argument("--output", type=Path, default=Path("results/benchmark"))
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    print("| graph | nodes | columns | blocks | programs | enumerating and pricing s | splitting s | solving s | gap |")
    print("|---|---|---|---|---|---|---|---|---|")

    def report(name: str, nodes: int, seconds: float, made: Callable[[], tuple[Problem, Costs]], limit: float) -> None:
        row = {"graph": name, "nodes": nodes, "enumerate_seconds": seconds, **solved(*made(), limit)}
        rows.append(row)
        print(
            f"| {name} | {nodes} | {row['columns']} | {row['blocks']} | {row['programs']} | {seconds:.2f} | "
            f"{row['split_seconds']:.2f} | {row['solve_seconds']:.2f} | {100 * float(str(row['gap'])):.2f} % |",
            flush=True,
        )

    for name in args.sample:
        nodes, seconds, problem, costs = model_of(name)
        most = max(args.layouts or [1])
        report(name, nodes, seconds, lambda p=problem, c=costs, k=most: with_layouts(p, c, k), args.sample_limit)
    for layouts in args.layouts or [1]:
        for nodes in args.nodes:
            report(f"chain, layouts {layouts}", nodes, 0.0, lambda n=nodes, k=layouts: made_chain(n, k), args.limit)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "exact_solver.json").write_text(json.dumps(rows, indent=1))
    plot(rows, args.picture)


if __name__ == "__main__":
    main()
