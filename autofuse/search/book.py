"""The book of plans: every plan that was tried end to end, with its samples, and the incumbent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autofuse.engine.plan import Plan
from autofuse.measure.bench import Bench
from autofuse.measure.racing import compare, median, pick
from autofuse.measure.result import Opened, Status

_FIRST_ROUNDS = 3
_STAMPED = 5
_STAMPED_AGAIN = 15
APART = 0.1
"""Where the sum of a plan's kernels is this much off the whole, relative to it, its kernels are measured again in place."""
_LONGEST_RUN = 0.25
_MOST_REPEATS = 20
_FEWEST_ROUNDS, _MOST_ROUNDS = 10, 24
_ENOUGH_SECONDS = 5.0


@dataclass(eq=False)
class Entry:
    """One plan. `samples` were taken when it was tried, `finals` in the final rounds, beside the others."""

    plan: Plan
    step: str
    trial: int
    estimate_ns: float
    opened: Opened
    elapsed: float
    handle: int = -1
    samples: list[int] = field(default_factory=list)
    finals: list[int] = field(default_factory=list)
    region_ns: tuple[float, ...] = ()
    known: bool = False
    """Whether the estimate is a sum of measured kernels only."""
    again: bool = False
    """Whether its kernels were measured again in place, because their sum was off."""
    whole_ns: float = 0.0
    """The median when it was tried, which is what the estimate is held against; 0 where it did not run."""

    @property
    def off(self) -> float:
        """By how much the sum of its kernels was off the whole, relative to it; NaN where some were never measured."""
        if not (self.known and self.estimate_ns > 0 and self.whole_ns > 0):
            return math.nan
        return self.estimate_ns / self.whole_ns - 1

    @property
    def ok(self) -> bool:
        return self.opened.ok and bool(self.samples or self.finals)

    @property
    def best_samples(self) -> list[int]:
        """The samples to report: those of the finals where there are any."""
        return self.finals or self.samples

    @property
    def ns(self) -> float:
        """The median of all samples; infinity where there are none."""
        return median(self.best_samples) if self.ok else math.inf


