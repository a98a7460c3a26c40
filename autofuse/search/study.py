"""What is known of one kernel signature: its candidates, what came of each, and which one leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from autofuse.fusion.region import RegionProgram
from autofuse.kernels.base import Schedule, Variant
from autofuse.measure.bench import Choice
from autofuse.measure.racing import compare_levels, levels
from autofuse.measure.result import Measurement, Status
from autofuse.search.schedule_sampler import ScheduleSampler
from autofuse.search.tables import Table

QUIET = 32
"""Trials in a row without a gain after which a study is closed: by Laplace's rule the next one gains with a chance of 3 %."""
QUIET_VARIANT = 5
"""Trials of one variant in a row without a gain after which it counts as searched."""
LEAST_NOISE = 0.01
"""A gain of less is none, however quiet the machine is."""
PATIENCE = 4
"""Failures of a variant, without a success, after which it is given up."""
_DEADLY = (Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY)


@dataclass(frozen=True)
class Tried:
    """One candidate and what came of it."""

    choice: Choice
    measurement: Measurement

    @property
    def seconds(self) -> float:
        return self.measurement.seconds


@dataclass
class KernelStudy:
    """The state of one signature's study."""

    program: RegionProgram
    constants: Mapping[int, np.ndarray]
    variants: tuple[Variant, ...]
    tables: dict[str, Table] = field(default_factory=dict)
    tried: dict[tuple[str, str], Tried] = field(default_factory=dict)
    best: dict[str, Tried] = field(default_factory=dict)
    """The best of each variant, by its key."""
    leader: Tried | None = None
    in_place: dict[str, tuple[Schedule, float]] = field(default_factory=dict)
    """What a variant took inside an engine, in seconds, by its key."""
    batches: int = 0
    verdict: str = ""
    """Why the study was closed, in words; "" while it is open."""
    settled: bool = False
    """An earlier tune studied it, on a machine that was steady: it is left as it is until nothing else is left to study."""
    seeds: list[Choice] | None = None
    kin: list[Choice] | None = None
    sampler: ScheduleSampler | None = None
    _keys: dict[int, tuple[Variant, str]] = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        """Whether nothing more is tried of its own accord (the exact solver may still ask for a variant)."""
        return bool(self.verdict)

    @property
    def state(self) -> str:
        """Where the study stands, in words."""
        return f"closed: {self.verdict}" if self.closed else f"open: {len(self.tried)} candidates tried"

    @property
    def noise(self) -> float:
        """The relative spread of the leader's samples, half the distance of their quartiles: a gain below it is none."""
        samples = self.leader.measurement.samples_ns if self.leader is not None else ()
        if len(samples) < 4:
            return LEAST_NOISE
        low, middle, high = np.quantile(np.asarray(samples, np.float64), (0.25, 0.5, 0.75))
        return max(LEAST_NOISE, float((high - low) / 2 / middle))

    def quiet(self, v: Variant | None = None) -> int:
        """Trials (of a variant) since the last one that gained more than the noise; those that failed count."""
        limit, best, since = 1 - self.noise, float("inf"), 0
        key = None if v is None else self.key(v)
        for (k, _), t in self.tried.items():
            if key is not None and k != key:
                continue
            since += 1
            if t.measurement.ok and t.seconds < limit * best:
                best, since = t.seconds, 0
        return since

    @property
    def seconds(self) -> float:
        """The best measured time; infinity before there is one."""
        return self.leader.seconds if self.leader is not None else float("inf")

    def has(self, choice: Choice) -> bool:
        return self.identity(choice) in self.tried

    def key(self, v: Variant) -> str:
        """The variant's key, remembered by identity: it is a long text, and asked for often."""
        found = self._keys.get(id(v))
        if found is not None and found[0] is v:
            return found[1]
        self._keys[id(v)] = (v, v.key)
        return v.key

    def identity(self, choice: Choice) -> tuple[str, str]:
        """What tells a candidate from the others of its study."""
        return self.key(choice[0]), choice[1].text()

    def keep(self, tried: Tried) -> None:
        """Write down what came of a candidate."""
        self.tried[self.identity(tried.choice)] = tried
        key = self.key(tried.choice[0])
        table = self.tables.get(key)
        if table is not None:
            table.close(tried.choice[1])
        if not tried.measurement.ok:
            return
        old = self.best.get(key)
        if old is None or old.choice == tried.choice or tried.seconds < old.seconds:
            self.best[key] = tried

    def leads(self, tried: Tried) -> bool:
        """Whether a candidate that was measured beside the leader takes its place."""
        if self.leader is None:
            return True
        if tried.measurement.cached or self.leader.measurement.cached:
            return tried.seconds < self.leader.seconds
        a, b = (levels(m.samples_ns, m.repeats) for m in (tried.measurement, self.leader.measurement))
        if len(a) < len(b):
            return False  # it was dropped on the way
        result = compare_levels(a, b, level=0.1)
        return result.winner == "a" or (result.tie and result.ratio < 0.97)

    def is_broken(self, v: Variant) -> bool:
        """Whether a variant failed so often that it is given up. What took the process down with it counts twice: it costs the most time."""
        key = self.key(v)
        mine = [t.measurement.status for (k, _), t in self.tried.items() if k == key]
        failures = [2 if s in _DEADLY else 1 for s in mine if s not in (Status.OK, Status.SKIPPED)]
        return Status.OK not in mine and sum(failures) >= PATIENCE

    def timed(self) -> list[tuple[Variant, float]]:
        """The variants whose time is known, alone or in place."""
        alone = [(t.choice[0], t.seconds) for t in self.best.values()]
        placed = [
            (v, self.in_place[self.key(v)][1])
            for v in self.variants
            if self.key(v) in self.in_place and self.key(v) not in self.best
        ]
        return alone + placed
