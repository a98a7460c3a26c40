"""autofuse.replay: a tune again on what was recorded, on any machine: nothing is run."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from autofuse.api import arguments
from autofuse.api.tuning import TuneResult
from autofuse.engine.lowering import variant_of
from autofuse.engine.plan import Plan
from autofuse.errors import UsageError
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.families import lower
from autofuse.kernels.space import load_spaces
from autofuse.measure.replay import ReplayBench
from autofuse.render.cpp import render_cpp
from autofuse.render.cuda import render_cuda
from autofuse.report.folder import check_writable, write_results
from autofuse.report.recorded import recorded
from autofuse.search.budget import Budget
from autofuse.search.progress import Progress, silent
from autofuse.search.samplers import EXACT, SAMPLERS
from autofuse.search.tune import Task, tune_on

FOLDER = "replayed"
"""Below the output folder: plans that were only replayed are not among those that `load` looks for."""


def replay(
    results: str | Path,
    model: str | None = None,
    budget: float | str = "5m",
    output: str | Path = "results",
    seed: int = 0,
    *,
    sampler: str = EXACT,
    trials: int | None = None,
    progress: Progress = silent,
    command: str | None = None,
) -> TuneResult:
    """Search again among the kernels that a result folder (or a file of benchmarks/record_spaces.py) holds.

    Nothing is compiled or run, and the machine need not be the one of the results: a kernel costs what was recorded, a plan the sum of its
    kernels. What was not recorded is refused with that as the reason. `budget` counts on a clock that moves by a tenth of a second for each
    kernel that is looked up, so the same call always finds the same plan. `model` is the model file where it has moved. Written is a result
    folder in `output`/replayed.

    Raises StorageError where there are no results, PlanError where the model is another one, LaunchError where no plan has all its kernels recorded.
    """
    if sampler not in SAMPLERS:
        raise UsageError(f"unknown sampler {sampler!r}; there are: {', '.join(SAMPLERS)}")
    seconds = arguments.seconds_of(budget)
    check_writable(Path(output))
    graph, recording = recorded(Path(results), model)
    bench = ReplayBench(graph, recording)
    told = command or f"autofuse.replay({str(results)!r})"
    task = Task(
        model=recording.model,
        shapes=arguments.input_shapes(graph),
        inputs={},
        budget_seconds=seconds,
        accuracy=recording.accuracy,
        seed=seed,
        sampler=sampler,
        trials=trials,
        baseline=None,
        onnx_model=None,
        storage=None,
        previous=None,
        command=told,
    )
    notes = [
        f"replayed from {recording.source}: nothing was run, a plan's time is the sum of what was recorded of its kernels"
    ]
    outcome = tune_on(
        graph,
        bench,
        load_spaces(recording.target.kind),
        task,
        Budget(seconds, bench.clock),
        progress,
        notes,
        bench.schedules,
    )
    outcome = replace(outcome, best_text=_texts(graph, outcome.best, recording.target))
    folder = write_results(outcome, Path(output) / FOLDER, {"replayed": recording.source})
    return TuneResult(outcome.best, folder, outcome.interrupted)


def _texts(graph: Graph, plan: Plan, target: Target) -> dict[str, str]:
    """The kernel texts of a plan by a digest of theirs."""
    kernels = dict.fromkeys(
        x.kernel
        for r in plan.regions
        if r.has_kernels
        for x in lower(variant_of(graph, r, target), r.schedule, target).launches
    )
    texts = [render_cuda(k) if target.is_cuda else render_cpp(k, target.vector_bytes) for k in kernels]
    return {hashlib.sha256(t.encode()).hexdigest(): t for t in texts}
