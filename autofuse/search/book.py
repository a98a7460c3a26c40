"""The book of plans: every plan that was tried end to end, with its samples, and the incumbent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autofuse.engine.plan import Plan
from autofuse.measure.bench import Bench
from autofuse.measure.nearness import Nearness
from autofuse.measure.noise import Noise, Patience, calibrated, marked, noisy_rounds
from autofuse.measure.racing import (
    LEVEL,
    NOTABLE,
    Comparison,
    compare_levels,
    levels,
    median,
    near,
    pick,
    ratio,
    settled,
    share,
)
from autofuse.measure.result import Opened, Status
from autofuse.measure.sequential import rounds_needed

_FIRST_ROUNDS = 3
_STAMPED = 5
_STAMPED_AGAIN = 15
APART = 0.1
"""Where the sum of a plan's kernels is this much off the whole, relative to it, its kernels are measured again in place."""
_LONGEST_RUN = 0.25
_MOST_REPEATS = 20
_FEWEST_ROUNDS, _MOST_ROUNDS = 12, 120
_CHUNK = 8
_ENOUGH_SECONDS = 5.0
_NOISE_ROUNDS, _NOISE_REPEATS = 24, 5
_FEWEST_NOISE_ROUNDS = 5
_WEIGHTS_PER_SECOND = 1e8
"""Bytes of weights prepared in a second, at least: an engine whose copy would take too long gets none, and its own runs are paired."""


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
    repeats: int = 1
    """Runs of one round, which lie side by side in `samples`; `final_repeats` those in `finals`."""
    final_repeats: int = 1
    noisy: list[int] = field(default_factory=list)
    """Positions in `samples` of what was taken while the machine was noisier than when it was calibrated; `final_noisy` those in `finals`."""
    final_noisy: list[int] = field(default_factory=list)
    score: float = 0.0
    """Logarithm of its time over the first plan's, chained through what ran beside it, so that a drift of the machine's speed is no part of it."""

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
    def best_repeats(self) -> int:
        return self.final_repeats if self.finals else self.repeats

    @property
    def best_noisy(self) -> list[int]:
        return self.final_noisy if self.finals else self.noisy

    @property
    def ns(self) -> float:
        """The median of all samples; infinity where there are none."""
        return median(self.best_samples) if self.ok else math.inf


