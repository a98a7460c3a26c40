"""What is loaded in the worker process, by numbers that stay good: what died with a process is loaded again into the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autofuse.measure.client import TrialFailed, WorkerClient
from autofuse.measure.protocol import Close, OpenEngine, OpenKernel, OpenPeer, Request, Shoot, Stamps
from autofuse.measure.result import Opened, Status


class Handles:
    """Kernels, engines and peers that a worker holds. Limits are seconds without a sign of life. `note` is told what went wrong with no handle."""

    def __init__(self, client: WorkerClient, note: Callable[[str], None]) -> None:
        self._client = client
        self._note = note
        self._last = 0
        self._opened: dict[int, tuple[Request, int, float]] = {}
        self._failures: dict[int, tuple[Status, str]] = {}

    def number(self) -> int:
        """A number that no other handle has."""
        self._last += 1
        return self._last

    def ask(self, request: Request, limit: float) -> object:
        """The answer to a request that can be repeated: a process that was killed from outside gets a second chance, since that says nothing
        of what it was doing; one that the system ends for want of memory is ended again. TrialFailed where there is no answer."""
        try:
            return self._client.ask(request, limit)
        except TrialFailed as e:
            if not e.killed:
                raise
        return self._client.ask(request, limit)

    # ---- loading

    def open(self, request: OpenKernel | OpenEngine, limit: float) -> Opened:
        """Load and check a kernel or an engine under its request's number, which is good where the answer is ok."""
        try:
            opened = self.ask(request, limit)
        except TrialFailed as e:
            return Opened(e.status, e.reason)
        if not isinstance(opened, Opened):
            return Opened(Status.CRASHED, f"the process answered {type(opened).__name__}")
        if opened.ok:
            self._keep(request.handle, request, limit)
        return opened

    def open_peer(self, request: OpenPeer, limit: float) -> Opened:
        """Load the model into another runtime."""
        try:
            self._client.ask(request, limit)
        except TrialFailed as e:
            return Opened(e.status, e.reason)
        self._keep(request.handle, request, limit)
        return Opened(Status.OK)

    def release(self, handle: int, limit: float) -> None:
        """Free a handle; nothing happens where it is not there (any more)."""
        found = self._opened.pop(handle, None)
        if found is None or found[1] != self._client.generation or not self._client.alive:
            return
        try:
            self._client.ask(Close(handle), limit)
        except TrialFailed as e:
            self._note(f"a candidate could not be closed: {e.reason}")

    def failure(self, handle: int) -> tuple[Status, str] | None:
        """Why a handle failed while it was timed."""
        return self._failures.get(handle)

    # ---- timing

    def shoot(self, handles: Sequence[int], rounds: int, repeats: int, limit: float) -> dict[int, list[int]]:
        """Nanoseconds of `rounds` x `repeats` runs of each handle, interleaved. One that fails is left out, and `failure` says why; the
        others are timed again."""
        alive = self._revive(handles)
        spared = False
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

    def stamps(self, handle: int, repeats: int, limit: float) -> np.ndarray | None:
        """Nanoseconds of each launch of an engine, a row a run; None where that can't be had."""
        if not self._revive([handle]):
            return None
        try:
            found = self._client.ask(Stamps(handle, repeats), limit)
        except TrialFailed as e:
            self._note(f"time could not be stamped around launches: {e.reason}")
            return None
        return found if isinstance(found, np.ndarray) else None

    # ---- who is alive

    def _keep(self, handle: int, request: Request, limit: float) -> None:
        self._opened[handle] = (request, self._client.generation, limit)

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
                    again = self.ask(request, limit)
                except TrialFailed as e:
                    self._fail(h, e.status, e.reason)
                    continue
                if isinstance(again, Opened) and not again.ok:
                    self._fail(h, again.status, again.reason)
                    continue
                self._keep(h, request, limit)
            alive.append(h)
        # Loading one may have ended the process that the others live in.
        if any(self._opened[h][1] != self._client.generation for h in alive):
            return self._revive(alive)
        return alive


def _are_samples(got: object, handles: Sequence[int]) -> bool:
    """Whether an answer holds times of all handles."""
    return isinstance(got, dict) and all(
        isinstance(got.get(h), list) and got[h] and all(type(n) is int and n > 0 for n in got[h]) for h in handles
    )
