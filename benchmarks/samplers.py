"""Samplers compared by replay, with no clock: how many kernels each measures before it has run a plan within 1 % of the best known one.

    python benchmarks/samplers.py --trained FOLDER      # the recorded models: table and plot
    python benchmarks/samplers.py --small               # small graphs cut out of them: exact against brute force

FOLDER holds the unzipped packages that benchmarks/trained.toml names; without it only the samples among the recordings are taken.

Recordings are made by benchmarks/record_spaces.py: spaces that were fixed beforehand, with what each kernel took. The best known plan is the
optimum over all that was recorded. A measurement is a kernel text that was timed, alone or in a plan that was run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import optuna

matplotlib.use("agg")
import matplotlib.pyplot as plt

from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Graph
from autofuse.kernels.space import load_spaces
from autofuse.measure.recording import Recording, load_recording
from autofuse.measure.replay import ReplayBench
from autofuse.measure.result import Opened
from autofuse.search.budget import Budget
from autofuse.search.exact.costs import CAREFUL, EXHAUSTIVE, Closing
from autofuse.search.exact.model import upper
from autofuse.search.exact.planning import measured
from autofuse.search.exact.regions import Limits
from autofuse.search.exact.sampler import THRIFTY, ExactPlanSampler
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.planner import Planner
from autofuse.search.progress import silent
from autofuse.search.samplers import HEURISTIC, OptunaPlanSampler, PlanSampler, Proposal
from autofuse.search.session import Session
from autofuse.search.studies_file import StoredTrial

WITHIN = 1.01
NAMES = ("exact", "tpe", "random", "greedy")
COLOURS = ("C0", "C1", "C2", "C3")
SEEDED = ("tpe", "random")
MOST_PROPOSALS = 400
"""Partitions that a sampler of partitions may propose; the exact one and the greedy one end by themselves."""
SIZE, STRIDE = 12, 8
"""Nodes of a small graph, and from one to the next."""
SMALL = Limits(whole=0)
"""Regions of a small graph grow as those of a large one do, so that what was recorded of the model is what they need."""
FEWEST = 60
"""Kernels without which a small graph is no task."""


class Reached(Exception):
    """A plan within the goal was run: the rest of the search does not matter."""


class GreedySampler:
    """Proposes the greedy partition, once."""

    name = "greedy"
    gap = math.nan
    spared = (0, 0)

    def __init__(self, partitioner: Partitioner) -> None:
        self._left = [Proposal(partitioner.greedy(), "greedy")]

    def propose(self) -> Proposal | None:
        """See PlanSampler."""
        return self._left.pop() if self._left else None

    def observe(self, proposal: Proposal, seconds: float) -> None:
        """See PlanSampler."""

    def trials(self) -> list[StoredTrial]:
        """See PlanSampler."""
        return []

    def certificate(self) -> str:
        """See PlanSampler."""
        return ""


class Setup:
    """All that a search needs, over a recording."""

    def __init__(self, graph: Graph, recording: Recording, sampler: str, seed: int, remembered: bool = False) -> None:
        self.runs: list[tuple[int, float]] = []
        self.goal = 0.0
        self.graph = graph
        self.bench = ReplayBench(graph, recording, sizes=False, remembered=remembered, told=self._told)
        self.partitioner = Partitioner(graph, recording.target)
        self.studies = KernelStudies(
            self.bench,
            load_spaces(recording.target.kind),
            recording.accuracy,
            seed,
            sampler=sampler,
            clock=self.bench.clock,
            recorded=self.bench.schedules,
        )
        self.planner = Planner(graph, self.bench, self.partitioner, self.studies, recording.accuracy)
        self.studies.constants = self.planner.constants
        self.name, self.seed = sampler, seed

    def _told(self, plan: Plan, ns: float) -> None:
        del plan
        self.runs.append((len(self.bench.seen), ns))
        if ns <= self.goal:
            raise Reached

    def sampler(self, limits: Limits | None = None) -> PlanSampler:
        """A new sampler of plans."""
        if self.name == "greedy":
            return GreedySampler(self.partitioner)
        if self.name in HEURISTIC:
            return OptunaPlanSampler(self.partitioner, self.name, self.seed)
        return ExactPlanSampler(self.planner, self.bench.reached(0.0), limits)


@dataclass(frozen=True)
class Known:
    """The optimum over a recording: its nanoseconds as run and as the program counts them, and the distinct kernel texts that trying everything
    measures."""

    ns: float
    program_ns: float
    kernels: int


def best_known(graph: Graph, recording: Recording, limits: Limits | None = None) -> Known | None:
    """The best plan over all that was recorded; None where there is no plan of recorded kernels."""
    setup = Setup(graph, recording, "exact", 0, remembered=True)
    sampler = setup.sampler(limits)
    assert isinstance(sampler, ExactPlanSampler)
    sampler.recall()
    solution, _ = sampler.solve(upper)
    if solution is None or not math.isfinite(solution.seconds):
        return None
    programs = {c.program.signature for c in sampler.model.choices if c.program is not None}
    copies = (sampler.model.reorder_of(v) for v in range(len(graph.values)))
    programs |= {c[0].signature for c in copies if c is not None}
    # A plan that is run pays for each reorder itself, not what stands for it in the program.
    priced = setup.bench.price(sampler.plan(solution, "best known", measured))
    if isinstance(priced, Opened):
        return None
    ns = 1e9 * sum(m.seconds for _, _, m in priced)
    return Known(ns, 1e9 * solution.seconds, len({m.key for m in recording.rows if m.signature in programs}))


def session(graph: Graph, recording: Recording, sampler: str, seed: int, known: Known) -> list[tuple[int, float]]:
    """The runs of a search by the product's own session (without its studies before the first plans) until one is within the goal: measurements
    so far, and nanoseconds."""
    setup = Setup(graph, recording, sampler, seed)
    setup.goal = WITHIN * known.ns
    budget = Budget(10.0 * known.kernels, setup.bench.clock)
    trials = MOST_PROPOSALS if sampler in HEURISTIC else None
    it = Session(graph, setup.bench, setup.planner, setup.studies, setup.sampler, budget, silent, trials)
    try:
        it.run_baselines()
        it.run_plans(1.0)
    except Reached:
        pass
    return setup.runs


def compared(graph: Graph, recording: Recording, seeds: int) -> Iterator[dict[str, object]]:
    """A row per sampler and seed."""
    known = best_known(graph, recording)
    if known is None:
        print(f"{recording.model}: no plan has all its kernels recorded", flush=True)
        return
    for sampler in NAMES:
        for seed in range(seeds if sampler in SEEDED else 1):
            start = time.monotonic()
            runs = session(graph, recording, sampler, seed, known)
            best = min(ns for _, ns in runs)
            yield {
                "model": recording.model,
                "sampler": sampler,
                "seed": seed,
                "kernels": known.kernels,
                "best_known_ms": 1e-6 * known.ns,
                "reached": best <= WITHIN * known.ns,
                "measured": runs[-1][0],
                "best_over_known": best / known.ns,
                "runs": [[count, ns / known.ns] for count, ns in runs],
                "seconds": time.monotonic() - start,
            }


# ---- small graphs


def cut(graph: Graph, first: int, last: int) -> Graph:
    """The nodes from `first` to before `last` as a graph of their own: what they read is its input, what is read outside its output."""
    inside = [n for n in graph.nodes if first <= n.id < last]
    outside = {v for n in graph.nodes if not first <= n.id < last for v in n.inputs} | graph.output_set
    made = [v for n in inside for v in n.outputs]
    read = dict.fromkeys(v for n in inside for v in n.inputs)
    outputs = tuple(v for v in made if v in outside)
    return dataclasses.replace(
        graph,
        name=f"{graph.name}[{first}:{last}]",
        nodes=tuple(dataclasses.replace(n, id=n.id - first) for n in inside),
        inputs=tuple(v for v in read if v not in made and v not in graph.constants),
        outputs=outputs,
        output_names=tuple(f"v{v}" for v in outputs),
        constants={v: graph.constants[v] for v in read if v in graph.constants},
    )


def lazily(graph: Graph, recording: Recording, closing: Closing, limits: Limits | None = None) -> tuple[float, int]:
    """The exact search to its end: nanoseconds of its optimum, and kernels measured."""
    setup = Setup(graph, recording, "exact", 0)
    sampler = ExactPlanSampler(setup.planner, setup.bench.reached(0.0), limits, closing=closing, asking=THRIFTY)
    while (proposal := sampler.propose()) is not None:
        for v in proposal.lacking:
            setup.studies.step(v.program, math.inf, batch=1, only=[v])
        assert proposal.plan is not None
        if not proposal.lacking:
            setup.bench.open(proposal.plan)
        sampler.observe(proposal, setup.planner.seconds(proposal.plan))
    found, _ = sampler.solve(upper)
    return 1e9 * found.seconds if found is not None else math.inf, len(setup.bench.seen)


def small_graphs(pairs: Sequence[tuple[Graph, Recording]], count: int) -> list[tuple[Graph, Recording]]:
    """Small graphs, each model's in turns; equal ones once, and none that asks for a handful of kernels only."""
    seen: set[str] = set()
    queues = []
    for graph, recording in pairs:
        mine = [cut(graph, k, k + SIZE) for k in range(0, len(graph.nodes) - SIZE + 1, STRIDE)]
        queues.append([(g, recording) for g in mine if all(n.kind.has_kernel for n in g.nodes)])
    found: list[tuple[Graph, Recording]] = []
    for turn in itertools.zip_longest(*queues):
        for pair in turn:
            if pair is None or pair[0].structural_hash in seen or len(found) == count:
                continue
            seen.add(pair[0].structural_hash)
            known = best_known(*pair, SMALL)
            if known is not None and known.kernels >= FEWEST:
                found.append(pair)
    return found


