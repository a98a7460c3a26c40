"""autofuse.tune: from a model to the fastest plan and a folder with all that was found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
from onnx import ModelProto

from autofuse.api import arguments
from autofuse.api.arguments import Arrays, Model, Shapes
from autofuse.api.devices import open_device
from autofuse.api.environment import environment
from autofuse.api.selecting import Wish, selected
from autofuse.devices.base import Device
from autofuse.engine.plan import Plan
from autofuse.errors import UsageError
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Graph
from autofuse.measure.peers import check_peer
from autofuse.measure.reference import Tolerance
from autofuse.report.folder import check_writable, write_results
from autofuse.report.places import saved_plans
from autofuse.report.results import Results, open_results
from autofuse.search import tune as search
from autofuse.search.interrupts import Interrupts
from autofuse.search.progress import Progress, silent

ACCURACIES = ("exact", "default", "fast")


@dataclass(frozen=True, eq=False)
class TuneResult:
    """What a tune found. `folder` holds all of it on disk; `interrupted` says whether Ctrl-C ended it early."""

    plan: Plan
    folder: Path
    interrupted: bool

    @cached_property
    def results(self) -> Results:
        """The result folder, opened."""
        return open_results(self.folder)

    @property
    def trade_offs(self) -> pd.DataFrame:
        """A row per plan that was tried (docs/data-dictionary.md)."""
        return self.results.trade_offs


def tune(
    model: Model,
    device: str = "auto",
    budget: float | str = "5m",
    shapes: Shapes | None = None,
    inputs: Arrays | None = None,
    output: str | Path = "results",
    accuracy: str = "default",
    threads: int | None = None,
    seed: int = 0,
    *,
    storage: str | None = None,
    space: str | Path | None = None,
    trials: int | None = None,
    sampler: str = "exact",
    rtol: float | None = None,
    atol: float | None = None,
    baseline: str | None = None,
    objective: str = "latency",
    max_memory: int | str | None = None,
    progress: Progress = silent,
    command: str | None = None,
) -> TuneResult:
    """Find the fastest way to run a model on a device, and save it.

    `model` is a path, `sample:NAME`, bytes or a ModelProto. `budget` is in seconds, or text such as "5m". `shapes` binds open
    dimensions. `inputs` are drawn in the range that each operator allows where they are left out. A second tune measures the first
    one's best plan first. `objective` is "latency", "memory" or "error", or latency with one of the others: "latency,memory" has plans
    that trade one for the other searched and measured, too, and the best plan has least of the first one named. `max_memory` bounds the
    bytes of intermediates and scratch buffers ("64M"): no plan above it is chosen, and where none keeps to it, an error tells the least.

    Raises UsageError for what does not fit, AutofuseError where nothing could be tuned.
    """
    seconds = arguments.seconds_of(budget)
    if accuracy not in ACCURACIES:
        raise UsageError(f"accuracy is one of {', '.join(ACCURACIES)}, found {accuracy!r}")
    if device == "cuda-emulated":
        raise UsageError(
            "cuda-emulated proves results, never speed, so there is nothing to tune on it; use --device cuda or cpu, or "
            "check a model with `autofuse verify --device cuda-emulated`"
        )
    if baseline is not None:
        check_peer(baseline)
    wish = Wish.of(objective, max_memory)
    proto = load_model(model)
    graph = import_model(proto, dict(shapes or {}), fed=inputs)
    opened = open_device(device, threads)
    name = arguments.model_name(model)
    check_writable(Path(output))
    found: list[str] = []
    with Interrupts() as interrupts:
        outcome = search.tune(
            graph,
            opened,
            model=name,
            shapes=arguments.input_shapes(graph),
            inputs=arguments.complete_inputs(graph, inputs, seed),
            budget_seconds=seconds,
            accuracy=accuracy,
            seed=seed,
            storage=storage,
            spaces_dir=None if space is None else str(space),
            trials=trials,
            sampler=sampler,
            tolerance=Tolerance(rtol, atol, fast=accuracy == "fast"),
            progress=progress,
            baseline=baseline,
            onnx_model=None if baseline is None else _for_peer(model, proto),
            previous=_previous(graph, opened, Path(output), accuracy, found),
            command=command or f"autofuse.tune({name!r})",
            interrupts=interrupts,
            objectives=wish.objectives,
            memory=wish.memory,
        )
        outcome = replace(outcome, notes=tuple(dict.fromkeys((*found, *outcome.notes))))
        chosen = selected(outcome, opened, wish)
        folder = write_results(chosen, Path(output), environment(opened))
        return TuneResult(chosen.best, folder, chosen.interrupted or interrupts.came > 0)


def _for_peer(model: Model, proto: ModelProto) -> bytes | str:
    """What another runtime loads: the file itself where there is one, so that models of any size work."""
    if isinstance(model, bytes):
        return model
    if not isinstance(model, ModelProto) and Path(model).is_file():
        return str(model)
    return bytes(proto.SerializeToString())


def _previous(graph: Graph, device: Device, output: Path, accuracy: str, notes: list[str]) -> Plan | None:
    """The best plan of an earlier tune of this structure on this architecture, of the same accuracy and threads where there is one."""
    plans = [p for _, p in saved_plans(output, graph.structural_hash, device.target, notes) if p.accuracy == accuracy]
    same = [p for p in plans if p.threads == device.threads]
    return next(iter([*same, *plans]), None)