class Book:
    """Opens plans, times them against the incumbent, and holds the finals."""

    def __init__(
        self,
        bench: Bench,
        elapsed: Callable[[], float],
        patience: Patience | None = None,
        memory: float = math.inf,
        weights: float = math.inf,
    ) -> None:
        self._bench = bench
        self._limits = memory, weights
        self._elapsed = elapsed
        self._patience = patience if patience is not None else Patience(0.0)
        self.noise: Noise | None = None
        """What the calibration of the noise found; None before it, and where time was too short for it."""
        self._score = 0.0
        self._busy = self._watched = 0
        self._nearness = Nearness()
        self.entries: dict[str, Entry] = {}
        self.best: Entry | None = None
        self.peers: dict[str, list[int]] = {}
        self._peer_handles: dict[str, int] = {}
        self.notes: list[str] = []
        self.keep: Callable[[Plan, Sequence[int]], None] = _forget
        """Told of every new incumbent, with its samples: it may be written down before the next plan is tried."""
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
        if self.best is None or self._better(entry, self.best):
            old, self.best = self.best, entry
            self.keep(plan, entry.samples)
            if old is not None:
                self._drop(old)
        else:
            self._drop(entry)
        entry.elapsed = self._elapsed()
        # Kernels of later plans are mostly compiled already, so the fastest attempt tells what one takes.
        self.pace = min(self.pace or math.inf, entry.elapsed - start)
        return entry

    def _first_rounds(self, entry: Entry) -> None:
        self._nearness.look(self._bench.exchange())  # the more often, the sooner it is known how near they can be
        first = self._bench.shoot([entry.handle], 1, 1).get(entry.handle)
        if not first:
            self._failed(entry)
            return
        repeats = max(1, min(_MOST_REPEATS, int(_LONGEST_RUN / _FIRST_ROUNDS / max(first[0] * 1e-9, 1e-9))))
        handles = [entry.handle] if self.best is None else [self.best.handle, entry.handle]
        expected = {self.best.handle: self._expected(self.best)} if self.best is not None else {}
        while True:
            got = self._bench.shoot(handles, _FIRST_ROUNDS, repeats)
            if entry.handle not in got:
                self._failed(entry)
                return
            flags = self._watch(got, repeats, expected)
            if 2 * sum(flags) <= len(flags) or not self._patience.wait():
                break
        entry.samples, entry.repeats, entry.noisy = got[entry.handle], repeats, marked(flags, repeats)
        if self.best is not None and self.best.handle in got:
            self.best.samples, self.best.repeats, self.best.noisy = got[self.best.handle], repeats, list(entry.noisy)
            entry.score = self.best.score + math.log(
                ratio(levels(entry.samples, repeats), levels(self.best.samples, repeats))
            )

    def _watch(self, got: dict[int, list[int]], repeats: int, expected: Mapping[int, float]) -> list[bool]:
        """Which rounds were noisy; they are counted for what is told in the end."""
        flags = noisy_rounds(got, repeats, self.noise, expected)
        self._busy += sum(flags)
        self._watched += len(flags)
        if 2 * sum(flags) <= len(flags):
            self._patience.calm()
        return flags

    # ---- the noise

    def calibrate_noise(self, seconds: float) -> None:
        """Race the incumbent against a second copy of itself for some seconds; where that is too dear, pair its own runs."""
        best = self.best
        if best is None or not best.ok or best.handle < 0:
            return
        run = max(best.ns * 1e-9, 1e-9)
        copies = 1 if best.opened.weight_bytes / _WEIGHTS_PER_SECOND > 2 * seconds else 2
        rounds = min(_NOISE_ROUNDS, int(seconds / (run * 2 * copies)))
        if rounds < _FEWEST_NOISE_ROUNDS:
            return
        repeats = max(1, min(_NOISE_REPEATS, int(seconds / (run * copies * rounds)) - 1))
        twin, handles = -1, [best.handle]
        if copies == 2:
            twin, opened = self._bench.open(best.plan)
            handles += [twin] if opened.ok else []
        got = self._bench.shoot(handles, rounds, repeats)
        if len(handles) == 2:
            self._bench.release(twin)
        if all(h in got for h in handles):
            self.noise = calibrated([got[h] for h in handles], repeats)
            self._score = best.score

    def _expected(self, entry: Entry) -> float:
        """Nanoseconds that a plan should take when the machine is as it was at the calibration."""
        if self.noise is None or not math.isfinite(entry.score):
            return entry.ns
        return self.noise.ns * math.exp(entry.score - self._score)

    @property
    def notable(self) -> float:
        """The least difference between plans that counts."""
        return self.noise.notable if self.noise is not None else NOTABLE

    def tell_noise(self) -> None:
        """Note what the noise was, and how much of what was measured is marked."""
        if self.noise is not None:
            self.notes.append(f"noise: {self.noise.text()}")
        self.notes += [self._nearness.text()] if self._nearness.nearest else []
        if self._busy:
            self.notes.append(
                f"the machine was noisier than that in {self._busy} of {self._watched} rounds, whose samples are marked"
                f" (waited {self._patience.waited:.1f} s for it to calm down)"
            )

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

    def fits(self, entry: Entry) -> bool:
        """Whether a plan keeps to the limits on intermediates and on prepared weights."""
        return entry.opened.peak_bytes <= self._limits[0] and entry.opened.weight_bytes <= self._limits[1]

    def _better(self, entry: Entry, best: Entry) -> bool:
        if self.fits(entry) != self.fits(best):
            return self.fits(entry)
        return self._faster(entry, best)

    @staticmethod
    def _against(entry: Entry, best: Entry) -> Comparison:
        """What ran in the same rounds, turn by turn."""
        return compare_levels(levels(entry.samples, entry.repeats), levels(best.samples, best.repeats), level=0.2)

    def _faster(self, entry: Entry, best: Entry) -> bool:
        result = self._against(entry, best)
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
        """Run some plans and all peers in interleaved rounds until the fastest is told from the others or time is up, and pick the winner.

        Of plans that can't be told apart the one with the fewest bytes, then launches, then by its hash wins. Rounds in which the machine was noisy
        are kept and marked; where enough others are left, those decide.
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
        # Below a dozen pairs no test can tell plans apart; slow models get fewer where the budget is over.
        needed = max(_FEWEST_ROUNDS, rounds_needed(share(LEVEL, len(racing))))
        fewest = needed if each * needed <= max(seconds, _ENOUGH_SECONDS) else _FEWEST_ROUNDS // 2
        rounds = max(fewest, min(_MOST_ROUNDS, int(seconds / each)))
        got, flags = self._final_rounds(
            [*peers, *racing],
            {h: self._expected(e) for h, e in racing.items()},
            fewest,
            rounds,
            repeats,
            self._elapsed() + max(0.0, seconds),
        )
        calm = [k for k, noisy in enumerate(flags) if not noisy]
        if len(calm) < fewest:
            calm = list(range(len(flags)))
        for h, e in racing.items():
            if h in got:
                e.finals, e.final_repeats, e.final_noisy = got[h], repeats, marked(flags, repeats)
            else:
                self._failed(e)
                e.finals = []
        for h, name in peers.items():
            self.peers[name] = got.get(h, [])
            if h not in got:
                failed = self._bench.failure(h)
                self.notes.append(f"{name} could not be measured: {failed[1] if failed else 'it stopped'}")
        rows = {e: levels(e.finals, repeats)[calm] for e in racing.values() if e.finals}
        fitting = {e: r for e, r in rows.items() if self.fits(e)} or rows
        winner = pick(fitting, lambda e: self._preference(e), notable=self.notable)
        if winner is not None:
            self.best = winner
            self.keep(winner.plan, winner.finals)
            self._tell_tie(fitting, winner)
        return self.best

    def _final_rounds(
        self, handles: list[int], expected: dict[int, float], fewest: int, most: int, repeats: int, until: float
    ) -> tuple[dict[int, list[int]], list[bool]]:
        """Rounds until the fastest plan is told from the others, at most `most` calm ones and half as many again, and none after `until`."""
        got: dict[int, list[int]] = {h: [] for h in handles}
        flags: list[bool] = []
        step = fewest
        while got and step > 0:
            apart = self._nearness.look(self._bench.exchange())
            new = self._bench.shoot(list(got), step, repeats)
            apart = self._nearness.look(self._bench.exchange()) or apart
            got = {h: s + new[h] for h, s in got.items() if h in new}
            fresh = self._watch({h: s for h, s in new.items() if h in expected}, repeats, expected)
            # Where only peers are left there is nothing to judge.
            fresh = [apart or f for f in fresh] or [False] * step
            self._nearness.count(step, apart)
            flags += fresh
            if 2 * sum(fresh) > len(fresh):
                waited = self._patience.waited
                self._patience.wait()
                until += self._patience.waited - waited
            calm = [k for k, noisy in enumerate(flags) if not noisy]
            rows = {h: levels(s, repeats)[calm] for h, s in got.items() if h in expected}
            if (len(calm) >= fewest and settled(rows, notable=self.notable)) or self._elapsed() >= until:
                break
            step = min(_CHUNK, most - len(calm), most + most // 2 - len(flags))
        return got, flags

    def _tell_tie(self, rows: Mapping[Entry, np.ndarray], winner: Entry) -> None:
        """Say which finalists the noise does not tell from the winner."""
        equal = [e for e in near(rows, winner, notable=self.notable) if e is not winner]
        if equal:
            names = ", ".join(f"{e.plan.origin} {100 * (ratio(rows[e], rows[winner]) - 1):+.1f} %" for e in equal)
            self.notes.append(
                f"a tie: the noise does not tell the best plan from {len(equal)} of the other finalists ({names}); among such, the "
                "one with fewer bytes, then fewer launches, is the best"
            )

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


def _forget(plan: Plan, samples: Sequence[int]) -> None:
    del plan, samples


def _by_region(launches: np.ndarray, region_of: Sequence[int], count: int) -> tuple[float, ...]:
    total = [0.0] * count
    for ns, r in zip(launches, region_of, strict=True):
        total[r] += float(ns)
    return tuple(total)
