"""Tuning: from a graph and a device to the best plan, within a budget of time."""

from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from autofuse.devices.base import Device
from autofuse.engine.lowering import lowering
from autofuse.engine.plan import Plan, check_plan
from autofuse.errors import AutofuseError, LaunchError, MismatchError, PlanError, StorageError, UsageError
from autofuse.fusion.partition import Edge, Partition, Partitioner
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.narrow_weights_host import NarrowWeightsHost
from autofuse.kernels.space import Spaces, load_spaces
from autofuse.measure.bench import Bench
from autofuse.measure.calibrate import Reached
from autofuse.measure.client import DeviceFactory
from autofuse.measure.compiling import LOWERING_ERRORS
from autofuse.measure.device_bench import DeviceBench, Limits
from autofuse.measure.identity import environment_of
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.journal import Journal
from autofuse.measure.peers import check_peer
from autofuse.measure.records import Records
from autofuse.measure.reference import Tolerance
from autofuse.search.budget import Budget
from autofuse.search.exact.bounds import Bounds
from autofuse.search.exact.reasons import Reason, judged
from autofuse.search.exact.sampler import ExactPlanSampler
from autofuse.search.front import LATENCY, MEMORY
from autofuse.search.interrupts import Interrupts
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.outcome import Calibration, TuneOutcome
from autofuse.search.planner import Planner
from autofuse.search.progress import Progress, silent, sturdy
from autofuse.search.rows import corrected, kernel_rows, plan_rows
from autofuse.search.samplers import EXACT, SAMPLERS, OptunaPlanSampler, PlanSampler
from autofuse.search.session import PLAN_SHARE, Session
from autofuse.search.stored import stored_studies
from autofuse.search.studies_file import StudiesFile
from autofuse.search.trading import Aim

_STORAGE_SECONDS = 2.0
_PLANS_BEFORE_FRONT = 0.7
"""The part of the budget after which trade-offs with a second objective are searched."""
_ENUMERATION = 0.3
"""The part of the time for plans that enumerating and pricing regions may take."""
_EXPLAIN_SECONDS, _EXPLAIN_SHARE, _MOST_EXPLAIN_SECONDS = 2.0, 0.1, 20.0
_ALLOCATIONS = 100_000
"""Objects made between two looks for garbage."""
ACCURACIES = ("exact", "default", "fast")
MakeSampler = Callable[[Partitioner, KernelStudies, int], PlanSampler]


@dataclass(frozen=True)
class Task:
    """What is asked of a tune, apart from graph and device."""

    model: str
    shapes: dict[str, tuple[int, ...]]
    inputs: dict[str, np.ndarray]
    budget_seconds: float
    accuracy: str
    seed: int
    sampler: str
    trials: int | None
    baseline: str | None
    onnx_model: bytes | str | None
    storage: str | None
    previous: Plan | None
    command: str
    make_sampler: MakeSampler | None = None
    journal: Journal | None = None
    interrupts: Interrupts | None = None
    explain_seconds: float = 0.0
    """How long, after the budget, the solver may be asked why edges are not fused."""
    objectives: tuple[str, ...] = (LATENCY,)
    memory: int | None = None

    @property
    def aim(self) -> Aim:
        """The second objective is the first one named that is not latency; a limit on memory is searched for like one."""
        others = [o for o in self.objectives if o != LATENCY]
        limit = math.inf if self.memory is None else self.memory
        return Aim(others[0] if others else MEMORY if self.memory is not None else None, limit, self.seed)


