"""A test that may be looked at after every round: wagers on the signs of paired differences.

Where two candidates are equally fast and take their turns in random order, either is as likely to be ahead in a round, whatever the noise
is like: only the sign of the difference is looked at, so a lost time slice counts no more than a microsecond. Somebody who bets on those
signs with fair odds starts with 1 and, by Ville's inequality (1939), ever comes to own 1/level with a chance of at most `level`: so the
test holds at every round at once, and measuring may stop when it is sure. The wager is a mixture over all chances above one half (Robbins
1970; Howard, Ramdas, McAuliffe and Sekhon, Time-uniform, nonparametric, nonasymptotic confidence sequences, Annals of Statistics 2021);
turned around it is a confidence sequence for the median (Howard and Ramdas, Sequential estimation of quantiles, Bernoulli 2022). Johari,
Koomen, Pekelis and Walsh (Always valid inference, Operations Research 2022) do the same for means.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import betainc, betaln

_PRIOR = 0.5
"""Of the Beta distribution that the mixture weighs chances by: Jeffreys', which pays least for not knowing the chance (Krichevsky, Trofimov)."""


@functools.lru_cache(maxsize=65536)
def log_evidence(ahead: int, behind: int) -> float:
    """Logarithm of what a bettor on "ahead is likelier" owns after so many rounds ahead and behind. Infinity cannot be reached."""
    n = ahead + behind
    if n == 0:
        return 0.0
    a, b = ahead + _PRIOR, behind + _PRIOR
    above = float(betainc(b, a, 0.5))  # of the mixture's weight, what lies above one half
    if above <= 0.0:
        return -math.inf
    return n * math.log(2) + float(betaln(a, b) - betaln(_PRIOR, _PRIOR)) + math.log(above) + math.log(2)


@functools.lru_cache(maxsize=65536)
def p_value(ahead: int, behind: int) -> float:
    """Two-sided, valid at whatever round it is looked at: one half of the stake is bet on either side."""
    up, down = log_evidence(ahead, behind), log_evidence(behind, ahead)
    most = max(up, down)
    if most == -math.inf:
        return 1.0
    both = most + math.log(0.5 * (math.exp(up - most) + math.exp(down - most)))
    return min(1.0, math.exp(-both))


def median_interval(values: np.ndarray, level: float) -> tuple[float, float]:
    """Between which of the values the median lies; holds at every round at once with a chance of 1 - level. Infinite where they are too few."""
    n = len(values)
    ordered = np.sort(values)
    # The more values lie below a candidate for the median, the less there is against it, up to the middle.
    low, high = 0, n // 2 + 1
    while low < high:
        below = (low + high) // 2
        if p_value(below, n - below) <= level:
            low = below + 1
        else:
            high = below
    if low == 0:
        return -math.inf, math.inf
    if low > n // 2:
        low = n // 2
    return float(ordered[low - 1]), float(ordered[n - low])


def rounds_needed(level: float) -> int:
    """Rounds that have to go one way, without an exception, before the test is sure."""
    n = 1
    while p_value(n, 0) > level:
        n += 1
    return n
