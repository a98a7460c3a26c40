"""What the search has proven, in plain words, with the scope within which it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autofuse.search.exact.costs import Closing
from autofuse.search.exact.regions import Enumerated


@dataclass(frozen=True)
class Certificate:
    """`lower` and `upper` are sums of kernel times in seconds: what no plan in scope can be below, and the best one by what was measured.

    `kernels` are kernels and schedules that were measured, of `measured` of the `signatures` distinct regions, of which `closed` have their
    studies closed; `open` kernels could still lower the optimum, `given_up` ones could not be measured; `corrected` says in words which
    bounds a measurement beat.
    """

    enumerated: Enumerated
    kernels: int
    signatures: int
    lower: float
    upper: float
    open: int
    given_up: int
    corrected: str = ""
    left_out: int = 0
    """Regions that were not priced for lack of time."""
    measured: int = 0
    closed: int = 0
    closing: Closing = field(default_factory=Closing)

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
            head = f"Nothing is proven of the best plan: no partition of the {count} has all its kernels measured"
        elif self.gap < 5e-4:
            head = f"No partition of the {count} is faster under measured costs"
        else:
            head = f"No partition of the {count} can be more than {100 * self.gap:.1f} % faster under measured costs"
        parts = [f"{head}; {self.kernels:,} kernels measured{self._studies()}"]
        if self.open and not math.isnan(self.gap):
            parts.append(f"{_count(self.open, 'kernel')} that could lower the optimum {_are(self.open)} open")
        if self.given_up:
            parts.append(f"{_count(self.given_up, 'kernel')} could not be measured, or not in time")
        if self.corrected:
            parts.append(self.corrected)
        late = f", {self.left_out:,} of them left out for lack of time" if self.left_out else ""
        scope = (
            f"Scope: {self.enumerated.scope()}{late}; {self.signatures:,} of them are distinct; kernel times are added up, as if kernels did "
            f"not disturb each other; {self.closing.text()}; each value has one maker."
        )
        return f"{'; '.join(parts)}. {scope}"

    def _studies(self) -> str:
        if not self.measured:
            return ""
        return f", of {_count(self.measured, 'distinct region')} ({self.closed:,} with their studies closed)"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"