def tune(
    graph: Graph,
    device: Device,
    *,
    model: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    budget_seconds: float = 300.0,
    accuracy: str = "default",
    seed: int = 0,
    storage: str | None = None,
    spaces_dir: str | None = None,
    trials: int | None = None,
    sampler: str = EXACT,
    tolerance: Tolerance | None = None,
    progress: Progress = silent,
    baseline: str | None = None,
    onnx_model: bytes | str | None = None,
    records: Path | str | None = None,
    previous: Plan | None = None,
    command: str = "",
    factory: DeviceFactory | None = None,
    make_sampler: MakeSampler | None = None,
    limits: Limits | None = None,
    objectives: tuple[str, ...] = (LATENCY,),
    memory: int | None = None,
    interrupts: Interrupts | None = None,
) -> TuneOutcome:
    """Find the fastest plan for a graph.

    `model` is the model's name for the report. `inputs` are drawn where they are left out. `storage` is a URL of Optuna's (without one the studies
    are not kept), `records` the file of measurements (else the user's data folder). `baseline` names another runtime to measure
    beside the plans; it gets `onnx_model`, a path or a serialised model. `previous` is the best plan of an earlier tune, which is
    measured first. `trials` limits the partitions that are proposed. `factory` makes the device in the worker process (else the device's
    class with its number of threads), `make_sampler` puts another PlanSampler in the place of Optuna's, `limits` are the
    seconds after which a candidate that gives no sign of life is given up. `objectives` beyond latency ("memory", "error") have a front of
    trade-offs measured; `memory` bounds the bytes of intermediates: plans above it give way to those below. `interrupts` is told when
    the search is over, so that Ctrl-C does not end the writing of what it found.

    Raises UsageError for wrong arguments, MismatchError where no plan gives right numbers, LaunchError where none runs. After Ctrl-C the
    best so far is given back with `interrupted` set; KeyboardInterrupt passes only where there is none yet.
    """
    if accuracy not in ACCURACIES:
        raise UsageError(f"unknown accuracy {accuracy!r}; there are: {', '.join(ACCURACIES)}")
    if sampler not in SAMPLERS:
        raise UsageError(f"unknown sampler {sampler!r}; there are: {', '.join(SAMPLERS)}")
    if device.target.kind == "cuda-emulated":
        raise UsageError("cuda-emulated proves results, never speed: it cannot be tuned. Use --device cuda or cpu.")
    if baseline is not None:
        check_peer(baseline)
        if onnx_model is None:
            raise UsageError(f"the baseline {baseline} needs the ONNX model itself")
    drawn = graph_inputs(graph, seed)
    spaces = load_spaces(device.target.kind, spaces_dir)
    notes: list[str] = []
    budget = Budget(budget_seconds)
    kept = _open_records(device, records, notes)
    journal = Journal(kept, model, graph.structural_hash, accuracy)
    task = Task(
        model=model,
        shapes=dict(shapes or {}),
        inputs={**drawn, **(inputs or {})},
        budget_seconds=budget_seconds,
        accuracy=accuracy,
        seed=seed,
        sampler=sampler,
        trials=trials,
        baseline=baseline,
        onnx_model=onnx_model,
        storage=storage,
        previous=previous,
        command=command,
        make_sampler=make_sampler,
        journal=journal,
        interrupts=interrupts,
        explain_seconds=min(max(_EXPLAIN_SECONDS, _EXPLAIN_SHARE * budget_seconds), _MOST_EXPLAIN_SECONDS),
        objectives=objectives,
        memory=memory,
    )
    if accuracy == "fast" and device.target.is_cuda:
        notes.append(
            f"accuracy fast allows lower precision, but no kernel of {device.target.kind} has a variant of lower precision so far: "
            "the same plans were searched as with default"
        )
    bench: DeviceBench | None = None
    try:
        bench = DeviceBench(device, factory or factory_of(device), graph, task.inputs, kept, tolerance, limits)
        with _rare_collections():
            outcome = tune_on(graph, bench, spaces, task, budget, progress, notes)
        text = best_text(graph, outcome.best, device)
    finally:
        if bench is not None:
            bench.close()
        if kept is not None:
            kept.close()
    return replace(
        outcome,
        best_text=text,
        notes=tuple(dict.fromkeys((*outcome.notes, *bench.notes, *bench.seeding_notes, *journal.notes))),
    )


def factory_of(device: Device) -> DeviceFactory:
    """A function that makes such a device in another process."""
    kind: Any = type(device)
    return functools.partial(kind) if device.target.is_cuda else functools.partial(kind, threads=device.threads)


def _open_records(device: Device, path: Path | str | None, notes: list[str]) -> Records | None:
    try:
        kept = Records(identity(device), device.threads, path, environment_of(device))
    except StorageError as e:
        notes.append(f"{e} Nothing is remembered of this tune.")
        return None
    notes += kept.notes
    return kept