def small(pairs: Sequence[tuple[Graph, Recording]], count: int, output: Path) -> None:
    """Print a row for each small graph, and write them."""
    rules = {"careful": CAREFUL, "nothing assumed": EXHAUSTIVE}
    rows: list[dict[str, Any]] = []
    print(
        "| graph | kernels of brute force | "
        + " | ".join(f"exact, {name}" for name in rules)
        + " | the same optimum | s |"
    )
    print("|---" * (4 + len(rules)) + "|")
    for graph, recording in small_graphs(pairs, count):
        start = time.monotonic()
        known = best_known(graph, recording, SMALL)
        assert known is not None
        found = {name: lazily(graph, recording, closing, SMALL) for name, closing in rules.items()}
        name = f"{recording.model} {graph.name[graph.name.rindex('[') :]}"
        asked = {rule: count for rule, (_, count) in found.items()}
        ratio = {rule: ns / known.program_ns for rule, (ns, _) in found.items()}
        rows.append({"graph": name, "brute": known.kernels, "asked": asked, "ratio": ratio})
        cells = [f"{n} ({100 * n / known.kernels:.0f} %)" for n in asked.values()]
        same = "yes" if all(abs(r - 1) < 1e-9 for r in ratio.values()) else f"{max(ratio.values()):.6f}"
        print(
            f"| {name} | {known.kernels} | {' | '.join(cells)} | {same} | {time.monotonic() - start:.1f} |", flush=True
        )
    brute = sum(r["brute"] for r in rows)
    print()
    for rule in rules:
        same_ones = sum(abs(r["ratio"][rule] - 1) < 1e-9 for r in rows)
        half = sum(2 * r["asked"][rule] <= r["brute"] for r in rows)
        share = 100 * sum(r["asked"][rule] for r in rows) / brute
        print(
            f"- {rule}: the same optimum in {same_ones} of {len(rows)}, at most half of the kernels in {half}, {share:.0f} % of all of them together"
        )
    output.mkdir(parents=True, exist_ok=True)
    (output / "small_graphs.json").write_text(json.dumps(rows, indent=1))


