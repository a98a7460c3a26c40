"""The worker process: candidates are loaded, checked and timed here, where a crash harms nobody.

`python -m autofuse.measure.worker FD` serves requests on the socket FD until it is closed. The parent kills it when a request takes too
long, and starts another one; nothing here is worth keeping.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import pickle
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import numpy as np

from autofuse.devices.base import Device, Executable
from autofuse.engine.engine import Engine
from autofuse.engine.lowering import ready
from autofuse.errors import CompileError, LaunchError
from autofuse.ir.graph import Graph
from autofuse.kernels.base import Variant
from autofuse.measure import arrays
from autofuse.measure.calibrate import calibrate
from autofuse.measure.inputs import program_inputs
from autofuse.measure.oracle import compare_model, whole_reference
from autofuse.measure.peers import open_peer
from autofuse.measure.programs import check_program, packed_inputs, region_bytes, timing_program, unpacked_outputs
from autofuse.measure.protocol import (
    At,
    Calibrate,
    Close,
    Done,
    Failed,
    Hello,
    OpenEngine,
    OpenKernel,
    OpenPeer,
    Prepare,
    Reply,
    Request,
    Shoot,
    Stamps,
    WriteReference,
)
from autofuse.measure.reference import AMONG_RUNS, Check, compare_outputs, reference_outputs, special_inputs, unstable
from autofuse.measure.result import Opened, Status


class Timed(Protocol):
    """What a handle stands for."""

    def time(self, repeats: int) -> list[int]: ...

    def close(self) -> None: ...


class _KernelRun:
    """A timing program; its samples are per repetition of the region."""

    def __init__(self, executable: Executable, times: int) -> None:
        self.executable = executable
        self.times = times

    def time(self, repeats: int) -> list[int]:
        return [max(1, ns // self.times) for ns in self.executable.time(repeats)]

    def close(self) -> None:
        self.executable.close()


class Worker:
    """Serves requests, one after the other."""

    def __init__(self, send: Callable[[Reply], None]) -> None:
        self._send = send
        self._device: Device | None = None
        self._handles: dict[int, Timed] = {}
        self._graphs: dict[str, Graph] = {}
        self._references: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        self._shots = 0

    @property
    def device(self) -> Device:
        if self._device is None:
            raise LaunchError("the worker was not told of its device")
        return self._device

    def serve(self, request: Request) -> Reply:
        """The answer to a request; whatever goes wrong inside becomes a status with its reason."""
        try:
            return Done(self._act(request))
        except CompileError as e:
            return Failed(Status.COMPILE_FAILED, str(e))
        except MemoryError as e:
            return Failed(Status.OUT_OF_MEMORY, f"memory ran out: {e}" if str(e) else "memory ran out")
        except Exception as e:  # noqa: BLE001  (the boundary: a candidate may fail in any way, and the tune goes on)
            return Failed(Status.CRASHED, f"{type(e).__name__}: {e}")

    def _act(self, request: Request) -> object:
        match request:
            case Hello():
                self._device = pickle.loads(request.device)()
                _limit_memory(request.memory)
                return None
            case Prepare():
                self._prepare(request)
                return None
            case OpenKernel():
                return self._open_kernel(request)
            case OpenEngine():
                return self._open_engine(request)
            case OpenPeer():
                inputs = arrays.load(request.inputs_file)
                self._keep(request.handle, open_peer(request.name, request.model, inputs, request.threads))
                return None
            case Shoot():
                return self._shoot(request)
            case Stamps():
                engine = self._handles[request.handle]
                return engine.stamps(request.repeats) if isinstance(engine, Engine) else None
            case WriteReference():
                graph = self._graph(request.graph_file)
                arrays.save(request.wanted_file, whole_reference(graph, arrays.load(request.inputs_file)))
                return None
            case Calibrate():
                return calibrate(self.device)
            case Close():
                found = self._handles.pop(request.handle, None)
                if found is not None:
                    found.close()
                return None

    def _keep(self, handle: int, timed: Timed) -> None:
        self._handles[handle] = timed

    # ---- kernels

    def _prepare(self, request: Prepare) -> None:
        path = _reference_file(request.folder, request.program.signature)
        if path.exists():
            return
        inputs = program_inputs(request.program, request.constants)
        named = {f"i{k}": a for k, a in enumerate(inputs)}
        named |= {f"o{k}": a for k, a in enumerate(reference_outputs(request.program, inputs))}
        planted = special_inputs(request.program, inputs)
        if planted is not None:
            named |= {f"p{k}": a for k, a in enumerate(planted)}
            named |= {f"q{k}": a for k, a in enumerate(reference_outputs(request.program, planted))}
        arrays.save(str(path), named)

    def _open_kernel(self, request: OpenKernel) -> Opened:
        start = time.perf_counter()
        variant = request.variant
        made = ready(self.device, variant, request.schedule)
        stored = arrays.load(str(_reference_file(request.folder, variant.program.signature)))
        inputs = _numbered(stored, "i")
        executable = self.device.load(check_program(made, inputs, self.device.target))
        try:
            # Copied: what an executable gives back may be memory that its next run writes to.
            outputs = [a.copy() for a in unpacked_outputs(variant, executable.run(packed_inputs(variant, inputs)))]
            check = compare_outputs(variant.program, inputs, outputs, _numbered(stored, "o"), request.tolerance)
            if check.ok:
                again = unpacked_outputs(variant, executable.run(packed_inputs(variant, inputs)))
                reason = unstable(variant.program, outputs, again, request.tolerance)
                if reason:
                    return _opened(variant, Status.WRONG, reason, check.error, start)
            if check.ok and request.special and "p0" in stored:
                planted = _numbered(stored, "p")
                reason = self._check_special(variant, executable, planted, _numbered(stored, "q"), request)
                if reason:
                    return _opened(variant, Status.WRONG, reason, check.error, start)
        finally:
            executable.close()
        if not check.ok:
            return _opened(variant, Status.WRONG, check.reason, check.error, start)
        timed = self.device.load(timing_program(made, inputs, request.repetition))
        timed.bind(packed_inputs(variant, inputs))
        self._keep(request.handle, _KernelRun(timed, request.repetition.times))
        return _opened(variant, Status.OK, "", check.error, start)

    def _check_special(
        self,
        variant: Variant,
        executable: Executable,
        planted: list[np.ndarray],
        wanted: list[np.ndarray],
        request: OpenKernel,
    ) -> str:
        got = unpacked_outputs(variant, executable.run(packed_inputs(variant, planted)))
        check = compare_outputs(variant.program, planted, got, wanted, request.tolerance, special=True)
        return "" if check.ok else f"with NaN and infinities in the input, {check.reason}"

    # ---- engines

    def _graph(self, path: str) -> Graph:
        if path not in self._graphs:
            graph = pickle.loads(Path(path).read_bytes())
            assert isinstance(graph, Graph)
            self._graphs = {path: graph}
        return self._graphs[path]

    def _open_engine(self, request: OpenEngine) -> Opened:
        start = time.perf_counter()
        graph = self._graph(request.graph_file)
        inputs = arrays.load(request.inputs_file)
        engine = Engine.build(graph, request.plan, self.device)
        status, reason, error = Status.OK, "", float("nan")
        try:
            outputs = engine.run(inputs)
            if request.outputs_file:
                arrays.save(request.outputs_file, outputs)
            if request.wanted_file:
                check = compare_model(graph, outputs, arrays.load(request.wanted_file), request.tolerance)
                error = check.error
                if check.ok:
                    # Twice: numbers that differ from run to run are no numbers, even if the first ones were right.
                    first = {name: np.array(a) for name, a in outputs.items()}
                    among = dataclasses.replace(request.tolerance, scale=AMONG_RUNS)
                    again = compare_model(graph, engine.run(inputs), first, among)
                    if not again.ok:
                        check = Check(False, error, f"it differs from run to run on the same inputs: {again.reason}")
                if not check.ok:
                    status, reason = Status.WRONG, check.reason
            if status is Status.OK:
                engine.bind(inputs)
                self._keep(request.handle, engine)
        finally:
            if request.handle not in self._handles:
                engine.close()
        return Opened(
            status,
            reason,
            error,
            time.perf_counter() - start,
            engine.launches,
            engine.bytes_model,
            engine.flops,
            engine.peak_bytes,
            engine.weight_bytes,
            engine.region_of_launch,
        )

    # ---- timing

    def _shoot(self, request: Shoot) -> dict[int, list[int]]:
        samples: dict[int, list[int]] = {h: [] for h in request.handles}
        self._shots += 1
        draw = random.Random(self._shots)
        for h in request.handles:
            self._send(At(h))
            self._handles[h].time(1)  # the first run after another candidate finds cold caches and sleeping threads
        for _ in range(request.rounds):
            # The order of each round is drawn: what a drift, a burst or the predecessor does to a candidate, it does to any other as likely.
            order = draw.sample(request.handles, len(request.handles))
            for h in order:
                self._send(At(h))
                if len(order) > 1:
                    self._handles[h].time(1)
                samples[h] += self._handles[h].time(request.repeats)
        return samples


def _opened(variant: Variant, status: Status, reason: str, error: float, start: float) -> Opened:
    return Opened(
        status,
        reason,
        error,
        time.perf_counter() - start,
        bytes_model=region_bytes(variant),
        flops=variant.program.flops,
    )


def _reference_file(folder: str, signature: str) -> Path:
    return Path(folder) / f"reference-{signature}.npz"


def _numbered(stored: Mapping[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    names = sorted((n for n in stored if n[0] == prefix), key=lambda n: int(n[1:]))
    return [stored[n] for n in names]


def _limit_memory(extra: int) -> None:
    """Allow `extra` bytes of address space beyond what is in use, so that a greedy candidate gets an error and not the machine."""
    if extra <= 0:
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + extra
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _die_with_parent() -> None:
    """A candidate that loops for ever must not outlive a tune that was killed (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    """Serve until the other side closes."""
    faulthandler.enable()
    _die_with_parent()
    connection = Connection(int(sys.argv[1]))
    worker = Worker(connection.send)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(worker.serve(request))


if __name__ == "__main__":
    main()