def identity(device: Device) -> str:
    """What a measurement depends on besides the kernel: the kind, architecture and name of the device."""
    return identity_of(device.target)


def identity_of(t: Target) -> str:
    """The same of a target."""
    return f"{t.kind}|{t.arch}|{t.name}|{t.cores}"


def tune_on(
    graph: Graph,
    bench: Bench,
    spaces: Spaces,
    task: Task,
    budget: Budget,
    progress: Progress = silent,
    notes: list[str] | None = None,
    recorded: Callable[[Variant], Sequence[Schedule]] | None = None,
) -> TuneOutcome:
    """A tune on any bench: what `tune` does once device, records and budget are there. `recorded`: see KernelStudies."""
    said = notes if notes is not None else []
    partitioner = Partitioner(graph, bench.target)
    studies = KernelStudies(
        bench, spaces, task.accuracy, task.seed, sampler=task.sampler, clock=budget.clock, recorded=recorded
    )
    planner = Planner(graph, bench, partitioner, studies, task.accuracy)
    studies.constants = planner.constants

    def make() -> PlanSampler:
        if task.make_sampler is not None:
            return task.make_sampler(partitioner, studies, task.seed)
        if task.sampler == EXACT:
            rates = reached[0] if reached else bench.reached(-math.inf)
            late = budget.clock() + _ENUMERATION * (budget.at(PLAN_SHARE) - budget.clock())
            return ExactPlanSampler(planner, rates, enough=lambda: budget.clock() > late)
        return OptunaPlanSampler(partitioner, task.sampler, task.seed)

    reached: list[Reached] = []
    journal = (
        task.journal if task.journal is not None else Journal(None, task.model, graph.structural_hash, task.accuracy)
    )
    found = journal.begin()
    said += found.notes
    studies.is_steady = journal.is_steady
    session = Session(graph, bench, planner, studies, make, budget, sturdy(progress), task.trials, task.aim)
    session.book.keep = journal.keep
    interrupted = False
    with _quiet_optuna():
        try:
            _run(session, task, reached, found.plans)
        except KeyboardInterrupt:
            interrupted = True
            if session.book.best is None:
                raise
        except (AutofuseError, OSError, MemoryError) as e:
            # What was found before stands, whatever the disk, the compiler or the memory does.
            if session.book.best is None:
                raise
            said.append(f"the search ended before its time: {e}")
        finally:
            if task.interrupts is not None:
                task.interrupts.finish()
            session.book.close()
        best = session.book.best
        if best is None:
            wrong = any(e.opened.status.value == "wrong" for e in session.book.entries.values())
            error = MismatchError if wrong else LaunchError
            raise error(f"no plan for {task.model} works on this device: {session.failure()}")
        calibration = corrected(_calibration(reached[0] if reached else bench.reached(-math.inf)), studies)
        plans = plan_rows(graph, session.book.entries.values(), calibration)
        kernels = kernel_rows(studies, calibration)
        if task.storage is not None and not interrupted:
            try:
                session.tell("writing the studies")
                written = stored_studies(graph, spaces, studies, session.sampler, task.accuracy)
                said += StudiesFile(task.storage).write(written, max(_STORAGE_SECONDS, 0.05 * budget.seconds))
            except StorageError as e:
                said.append(str(e))
    additivity = session.additivity()
    if additivity:
        said.append(additivity)
    narrow = sum(r.family == NarrowWeightsHost.name for r in best.plan.regions)
    if narrow:
        said.append(
            f"the best plan has lower precision: {narrow} regions store their weights in half of a float32, as accuracy fast allows"
        )
    if bench.oracle:
        said.append(f"numbers were compared with {bench.oracle}")
    journal.keep(best.plan, best.best_samples)
    journal.end(session.steady and not interrupted and getattr(bench, "was_steady", True))
    reasons: dict[Edge, Reason] = {}
    if task.explain_seconds > 0 and not interrupted:
        session.tell("why edges are not fused")
        with task.interrupts.allowed() if task.interrupts is not None else nullcontext():
            reasons = _reasons(session, best.plan, reached, task.explain_seconds)
    session.tell_done()
    return TuneOutcome(
        graph=graph,
        model=task.model,
        shapes=task.shapes,
        target=bench.target,
        threads=bench.threads,
        accuracy=task.accuracy,
        seed=task.seed,
        command=task.command,
        best=best.plan,
        best_text={},
        plans=plans,
        kernels=kernels,
        refusals=dict(session.greedy.refusals),
        calibration=calibration,
        baselines={name: tuple(s) for name, s in session.book.peers.items()},
        seconds=budget.spent,
        interrupted=interrupted,
        notes=tuple(dict.fromkeys([*said, *session.notes, *session.book.notes])),
        noise=session.book.noise,
        inputs=task.inputs,
        reasons=reasons,
        objectives=task.objectives,
    )


