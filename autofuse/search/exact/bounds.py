"""Lower bounds of kernels: no variant is faster than its own arithmetic at the device's peak, or its bytes at the rates of the fastest memory
levels that can hold them, and a launch.

The rates are the device's calibration with a little slack, since it was itself a measurement. A kernel that is faster than its bound shows
that the calibration was wrong: it is corrected, and whatever was proven with it is void.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autofuse.ir.target import Target
from autofuse.kernels.base import Variant
from autofuse.kernels.least import least_bytes, least_products
from autofuse.measure.calibrate import CACHED, Reached

SLACK = 1.1
"""By how much a kernel may exceed the calibrated rates."""


@dataclass(frozen=True)
class Level:
    """A memory level: how many bytes it holds, and at what rate they move (bytes a second)."""

    name: str
    size: float
    rate: float


@dataclass(frozen=True)
class Bounds:
    """Rates that are not exceeded: FLOPs a second, seconds a launch, memory levels from the fastest to the memory itself, which holds all."""

    target: Target
    flops: float
    launch: float
    levels: tuple[Level, ...]
    corrections: int = 0
    """How often a kernel was faster than its bound."""
    raised: tuple[tuple[str, float], ...] = ()
    """By what factor each rate had to be raised."""

    @staticmethod
    def of(reached: Reached, target: Target) -> Bounds:
        """The bounds of a calibrated device."""
        cached = max(reached.cached or CACHED * reached.bandwidth, reached.bandwidth)
        shared = min(max(reached.shared or cached, reached.bandwidth), cached)
        near = target.l2 if target.is_cuda else target.cores * target.l2
        levels = [Level("first caches", near, SLACK * cached)]
        if not target.is_cuda and target.l3:
            levels.append(Level("last cache", target.l3, SLACK * shared))
        levels.append(Level("memory", math.inf, SLACK * reached.bandwidth))
        return Bounds(target, SLACK * reached.flops, reached.launch / SLACK, tuple(levels))

    def parts(self, variant: Variant) -> tuple[float, float]:
        """Seconds by arithmetic and by bytes."""
        return least_products(variant, self.target) / self.flops, self.traffic(least_bytes(variant))

    def traffic(self, nbytes: float) -> float:
        """Seconds to move bytes: what the fastest level holds at its rate, and so on; the rest at the memory's."""
        seconds = 0.0
        for level in self.levels:
            held = min(nbytes, level.size)
            seconds += held / level.rate
            nbytes -= held
        return seconds

    def lower(self, variant: Variant) -> float:
        """Seconds that the variant takes at least. A view takes none."""
        return 0.0 if variant.family == "view" else max(self.parts(variant)) + self.launch

    def corrected(self, variant: Variant, seconds: float) -> Bounds:
        """The bounds after a measurement: the same, or with the rates that it beat raised so that it does so no more."""
        if seconds >= self.lower(variant):
            return self
        arithmetic, traffic = self.parts(variant)
        launch = min(self.launch, seconds / 2)
        rest = seconds - launch
        computing = max(1.0, 1.01 * arithmetic / rest)
        moving = max(1.0, 1.01 * traffic / rest)
        levels, left = [], float(least_bytes(variant))
        factors = {"arithmetic": computing}
        for level in self.levels:
            factor = moving if left > 0 else 1.0
            levels.append(replace(level, rate=level.rate * factor))
            factors[level.name] = factor
            left -= level.size
        before = dict(self.raised)
        raised = {name: f * before.get(name, 1.0) for name, f in factors.items() if f * before.get(name, 1.0) > 1}
        return Bounds(
            self.target, self.flops * computing, launch, tuple(levels), self.corrections + 1, tuple(raised.items())
        )

    def words(self) -> str:
        """What had to be corrected, in words; "" where nothing was."""
        if not self.corrections:
            return ""
        count = "a kernel was" if self.corrections == 1 else f"{self.corrections} kernels were"
        rates = ", ".join(f"{name} {factor:.2f} times the calibrated rate" for name, factor in self.raised)
        return f"{count} faster than the bound, which was corrected ({rates or 'the cost of a launch'})"


@dataclass(frozen=True)
class Interval:
    """What a way to run a region costs, in seconds: at least, as far as can be guessed, at most by what was measured (infinity)."""

    lower: float
    guess: float
    upper: float

    @property
    def open(self) -> bool:
        """Whether a measurement could still change it."""
        return self.lower < self.upper

    @staticmethod
    def never() -> Interval:
        """What can't be run."""
        return Interval(math.inf, math.inf, math.inf)
