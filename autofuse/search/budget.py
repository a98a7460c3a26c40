"""A budget of time, and which part of it may be spent by when."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


class Budget:
    """Seconds from now on. The clock is a parameter so that tests need none."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds = max(0.0, seconds)
        self.clock = clock
        self._start = clock()

    @property
    def spent(self) -> float:
        """Seconds gone."""
        return self.clock() - self._start

    @property
    def left(self) -> float:
        """Seconds to go, never negative."""
        return max(0.0, self.seconds - self.spent)

    def at(self, share: float) -> float:
        """The time on the clock at which `share` of the budget will be gone."""
        return self._start + share * self.seconds

    def within(self, share: float) -> bool:
        """Whether less than `share` of the budget is gone."""
        return self.clock() < self.at(share)