def _reasons(session: Session, best: Plan, reached: list[Reached], seconds: float) -> dict[Edge, Reason]:
    """What the exact solver says of each edge; where another sampler searched, it is set up for that. Nothing after Ctrl-C."""
    planner, end = session.planner, time.monotonic() + seconds
    try:
        sampler = session.sampler
        if not isinstance(sampler, ExactPlanSampler):
            late = time.monotonic() + seconds / 2
            rates = reached[0] if reached else session.bench.reached(-math.inf)
            known = Partition(tuple(r.region for r in best.regions if r.region.nodes))
            sampler = ExactPlanSampler(planner, rates, enough=lambda: time.monotonic() > late, known=(known,))
        return judged(sampler, best, planner.partitioner.edges, end - time.monotonic())
    except KeyboardInterrupt:
        return {}


def _run(session: Session, task: Task, reached: list[Reached], journalled: Sequence[Plan]) -> None:
    session.tell("reading records and preparing the reference")
    session.bench.prepare()
    # Where the first plan's outputs are the reference, that plan is one whose kernels were checked.
    late = session.bench.checks_first_plan
    previous = {p.key: p for p in (*([task.previous] if task.previous is not None else []), *journalled)}
    for plan in () if late else previous.values():
        _run_previous(session, plan)
    session.run_baselines()
    for plan in previous.values() if late else ():
        _run_previous(session, plan)
    session.run_noise()
    session.tell("what the device reaches")
    found = session.bench.reached(session.budget.at(0.7))
    session.steady = found.steady
    reached.append(found)
    session.studies.bound = Bounds.of(found, session.bench.target).lower
    if not found.measured:
        session.notes.append(
            "the device's bandwidth and arithmetic are assumed, not measured: the budget was too short"
        )
    session.run_kernels()
    session.run_plans(PLAN_SHARE if task.aim.second is None else _PLANS_BEFORE_FRONT)
    session.run_front()
    if task.baseline is not None and task.onnx_model is not None:
        session.tell(f"loading {task.baseline}")
        session.book.open_peer(task.baseline, task.onnx_model)
    session.run_finals()


def _run_previous(session: Session, plan: Plan) -> None:
    try:
        session.notes += check_plan(plan, session.graph, session.bench.target, session.bench.threads)
        session.run_previous(plan)
    except (PlanError, *LOWERING_ERRORS) as e:
        # It may be of another hand: whatever is wrong with it costs that plan only.
        session.notes.append(f"the previous best plan was not used: {e or type(e).__name__}")


def _calibration(found: Reached) -> Calibration:
    return Calibration(found.bandwidth, found.flops, found.launch, found.cached, found.shared)


def best_text(graph: Graph, plan: Plan, device: Device) -> dict[str, str]:
    """The kernel texts of a plan by kernel key."""
    make = lowering(device)
    regions = (r for r in plan.regions if r.family not in ("host", "control"))
    compiled = device.compile(kernel for r in regions for kernel, _ in make(graph, r).launches)
    return {c.key: c.text for c in compiled if not isinstance(c, Exception)}


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A tune makes millions of expressions, which are freed without any look for cycles: looking as often as Python does by default takes
    a sixth of the time in which kernels are made."""
    before = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Optuna logs every study; here there are dozens, and the tune tells of its progress itself."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
