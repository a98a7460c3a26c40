"""What a tune tells of its progress. The command line draws it; machines and tests may ignore it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class Phase(enum.StrEnum):
    """The parts of a tune, in order."""

    PREPARE = "prepare"
    BASELINES = "baselines"
    KERNELS = "kernels"
    PLANS = "plans"
    FINALS = "finals"
    DONE = "done"


@dataclass(frozen=True)
class Kernels:
    """Kernels (variants of distinct regions) that a plan may have: how many were `measured`, how many need not be since their bounds already exceed
    what a better plan could use, and `every` one. The rest is open."""

    measured: int = 0
    spared: int = 0
    every: int = 0


@dataclass(frozen=True)
class Event:
    """Where a tune stands. `done` of `total` counts the steps of the phase (total 0: unknown); `best_ns` is the best plan's median so far
    (0 before there is one) and `first_ns` the unfused plan's; `gap` is what is known to be left, relative (NaN where nothing is);
    `seconds` of `budget` are spent; `text` says in words what is being done. `kernels` counts those that a plan may have, with what was
    measured of them and what the bounds saved (zeros before that is known)."""

    phase: Phase
    text: str
    done: int
    total: int
    best_ns: float
    first_ns: float
    gap: float
    seconds: float
    budget: float
    kernels: Kernels = Kernels()

    @property
    def left(self) -> float:
        """Seconds to go, never negative."""
        return max(0.0, self.budget - self.seconds)


class Progress(Protocol):
    """Called often, from the thread that tunes; it must return at once."""

    def __call__(self, event: Event) -> None: ...


def silent(event: Event) -> None:
    """A Progress that shows nothing."""
    del event


def sturdy(progress: Progress) -> Progress:
    """The same, falling silent where nobody listens any more: a terminal that was closed ends no tune."""
    gone = False

    def tell(event: Event) -> None:
        nonlocal gone
        if gone:
            return
        try:
            progress(event)
        except (OSError, ValueError):
            gone = True

    return tell
