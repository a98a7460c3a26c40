"""The engine: a plan made ready on a device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from autofuse.devices.base import Device, Executable
from autofuse.engine.build import HostCall, Segment, segments
from autofuse.engine.plan import Plan
from autofuse.errors import InputError, LaunchError
from autofuse.ir.graph import Graph, Node, ValueId
from autofuse.ir.stage import Host
from autofuse.loops.ir import Kernel


@dataclass(frozen=True)
class Launched:
    """A line of the launch log: a kernel by its family, or an operator that ran in onnx's reference evaluator."""

    what: str
    host: bool


class Engine:
    """A model that runs. Build it with `Engine.build`; use `run`, then `close` (or a with statement).

    An engine is used by one thread at a time; several engines may live in one process and run at once, each with a thread team of its own.
    Outputs are new arrays that belong to the caller.
    """

    def __init__(self, graph: Graph, plan: Plan, device: Device, steps: list[Segment | HostCall]) -> None:
        self.graph = graph
        self.plan = plan
        self.device = device
        self.steps = steps
        self.executables: list[Executable | None] = []
        self._evaluators: dict[int, ReferenceEvaluator] = {}
        self._bound: dict[int, list[np.ndarray]] = {}
        self._inputs: dict[str, np.ndarray] = {}
        self._ran: list[int] = []

    @staticmethod
    def build(graph: Graph, plan: Plan, device: Device) -> Engine:
        """Lower, compile and load. Raises PlanError, CompileError or LaunchError."""
        engine = Engine(graph, plan, device, segments(graph, plan, device.target))
        try:
            for s in engine.steps:
                engine.executables.append(device.load(s.program) if isinstance(s, Segment) else None)
        except BaseException:
            engine.close()
            raise
        return engine

    # ---- facts

    @property
    def launches(self) -> int:
        """Kernel launches of one run (Host calls not counted)."""
        return sum(len(s.program.launches) for s in self.steps if isinstance(s, Segment))

    @property
    def region_of_launch(self) -> tuple[int, ...]:
        """For each launch, the position of its region in the plan."""
        return tuple(p for s in self.steps if isinstance(s, Segment) for p in s.regions)

    @property
    def bytes_model(self) -> int:
        """Bytes that all launches move if each reads and writes every operand once."""
        return sum(x.kernel.bytes for s in self.steps if isinstance(s, Segment) for x in s.program.launches)

    @property
    def flops(self) -> int:
        """Floating-point operations of one run."""
        return sum(x.kernel.flops for s in self.steps if isinstance(s, Segment) for x in s.program.launches)

    @property
    def peak_bytes(self) -> int:
        """Bytes of activations and scratch memory (the arenas), without weights, inputs and outputs."""
        return sum(s.program.arena_bytes for s in self.steps if isinstance(s, Segment))

    @property
    def weight_bytes(self) -> int:
        """Bytes of prepared constants."""
        return sum(c.nbytes for s in self.steps if isinstance(s, Segment) for c in s.program.constants)

    @property
    def host_nodes(self) -> tuple[Node, ...]:
        """The nodes that run outside any kernel."""
        calls = [s for s in self.steps if isinstance(s, HostCall)]
        return tuple(self.graph.nodes[n] for c in calls for n in c.region.region.nodes)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The distinct kernels, in order of first launch."""
        launches = (x for s in self.steps if isinstance(s, Segment) for x in s.program.launches)
        return tuple(dict.fromkeys(x.kernel for x in launches))

    @property
    def launch_log(self) -> tuple[Launched, ...]:
        """What the last run launched, in order."""
        return tuple(line for k in self._ran for line in self._launched(self.steps[k]))

    def _launched(self, step: Segment | HostCall) -> list[Launched]:
        if isinstance(step, HostCall):
            return [Launched(self.graph.nodes[n].op, True) for n in step.region.region.nodes]
        return [Launched(x.kernel.family, False) for x in step.program.launches]

    # ---- running

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once: {input name: array} -> {output name: array}. InputError where an input is missing or does not fit."""
        known = self._feed(inputs)
        self._ran.clear()
        for k, step in enumerate(self.steps):
            self._step(k, step, known)
            self._ran.append(k)
        out: dict[str, np.ndarray] = {}
        given: set[int] = set()
        for name, v in zip(self.graph.output_names, self.graph.outputs, strict=True):
            value = known[v]
            shared = v in self.graph.constants or v in self.graph.inputs or id(value) in given
            out[name] = value.copy() if shared and isinstance(value, np.ndarray) else value
            given.add(id(value))
        return out

    def _feed(self, inputs: Mapping[str, np.ndarray]) -> dict[ValueId, Any]:
        known: dict[ValueId, Any] = dict(self.graph.constants)
        names = [self.graph.values[v].name for v in self.graph.inputs]
        unknown = set(inputs) - set(names)
        if unknown:
            raise InputError(
                f"unknown input {sorted(unknown)[0]!r}; the model's inputs are {', '.join(map(repr, names))}"
            )
        for v in self.graph.inputs:
            value = self.graph.values[v]
            if value.name not in inputs:
                raise InputError(
                    f"input {value.name!r} is missing: {value.dtype.value}{list(value.shape or ())} is expected"
                )
            array = inputs[value.name]
            if value.shape is None or value.dtype.value == "string":
                known[v] = array
                continue
            array = np.asarray(array)
            if array.shape != value.shape or array.dtype != value.dtype.numpy:
                raise InputError(
                    f"input {value.name!r}: expected {value.dtype.value}{list(value.shape)}, found {array.dtype}{list(array.shape)}"
                )
            known[v] = np.asarray(array, order="C")  # not ascontiguousarray: it gives a scalar a dimension
            self._check_parameter(v, array)
        return known

    def _check_parameter(self, v: ValueId, array: np.ndarray) -> None:
        expected = self.graph.parameters.get(v)
        if expected is not None and not np.array_equal(expected, array):
            raise InputError(
                f"input {self.graph.values[v].name!r} decides about shapes, and this engine was made for "
                f"{expected.tolist()}, not for {array.tolist()}: make one for it, or use autofuse.load, which does so by itself"
            )

    def _step(self, k: int, step: Segment | HostCall, known: dict[ValueId, Any]) -> None:
        if isinstance(step, HostCall):
            self._host(k, step, known)
            return
        executable = self.executables[k]
        assert executable is not None
        feeds = self._arrays(step, known)
        self._bound[k] = feeds
        for v, array in zip(step.outputs, executable.run(feeds), strict=True):
            known[v] = array

    def _arrays(self, step: Segment, known: Mapping[ValueId, Any]) -> list[np.ndarray]:
        feeds = []
        for v in step.inputs:
            value = self.graph.values[v]
            array = np.asarray(known[v], order="C")
            if array.shape != value.shape:
                raise LaunchError(
                    f"a host operator made {list(array.shape)} where {list(value.shape or ())} was inferred (value {v})"
                )
            feeds.append(array.astype(value.dtype.numpy, copy=False))
        return feeds

    def _host(self, k: int, step: HostCall, known: dict[ValueId, Any]) -> None:
        node = self.graph.nodes[step.region.region.nodes[0]]
        assert isinstance(node.compute, Host)
        if k not in self._evaluators:
            self._evaluators[k] = ReferenceEvaluator(onnx.load_model_from_string(node.compute.model))
        feeds = {f"i{j}": known[v] for j, v in enumerate(node.inputs)}
        try:
            results = self._evaluators[k].run(None, feeds)
        except (ValueError, TypeError, RuntimeError, IndexError, KeyError) as error:
            raise LaunchError(f"the host operator {node.op} ({node.label}) failed: {error}") from error
        for v, result in zip(node.outputs, results, strict=True):
            known[v] = result

    # ---- measuring

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Fix the inputs for `time` and `stamps`, and run once so that every segment has its own."""
        self._inputs = dict(inputs)
        self.run(inputs)
        for k, executable in enumerate(self.executables):
            if executable is not None:
                executable.bind(self._bound[k])

    def time(self, repeats: int) -> list[int]:
        """Nanoseconds of whole runs on the bound inputs."""
        if len(self.steps) == 1 and self.executables[0] is not None:
            return self.executables[0].time(repeats)
        out = []
        for _ in range(repeats):
            start = time.perf_counter_ns()
            self.run(self._inputs)
            out.append(time.perf_counter_ns() - start)
        return out

    def stamps(self, repeats: int) -> np.ndarray:
        """Nanoseconds of each launch in each run: int64 (repeats, launches)."""
        parts = [x.stamps(repeats) for x in self.executables if x is not None]
        return np.concatenate(parts, axis=1) if parts else np.zeros((repeats, 0), np.int64)

    def close(self) -> None:
        """Free memory and threads."""
        for executable in self.executables:
            if executable is not None:
                executable.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
