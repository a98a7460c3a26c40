"""autofuse.load: a model ready to run, with the best plan that is at hand."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto

from autofuse.api import arguments
from autofuse.api.arguments import Model, Shapes, bytes_of
from autofuse.api.choosing import Choice, choose, heuristic_choice, saved_shapes, shapes_of_results, within
from autofuse.api.devices import open_device
from autofuse.api.engines import Engines, check_declared
from autofuse.api.environment import changes, environment
from autofuse.api.transfer import carried
from autofuse.devices.base import Device
from autofuse.engine.engine import Engine
from autofuse.engine.plan import Plan
from autofuse.errors import MismatchError, ShapeError
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Dim, Graph
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.oracle import compare_model, graph_flops, whole_reference
from autofuse.measure.reference import Tolerance

CHECK_FLOPS = 2e9
"""Up to this much arithmetic a plan from another environment is checked against float64 when it is loaded."""


@dataclass(frozen=True)
class Port:
    """An input or output of a loaded model.

    `shape` is what was compiled for; `declared` has the model's own dimensions, with a symbol where another size may be fed (None where
    the model states nothing).
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    declared: tuple[Dim, ...] | None = None


class LoadedEngine:
    """A model that runs. `origin` says which plan it runs with, `warnings` what is not as it was when that was tuned.

    Calls from several threads take turns. Close it, or use it in a with statement.
    """

    def __init__(self, proto: ModelProto, graph: Graph, device: Device, choice: Choice, notes: list[str]) -> None:
        self.plan = choice.plan
        self.origin = choice.origin
        self.warnings = tuple(notes)
        self.graph = graph
        self.device = device
        self._lock = threading.Lock()
        self._engine = Engine.build(graph, choice.plan, device)
        self._engines = Engines(proto, device, self._plan_for)
        self._engines.add(self._engine)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The model's inputs in order."""
        return _ports(self.graph)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The model's outputs in order."""
        return tuple(_port(self.graph, v, n) for v, n in zip(self.graph.outputs, self.graph.output_names, strict=True))

    @property
    def engine(self) -> Engine:
        """The compiled engine, for measuring. It is not safe to use from several threads."""
        return self._engine

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Every compiled engine that is kept: one for each set of sizes and parameters, the most recently used first."""
        return self._engines.all()

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once: {input name: array} -> {output name: array}. InputError where a name, type or shape does not fit.

        Another size of an open dimension is compiled for with the same choices, once; so are other contents of an input that decides
        about sizes (axes, a target shape). A bounded number of engines is kept.
        """
        with self._lock:
            check_declared(self.graph, inputs)
            return self._engines.find(inputs).run(inputs)

    def _plan_for(self, graph: Graph) -> Plan:
        """The plan for other sizes or parameters: one saved for just these, else the choices of this engine's plan."""
        fed = [f"{graph.values[v].name} = {a.tolist()}" for v, a in graph.parameters.items()]
        sizes = [f"{p.name} {'x'.join(map(str, p.shape or ()))}" for p in _ports(graph)]
        what = f"for other {'contents' if fed else 'sizes'} ({', '.join(fed or sizes)})"
        choice = choose(graph, self.device, None)
        if choice.saved is not None:
            kept, plan = f"the {choice.origin}", choice.plan
        else:
            mine = carried(self.plan, self.graph, graph, self.device)
            kept = "the plan's choices" if mine is not None else "a heuristic plan, as the plan does not carry over"
            plan = mine or choice.plan
        warnings.warn(f"compiled {what} with {kept}; tune for them to gain more", stacklevel=6)
        return plan

    def close(self) -> None:
        """Free memory and threads. Calling it twice does no harm."""
        self._engines.close()

    def __enter__(self) -> LoadedEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _ports(graph: Graph) -> tuple[Port, ...]:
    return tuple(_port(graph, v, graph.values[v].name) for v in graph.inputs)


def _port(graph: Graph, v: int, name: str) -> Port:
    value = graph.values[v]
    return Port(name, value.dtype.value, value.shape, value.declared)


def load(
    model: Model,
    plan: Plan | str | Path | None = None,
    device: str = "auto",
    shapes: Shapes | None = None,
    threads: int | None = None,
    max_memory: int | str | None = None,
) -> LoadedEngine:
    """Make a model ready to run: with the given plan, else the saved best one for this device in ./results, else a heuristic one.

    `plan` is a Plan, a plan.json or a result folder. Where the model has open dimensions and `shapes` is left out, those that the plan was
    tuned for are taken. A plan from another driver, compiler or machine of the same architecture is used with a warning, after a
    check of its numbers. `max_memory` bounds the bytes of intermediates and scratch buffers ("64M"): another plan of the same tune, or the
    heuristic one, takes the place of a found one that needs more; AutofuseError where none keeps to it, or a given plan does not. Raises PlanError
    where a given plan does not fit; a found one gives way to the heuristic plan, with a warning.
    """
    proto = load_model(model)
    opened = open_device(device, threads)
    graph = _imported(proto, model, plan, shapes)
    choice = choose(graph, opened, plan)
    if max_memory is not None:
        limit = bytes_of(max_memory) if isinstance(max_memory, str) else max_memory
        choice = within(graph, opened, choice, limit, given=plan is not None)
    changed = changes(choice.environment, environment(opened)) if choice.environment else []
    try:
        return _checked(proto, graph, opened, choice, changed)
    except MismatchError as error:
        if plan is not None or choice.saved is None:
            raise
        # nobody asked for this plan: it was found, and another one does
        why = f"{choice.saved} cannot be used"
        return LoadedEngine(proto, graph, opened, heuristic_choice(graph, opened, why), [f"{choice.saved}: {error}"])


def _checked(proto: ModelProto, graph: Graph, device: Device, choice: Choice, changed: list[str]) -> LoadedEngine:
    """The engine, its numbers checked where the environment has changed. MismatchError where plan or numbers do not fit."""
    engine = LoadedEngine(proto, graph, device, choice, [*choice.warnings, *changed])
    try:
        if changed:
            _recheck(engine)
    except MismatchError:
        engine.close()
        raise
    return engine


def _imported(proto: ModelProto, model: Model, plan: Plan | str | Path | None, shapes: Shapes | None) -> Graph:
    """The graph under the given shapes, else under those of the plan or of what is saved for a model of this name."""
    try:
        return import_model(proto, dict(shapes or {}))
    except ShapeError:
        if shapes:
            raise
        name = arguments.model_name(model)
        known = (
            saved_shapes(name) if plan is None else None if isinstance(plan, Plan) else shapes_of_results(Path(plan))
        )
        if not known:
            raise
        return import_model(proto, known)


def _recheck(engine: LoadedEngine) -> None:
    """Compare an engine from another environment with the float64 reference, where that takes seconds at most."""
    graph = engine.graph
    if graph_flops(graph) > CHECK_FLOPS:
        return
    inputs = graph_inputs(graph)
    if len(inputs) < len(graph.inputs):
        return
    check = compare_model(
        graph, engine.run(inputs), whole_reference(graph, inputs), Tolerance(fast=engine.plan.accuracy == "fast")
    )
    if not check.ok:
        raise MismatchError(
            f"the {engine.origin} gives wrong numbers here: {check.reason}. It was made elsewhere "
            f"({'; '.join(engine.warnings)}); tune on this machine."
        )
