"""What kernels cost, as assignments see it: measured times alone or in place, and estimates on the scale of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from autofuse.engine.options import Option, estimate
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import family, variants
from autofuse.measure.result import Status
from autofuse.search.study import KernelStudy, Tried

IN_PLACE = 0.1
"""Beyond this relative difference a kernel's time inside an engine replaces its time alone."""

Recorded = Callable[[Variant], Sequence[Schedule]]
"""The schedules of a variant that a recording holds."""


class KernelCosts:
    """Prices the variants of studies. An algorithm that was measured in one study tells of it in the others."""

    def __init__(self, target: Target, threads: int, recorded: Recorded | None = None) -> None:
        self.target = target
        self.threads = threads
        self._recorded = recorded
        self._estimates: dict[int, tuple[Variant, float]] = {}
        self._heuristics: dict[int, tuple[Variant, Schedule]] = {}
        self._ratios: dict[str, dict[tuple[str, str], list[float]]] = {}
        self._medians: dict[tuple[str, str], float] = {}

    def estimate(self, v: Variant) -> float:
        """Seconds by arithmetic, bytes and a launch."""
        found = self._estimates.get(id(v))
        if found is None or found[0] is not v:
            found = self._estimates[id(v)] = (v, max(estimate(v, self.target, self.threads), 1e-9))
        return found[1]

    def heuristic(self, v: Variant) -> Schedule:
        """The schedule that is good without any search."""
        found = self._heuristics.get(id(v))
        if found is None or found[0] is not v:
            found = self._heuristics[id(v)] = (v, self._usual_schedule(v))
        return found[1]

    def _usual_schedule(self, v: Variant) -> Schedule:
        usual = family(v.family).heuristic(v, self.target)
        if self._recorded is None:
            return usual
        known = self._recorded(v)
        return usual if usual in known else known[0]

    def options(self, study: KernelStudy) -> list[Option]:
        """Every variant that may be used: measured ones with their best schedule, others with an estimate."""
        out = [Option(v, Schedule(()), 0.0, True) for v in variants(study.program, self.target) if v.family == "view"]
        ratios: dict[tuple[str, str], float] = {}
        for name, every in self._learn(study).items():
            ratios[name] = min(every)
        failed = {key for (key, _), t in study.tried.items() if t.measurement.status is not Status.SKIPPED}
        # An algorithm that failed wherever it was tried is not trusted in other layouts while there is one that works.
        working = {(t.choice[0].family, t.choice[0].algorithm) for t in study.best.values()}
        tried = {(t.choice[0].family, t.choice[0].algorithm) for t in study.tried.values()}
        suspect = tried - working if working else set()
        for v in study.variants:
            if (v.family, v.algorithm) in suspect:
                continue
            best = study.best.get(study.key(v))
            placed = study.in_place.get(study.key(v))
            if best is not None:
                out.append(Option(v, best.choice[1], _in_engine(study, best, placed), True))
            elif placed is not None and study.key(v) not in failed:
                out.append(Option(v, placed[0], placed[1], True))
            elif study.key(v) not in failed:
                # Estimates are hopeful. Unscaled, whatever was not measured would look better than what was.
                scale = ratios.get((v.family, v.algorithm), max(1.0, self._usual((v.family, v.algorithm))))
                out.append(Option(v, self.heuristic(v), self.estimate(v) * scale))
        return out

    def _learn(self, study: KernelStudy) -> dict[tuple[str, str], list[float]]:
        """By how much measurements of a study exceed estimates, by algorithm; the other studies learn of it."""
        found: dict[tuple[str, str], list[float]] = {}
        for v, seconds in study.timed():
            found.setdefault((v.family, v.algorithm), []).append(seconds / self.estimate(v))
        if found != self._ratios.get(study.program.signature, {}):
            self._ratios[study.program.signature] = found
            self._medians.clear()
        return found

    def _usual(self, name: tuple[str, str]) -> float:
        """By how much measurements exceed estimates for an algorithm, over all studies."""
        if name not in self._medians:
            ratios = [r for found in self._ratios.values() for r in found.get(name, ())]
            self._medians[name] = statistics.median(ratios) if ratios else 1.0
        return self._medians[name]


def _in_engine(study: KernelStudy, best: Tried, placed: tuple[Schedule, float] | None) -> float:
    """The seconds of a variant's best schedule as it may be expected in an engine: where another schedule was timed there, it is taken
    to be as much slower or faster than alone as that one was."""
    if placed is None:
        return best.seconds
    schedule, seconds = placed
    if schedule == best.choice[1]:
        return seconds
    other = study.tried.get((study.key(best.choice[0]), schedule.text()))
    return best.seconds * seconds / other.seconds if other is not None and other.measurement.ok else best.seconds


def place(seen: Iterable[tuple[KernelStudy, Variant, Schedule, float]], instead: bool = False) -> None:
    """Take in kernels as they were timed inside an engine, in seconds.

    They price variants that were not measured alone. Where both are known they are put on one scale first, by the ratio over all of the
    engine's kernels, because the machine's speed drifts; what still differs by more than a tenth is worth more than a timing alone.
    `instead`: the engine as a whole showed that times alone don't hold, so that those in place are taken as they are.
    """
    rows = list(seen)
    if instead:
        for study, v, schedule, seconds in rows:
            study.in_place[study.key(v)] = (schedule, seconds)
        return
    alone = {}
    for k, (study, v, schedule, _) in enumerate(rows):
        best = study.best.get(study.key(v))
        if best is not None and best.choice[1] == schedule:
            alone[k] = best.seconds
    together = sum(rows[k][3] for k in alone)
    scale = sum(alone.values()) / together if together > 0 else 1.0
    for k, (study, v, schedule, seconds) in enumerate(rows):
        scaled = seconds * scale
        if k in alone and abs(scaled / alone[k] - 1) <= IN_PLACE:
            study.in_place.pop(study.key(v), None)
        else:
            study.in_place[study.key(v)] = (schedule, scaled)
