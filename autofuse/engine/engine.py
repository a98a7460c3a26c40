"""The engine: a plan made ready on a device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autofuse.devices.base import Device, Executable
from autofuse.engine.build import ControlCall, HostCall, Segment, Step, segments
from autofuse.engine.control import ControlRunner
from autofuse.engine.log import Counted, Launched
from autofuse.engine.lowering import lowering
from autofuse.engine.plan import Plan
from autofuse.errors import InputError, LaunchError
from autofuse.importer import hosts
from autofuse.ir.graph import Graph, Node, ValueId
from autofuse.ir.stage import Control, Host
from autofuse.loops.ir import Kernel, Rendered


class Engine:
    """A model that runs. Build it with `Engine.build`; use `run`, then `close` (or a with statement).

    An engine is used by one thread at a time; several engines may live in one process and run at once, each with a thread team of its own.
    Outputs are new arrays that belong to the caller.
    """

    def __init__(self, graph: Graph, plan: Plan, device: Device, steps: list[Step]) -> None:
        self.graph = graph
        self.plan = plan
        self.device = device
        self.steps = steps
        self.executables: list[Executable | None] = []
        self.controls: dict[int, ControlRunner[Engine]] = {}
        """What runs the graphs inside of control-flow nodes, by step."""
        self.runs = 1
        """How often this engine ran in the last run of the engine that it belongs to."""
        self._bound: dict[int, list[np.ndarray]] = {}
        self._inputs: dict[str, np.ndarray] = {}
        read = {v for s in steps if isinstance(s, Segment) for v in s.inputs}
        self._types = {v: (graph.values[v].dims, graph.values[v].dtype.numpy) for v in read}
        self._ran: list[tuple[Launched, ...]] = []
        self._lines: dict[int, tuple[Launched, ...]] = {}

    @staticmethod
    def build(graph: Graph, plan: Plan, device: Device) -> Engine:
        """Lower, compile and load, the graphs inside of control-flow nodes too. Raises PlanError, CompileError or LaunchError."""
        engine = Engine(graph, plan, device, segments(graph, plan, lowering(device)))
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(engine.close)
            for k, s in enumerate(engine.steps):
                engine.executables.append(device.load(s.program) if isinstance(s, Segment) else None)
                if isinstance(s, ControlCall):
                    engine.controls[k] = engine._runner(s)
            unfinished.pop_all()
        return engine

    def _runner(self, step: ControlCall) -> ControlRunner[Engine]:
        node = self.graph.nodes[step.region.region.nodes[0]]
        assert isinstance(node.compute, Control)
        known = {k: self.graph.constants[v] for k, v in enumerate(node.inputs) if v in self.graph.constants}
        return ControlRunner(
            node, node.compute, known, step.region.bodies, self.device, self.plan.accuracy, Engine.build
        )

    # ---- facts

    @property
    def counted(self) -> tuple[Counted, ...]:
        """Every kernel launch, in the order of the steps, with those of the graphs inside of control-flow nodes."""
        out: list[Counted] = []
        for k, s in enumerate(self.steps):
            if isinstance(s, Segment):
                pairs = zip(s.program.launches, s.regions, strict=True)
                out += [Counted(launch, position, self.runs) for launch, position in pairs]
            elif isinstance(s, ControlCall):
                inside = [x for e in self.controls[k].engines for x in e.counted]
                out += [Counted(x.launch, s.position, x.times) for x in inside]
        return tuple(out)

    @property
    def launches(self) -> int:
        """Kernel launches of one run (Host calls not counted), those of the graphs inside of control-flow nodes as in the last run."""
        return sum(x.times for x in self.counted)

    @property
    def region_of_launch(self) -> tuple[int, ...]:
        """For each of the counted launches, the position of its region in the plan."""
        return tuple(x.position for x in self.counted)

    @property
    def bytes_model(self) -> int:
        """Bytes that all launches move if each reads and writes every operand once."""
        return sum(x.launch.kernel.bytes * x.times for x in self.counted)

    @property
    def flops(self) -> int:
        """Floating-point operations of one run."""
        return sum(x.launch.kernel.flops * x.times for x in self.counted)

    @property
    def peak_bytes(self) -> int:
        """Bytes of activations and scratch memory (the arenas, and what each thread has), without weights, inputs and outputs."""
        own = sum(s.program.arena_bytes for s in self.steps if isinstance(s, Segment))
        if not self.device.target.is_cuda:
            launches = (l for s in self.steps if isinstance(s, Segment) for l in s.program.launches)
            own += self.device.threads * max((l.kernel.shared_bytes for l in launches), default=0)
        return own + sum(e.peak_bytes for c in self.controls.values() for e in c.engines)

    @property
    def weight_bytes(self) -> int:
        """Bytes of prepared constants."""
        own = sum(c.nbytes for s in self.steps if isinstance(s, Segment) for c in s.program.constants)
        return own + sum(e.weight_bytes for c in self.controls.values() for e in c.engines)

    @property
    def host_nodes(self) -> tuple[Node, ...]:
        """The nodes that run outside any kernel, those inside of control-flow nodes too.

        A control-flow node is one of them where it met so many shapes that the graph inside went to the host.
        """
        out: list[Node] = []
        for k, s in enumerate(self.steps):
            if isinstance(s, HostCall):
                out += [self.graph.nodes[n] for n in s.region.region.nodes]
            elif isinstance(s, ControlCall):
                out += [n for e in self.controls[k].engines for n in e.host_nodes]
                out += [self.controls[k].node] if self.controls[k].fell_back else []
        return tuple(out)

    @property
    def kernels(self) -> tuple[Kernel | Rendered, ...]:
        """The distinct kernels, in order of first launch; those of which only the text was remembered have no loops."""
        return tuple(dict.fromkeys(x.launch.kernel for x in self.counted))

    @property
    def launch_log(self) -> tuple[Launched, ...]:
        """What the last run launched, in order; what branches and bodies launched stands where their control-flow node ran."""
        return tuple(line for lines in self._ran for line in lines)

    def _launched(self, k: int, step: Step) -> tuple[Launched, ...]:
        if isinstance(step, ControlCall):
            return tuple(self.controls[k].log)
        if k not in self._lines:
            if isinstance(step, HostCall):
                self._lines[k] = tuple(Launched(self.graph.nodes[n].op, True) for n in step.region.region.nodes)
            else:
                self._lines[k] = tuple(Launched(x.kernel.family, False) for x in step.program.launches)
        return self._lines[k]

    # ---- running

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once: {input name: array} -> {output name: array}. InputError where an input is missing or does not fit."""
        self.forget_runs()
        known = self._feed(inputs)
        self._go(known)
        out: dict[str, np.ndarray] = {}
        given: set[int] = set()
        for name, v in zip(self.graph.output_names, self.graph.outputs, strict=True):
            value = known[v]
            shared = v in self.graph.constants or v in self.graph.inputs or id(value) in given
            out[name] = value.copy() if shared and isinstance(value, np.ndarray) else value
            given.add(id(value))
        return out

    def forget_runs(self) -> None:
        """Begin to count runs anew, here and in the graphs inside of control-flow nodes."""
        self.runs = 0
        for c in self.controls.values():
            for e in c.engines:
                e.forget_runs()

    def run_inside(self, inputs: Sequence[Any]) -> list[Any]:
        """Run as a part of another engine's run, which counts the runs, on inputs whose types were looked at.

        What is given out may be an input or a constant itself.
        """
        known: dict[ValueId, Any] = {**self.graph.constants, **dict(zip(self.graph.inputs, inputs, strict=True))}
        self._go(known)
        return [known[v] for v in self.graph.outputs]

    def _go(self, known: dict[ValueId, Any]) -> None:
        """Take every step once."""
        self.runs += 1
        self._ran.clear()
        for k, step in enumerate(self.steps):
            self._step(k, step, known)
            self._ran.append(self._launched(k, step))

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

    def _step(self, k: int, step: Step, known: dict[ValueId, Any]) -> None:
        if isinstance(step, HostCall):
            self._host(step, known)
            return
        if isinstance(step, ControlCall):
            node = self.graph.nodes[step.region.region.nodes[0]]
            known.update(zip(node.outputs, self.controls[k].run([known[v] for v in node.inputs]), strict=True))
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
            array = np.asarray(known[v], order="C")
            shape, dtype = self._types[v]
            if array.shape != shape:
                raise LaunchError(
                    f"a host operator made {list(array.shape)} where {list(shape)} was inferred (value {v})"
                )
            feeds.append(array if array.dtype == dtype else array.astype(dtype))
        return feeds

    def _host(self, step: HostCall, known: dict[ValueId, Any]) -> None:
        node = self.graph.nodes[step.region.region.nodes[0]]
        assert isinstance(node.compute, Host)
        try:
            results = hosts.run(node.compute, [known[v] for v in node.inputs])
        except hosts.FAILURES as error:
            raise LaunchError(f"the host operator {node.op} ({node.label}) failed: {error}") from error
        for v, result in zip(node.outputs, results, strict=True):
            known[v] = result

    # ---- measuring

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Fix the inputs for `time` and `stamps`, and run once so that every segment has its own."""
        self._inputs = dict(inputs)
        self.run(inputs)
        self._rebind()

    def _rebind(self) -> None:
        """Fix what each program was fed last."""
        for k, executable in enumerate(self.executables):
            if executable is not None and k in self._bound:
                executable.bind(self._bound[k])
        for c in self.controls.values():
            for e in c.engines:
                e._rebind()

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
        """Nanoseconds of each of the counted launches in each run: int64 (repeats, launches).

        A launch inside of a control-flow node is timed on what it was fed last and counts as often as it was made; 0 where it wasn't.
        """
        parts: list[np.ndarray] = []
        for k, (step, x) in enumerate(zip(self.steps, self.executables, strict=True)):
            if isinstance(step, Segment) and x is not None:
                none = np.zeros((repeats, len(step.regions)), np.int64)
                parts.append(self.runs * x.stamps(repeats) if self.runs else none)
            elif k in self.controls:
                parts += [e.stamps(repeats) for e in self.controls[k].engines]
        return np.concatenate(parts, axis=1) if parts else np.zeros((repeats, 0), np.int64)

    def close(self) -> None:
        """Free memory and threads."""
        for executable in self.executables:
            if executable is not None:
                executable.close()
        for c in self.controls.values():
            c.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