class Book:
    """Opens plans, times them against the incumbent, and holds the finals."""

    def __init__(self, bench: Bench, elapsed: Callable[[], float]) -> None:
        self._bench = bench
        self._elapsed = elapsed
        self.entries: dict[str, Entry] = {}
        self.best: Entry | None = None
        self.peers: dict[str, list[int]] = {}
        self._peer_handles: dict[str, int] = {}
        self.notes: list[str] = []
        self.pace = 0.0
        """Seconds that it takes to try a plan."""

    def tried(self, plan: Plan) -> bool:
        return plan.key in self.entries

    def attempt(self, plan: Plan, step: str, estimate_seconds: float, known: bool = False) -> Entry:
        """Open, check and time a plan; it becomes the incumbent where it is faster in paired rounds. A plan is tried once.

        Where the estimate is the sum of `known` kernels and more than a tenth off, they are stamped again, with more runs.
        """
        found = self.entries.get(plan.key)
        if found is not None:
            return found
        start = self._elapsed()
        handle, opened = self._bench.open(plan)
        estimate_ns = estimate_seconds * 1e9 if math.isfinite(estimate_seconds) else 0.0
        entry = Entry(plan, step, len(self.entries), estimate_ns, opened, self._elapsed(), known=known)
        self.entries[plan.key] = entry
        if not opened.ok:
            return entry
        entry.handle = handle
        self._first_rounds(entry)
        if not entry.ok:
            self._drop(entry)
            return entry
        entry.whole_ns = entry.ns
        self.profile([entry], _STAMPED)
        if abs(entry.off) > APART and entry.region_ns:
            entry.again = True
            self.profile([entry], _STAMPED_AGAIN)
        if self.best is None or self._faster(entry, self.best):
            old, self.best = self.best, entry
            if old is not None:
                self._drop(old)
        else:
            self._drop(entry)
        entry.elapsed = self._elapsed()
        # Kernels of later plans are mostly compiled already, so the fastest attempt tells what one takes.
        self.pace = min(self.pace or math.inf, entry.elapsed - start)
        return entry

    def _first_rounds(self, entry: Entry) -> None:
        first = self._bench.shoot([entry.handle], 1, 1).get(entry.handle)
        if not first:
            self._failed(entry)
            return
        repeats = max(1, min(_MOST_REPEATS, int(_LONGEST_RUN / _FIRST_ROUNDS / max(first[0] * 1e-9, 1e-9))))
        handles = [entry.handle] if self.best is None else [self.best.handle, entry.handle]
        got = self._bench.shoot(handles, _FIRST_ROUNDS, repeats)
        if entry.handle not in got:
            self._failed(entry)
            return
        entry.samples = got[entry.handle]
        if self.best is not None and self.best.handle in got:
            self.best.samples = got[self.best.handle]

    def _failed(self, entry: Entry) -> None:
        status, reason = self._bench.failure(entry.handle) or (Status.CRASHED, "it could not be timed")
        entry.opened = Opened(
            status,
            reason,
            entry.opened.error,
            entry.opened.seconds,
            entry.opened.launches,
            entry.opened.bytes_model,
            entry.opened.flops,
            entry.opened.peak_bytes,
            entry.opened.weight_bytes,
            entry.opened.region_of_launch,
        )
        entry.samples = []

    @staticmethod
    def _faster(entry: Entry, best: Entry) -> bool:
        result = compare(entry.samples, best.samples, level=0.2)
        return result.winner == "a" or (result.tie and result.ratio < 0.98)

    def _drop(self, entry: Entry) -> None:
        if entry.handle >= 0:
            self._bench.release(entry.handle)
            entry.handle = -1

    # ---- peers

    def open_peer(self, name: str, model: bytes | str) -> None:
        """Load another runtime; a note says so where that fails."""
        handle, opened = self._bench.open_peer(name, model)
        if opened.ok:
            self._peer_handles[name] = handle
            self.peers[name] = []
        else:
            self.notes.append(f"{name} could not be measured: {opened.reason}")

    # ---- the finals

    def final(self, keep: Sequence[Entry], seconds: float) -> Entry | None:
        """Run some plans and all peers in interleaved rounds, and pick the winner.

        Of plans that can't be told apart the one with the fewest bytes, then launches, wins.
        """
        entrants = [e for e in dict.fromkeys(keep) if e.ok]
        for e in entrants:
            if e.handle < 0:
                e.handle, opened = self._bench.open(e.plan)
                if not opened.ok:
                    e.handle = -1
        racing = {e.handle: e for e in entrants if e.handle >= 0}
        peers = {h: name for name, h in self._peer_handles.items()}
        if not racing:
            return self.best
        once = sum(e.ns for e in racing.values()) * 1e-9 * (1 + 0.5 * len(peers))
        repeats = max(1, min(_MOST_REPEATS, int(0.02 / max(once, 1e-9))))
        each = max(once * (repeats + 1), 1e-9)
        # Below ten pairs no test can tell plans apart; slow models get fewer where the budget is over.
        fewest = _FEWEST_ROUNDS if each * _FEWEST_ROUNDS <= max(seconds, _ENOUGH_SECONDS) else _FEWEST_ROUNDS // 2
        rounds = max(fewest, min(_MOST_ROUNDS, int(seconds / each)))
        got = self._bench.shoot([*peers, *racing], rounds, repeats)
        for h, e in racing.items():
            if h in got:
                e.finals = got[h]
            else:
                self._failed(e)
                e.finals = []
        for h, name in peers.items():
            self.peers[name] = got.get(h, [])
            if h not in got:
                failed = self._bench.failure(h)
                self.notes.append(f"{name} could not be measured: {failed[1] if failed else 'it stopped'}")
        winner = pick({e: e.finals for e in racing.values()}, lambda e: self._preference(e))
        if winner is not None:
            self.best = winner
        return self.best

    @staticmethod
    def _preference(e: Entry) -> tuple[float, ...]:
        return (e.opened.bytes_model, e.opened.launches, int(e.plan.key, 16))

    def profile(self, entries: Sequence[Entry], repeats: int) -> None:
        """The median time of each region in place, for engines that are open."""
        for e in entries:
            if e.handle < 0 or not e.ok:
                continue
            stamps = self._bench.stamps(e.handle, repeats)
            if stamps is None or stamps.shape[1] != len(e.opened.region_of_launch):
                continue
            e.region_ns = _by_region(np.median(stamps, axis=0), e.opened.region_of_launch, len(e.plan.regions))

    def close(self) -> None:
        """Free all engines."""
        for e in self.entries.values():
            self._drop(e)
        for h in self._peer_handles.values():
            self._bench.release(h)
        self._peer_handles = {}


def _by_region(launches: np.ndarray, region_of: Sequence[int], count: int) -> tuple[float, ...]:
    total = [0.0] * count
    for ns, r in zip(launches, region_of, strict=True):
        total[r] += float(ns)
    return tuple(total)
