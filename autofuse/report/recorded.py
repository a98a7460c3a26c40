"""Result folders as recordings: what a tune measured, to be searched again on any machine."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autofuse.devices.cpuinfo import cpu_target
from autofuse.devices.cuda_targets import cuda_target
from autofuse.engine.lowering import variant_of
from autofuse.engine.plan import Plan
from autofuse.errors import PlanError
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.measure.calibrate import Reached
from autofuse.measure.recording import Recording, distinct, load_recording, way_text
from autofuse.measure.result import Measurement, Status
from autofuse.report.results import Results, open_results
from autofuse.report.what_if import measured_alone

RECORDING = ".parquet"
TABLE_FOLDER = "run.json"


def recorded(path: Path, model: str | None = None) -> tuple[Graph, Recording]:
    """A model's graph with what is recorded of its kernels: `path` is the file of a recording, or a result folder.

    `model` is the model file where it isn't the one that was recorded. StorageError where there is neither, PlanError where the model is another.
    """
    if path.is_file() and path.suffix == RECORDING and not (path.parent / TABLE_FOLDER).exists():
        found = load_recording(path)
        return _graph(found.graph, found.shapes, model or found.model), found
    results = open_results(path)
    run = results.run
    shapes = {str(name): tuple(dims) for name, dims in run["shapes"].items()}
    graph = _graph(results.plan.graph, shapes, model or str(run["model"]))
    return graph, recording_of(results, graph)


def _graph(structure: str, shapes: Mapping[str, tuple[int, ...]], model: str) -> Graph:
    graph = import_model(load_model(model), dict(shapes))
    if graph.structural_hash != structure:
        raise PlanError(
            f"{model} is not the model that was recorded, or this autofuse reads it differently (its structure is {graph.structural_hash[:12]}, "
            f"{structure[:12]} was recorded); give the model itself, or tune or record again"
        )
    return graph


def recording_of(results: Results, graph: Graph) -> Recording:
    """What a result folder knows of kernels: those that were measured alone, and for the others what they took inside a plan that was run."""
    run = results.run
    target = target_of(run)
    c = run["calibration"]
    rows = (*_in_place(results, graph, target), *measured_alone(results.kernels))
    return Recording(
        str(results.path),
        str(run["model"]),
        graph.structural_hash,
        {str(name): tuple(dims) for name, dims in run["shapes"].items()},
        target,
        int(run["threads"]),
        str(run["accuracy"]),
        Reached(float(c["bandwidth"]), float(c["flops"]), float(c["launch"]), True),
        distinct(rows),
    )


def target_of(run: Mapping[str, Any]) -> Target:
    """The device of a result, by what run.json says of it: this machine needs not be one."""
    device = run["device"]
    known = {f.name for f in dataclasses.fields(Target)}
    given = {k: v for k, v in device.items() if k in known}
    if known <= given.keys():
        return Target(**given)
    if device["kind"] == "cpu":
        return cpu_target(
            str(device["arch"]),
            str(device["name"]),
            int(run["threads"]),
            (int(device["l1"]), int(device["l2"]), int(device["l3"])),
        )
    return dataclasses.replace(cuda_target(device["arch"]), **given)


def _in_place(results: Results, graph: Graph, target: Target) -> Iterator[Measurement]:
    """The regions of plans that were profiled; a kernel's best time in any of them."""
    best: dict[tuple[Variant, Schedule], int] = {}
    for key, region_ns in zip(results.trade_offs["plan"], results.trade_offs["region_ns"], strict=True):
        plan: Plan = results.plans[str(key)]
        if len(region_ns) != len(plan.regions):
            continue
        for r, ns in zip(plan.regions, region_ns, strict=True):
            if not r.has_kernels or ns <= 0:
                continue
            try:
                v = variant_of(graph, r, target)
            except PlanError:
                continue
            if v.family != "view":
                best[v, r.schedule] = min(best.get((v, r.schedule), round(ns)), round(ns))
    for (v, schedule), ns in best.items():
        way = way_text(v)
        digest = hashlib.sha256(" ".join((*way, schedule.text())).encode()).hexdigest()
        yield Measurement(f"in-place-{digest}", *way, schedule.text(), Status.OK, samples_ns=(max(1, ns),), cached=True)
