"""The plan: what was decided, as data that is saved, checked and used again.

A plan names the graph by its structural hash and holds, per region, the nodes, the values delivered, the variant with its layouts and
the schedule. Kernel text is never stored: it is generated again from the plan.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofuse.errors import PlanError, StorageError
from autofuse.fusion.region import Region
from autofuse.ir.graph import Graph
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Control
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule
from autofuse.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class PlannedRegion:
    """One region with its implementation. For a Host region the family is "host" and the layouts are plain.

    A region without nodes is a reorder: it copies its one value from the input layout to the output layout. The family of a Control
    node is "control", its algorithm the operator; `bodies` are the plans of the graphs in it, None for one that is imported when it runs.
    """

    region: Region
    family: str
    algorithm: str
    input_layouts: tuple[Layout, ...]
    output_layouts: tuple[Layout, ...]
    schedule: Schedule
    bodies: tuple[Plan | None, ...] = ()

    @property
    def has_kernels(self) -> bool:
        """Whether it launches kernels of its own."""
        return self.family not in ("host", "control", "view")

    @property
    def label(self) -> str:
        """Short text for people: family, algorithm, schedule."""
        return f"{self.family}/{self.algorithm} {self.schedule.text()}"


@dataclass(frozen=True)
class Plan:
    """A complete decision for one graph on one architecture. `regions` are in the order in which they run."""

    graph: str
    device: str
    arch: str
    threads: int
    accuracy: str
    regions: tuple[PlannedRegion, ...]
    origin: str = field(default="", compare=False)
    """Where it came from, in words: unfused, greedy, a trial."""

    @property
    def key(self) -> str:
        """SHA-256 (16 hex digits) of all that decides what runs."""
        return hashlib.sha256(json.dumps(self._decisions(), sort_keys=True).encode()).hexdigest()[:16]

    def _decisions(self) -> dict[str, Any]:
        return {
            "graph": self.graph,
            "device": self.device,
            "arch": self.arch,
            "threads": self.threads,
            "accuracy": self.accuracy,
            "regions": [_region_to_json(r) for r in self.regions],
        }

    def to_json(self) -> dict[str, Any]:
        """The versioned form that is saved."""
        head = {"format": FORMAT, "autofuse": __version__, "origin": self.origin}
        return {**head, **self._decisions()}

    def save(self, path: Path) -> None:
        """Write atomically; StorageError where that fails."""
        text = json.dumps(self.to_json(), indent=1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
            with os.fdopen(handle, "w") as f:
                f.write(text)
            os.replace(temporary, path)
        except OSError as error:
            raise StorageError(
                f"{path}: the plan cannot be written: {error.strerror}; choose another --output"
            ) from error


def _region_to_json(r: PlannedRegion) -> dict[str, Any]:
    inside = [None if p is None else p._decisions() for p in r.bodies]
    return {
        "nodes": list(r.region.nodes),
        "inputs": list(r.region.inputs),
        "outputs": list(r.region.outputs),
        "family": r.family,
        "algorithm": r.algorithm,
        "input_layouts": [x.text() for x in r.input_layouts],
        "output_layouts": [x.text() for x in r.output_layouts],
        "schedule": r.schedule.values,
        **({"bodies": inside} if inside else {}),
    }


def load_plan(path: Path) -> Plan:
    """Read a plan file. PlanError where it is damaged or of an unknown version."""
    try:
        text = path.read_text()
    except OSError as error:
        raise PlanError(f"{path}: the plan cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: damaged plan: not text at byte {error.start}; tune again") from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"{path}: damaged plan: not JSON at line {error.lineno}; tune again") from error
    return plan_from_json(data, str(path))


def plan_from_json(data: object, where: str) -> Plan:
    """Validate the saved form."""
    if not isinstance(data, dict):
        raise PlanError(f"{where}: damaged plan: an object is expected, found {type(data).__name__}")
    if data.get("format") != FORMAT:
        raise PlanError(f"{where}: plan format {data.get('format')!r} is unknown; this autofuse reads format {FORMAT}")
    try:
        return _decided(data)
    except (AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise PlanError(f"{where}: damaged plan: {type(error).__name__}: {error}; tune again") from error


def _decided(data: Mapping[str, Any]) -> Plan:
    return Plan(
        _text(data, "graph"),
        _text(data, "device"),
        _text(data, "arch"),
        int(data["threads"]),
        _text(data, "accuracy"),
        tuple(_region_from_json(r) for r in data["regions"]),
        str(data.get("origin", "")),
    )


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} must be text, found {value!r}")
    return value


def _integers(data: Mapping[str, Any], key: str) -> tuple[int, ...]:
    values = data[key]
    if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
        raise TypeError(f"{key} must be a list of numbers, found {values!r}")
    return tuple(values)


def _region_from_json(data: Mapping[str, Any]) -> PlannedRegion:
    schedule = data["schedule"]
    if not isinstance(schedule, dict) or not all(isinstance(v, int | str) for v in schedule.values()):
        raise TypeError(f"schedule must be a table of integers and names, found {schedule!r}")
    return PlannedRegion(
        Region(_integers(data, "nodes"), _integers(data, "inputs"), _integers(data, "outputs")),
        _text(data, "family"),
        _text(data, "algorithm"),
        tuple(Layout.parse(x) for x in data["input_layouts"]),
        tuple(Layout.parse(x) for x in data["output_layouts"]),
        Schedule.of(schedule),
        tuple(_body_from_json(p) for p in data.get("bodies", [])),
    )


def _body_from_json(data: object) -> Plan | None:
    if data is not None and not isinstance(data, dict):
        raise TypeError(f"the plan of a graph inside a node must be an object, found {data!r}")
    return None if data is None else _decided(data)


def check_plan(plan: Plan, graph: Graph, target: Target, threads: int) -> tuple[str, ...]:
    """Whether a plan may be used here: warnings in words, or a PlanError that says what to do."""
    if plan.graph != graph.structural_hash:
        raise PlanError(
            f"the plan is for another model structure ({plan.graph[:12]}, this model is {graph.structural_hash[:12]}); "
            "tune this model, or give the model and shapes that the plan was made for"
        )
    if plan.device.split("-")[0] != target.kind.split("-")[0] or plan.arch != target.arch:
        raise PlanError(
            f"the plan was made for {plan.device} {plan.arch}, this device is {target.kind} {target.arch}; "
            "tune here: the old plan serves as a seed"
        )
    for r in plan.regions:
        if any(n >= len(graph.nodes) for n in r.region.nodes):
            raise PlanError(f"the plan names node {max(r.region.nodes)}, the model has {len(graph.nodes)} nodes")
        if r.family == "control":
            _check_bodies(r, graph, target, threads)
    warnings = []
    if plan.threads != threads:
        warnings.append(f"the plan was tuned with {plan.threads} threads and runs with {threads}")
    return tuple(warnings)


def _check_bodies(r: PlannedRegion, graph: Graph, target: Target, threads: int) -> None:
    compute = graph.nodes[r.region.nodes[0]].compute if r.region.nodes else None
    if not isinstance(compute, Control) or len(compute.bodies) != len(r.bodies):
        raise PlanError(
            f"the plan takes nodes {r.region.nodes} for a control-flow node, which they are not; tune again"
        )
    for body, plan in zip(compute.bodies, r.bodies, strict=True):
        if (body.graph is None) != (plan is None):
            raise PlanError(f"the plan for the graphs inside node {r.region.nodes[0]} is not complete; tune again")
        if body.graph is not None and plan is not None:
            check_plan(plan, body.graph, target, threads)
