"""The bench: what the search asks to have measured, and how it is done with a worker process.

Kernels are lowered and compiled here, in parallel, while nothing is being timed; loading, checking and timing happen in the
worker. Whatever a candidate does to it becomes a status with a reason; the other candidates of its batch are loaded again.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autofuse.devices.base import Device
from autofuse.devices.cpu import CpuDevice
from autofuse.engine.options import estimate
from autofuse.engine.plan import Plan
from autofuse.errors import LaunchError, StorageError
from autofuse.fusion.region import RegionProgram
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.measure import arrays
from autofuse.measure.bench import Choice
from autofuse.measure.calibrate import (
    NAMES,
    SIGNATURE,
    Reached,
    calibration_kernels,
    key_of,
    merged,
    near_best,
    plausible,
    reached,
)
from autofuse.measure.client import DeviceFactory, TrialFailed, WorkerClient
from autofuse.measure.compiling import compile_choices, compile_plan
from autofuse.measure.handles import Handles
from autofuse.measure.ledger import Ledger
from autofuse.measure.noise import Learnt, Patience, Watched
from autofuse.measure.oracle import WHOLE_FLOPS, graph_flops
from autofuse.measure.programs import constant_bytes, region_bytes, repetition
from autofuse.measure.protocol import (
    Calibrate,
    OpenEngine,
    OpenKernel,
    OpenPeer,
    Prepare,
    WriteReference,
)
from autofuse.measure.racing import RaceRules, race
from autofuse.measure.records import Records
from autofuse.measure.reference import Tolerance
from autofuse.measure.result import Measurement, Opened, Status
from autofuse.measure.scratch import Scratch

_OPEN_BYTES = 1 << 30
_MOST_OPEN = 16
_MEMORY_SHARE = 0.75
_PREPARED_BYTES = 2e7  # a second, of weights
_SLOWEST_FLOPS = 2e9


@dataclass(frozen=True)
class Limits:
    """Seconds without a sign of life after which a request is given up."""

    prepare: float = 120.0
    open: float = 20.0
    shoot: float = 10.0
    model: float = 120.0


class DeviceBench:
    """A bench over a real device: a worker process, records, and a folder for references."""

    def __init__(
        self,
        device: Device,
        factory: DeviceFactory,
        graph: Graph,
        inputs: Mapping[str, np.ndarray],
        records: Records | None,
        tolerance: Tolerance | None = None,
        limits: Limits | None = None,
        memory: int | None = None,
    ) -> None:
        self.device = device
        self.graph = graph
        self.tolerance = tolerance if tolerance is not None else Tolerance()
        self.limits = limits if limits is not None else Limits()
        self.notes: list[str] = []
        self._ledger = Ledger(records, self._note)
        self.oracle = ""
        self.checks_first_plan = False
        self._folder = Scratch()
        self.notes += self._folder.notes
        self._inputs = inputs
        usable = 0 if device.target.is_cuda else _usable_memory()
        self._client = WorkerClient(factory, device.threads, memory if memory is not None else usable)
        self._handles = Handles(self._client, self._note)
        self._model_ready = False
        self._learnt = Learnt()
        self._rounds = self._busy = 0
        self._waited = 0.0
        self._noise_note = ""
        # Weights that all fit the last cache together stay in it from run to run; only larger models read them from memory.
        weights = sum(a.nbytes for a in graph.constants.values())
        self._rotate = 0 if weights <= device.target.l3 // 2 else min(weights, 2 * max(device.target.l3, 1))

    @property
    def target(self) -> Target:
        return self.device.target

    @property
    def threads(self) -> int:
        return self.device.threads

    @property
    def was_steady(self) -> bool:
        """Whether few of the rounds so far were disturbed."""
        return self._busy <= _WORTH_TELLING * self._rounds

    # ---- kernels

    def kernels(
        self,
        program: RegionProgram,
        constants: Mapping[int, np.ndarray],
        choices: Sequence[Choice],
        deadline: float,
        again: int = 0,
    ) -> list[Measurement]:
        """See Bench."""
        self._ledger.describe(program)
        blanks = compile_choices(self.device, choices)
        state = "rotated" if self._rotate and any(t.constant for t in program.inputs) else "warm"
        known = self._ledger.find([b.key for b in blanks[again:] if b.key], state, program.signature)
        out = [b if k < again or b.key not in known else _as_asked(known[b.key], b) for k, b in enumerate(blanks)]
        out = [replace(m, state=state) if not m.cached else m for m in out]
        todo = [k for k, m in enumerate(out) if not m.cached and m.status is Status.SKIPPED and not m.reason]
        # Schedules that come to the same text are one kernel.
        first_with = {out[k].key: k for k in reversed(todo)}
        twins = {k: first_with[out[k].key] for k in todo if first_with[out[k].key] != k}
        todo = [k for k in todo if k not in twins]
        if not todo:
            self._ledger.store(out)
            return out
        try:
            self._handles.ask(Prepare(program, dict(constants), self._folder.name), self.limits.prepare)
        except TrialFailed as e:
            reason = f"its reference could not be computed: {e.reason}"
            return [replace(m, reason=reason) if k in todo else m for k, m in enumerate(out)]
        at_once = max(2, min(_MOST_OPEN, _OPEN_BYTES // max(1, 2 * max(region_bytes(choices[k][0]) for k in todo))))
        for first in range(0, len(todo), at_once):
            if time.monotonic() >= deadline and first:
                break
            part = todo[first : first + at_once]
            for k, m in self._batch({k: choices[k] for k in part}, {k: out[k] for k in part}, deadline).items():
                out[k] = m
            self._ledger.store([out[k] for k in part])
        for k, twin in twins.items():
            m = out[twin]
            out[k] = replace(
                out[k],
                status=m.status,
                reason=m.reason,
                samples_ns=m.samples_ns,
                error=m.error,
                repeats=m.repeats,
                noisy=m.noisy,
            )
        return out

    def compile(self, choices: Sequence[Choice]) -> None:
        """See Bench."""
        compile_choices(self.device, choices)

    def known(self, signature: str) -> list[Measurement]:
        """See Bench."""
        return self._ledger.of_signature(signature)

    def seeds(self, program: RegionProgram) -> list[Measurement]:
        """See Bench."""
        return self._ledger.seeds(program)

    @property
    def seeding_notes(self) -> list[str]:
        """What the records of other compilers, drivers and devices were used for, in words."""
        return self._ledger.seeding_notes

    def _batch(
        self, choices: Mapping[int, Choice], blanks: Mapping[int, Measurement], deadline: float
    ) -> dict[int, Measurement]:
        out = dict(blanks)
        handles: dict[int, int] = {}
        for k, (variant, schedule) in choices.items():
            seconds = estimate(variant, self.target, self.threads)
            request = OpenKernel(
                self._handles.number(),
                variant,
                schedule,
                repetition(variant, seconds, self._rotate if constant_bytes(variant) else 0),
                self._folder.name,
                self.tolerance,
                special=not variant.tolerant,
            )
            limit = self.limits.open + 1000 * seconds
            opened = self._handles.open(request, limit)
            out[k] = replace(out[k], status=opened.status, reason=opened.reason, error=opened.error)
            if opened.ok:
                handles[k] = request.handle
            elif opened.status is not Status.SKIPPED:
                self._ledger.store([out[k]])  # before the next one is loaded, which may end this process or the machine
        place = {h: k for k, h in handles.items()}

        def enough() -> bool:
            return time.monotonic() >= deadline

        started = time.monotonic()
        bound = min(_WAIT_SHARE * (deadline - started), _LONGEST_WAIT, _ALL_WAITS - self._waited)
        shots = Watched(self.shoot, self._learnt, Patience(bound))

        def over() -> bool:
            return time.monotonic() - started > _RACE_SECONDS

        try:
            samples = race(list(place), shots, _KERNEL_RACE, enough, over).samples
            for h, k in place.items():
                failed = self._handles.failure(h)
                if failed is not None:
                    out[k] = replace(out[k], status=failed[0], reason=failed[1])
                elif samples[h]:
                    noisy = tuple(shots.noisy.get(h, ()))
                    out[k] = replace(out[k], samples_ns=tuple(samples[h]), repeats=_KERNEL_RACE.repeats, noisy=noisy)
                else:
                    out[k] = replace(out[k], status=Status.SKIPPED, reason="the budget ended before it was timed")
        finally:
            self._tell_noise(shots)
            for h in place:
                self.release(h)
        return out

    def _tell_noise(self, shots: Watched[int]) -> None:
        """Keep one note that says how much of what was timed was noisy."""
        self._rounds += shots.rounds
        self._busy += shots.busy
        self._waited += shots.patience.waited
        if self._busy > _WORTH_TELLING * self._rounds:
            self.notes = [n for n in self.notes if n != self._noise_note]
            self._noise_note = (
                f"the machine was busy while kernels were timed: {self._busy} of {self._rounds} rounds are marked as noisy"
                f" (waited {self._waited:.1f} s for it to calm down)"
            )
            self.notes.append(self._noise_note)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def reached(self, deadline: float) -> Reached:
        """See Bench."""
        keys = {key_of(name): name for name in NAMES}
        rows = {keys[k]: m for k, m in self._ledger.find(list(keys), "warm", SIGNATURE).items()}
        steady = False
        for name in [n for n, m in rows.items() if not plausible(m, self.target, self.threads)]:
            self._note(f"a recorded calibration ({name}) cannot be true: it is not used, and measured again")
            rows.pop(name)
        # Measured in every tune: a record may be of a moment when something else was running. The best runs of all tunes count.
        if time.monotonic() < deadline:
            try:
                self.device.compile(calibration_kernels(self.target, self.threads))
                found = self._handles.ask(Calibrate(), self.limits.prepare)
                if not isinstance(found, dict):
                    raise LaunchError(f"the process answered {type(found).__name__}")
                steady = all(near_best(m, rows.get(name)) for name, m in found.items())
                rows = {name: merged(m, rows.get(name)) for name, m in found.items()}
                self._ledger.store(list(rows.values()))
            except (TrialFailed, LaunchError) as e:
                self._note(f"the device could not be calibrated: {e}")
        return replace(reached(rows, self.target, self.threads), steady=steady)

    # ---- plans

    def open(self, plan: Plan) -> tuple[int, Opened]:
        """See Bench."""
        start = time.perf_counter()
        failed = compile_plan(self.device, self.graph, plan)
        if failed is not None:
            return -1, failed
        self.prepare()
        wanted = str(self._path("wanted.npz"))
        reference = wanted if Path(wanted).exists() else ""
        request = OpenEngine(
            self._handles.number(),
            plan,
            str(self._path("graph.pickle")),
            str(self._path("inputs.npz")),
            reference,
            self.tolerance,
            "" if reference else wanted,
        )
        # Kernels are compiled: what is left is to prepare the weights and to run once.
        weights = sum(a.nbytes for a in self.graph.constants.values())
        limit = self.limits.open + weights / _PREPARED_BYTES + graph_flops(self.graph) / _SLOWEST_FLOPS
        opened = self._handles.open(request, limit)
        return request.handle, replace(opened, seconds=time.perf_counter() - start)

    def prepare(self) -> None:
        """See Bench."""
        if self._model_ready:
            return
        try:
            self._path("graph.pickle").write_bytes(pickle.dumps(self.graph, protocol=pickle.HIGHEST_PROTOCOL))
            arrays.save(str(self._path("inputs.npz")), self._inputs)
        except OSError as e:
            raise StorageError(
                f"{self._folder.name}: the model cannot be handed to the measuring process: {e.strerror or e}. "
                "Free space there, or set TMPDIR to a folder that can be written."
            ) from e
        self.oracle = "the outputs of the first plan (its kernels were checked one by one against float64 numpy)"
        self.checks_first_plan = True
        if graph_flops(self.graph) <= WHOLE_FLOPS:
            request = WriteReference(*(str(self._path(n)) for n in ("graph.pickle", "inputs.npz", "wanted.npz")))
            try:
                self._handles.ask(request, self.limits.model)
                self.oracle = "the whole model in float64 numpy"
                self.checks_first_plan = False
            except TrialFailed as e:
                self._note(f"the model could not be evaluated in float64: {e.reason}")
        self._model_ready = True

    def open_peer(self, name: str, model: bytes | str) -> tuple[int, Opened]:
        """See Bench."""
        self.prepare()
        request = OpenPeer(self._handles.number(), name, model, str(self._path("inputs.npz")), self.threads)
        opened = self._handles.open_peer(request, self.limits.open + self.limits.model)
        return request.handle if opened.ok else -1, opened

    def stamps(self, handle: int, repeats: int) -> np.ndarray | None:
        """See Bench."""
        return self._handles.stamps(handle, repeats, self.limits.shoot + self.limits.open)

    # ---- handles

    def shoot(self, handles: Sequence[int], rounds: int, repeats: int) -> dict[int, list[int]]:
        """See Bench."""
        limit = self.limits.shoot + repeats * graph_flops(self.graph) / _SLOWEST_FLOPS
        return self._handles.shoot(handles, rounds, repeats, limit)

    def failure(self, handle: int) -> tuple[Status, str] | None:
        """See Bench."""
        return self._handles.failure(handle)

    def exchange(self) -> int:
        """See Bench. This process looks: its cores are the worker's."""
        return self.device.team.exchange() if isinstance(self.device, CpuDevice) else 0

    def release(self, handle: int) -> None:
        """See Bench."""
        self._handles.release(handle, self.limits.open)

    def close(self) -> None:
        """See Bench."""
        self._client.close()
        self._ledger.close()
        for text in getattr(self.device, "notes", ()):
            self._note(text)
        self._folder.close()

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name


_KERNEL_RACE = RaceRules(
    first_repeats=2, looks=1, rounds=2, repeats=2, finalists=2, final_rounds=12, chunk=4, level=0.1
)
_RACE_SECONDS = 0.3
"""A race of kernels that has taken this long ends with its first final rounds."""
_WAIT_SHARE, _LONGEST_WAIT, _ALL_WAITS = 0.02, 1.0, 20.0
"""Waiting for a busy machine to calm down: by batch as a share of the time left and in seconds, and over a whole tune."""
_WORTH_TELLING = 0.1


def _as_asked(known: Measurement, asked: Measurement) -> Measurement:
    """What is known of a kernel text, under the names by which it was asked for: another schedule or layout may have come to the same text."""
    how = {k: getattr(asked, k) for k in ("family", "algorithm", "layouts", "schedule", "flops", "bytes_model")}
    return replace(known, **how)


def _usable_memory() -> int:
    """Most of the memory that is free now; 0 (no limit) where the system does not say."""
    try:
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                pages = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return 0
    return int(pages * _MEMORY_SHARE)
