"""The bench: what the search asks to have measured, and how it is done with a worker process.

Kernels are lowered and compiled here, in parallel, while nothing is being timed; loading, checking and timing happen in the
worker. Whatever a candidate does to it becomes a status with a reason; the other candidates of its batch are loaded again.
"""

from __future__ import annotations

import os
import pickle
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autofuse.devices.base import Device
from autofuse.engine.options import estimate
from autofuse.engine.plan import Plan
from autofuse.errors import LaunchError, StorageError
from autofuse.fusion.region import RegionProgram
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.measure import arrays
from autofuse.measure.bench import Choice
from autofuse.measure.calibrate import NAMES, STEADY, Reached, calibration_kernels, key_of, plausible, reached
from autofuse.measure.client import DeviceFactory, TrialFailed, WorkerClient
from autofuse.measure.compiling import compile_choices, compile_plan
from autofuse.measure.noise import Learnt, Patience, Watched
from autofuse.measure.oracle import WHOLE_FLOPS, graph_flops
from autofuse.measure.programs import constant_bytes, region_bytes, repetition
from autofuse.measure.protocol import (
    Calibrate,
    Close,
    OpenEngine,
    OpenKernel,
    OpenPeer,
    Prepare,
    Request,
    Shoot,
    Stamps,
    WriteReference,
)
from autofuse.measure.racing import RaceRules, race
from autofuse.measure.records import Records
from autofuse.measure.reference import Tolerance
from autofuse.measure.result import Measurement, Opened, Status
from autofuse.measure.scratch import Scratch
from autofuse.measure.seeding import Seeding

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
        self.records = records
        self._seeding = Seeding(records) if records is not None else None
        self.tolerance = tolerance if tolerance is not None else Tolerance()
        self.limits = limits if limits is not None else Limits()
        self.notes: list[str] = []
        self.oracle = ""
        self.checks_first_plan = False
        self._folder = Scratch()
        self.notes += self._folder.notes
        self._inputs = inputs
        usable = 0 if device.target.is_cuda else _usable_memory()
        self._client = WorkerClient(factory, device.threads, memory if memory is not None else usable)
        self._handle = 0
        self._opened: dict[int, tuple[Request, int, float]] = {}
        self._failures: dict[int, tuple[Status, str]] = {}
        self._model_ready = False
        self._unwritten: dict[tuple[str, str], Measurement] = {}
        self._trouble = ""
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
        self._describe(program)
        blanks = compile_choices(self.device, choices)
        state = "rotated" if self._rotate and any(t.constant for t in program.inputs) else "warm"
        known = self._known([b.key for b in blanks[again:] if b.key], state)
        out = [b if k < again else known.get(b.key, b) for k, b in enumerate(blanks)]
        out = [replace(m, state=state) if not m.cached else m for m in out]
        todo = [k for k, m in enumerate(out) if not m.cached and m.status is Status.SKIPPED and not m.reason]
        # Schedules that come to the same text are one kernel.
        first_with = {out[k].key: k for k in reversed(todo)}
        twins = {k: first_with[out[k].key] for k in todo if first_with[out[k].key] != k}
        todo = [k for k in todo if k not in twins]
        if not todo:
            self._store(out)
            return out
        try:
            self._ask(Prepare(program, dict(constants), self._folder.name), self.limits.prepare)
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
            self._store([out[k] for k in part])
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
        if self.records is None:
            return []
        try:
            return self.records.of_signature(signature)
        except StorageError as e:
            self._note(str(e))
            return []

    def seeds(self, program: RegionProgram) -> list[Measurement]:
        """See Bench."""
        if self._seeding is None:
            return []
        try:
            return self._seeding.rows(program)
        except StorageError as e:
            self._note(str(e))
            return []

    def _describe(self, program: RegionProgram) -> None:
        try:
            if self._seeding is not None:
                self._seeding.describe(program)
        except StorageError as e:
            self._note(str(e))

    def _batch(
        self, choices: Mapping[int, Choice], blanks: Mapping[int, Measurement], deadline: float
    ) -> dict[int, Measurement]:
        out = dict(blanks)
        handles: dict[int, int] = {}
        for k, (variant, schedule) in choices.items():
            seconds = estimate(variant, self.target, self.threads)
            request = OpenKernel(
                self._next(),
                variant,
                schedule,
                repetition(variant, seconds, self._rotate if constant_bytes(variant) else 0),
                self._folder.name,
                self.tolerance,
                special=not variant.tolerant,
            )
            limit = self.limits.open + 1000 * seconds
            opened = self._open(request, limit)
            out[k] = replace(out[k], status=opened.status, reason=opened.reason, error=opened.error)
            if opened.ok:
                handles[k] = request.handle
                self._opened[request.handle] = (request, self._client.generation, limit)
            elif opened.status is not Status.SKIPPED:
                self._store([out[k]])  # before the next one is loaded, which may end this process or the machine
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
                failed = self._failures.get(h)
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

    def _known(self, keys: Sequence[str], state: str) -> dict[str, Measurement]:
        if self.records is None:
            return {}
        try:
            return self.records.find(keys, state)
        except StorageError as e:
            self._note(str(e))
            return {}

    def _store(self, rows: Sequence[Measurement]) -> None:
        """Write rows down. What cannot be written now is tried again with the next rows, and at the end."""
        if self.records is None:
            return
        # What the budget skipped was not observed: it stays open.
        for m in rows:
            if m.key and m.status is not Status.SKIPPED and not m.cached:
                self._unwritten[m.key, m.state] = m
        if not self._unwritten:
            return
        try:
            self.records.add(list(self._unwritten.values()))
            self._unwritten.clear()
        except StorageError as e:
            self._trouble = str(e)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    @property
    def seeding_notes(self) -> list[str]:
        """What the records of other compilers, drivers and devices were used for, in words."""
        return self._seeding.notes() if self._seeding is not None else []

    def reached(self, deadline: float) -> Reached:
        """See Bench."""
        keys = {key_of(name): name for name in NAMES}
        rows = {keys[k]: m for k, m in self._known(list(keys), "warm").items()}
        steady = False
        for name in [n for n, m in rows.items() if not plausible(m, self.target, self.threads)]:
            self._note(f"a recorded calibration ({name}) cannot be true: it is not used, and measured again")
            rows.pop(name)
        # Measured in every tune: a record may be of a moment when something else was running. The best runs of all tunes count.
        if time.monotonic() < deadline:
            try:
                self.device.compile(calibration_kernels(self.target, self.threads))
                found = self._ask(Calibrate(), self.limits.prepare)
                if not isinstance(found, dict):
                    raise LaunchError(f"the process answered {type(found).__name__}")
                steady = all(_near_best(m, rows.get(name)) for name, m in found.items())
                rows = {name: _merged(m, rows.get(name)) for name, m in found.items()}
                self._store(list(rows.values()))
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
            self._next(),
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
        opened = self._open(request, limit)
        if opened.ok:
            self._opened[request.handle] = (request, self._client.generation, limit)
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
                self._ask(request, self.limits.model)
                self.oracle = "the whole model in float64 numpy"
                self.checks_first_plan = False
            except TrialFailed as e:
                self._note(f"the model could not be evaluated in float64: {e.reason}")
        self._model_ready = True

    def open_peer(self, name: str, model: bytes | str) -> tuple[int, Opened]:
        """See Bench."""
        self.prepare()
        request = OpenPeer(self._next(), name, model, str(self._path("inputs.npz")), self.threads)
        limit = self.limits.open + self.limits.model
        try:
            self._client.ask(request, limit)
        except TrialFailed as e:
            return -1, Opened(e.status, e.reason)
        self._opened[request.handle] = (request, self._client.generation, limit)
        return request.handle, Opened(Status.OK)

    def stamps(self, handle: int, repeats: int) -> np.ndarray | None:
        """See Bench."""
        if not self._revive([handle]):
            return None
        try:
            found = self._client.ask(Stamps(handle, repeats), self.limits.shoot + self.limits.open)
        except TrialFailed as e:
            self._note(f"time could not be stamped around launches: {e.reason}")
            return None
        return found if isinstance(found, np.ndarray) else None

    # ---- handles

    def shoot(self, handles: Sequence[int], rounds: int, repeats: int) -> dict[int, list[int]]:
        """See Bench."""
        alive = self._revive(handles)
        spared = False
        limit = self.limits.shoot + repeats * graph_flops(self.graph) / _SLOWEST_FLOPS
        while alive:
            try:
                got = self._client.ask(Shoot(tuple(alive), rounds, repeats), limit)
            except TrialFailed as e:
                if e.killed and not spared:
                    spared = True
                    alive = self._revive(alive)
                    continue
                culprit = e.handle if e.handle in alive else alive[0]
                self._fail(culprit, e.status, e.reason)
                alive = self._revive([h for h in alive if h != culprit])
                continue
            if not _are_samples(got, alive):
                self._fail(alive[0], Status.CRASHED, "the process answered with what are no times")
                alive = self._revive(alive[1:])
                continue
            assert isinstance(got, dict)
            return {h: list(got[h]) for h in alive}
        return {}

    def failure(self, handle: int) -> tuple[Status, str] | None:
        """See Bench."""
        return self._failures.get(handle)

    def release(self, handle: int) -> None:
        """See Bench."""
        found = self._opened.pop(handle, None)
        if found is None or found[1] != self._client.generation or not self._client.alive:
            return
        try:
            self._client.ask(Close(handle), self.limits.open)
        except TrialFailed as e:
            self._note(f"a candidate could not be closed: {e.reason}")

    def close(self) -> None:
        """See Bench."""
        self._client.close()
        self._store(())
        if self._unwritten:
            self._note(self._trouble)
        for text in getattr(self.device, "notes", ()):
            self._note(text)
        self._folder.close()

    def _next(self) -> int:
        self._handle += 1
        return self._handle

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _ask(self, request: Request, limit: float) -> object:
        """The answer to a request that can be repeated: a process that was killed from outside gets a second chance, since that says nothing
        of what it was doing; one that the system ends for want of memory is ended again."""
        try:
            return self._client.ask(request, limit)
        except TrialFailed as e:
            if not e.killed:
                raise
        return self._client.ask(request, limit)

    def _open(self, request: OpenKernel | OpenEngine, limit: float) -> Opened:
        try:
            opened = self._ask(request, limit)
        except TrialFailed as e:
            return Opened(e.status, e.reason)
        if not isinstance(opened, Opened):
            return Opened(Status.CRASHED, f"the process answered {type(opened).__name__}")
        return opened

    def _fail(self, handle: int, status: Status, reason: str) -> None:
        self._failures[handle] = (status, reason)
        self._opened.pop(handle, None)

    def _revive(self, handles: Sequence[int]) -> list[int]:
        """The handles that can be run, those loaded again that a dead worker took with it."""
        alive: list[int] = []
        for h in handles:
            entry = self._opened.get(h)
            if entry is None:
                continue
            request, generation, limit = entry
            if generation != self._client.generation or not self._client.alive:
                try:
                    self._ask(request, limit)
                except TrialFailed as e:
                    self._fail(h, e.status, e.reason)
                    continue
                self._opened[h] = (request, self._client.generation, limit)
            alive.append(h)
        # Loading one may have ended the process that the others live in.
        if any(self._opened[h][1] != self._client.generation for h in alive):
            return self._revive(alive)
        return alive


