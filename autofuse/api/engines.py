"""The engines of one model: one for each set of sizes, and of contents that decide about sizes, which was met."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

from autofuse.devices.base import Device
from autofuse.engine.engine import Engine
from autofuse.engine.plan import Plan
from autofuse.errors import InputError, ShapeError
from autofuse.importer.importing import defaults, import_model
from autofuse.importer.proto import stored_names
from autofuse.ir.graph import Graph

LIMIT = 8
"""So many engines are kept; the one that was used least recently goes. Where a parameter (axes, a target shape) keeps changing,
the operators that read it go back to the host after as many."""

PlanFor = Callable[[Graph], Plan]


@dataclass(frozen=True, eq=False)
class _Made:
    """An engine. `final` says that no contents would make a better one."""

    engine: Engine
    final: bool


class Engines:
    """Finds or makes the engine for what is fed. Not safe to use from several threads."""

    def __init__(self, model: ModelProto, device: Device, plan_for: PlanFor) -> None:
        self._model = model
        self._device = device
        self._plan_for = plan_for
        self._defaults = defaults(model)
        self._fixed = stored_names(model.graph) - self._defaults
        self._made: list[_Made] = []
        self._specialised = 0

    def add(self, engine: Engine) -> None:
        """Take over an engine that was made elsewhere; it is closed with the others."""
        self._keep(_Made(engine, not engine.graph.open_parameters))

    def find(self, inputs: Mapping[str, Any]) -> Engine:
        """The engine that suits the inputs, compiled if need be. InputError where they contradict the model's fixed dimensions."""
        if self._made and not self._names_fit(inputs):
            return self._made[0].engine  # it says what is wrong
        found = self._existing(inputs)
        return found if found is not None else self._make(inputs)

    def _names_fit(self, inputs: Mapping[str, Any]) -> bool:
        known = {i.name for i in self._model.graph.input} - self._fixed
        return known - self._defaults <= set(inputs) <= known

    def _existing(self, inputs: Mapping[str, Any]) -> Engine | None:
        for made in self._made:
            graph = made.engine.graph
            unmet = self._defaults.intersection(inputs) - {graph.values[v].name for v in graph.inputs}
            if not unmet and _suits(graph, inputs) and (made.final or not self._specialising):
                self._made.remove(made)
                self._made.insert(0, made)
                return made.engine
        return None

    @property
    def _specialising(self) -> bool:
        return self._specialised < LIMIT

    def _make(self, inputs: Mapping[str, Any]) -> Engine:
        others = {i.name for i in self._model.graph.input if i.type.WhichOneof("value") != "tensor_type"}
        arrays = {k: a for k, a in inputs.items() if isinstance(a, np.ndarray | np.generic) and k not in others}
        shapes = {k: tuple(np.shape(a)) for k, a in arrays.items()}
        fed = [name for name in inputs if name in self._defaults]
        graph = self._graph(shapes, None, fed)
        if graph.open_parameters and self._specialising:
            special = self._graph(shapes, inputs, fed)
            if special.parameters:
                self._specialised += 1
                graph = special
        engine = Engine.build(graph, self._plan_for(graph), self._device)
        self._keep(_Made(engine, True))
        return engine

    def _graph(
        self, shapes: Mapping[str, tuple[int, ...]], fed: Mapping[str, Any] | None, overridden: Collection[str]
    ) -> Graph:
        known = {i.name for i in self._model.graph.input}
        try:
            return import_model(
                self._model, {k: s for k, s in shapes.items() if k in known}, fed=fed, overridden=overridden
            )
        except ShapeError as error:
            raise InputError(str(error)) from error

    def _keep(self, made: _Made) -> None:
        self._made.insert(0, made)
        for old in self._made[LIMIT:]:
            old.engine.close()
        del self._made[LIMIT:]

    def all(self) -> tuple[Engine, ...]:
        """Every engine that is kept, the most recently used first."""
        return tuple(m.engine for m in self._made)

    def close(self) -> None:
        """Free memory and threads."""
        for made in self._made:
            made.engine.close()
        self._made.clear()


def check_declared(graph: Graph, inputs: Mapping[str, Any]) -> None:
    """InputError where an input differs from a dimension that the model fixes."""
    for v in graph.inputs:
        value = graph.values[v]
        if value.name not in inputs or value.shape is None:
            continue
        array = np.asarray(inputs[value.name])
        if array.shape != value.shape and not value.admits(array.shape):
            expected = ", ".join(map(str, value.declared or ()))
            raise InputError(
                f"input {value.name!r}: expected {value.dtype.value}[{expected}], found {array.dtype}{list(array.shape)}"
            )


def _suits(graph: Graph, inputs: Mapping[str, Any]) -> bool:
    """Whether an engine of this graph runs on inputs of these sizes and parameters."""
    for v in graph.inputs:
        value = graph.values[v]
        if value.name not in inputs:
            return False
        if value.shape is None:
            continue
        given = inputs[value.name]
        if np.shape(given) != value.shape:
            return False
        expected = graph.parameters.get(v)
        if expected is not None and not np.array_equal(expected, given):
            return False
    return True