# ---- telling


def table(rows: Sequence[dict[str, object]]) -> str:
    """Measurements that each sampler needed, by model; the median over seeds, and how many of them got there."""
    head = "| model | kernels in the spaces | " + " | ".join(NAMES) + " |"
    lines = [head, "|---" * (2 + len(NAMES)) + "|"]
    for model in dict.fromkeys(str(r["model"]) for r in rows):
        mine = [r for r in rows if r["model"] == model]
        cells = [cell([r for r in mine if r["sampler"] == name]) for name in NAMES]
        lines.append(f"| {model} | {mine[0]['kernels']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(rows: Sequence[dict[str, object]]) -> str:
    """What a sampler needed for one model: "never" where no seed got there, with how near it came."""
    there = [int(str(r["measured"])) for r in rows if r["reached"]]
    if there and len(there) == len(rows):
        return f"{statistics.median(there):g}"
    near = statistics.median(float(str(r["best_over_known"])) for r in rows)
    if there:
        return f"{statistics.median(there):g} ({len(there)} of {len(rows)} seeds)"
    spent = statistics.median(int(str(r["measured"])) for r in rows)
    return f"never ({100 * (near - 1):.1f} % off after {spent:g})"


def plot(rows: Sequence[dict[str, object]], path: Path) -> None:
    """For each model the best plan so far over the measurements."""
    models = list(dict.fromkeys(str(r["model"]) for r in rows))
    figure, grid = plt.subplots(2, -(-len(models) // 2), figsize=(11, 6), sharey=True, squeeze=False)
    for axes, model in zip(grid.flat, models, strict=False):
        for name, colour in zip(NAMES, COLOURS, strict=True):
            for k, r in enumerate(r for r in rows if r["model"] == model and r["sampler"] == name):
                runs = r["runs"]
                assert isinstance(runs, list)
                best = list(itertools.accumulate((100 * (ratio - 1) for _, ratio in runs), min))
                counts = [count for count, _ in runs]
                axes.step(
                    counts,
                    [max(b, 0.1) for b in best],
                    where="post",
                    color=colour,
                    label=name if not k else None,
                    alpha=1.0 if name == "exact" else 0.6,
                )
                axes.plot(counts[-1], max(best[-1], 0.1), "o" if r["reached"] else "x", color=colour)
        axes.axhline(100 * (WITHIN - 1), color="grey", linewidth=0.8, linestyle="--")
        axes.set(xscale="log", yscale="log", title=model, xlabel="kernels measured")
    for axes in grid[:, 0]:
        axes.set_ylabel("% above the best known")
    grid[0, 0].legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def pairs_of(files: Sequence[Path], trained: Path | None) -> Iterator[tuple[Graph, Recording]]:
    """The recordings with their models; those whose model is not at hand are told and left out."""
    for path in files:
        recording = load_recording(path)
        model: str | None = recording.model
        if not recording.model.startswith("sample:"):
            there = sorted(trained.rglob(recording.model)) if trained is not None else []
            model = str(there[0]) if there else None
        if model is None:
            print(f"{path}: {recording.model} is not at hand", flush=True)
            continue
        graph = import_model(load_model(model), dict(recording.shapes))
        if graph.structural_hash != recording.graph:
            print(f"{path}: {recording.model} is read differently by now: record it again", flush=True)
            continue
        yield graph, recording


def main() -> None:
    """Compare on all that is recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", type=Path, help="files (all of results/recorded)")
    parser.add_argument("--trained", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="of the samplers that draw")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--count", type=int, default=20, help="small graphs")
    parser.add_argument("--output", type=Path, default=Path("results/benchmark"))
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/samplers.svg"))
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    files = args.recordings or sorted(Path("results/recorded").glob("*.parquet"))
    pairs = list(pairs_of(files, args.trained))
    if args.small:
        small(pairs, args.count, args.output)
        return
    rows: list[dict[str, object]] = []
    for graph, recording in pairs:
        for row in compared(graph, recording, args.seeds):
            rows.append(row)
            print({k: v for k, v in row.items() if k != "runs"}, flush=True)
    print(table(rows))
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "samplers.json").write_text(json.dumps(rows, indent=1))
    plot(rows, args.picture)


if __name__ == "__main__":
    main()