_KERNEL_RACE = RaceRules(
    first_repeats=2, looks=1, rounds=2, repeats=2, finalists=2, final_rounds=12, chunk=4, level=0.1
)
_RACE_SECONDS = 0.3
"""A race of kernels that has taken this long ends with its first final rounds."""
_WAIT_SHARE, _LONGEST_WAIT, _ALL_WAITS = 0.02, 1.0, 20.0
"""Waiting for a busy machine to calm down: by batch as a share of the time left and in seconds, and over a whole tune."""
_WORTH_TELLING = 0.1


def _merged(new: Measurement, old: Measurement | None) -> Measurement:
    """A calibration with the fastest runs of two; those of another kernel text say nothing."""
    if (
        old is None
        or not old.ok
        or (old.family, old.algorithm, old.schedule) != (new.family, new.algorithm, new.schedule)
    ):
        return new
    return replace(new, samples_ns=tuple(sorted((*new.samples_ns, *old.samples_ns))[: len(new.samples_ns)]))


def _near_best(new: Measurement, old: Measurement | None) -> bool:
    """Whether a calibration came near the best that was seen; true where there is none."""
    if old is None or not old.ok or not new.ok or old.schedule != new.schedule:
        return new.ok
    return statistics.median(new.samples_ns) <= STEADY * statistics.median(old.samples_ns)


def _are_samples(got: object, handles: Sequence[int]) -> bool:
    """Whether an answer holds times of all handles."""
    return isinstance(got, dict) and all(
        isinstance(got.get(h), list) and got[h] and all(type(n) is int and n > 0 for n in got[h]) for h in handles
    )


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
