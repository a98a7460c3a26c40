"""A machine with a clock of its own and the noise of a busy one: log-normal runs, bursts in which another process has the core, a slow drift."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

K = TypeVar("K", bound=Hashable)


class Machine:
    """Runs candidates, whose true nanoseconds are given, in rounds of random order; time passes as they run.

    `spread` is the standard deviation of the logarithm of a run. Bursts come at random, on average every `burst_every` seconds, last `burst_seconds` on
    average and slow runs down by a factor of up to `burst_factor`. The drift is a slow swing of `drift`, with a wander on top.
    """

    def __init__(
        self,
        ns: Mapping[K, float],
        seed: int,
        spread: float = 0.05,
        burst_every: float = 0.03,
        burst_seconds: float = 0.003,
        burst_factor: float = 5.0,
        drift: float = 0.2,
    ) -> None:
        self.ns: dict[Hashable, float] = dict(ns)
        self.random = np.random.default_rng(seed)
        self.spread, self.drift = spread, drift
        self.burst = (burst_every, burst_seconds, burst_factor)
        self.now = 0.0
        self.runs = 0
        self._phase = self.random.uniform(0, 2 * math.pi)
        self._wander = 0.0
        self._burst_from = self.random.exponential(burst_every)
        self._burst_until, self._slow = self._burst_from + self.random.exponential(burst_seconds), 2.0
        self.slower = 1.0
        """What a neighbour or throttling does to all runs until it is set back."""
        self.jitter = 1.0
        """How many times wider runs spread."""

    def run(self, k: Hashable) -> int:
        """Nanoseconds of one run."""
        every, seconds, factor = self.burst
        while self.now > self._burst_until:
            self._burst_from = self._burst_until + self.random.exponential(every)
            self._burst_until = self._burst_from + self.random.exponential(seconds)
            self._slow = self.random.uniform(1.2, factor)
        slow = self._slow if self._burst_from <= self.now <= self._burst_until else 1.0
        self._wander = 0.999 * self._wander + self.random.normal(0, 0.002)
        swing = self.drift * math.sin(self._phase + 2 * math.pi * self.now / 5.0) + self._wander
        noise = self.random.normal(0, self.spread * self.jitter)
        ns = self.ns[k] * self.slower * slow * math.exp(swing + noise)
        self.now += ns * 1e-9
        self.runs += 1
        return max(1, int(ns))

    def shoot(self, candidates: Sequence[K], rounds: int, repeats: int) -> dict[K, list[int]]:
        """See autofuse.measure.racing.race; as the worker does, each turn begins with a run that does not count."""
        out: dict[K, list[int]] = {k: [] for k in candidates}
        for _ in range(rounds):
            for at in self.random.permutation(len(candidates)):
                k = candidates[at]
                self.run(k)
                out[k] += [self.run(k) for _ in range(repeats)]
        return out
