"""A budget of time, and which part of it may be spent by when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


class Pace:
    """How long things of a kind take, learnt while they are done; the latest count most."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}

    def room(self, kind: str, deadline: float, unknown: int) -> int:
        """How many of a kind can be done by a deadline; `unknown` where none has been done yet."""
        left = deadline - self._clock()
        each = self._seconds.get(kind)
        if each is None:
            return unknown if left > 0 else 0
        return int(left / each)

    @contextmanager
    def timed(self, kind: str, count: int) -> Iterator[None]:
        """Learn from doing `count` of a kind."""
        start = self._clock()
        yield
        each = max(1e-3, (self._clock() - start) / count)
        self._seconds[kind] = 0.6 * self._seconds.get(kind, each) + 0.4 * each
