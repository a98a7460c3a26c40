"""Costs of ways to run a region, as intervals: from the bounds up to what was measured.

A *way* is a combination of layouts (and whether it is a view); its variants compete for it. The bound of a variant that was measured is what
was measured once it is *searched*: all its schedules were tried, or QUIET_VARIANT in a row gained nothing; or the study of its region is
closed; or it takes NEAR times what the fastest variant of its region takes, beyond which no schedules are searched. Until then its
schedules may gain what those of other variants of its family did after as many trials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofuse.engine.options import Option
from autofuse.fusion.region import RegionProgram
from autofuse.ir.layout import Layout
from autofuse.kernels.base import Variant
from autofuse.kernels.families import variants
from autofuse.search.candidates import NEAR
from autofuse.search.exact.bounds import Bounds, Interval
from autofuse.search.gains import Gains
from autofuse.search.kernel_study import KernelStudies


@dataclass(frozen=True)
class Way:
    """Layouts of inputs and outputs; `view` is the algorithm of a view or ""."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    view: str


@dataclass(frozen=True)
class Price:
    """What a way costs: the interval, the option that the guess stands for, and the one that was measured to be fastest."""

    interval: Interval
    guessed: Option | None
    measured: Option | None
    open: tuple[Variant, ...]
    """The variants whose measurement could lower it below what was measured, the likeliest first."""


class Pricing:
    """Prices of region programs, kept up with the kernel studies."""

    def __init__(self, studies: KernelStudies, bounds: Bounds) -> None:
        self.studies = studies
        self._bounds = bounds
        studies.bound = bounds.lower
        self._ways: dict[str, tuple[Way, ...]] = {}
        self._prices: dict[str, tuple[object, Bounds, Gains, dict[Way, Price]]] = {}

    @property
    def bounds(self) -> Bounds:
        """The bounds as they are now."""
        return self._bounds

    def ways(self, program: RegionProgram) -> tuple[Way, ...]:
        """The distinct ways to run a region, those of variants that may be used at all."""
        found = self._ways.get(program.signature)
        if found is None:
            exact = self.studies.accuracy == "exact"
            usable = [v for v in variants(program, self.studies.target) if not (v.tolerant and exact)]
            found = self._ways[program.signature] = tuple(dict.fromkeys(map(way_of, usable)))
        return found

    def price(self, program: RegionProgram, way: Way) -> Price:
        """What a way costs by what is known now."""
        options = self.studies.options(program)
        gains = self.studies.gains
        kept = self._prices.get(program.signature)
        if kept is None or kept[0] is not options or kept[1] is not self.bounds or kept[2] is not gains:
            kept = (options, self.bounds, gains, self._priced(program, list(options)))
            self._prices[program.signature] = kept
        return kept[3].get(way, _NEVER)

    def prepare(self, program: RegionProgram) -> None:
        """Price a region for the first time."""
        self.studies.options(program)

    def check(self, program: RegionProgram) -> None:
        """Correct the bounds by what was measured of a program."""
        for o in self.studies.options(program):
            if o.measured and o.variant.family != "view":
                self._bounds = self._bounds.corrected(o.variant, o.seconds)
        self.studies.bound = self._bounds.lower

    def _priced(self, program: RegionProgram, options: list[Option]) -> dict[Way, Price]:
        by_way: dict[Way, list[Option]] = {}
        for o in options:
            by_way.setdefault(way_of(o.variant), []).append(o)
        leader = min((o.seconds for o in options if o.measured and o.variant.family != "view"), default=math.inf)
        return {way: self._price(found, leader) for way, found in by_way.items()}

    def _price(self, options: list[Option], leader: float) -> Price:
        if any(o.variant.family == "view" for o in options):
            free = next(o for o in options if o.variant.family == "view")
            return Price(Interval(0.0, 0.0, 0.0), free, free, ())
        known = [o for o in options if o.measured]
        measured = min(known, key=lambda o: o.seconds, default=None)
        upper = measured.seconds if measured is not None else math.inf
        guessed = min(options, key=lambda o: o.seconds)
        lowers = [(self._lower(o, leader), o) for o in options]
        lower = min(min(l for l, _ in lowers), upper)
        still = [(l, o.seconds, o.variant) for l, o in lowers if l < upper * (1 - 1e-9)]
        still.sort(key=lambda s: s[:2])
        guess = max(guessed.seconds, lower)
        return Price(Interval(lower, guess, upper), guessed, measured, tuple(v for _, _, v in still))

    def _lower(self, o: Option, leader: float) -> float:
        bound = self.bounds.lower(o.variant)
        if not o.measured:
            return bound
        if o.seconds > NEAR * leader or self._closed(o.variant):
            return o.seconds
        headroom = self.studies.gains.left(o.variant.family, self.studies.effort(o.variant)[0])
        return min(o.seconds, max(bound, (1 - headroom) * o.seconds))

    def _closed(self, v: Variant) -> bool:
        study = self.studies.of(v.program)
        return study.closed or study.searched(v)


def way_of(v: Variant) -> Way:
    """The way that a variant stands for."""
    return Way(v.input_layouts, v.output_layouts, v.algorithm if v.family == "view" else "")


_NEVER = Price(Interval.never(), None, None, ())
