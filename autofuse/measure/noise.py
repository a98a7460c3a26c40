"""How noisy the machine is: calibrated at the start of a tune (A/A), and watched from then on.

A/A: an engine races against a second copy of itself. Their paired ratio should be one; how far it spreads is the noise, and where the
copies differ for sure (by where their memory lies), no smaller difference between plans means anything. Later rounds are judged by two
figures that swapping two candidates does not change, so that leaving rounds out favours nobody: how much runs of one candidate in one turn
differ (jitter), and by how much all candidates together are slower than they were (level). A neighbour shows in both, throttling in the second.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from autofuse.measure.racing import NOTABLE, PLAUSIBLE, Comparison, compare_levels, levels

_JITTERS, _JITTER_FLOOR = 4.0, 0.03
_SPREADS, _LEVEL_FLOOR = 5.0, 0.15
NORMAL = 1.4826
"""The standard deviation of normal noise over its median absolute deviation."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Noise:
    """The noise of a machine in one calibration. `ratio` with `low` and `high` is the engine over its copy, `spread` the robust standard deviation of
    the logarithm of that ratio from round to round, `jitter` the usual distance of the logarithms of two runs in one turn."""

    ratio: float
    low: float
    high: float
    spread: float
    jitter: float
    rounds: int
    repeats: int
    copies: int
    """Engines: 2, or 1 where a second one was too dear and the runs of one were paired."""
    ns: float
    """Median of a run."""
    samples_ns: tuple[tuple[int, ...], ...] = ()

    @property
    def notable(self) -> float:
        """The least difference that is worth the name: one per cent, or what the engine differs from itself for sure."""
        inner = max(0.0, math.log(max(self.low, 1e-9)), -math.log(max(self.high, 1e-9)))
        return min(max(NOTABLE, math.expm1(inner)), PLAUSIBLE - 1)

    def text(self) -> str:
        """In words."""
        against = "a second copy of itself" if self.copies > 1 else "itself"
        said = f"an engine against {against} over {self.rounds} rounds: {100 * (self.ratio - 1):+.1f} %"
        if math.isfinite(self.high):
            said += f" ({100 * (self.low - 1):+.1f} to {100 * (self.high - 1):+.1f} %)"
        return f"{said}, with a spread of {100 * self.spread:.1f} % from round to round"

    def facts(self) -> dict[str, object]:
        """For run.json."""
        return {
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high if math.isfinite(self.high) else None,
            "spread": self.spread,
            "jitter": self.jitter,
            "rounds": self.rounds,
            "repeats": self.repeats,
            "copies": self.copies,
            "ns": self.ns,
            "notable": self.notable,
            "samples_ns": [list(s) for s in self.samples_ns],
        }


def calibrated(samples: Sequence[Sequence[int]], repeats: int) -> Noise | None:
    """What the samples of an engine and its copy amount to; those of a lone engine are paired run by run. None where they are too few."""
    if len(samples) == 1:
        runs = samples[0]
        pairs = len(runs) // 2
        a, b = levels([runs[2 * k] for k in range(pairs)]), levels([runs[2 * k + 1] for k in range(pairs)])
    else:
        a, b = levels(samples[0], repeats), levels(samples[1], repeats)
    if min(len(a), len(b)) < 3:
        return None
    found: Comparison = compare_levels(a, b)
    logs = a - b
    every = np.concatenate([jitters(s, repeats) for s in samples])
    every = every[~np.isnan(every)]
    return Noise(
        found.ratio,
        found.low,
        found.high,
        float(NORMAL * np.median(np.abs(logs - np.median(logs)))),
        float(np.median(every)) if len(every) else 0.0,
        len(logs),
        repeats,
        len(samples),
        float(np.median(np.concatenate([np.asarray(s, float) for s in samples]))),
        tuple(tuple(s) for s in samples),
    )


def jitters(samples: Sequence[int], repeats: int) -> np.ndarray:
    """The usual distance between the logarithms of neighbouring runs, for each round: of one turn, or where a turn is one run, to the turn before."""
    rounds = len(samples) // max(1, repeats)
    logs = np.log(np.maximum(np.asarray(samples[: rounds * repeats], float), 1e-9)).reshape(rounds, repeats)
    if repeats > 1:
        return np.asarray(np.median(np.abs(np.diff(logs, axis=1)), axis=1))
    steps = np.abs(np.diff(logs[:, 0]))
    return np.concatenate([[np.nan], steps]) if rounds else np.empty(0)


