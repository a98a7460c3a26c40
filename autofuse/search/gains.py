"""What more schedules may still gain, learnt from the trials themselves.

After its k-th trial a variant's time may still fall. By how much is told by variants of the same family that were tried further: nine of ten
gained no more than `left`. While too few tell, an assumption stands in, and nothing is ever assumed to be less than what is known of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from autofuse.search.study import QUIET_VARIANT, KernelStudy

HEADROOM = 0.25
"""What schedules are assumed to gain where too few trials tell."""
SHARE = 0.9
"""The share of variants that gained no more."""
ENOUGH = 12
"""Variants that must have been tried further to tell."""


@dataclass(frozen=True)
class Gains:
    """`table` holds, by family and number of trials, what was still gained later, relative to the best so far."""

    table: Mapping[tuple[str, int], float] = field(default_factory=dict)
    trials: int = 0

    def left(self, family: str, trials: int) -> float:
        """By how much a variant's time may still fall after so many trials."""
        return min(
            (g for k in range(1, trials + 1) if (g := self.table.get((family, k))) is not None), default=HEADROOM
        )

    @staticmethod
    def of(studies: Iterable[KernelStudy]) -> Gains:
        """What the trials of all studies tell."""
        later: dict[tuple[str, int], list[float]] = defaultdict(list)
        count = 0
        for study in studies:
            count += len(study.tried)
            for family, times in _courses(study):
                best = np.minimum.accumulate(times)
                for k in range(1, len(times) - QUIET_VARIANT + 1):
                    if np.isfinite(best[k - 1]):
                        later[(family, k)].append(1 - float(best[-1] / best[k - 1]))
        told = {key: min(HEADROOM, float(np.quantile(g, SHARE))) for key, g in later.items() if len(g) >= ENOUGH}
        return Gains(told, count)


def _courses(study: KernelStudy) -> list[tuple[str, list[float]]]:
    """The times of each variant's trials, in their order; infinity for those that failed."""
    found: dict[str, tuple[str, list[float]]] = {}
    for (key, _), t in study.tried.items():
        found.setdefault(key, (t.choice[0].family, []))[1].append(t.seconds if t.measurement.ok else float("inf"))
    return list(found.values())
