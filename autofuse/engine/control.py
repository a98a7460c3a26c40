"""Running control-flow nodes: the graphs inside are engines of their own, one for each set of shapes that is met.

A graph whose shapes were known at import runs by its plan. For other shapes it is imported again and runs by a heuristic plan. Their
number is bounded: a value that grows with every step of a loop would otherwise be compiled for without end, so what comes after is run
by onnx's reference evaluator, and a warning says so.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from autofuse.devices.base import Device
from autofuse.engine.assign import heuristic_plan
from autofuse.engine.log import Launched
from autofuse.engine.plan import Plan
from autofuse.errors import LaunchError, ModelError, ShapeError
from autofuse.importer import hosts
from autofuse.importer.importing import body_graph
from autofuse.ir.graph import Graph, Node
from autofuse.ir.stage import Body, Control, Host
from autofuse.ops.control_flow import run_control

LIMIT = 8
"""So many sets of shapes are compiled for; further ones run on the host."""


Type = tuple[tuple[int, ...], np.dtype[Any]] | None
Types = tuple[Type, ...]


class Inner(Protocol):
    """What runs a graph inside of a node: an engine."""

    @property
    def graph(self) -> Graph: ...

    @property
    def launch_log(self) -> tuple[Launched, ...]: ...

    def run_inside(self, inputs: Sequence[Any]) -> list[Any]: ...

    def close(self) -> None: ...


E = TypeVar("E", bound=Inner)


class ControlRunner(Generic[E]):
    """One control-flow node. `known` are its constant inputs by position, `build` makes an engine of a graph and a plan."""

    def __init__(
        self,
        node: Node,
        control: Control,
        known: Mapping[int, np.ndarray],
        plans: Sequence[Plan | None],
        device: Device,
        accuracy: str,
        build: Callable[[Graph, Plan, Device], E],
    ) -> None:
        self.node = node
        self.control = control
        self.fell_back = False
        """Whether so many shapes were met that a graph inside went to the host."""
        self.log: list[Launched] = []
        """What the last run launched, in order."""
        self._known = known
        self._device = device
        self._accuracy = accuracy
        self._build = build
        self._fed_at = [self._fed(b) for b in control.bodies]
        self._made: list[dict[Types, E]] = [{} for _ in control.bodies]
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self.close)
            for body, plan, made in zip(control.bodies, plans, self._made, strict=True):
                if body.graph is not None and plan is not None:
                    made[_static(body.graph)] = build(body.graph, plan, device)
            unfinished.pop_all()

    def _fed(self, body: Body) -> list[int]:
        """The positions of a body's inputs that are no constants of its graph."""
        if body.graph is not None:
            return [body.names.index(body.graph.values[v].name) for v in body.graph.inputs]
        constant = self._constants(body)
        return [k for k in range(len(body.names)) if k not in constant]

    def _constants(self, body: Body) -> dict[int, np.ndarray]:
        first = len(body.names) - len(body.captures)
        return {k: self._known[p] for k, p in enumerate(body.captures, first) if p in self._known}

    @property
    def engines(self) -> tuple[E, ...]:
        """The engines made so far, body by body."""
        return tuple(e for made in self._made for e in made.values())

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The node's outputs; none of them is an array of the inputs or a constant."""
        self.log.clear()
        given = {id(x) for x in inputs}
        results = run_control(self.control, inputs, self._run_body)
        return [y.copy() if _is_shared(y, given) else y for y in results]

    def _run_body(self, k: int, inputs: Sequence[Any]) -> Sequence[Any]:
        feeds = [inputs[j] for j in self._fed_at[k]]
        types = tuple(_type(x) for x in feeds)
        engine = self._made[k].get(types) or self._make(k, types, inputs)
        if engine is None:
            return self._on_host(self.control.bodies[k], inputs)
        outputs = engine.run_inside(feeds)
        self.log += engine.launch_log
        return outputs

    def _make(self, k: int, types: Types, inputs: Sequence[Any]) -> E | None:
        """An engine for what is fed; None where there are too many already, or the graph does not fit these shapes."""
        body = self.control.bodies[k]
        if len(self._made[k]) >= LIMIT:
            self._fall_back(f"met more than {LIMIT} sets of shapes, further ones run on the host")
            return None
        constant = {j: a for j, a in self._constants(body).items() if j not in self._fed_at[k]}
        try:
            graph = body_graph(body, inputs, constant)
        except (ModelError, ShapeError) as error:
            self._fall_back(f"holds a graph that does not fit the shapes it met and runs on the host: {error}")
            return None
        plan = heuristic_plan(graph, self._device.target, self._device.threads, self._accuracy)
        self._made[k][types] = self._build(graph, plan, self._device)
        return self._made[k][types]

    def _fall_back(self, why: str) -> None:
        if not self.fell_back:
            warnings.warn(f"{self.node.op} ({self.node.label}) {why}", stacklevel=2)
        self.fell_back = True

    def _on_host(self, body: Body, inputs: Sequence[Any]) -> list[Any]:
        types = tuple(d for d, _ in body.outputs)
        self.log.append(Launched(self.node.op, True))
        try:
            return hosts.run(Host(body.model, tuple(None for _ in types), types, "too many shapes"), inputs)
        except hosts.FAILURES as error:
            raise LaunchError(
                f"the graph inside {self.node.op} ({self.node.label}) failed on the host: {error}"
            ) from error

    def close(self) -> None:
        """Free memory and threads."""
        for engine in self.engines:
            engine.close()


def _is_shared(y: Any, given: Collection[int]) -> bool:
    """Whether an array belongs to others: a fed one, or a constant, which none may write to."""
    return isinstance(y, np.ndarray) and (id(y) in given or not y.flags.writeable)


def _type(x: Any) -> Type:
    """Shape and type of an array; None for what is none."""
    return (x.shape, x.dtype) if isinstance(x, np.ndarray) else None


def _static(graph: Graph) -> Types:
    """The types that a graph was made for."""
    values = (graph.values[v] for v in graph.inputs)
    return tuple((v.dims, v.dtype.numpy) for v in values)