def noisy_rounds(
    samples: Mapping[K, Sequence[int]], repeats: int, noise: Noise | None, expected: Mapping[K, float] | None = None
) -> list[bool]:
    """Which rounds were noisier than when the noise was calibrated. `expected` are the nanoseconds of each candidate when it was measured before."""
    tables = {k: levels(s, repeats) for k, s in samples.items() if len(s)}
    rounds = min((len(t) for t in tables.values()), default=0)
    if noise is None or rounds == 0:
        return [False] * rounds
    jitter = np.stack([jitters(samples[k], repeats)[:rounds] for k in tables])
    known = ~np.isnan(jitter).all(axis=0)
    wild = np.zeros(rounds, bool)
    wild[known] = np.nanmedian(jitter[:, known], axis=0) > max(_JITTER_FLOOR, _JITTERS * noise.jitter)
    above = np.stack([t[:rounds] - _usual(k, t[:rounds], expected) for k, t in tables.items()])
    slow = np.median(above, axis=0) > max(_LEVEL_FLOOR, _SPREADS * noise.spread)
    return [bool(x) for x in wild | slow]


def _usual(k: K, level: np.ndarray, expected: Mapping[K, float] | None) -> float:
    ns = expected.get(k, 0.0) if expected is not None else 0.0
    return math.log(ns) if ns > 0 and math.isfinite(ns) else float(np.quantile(level, 0.25))


class Learnt:
    """What is usual where nothing was calibrated: kernels are timed from the first second on. The quietest quarter of all rounds stands for a calm
    machine, so that one that was busy at first is known for it later."""

    _ENOUGH, _MOST = 24, 2000
    _QUARTER = 0.6745 / 0.3186
    """Of the distances between normal samples, the median over the first quartile."""

    def __init__(self) -> None:
        self._seen: collections.deque[float] = collections.deque(maxlen=self._MOST)

    def add(self, samples: Mapping[K, Sequence[int]], repeats: int) -> None:
        """Learn from rounds."""
        for s in samples.values():
            self._seen.extend(float(x) for x in jitters(s, repeats) if not math.isnan(x))

    @property
    def noise(self) -> Noise | None:
        """None where too little was seen to tell."""
        if len(self._seen) < self._ENOUGH:
            return None
        usual = self._QUARTER * float(np.quantile(np.asarray(self._seen), 0.25))
        return Noise(1.0, 0.0, math.inf, usual, usual, len(self._seen), 1, 1, 0.0)


@dataclass
class Watched(Generic[K]):
    """A `shoot` that marks the samples of noisy rounds, and where most of a shot's rounds are, waits and takes them again."""

    shoot: Callable[[Sequence[K], int, int], Mapping[K, Sequence[int]]]
    learnt: Learnt
    patience: Patience
    noisy: dict[K, list[int]] = field(default_factory=dict)
    rounds: int = 0
    busy: int = 0
    _taken: dict[K, int] = field(default_factory=dict)

    def __call__(self, candidates: Sequence[K], rounds: int, repeats: int) -> dict[K, list[int]]:
        out: dict[K, list[int]] = {k: [] for k in candidates}
        while True:
            got = self.shoot(candidates, rounds, repeats)
            flags = noisy_rounds(got, repeats, self.learnt.noise)
            self.learnt.add(got, repeats)
            self.rounds += len(flags)
            self.busy += sum(flags)
            for k, s in got.items():
                first = self._taken.get(k, 0)
                self.noisy.setdefault(k, []).extend(marked(flags, repeats, first))
                self._taken[k] = first + len(s)
            candidates = [k for k in candidates if k in got]
            out = {k: out[k] + list(got[k]) for k in candidates}
            if 2 * sum(flags) <= len(flags):
                self.patience.calm()
                return out
            if not candidates or not self.patience.wait():
                return out


class Patience:
    """Waiting until a busy machine is calm again: each wait is twice as long as the one before, and all of them together are bounded."""

    def __init__(self, seconds: float, pause: Callable[[float], None] = time.sleep) -> None:
        self.left = max(0.0, seconds)
        self.waited = 0.0
        self._pause = pause
        self._next = 0.1

    def wait(self) -> bool:
        """Wait a while; False where patience is at its end."""
        if self.left <= 0:
            return False
        seconds = min(self._next, self.left)
        self._pause(seconds)
        self.left -= seconds
        self.waited += seconds
        self._next *= 2
        return True

    def calm(self) -> None:
        """The machine is calm: the next wait is a short one again."""
        self._next = 0.1


def marked(rounds: Sequence[bool], repeats: int, first: int = 0) -> list[int]:
    """The positions of the samples of noisy rounds, where the first round's first sample is at `first`."""
    return [first + k * repeats + j for k, noisy in enumerate(rounds) if noisy for j in range(repeats)]
