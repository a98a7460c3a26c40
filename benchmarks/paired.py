"""Plans of one model side by side in this process, in paired rounds, until a test that may be looked at after every round has decided."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.devices.cpu import CpuDevice
from autofuse.engine.engine import Engine
from autofuse.engine.plan import Plan
from autofuse.ir.graph import Graph
from autofuse.measure.nearness import Nearness, near_rounds
from autofuse.measure.noise import Noise, calibrated
from autofuse.measure.protocol import Done, Shoot
from autofuse.measure.racing import LEVEL, Comparison, compare
from autofuse.measure.worker import Worker

CHUNK = 10
SHARE = 0.02
"""Seconds that the repeats of one plan in one round may take, together."""
MOST_REPEATS = 10
MOST_ROUNDS = 300
FEWEST_ROUNDS = 15
PAUSE = 0.25
"""Seconds between looks at where the threads' cores are."""


@dataclass(frozen=True)
class Paired:
    """Samples of each plan, `repeats` a round, and the noise: the first plan against a second copy of itself in the same rounds. `exchange_ns` is
    what a cache line took between the threads' cores around each round, there and back; 0 where that is not known."""

    samples: dict[str, list[int]]
    repeats: int
    noise: Noise
    exchange_ns: tuple[int, ...] = ()

    @property
    def rounds(self) -> int:
        return min(len(s) for s in self.samples.values()) // self.repeats

    def against(self, a: str, b: str, level: float) -> Comparison:
        """a against b; what is less than the copies differ for sure is a tie."""
        return compare(self.samples[a], self.samples[b], level, self.noise.notable, self.repeats)

    def median_ms(self, name: str) -> float:
        return float(np.median(self.samples[name])) / 1e6

    def by_nearness(self) -> dict[str, Paired]:
        """The rounds in which the threads' cores were near, and those in which they were apart, where there are enough of both to compare."""
        near = near_rounds(self.exchange_ns)
        found: dict[str, Paired] = {}
        for name, wanted in (("near", True), ("apart", False)):
            rounds = [k for k, n in enumerate(near) if n == wanted]
            kept = {
                n: [s[k * self.repeats + j] for k in rounds for j in range(self.repeats)]
                for n, s in self.samples.items()
            }
            if len(rounds) >= FEWEST_ROUNDS:
                found[name] = Paired(kept, self.repeats, self.noise, tuple(self.exchange_ns[k] for k in rounds))
        return found if len(found) == 2 else {}


def measure(
    graph: Graph,
    plans: Mapping[str, Plan],
    inputs: Mapping[str, np.ndarray],
    device: CpuDevice,
    seconds: float,
    patience: float = 0.0,
    nearest: int = 0,
) -> Paired:
    """Run the plans and a second copy of the first one in rounds of random order; equal plans run as often as they are named.

    It ends where the first plan is told from each other one or after `seconds`, but not before some rounds are done. No round starts while the
    threads' cores are further apart than `nearest` (nanoseconds there and back, where it is known) or than they were seen to be, for up to `patience`
    seconds in all.
    """
    looks = Nearness(nearest)
    first = next(iter(plans))
    names = [*plans, "copy"]
    worker = Worker(lambda reply: None)
    engines = [Engine.build(graph, plans.get(n, plans[first]), device) for n in names]
    try:
        for k, e in enumerate(engines):
            e.bind(inputs)
            worker._keep(k, e)
        once = [e.time(2)[1] for e in engines]
        repeats = max(1, min(MOST_REPEATS, int(SHARE * 1e9 / max(max(once), 1))))
        samples: dict[str, list[int]] = {n: [] for n in names}
        exchange: list[int] = []
        end = time.monotonic() + seconds
        level = LEVEL / max(1, len(plans) - 1)
        while True:
            step = min(CHUNK, max(1, int((end - time.monotonic()) * 1e9 / (sum(once) * (repeats + 1)))))
            before = device.team.exchange()
            while looks.look(before) and patience > 0:
                time.sleep(PAUSE)
                patience -= PAUSE
                end += PAUSE
                before = device.team.exchange()
            reply = worker.serve(Shoot(tuple(range(len(names))), step, repeats))
            exchange += [max(before, device.team.exchange())] * step
            if not isinstance(reply, Done) or not isinstance(reply.value, dict):
                raise RuntimeError(f"a plan failed while it was timed: {reply}")
            for k, n in enumerate(names):
                samples[n] += reply.value[k]
            noise = calibrated([samples[first], samples["copy"]], repeats)
            rounds = len(samples[first]) // repeats
            if noise is None or (rounds < FEWEST_ROUNDS and time.monotonic() < end + seconds):
                continue
            found = Paired({n: samples[n] for n in plans}, repeats, noise, tuple(exchange))
            sure = _decided([found.against(first, n, level) for n in plans if n != first], noise.notable)
            if sure or rounds >= MOST_ROUNDS or time.monotonic() >= end:
                return found
    finally:
        for e in engines:
            e.close()


def _decided(comparisons: Sequence[Comparison], notable: float) -> bool:
    """Whether each is a difference for sure, or for sure none that counts."""
    return all(not c.tie or (c.low >= 1 / (1 + notable) and c.high <= 1 + notable) for c in comparisons)


def ratio_text(c: Comparison) -> str:
    """A comparison in words."""
    return f"{100 * (c.ratio - 1):+.1f} % ({100 * (c.low - 1):+.1f} to {100 * (c.high - 1):+.1f} %, {c.pairs} rounds, p = {c.p:.2g})"
