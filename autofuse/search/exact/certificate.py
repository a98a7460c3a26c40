"""What the search has proven, in plain words, with the scope within which it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofuse.search.candidates import NEAR
from autofuse.search.exact.costs import CLOSED_AFTER, HEADROOM
from autofuse.search.exact.regions import Enumerated


@dataclass(frozen=True)
class Certificate:
    """`lower` and `upper` are sums of kernel times in seconds: what no plan in scope can be below, and the best one by what was measured.

    `kernels` are kernels and schedules that were measured, of `signatures` distinct regions; `open` those that could still lower the
    optimum, `given_up` those that could not be measured; `corrections` counts bounds that a measurement beat.
    """

    enumerated: Enumerated
    kernels: int
    signatures: int
    lower: float
    upper: float
    open: int
    given_up: int
    corrections: int
    left_out: int = 0
    """Regions that were not priced for lack of time."""

    @property
    def gap(self) -> float:
        """By how much any plan in scope may be faster than the best; NaN where nothing is known."""
        if not (self.lower > 0 and math.isfinite(self.upper)):
            return math.nan
        return max(0.0, 1.0 - self.lower / self.upper)

    def text(self) -> str:
        """The certificate."""
        count = f"{len(self.enumerated.regions) - self.left_out:,} enumerated regions"
        if math.isnan(self.gap):
            head = f"Nothing is proven of the best plan: no plan of the {count} has all its kernels measured"
        elif self.gap < 5e-4:
            head = f"No plan made of the {count} is faster under measured costs"
        else:
            head = f"No plan made of the {count} can be more than {100 * self.gap:.1f} % faster under measured costs"
        parts = [f"{head}; {self.kernels:,} kernels and schedules measured"]
        if self.open and not math.isnan(self.gap):
            parts.append(f"{self.open} kernels that could lower the optimum are open")
        if self.given_up:
            parts.append(f"{self.given_up} kernels could not be measured, or not in time")
        if self.corrections:
            parts.append(f"{self.corrections} kernels were faster than their bounds, which were corrected")
        late = f", {self.left_out:,} of them left out for lack of time" if self.left_out else ""
        scope = (
            f"Scope: {self.enumerated.scope()}{late}; {self.signatures:,} of them are distinct; kernel times are added up, as if kernels did not "
            f"disturb each other; a kernel counts as searched after {CLOSED_AFTER} schedules, or at {NEAR:g} times the fastest of its "
            f"region, and until then {100 * HEADROOM:.0f} % are allowed for; each value has one maker."
        )
        return f"{'; '.join(parts)}. {scope}"
