"""Costs of ways to run a region, as intervals: from the bounds up to what was measured.

A *way* is a combination of layouts (and whether it is a view); its variants compete for it. The bound of a variant that was measured is what
was measured once it is *searched*, by rules that `Closing` states: all its schedules were tried, or some in a row gained nothing; or the study
of its region is closed; or it takes so many times what the fastest variant of its region takes that no schedules are searched. Until then its
schedules may gain the headroom, which is learnt from those of other variants of its family after as many trials.
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
from autofuse.search.gains import ENOUGH, HEADROOM, SHARE, Gains
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.study import QUIET, QUIET_VARIANT

RULE = (
    f"a study is closed when all its candidates near the best were tried, when {QUIET} trials in a row gained less than the noise, "
    "or when its bound is reached"
)
"""When a kernel is not searched any further."""


@dataclass(frozen=True)
class Closing:
    """When a variant counts as searched: after `quiet` schedules in a row without a gain, or at `near` times the fastest of its region; until then
    its time may fall by the part `headroom` (None: by what those of other variants of its family gained after as many trials). Where `quiet` is
    finite, it also counts as searched when the study of its region is closed. These are stated assumptions, not measurements."""

    quiet: float = QUIET_VARIANT
    near: float = NEAR
    headroom: float | None = None

    def text(self) -> str:
        """In words."""
        if self == EXHAUSTIVE:
            return "a variant counts as searched when all its schedules were tried, and until then only its bound is relied on"
        tried = f"after {self.quiet:g} schedules in a row without a gain"
        if math.isinf(self.quiet):
            tried = "when all its schedules were tried"
        rule = "" if math.isinf(self.quiet) else f"{RULE}; "
        gain = (
            f"it may gain what {100 * SHARE:.0f} % of {ENOUGH} or more variants of its family gained at most after as many schedules "
            f"({100 * HEADROOM:.0f} % while fewer were tried further)"
        )
        if self.headroom is not None:
            gain = f"{100 * self.headroom:.0f} % are allowed for"
        return (
            f"{rule}one of its variants counts as searched {tried}, "
            f"or at {self.near:g} times the fastest of its region, and until then {gain}"
        )


EXHAUSTIVE = Closing(math.inf, math.inf, 1.0)
"""Nothing is assumed: a kernel's other schedules may be as fast as its bound until all were tried."""

CAREFUL = Closing(math.inf, 2.0, 0.4)
"""Little is assumed: for spaces that are small enough to be searched whole where it matters."""


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

    def __init__(self, studies: KernelStudies, bounds: Bounds, closing: Closing | None = None) -> None:
        self.studies = studies
        self.closing = closing or Closing()
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
            usable = [v for v in variants(program, self.studies.target) if v.suits(self.studies.accuracy)]
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
        if o.seconds > self.closing.near * leader or self._closed(o.variant):
            return o.seconds
        headroom = self.closing.headroom
        if headroom is None:
            headroom = self.studies.gains.left(o.variant.family, self.studies.effort(o.variant)[0])
        return min(o.seconds, max(bound, (1 - headroom) * o.seconds))

    def _closed(self, v: Variant) -> bool:
        study = self.studies.of(v.program)
        if study.closed and math.isfinite(self.closing.quiet):
            return True
        return study.quiet(v) >= self.closing.quiet or not self.studies.effort(v)[1]


def way_of(v: Variant) -> Way:
    """The way that a variant stands for."""
    return Way(v.input_layouts, v.output_layouts, v.algorithm if v.family == "view" else "")


_NEVER = Price(Interval.never(), None, None, ())
