"""Comparing noisy timings: pairs, ties, and races in rounds.

Samples that were taken in the same rounds are compared in pairs: the logarithm of their ratio is free of what slowed both
down. A difference counts where a bootstrap of its median leaves zero outside and Wilcoxon's test agrees; else it is a tie. With
many candidates the best of them is a lucky one, so the level of the test is divided by their number (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

LEVEL = 0.01
"""Chance of calling two equal candidates different, over a whole race."""
NOTABLE = 0.01
"""A difference below one per cent is a tie, however sure it is: the machine changes by more from hour to hour."""
PLAUSIBLE = 1.05
"""Among ties, preference decides between those whose paired medians are this close to the best."""
FIRST_SHOT = 3.0
"""A candidate this many times slower than the best at the first shot is dropped."""

K = TypeVar("K")


@dataclass(frozen=True)
class Comparison:
    """a against b. `ratio` is the median of a/b; below 1 a is faster. `winner` is "a", "b" or "tie"."""

    ratio: float
    low: float
    high: float
    p: float
    winner: str

    @property
    def tie(self) -> bool:
        return self.winner == "tie"


def compare(
    a: Sequence[int], b: Sequence[int], level: float = LEVEL, notable: float = NOTABLE, seed: int = 0
) -> Comparison:
    """Compare paired samples: position k of both was taken in the same round. Fewer than 5 pairs are always a tie."""
    n = min(len(a), len(b))
    if n == 0:
        return Comparison(float("nan"), 0.0, math.inf, 1.0, "tie")
    logs = np.log(np.asarray(a[:n], float)) - np.log(np.asarray(b[:n], float))
    middle = float(np.median(logs))
    low, high = _bootstrap(logs, level, seed)
    p = _wilcoxon(logs)
    sure = n >= 5 and p < level and (low > 0 or high < 0) and abs(math.expm1(middle)) >= notable
    winner = "tie" if not sure else ("a" if middle < 0 else "b")
    return Comparison(math.exp(middle), math.exp(low), math.exp(high), p, winner)


def _bootstrap(logs: np.ndarray, level: float, seed: int, draws: int = 1000) -> tuple[float, float]:
    """A percentile interval of the median."""
    generator = np.random.default_rng(seed)
    medians = np.median(generator.choice(logs, (draws, len(logs))), axis=1)
    low, high = np.quantile(medians, [level / 2, 1 - level / 2])
    return float(low), float(high)


def _wilcoxon(logs: np.ndarray) -> float:
    """Two-sided signed-rank test by its normal approximation, with the correction for ties among ranks and for continuity.

    Below 10 pairs the exact sign-rank distribution is coarse; the sign test's p is a safe bound there.
    """
    x = logs[logs != 0]
    n = len(x)
    if n == 0:
        return 1.0
    if n < 10:
        positive = int((x > 0).sum())
        extreme = min(positive, n - positive)
        return min(1.0, 2.0 * sum(math.comb(n, k) for k in range(extreme + 1)) / 2.0**n)
    sizes = np.abs(x)
    _, inverse, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse]
    w = float(ranks[x > 0].sum())
    mean = n * (n + 1) / 4
    variance = n * (n + 1) * (2 * n + 1) / 24 - float((counts**3 - counts).sum()) / 48
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(w - mean) - 0.5) / math.sqrt(variance)
    return float(math.erfc(z / math.sqrt(2)))


def median(samples: Sequence[int]) -> float:
    """The median; infinity where there is nothing."""
    return float(np.median(samples)) if len(samples) else math.inf


def ranking(samples: Mapping[K, Sequence[int]]) -> list[K]:
    """Candidates by their median in paired rounds, the fastest first (failed ones, without samples, last)."""
    return sorted(samples, key=lambda k: median(samples[k]))


def tied(samples: Mapping[K, Sequence[int]], level: float = LEVEL, notable: float = NOTABLE) -> list[K]:
    """The candidates that can't be told from the fastest one, the fastest first.

    The level is shared among the comparisons, so that of many equal candidates none is found to be slower by luck.
    """
    order = [k for k in ranking(samples) if len(samples[k])]
    if not order:
        return []
    first, rest = order[0], order[1:]
    each = level / max(1, len(rest))
    # The front-runner is the luckiest of all: being behind it means little unless it is behind by a clear margin too.
    out = [first]
    for k in rest:
        if compare(samples[first], samples[k], each, notable).tie:
            out.append(k)
    return out


def pick(
    samples: Mapping[K, Sequence[int]], prefer: Callable[[K], tuple[float, ...]], level: float = LEVEL
) -> K | None:
    """The winner: of those tied with the fastest, the one that `prefer` puts first; None where nothing has samples."""
    among = tied(samples, level)
    if not among:
        return None
    # Few or wild samples tie with everything; a plan whose median is far behind is still no one's first guess.
    first = samples[among[0]]
    near = [k for k in among[1:] if compare(samples[k], first).ratio <= PLAUSIBLE]
    return min([among[0], *near], key=prefer)


@dataclass(frozen=True)
class RaceRules:
    """How a race spends its time. Seconds are spent per candidate and round; rounds double for those that stay in."""

    first_repeats: int = 3
    rounds: int = 3
    repeats: int = 5
    finalists: int = 3
    final_rounds: int = 7


def survivors(samples: Mapping[K, Sequence[int]], keep: float, at_least: int) -> list[K]:
    """The best part `keep` of the candidates (never fewer than `at_least`), plus all that are within 10 % of the last one kept."""
    order = [k for k in ranking(samples) if len(samples[k])]
    count = max(at_least, math.ceil(len(order) * keep))
    if count >= len(order):
        return order
    edge = median(samples[order[count - 1]])
    limit = min(edge * 1.1, 1.5 * median(samples[order[0]]))
    return [k for i, k in enumerate(order) if i < at_least or median(samples[k]) <= max(limit, edge)]


def race(
    candidates: Sequence[K],
    shoot: Callable[[Sequence[K], int, int], Mapping[K, Sequence[int]]],
    rules: RaceRules | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> dict[K, list[int]]:
    """Time candidates by successive halving; gives all samples of each.

    `shoot(candidates, rounds, repeats)` runs each candidate `repeats` times in each round, interleaved, and gives new samples; a candidate
    that it leaves out has failed and is dropped. `enough` says when time is up: what was measured so far stands.
    """
    rules = rules if rules is not None else RaceRules()
    samples: dict[K, list[int]] = {k: [] for k in candidates}

    def take(alive: Sequence[K], rounds: int, repeats: int) -> list[K]:
        got = shoot(alive, rounds, repeats)
        for k in alive:
            samples[k] += got.get(k, ())
        return [k for k in alive if k in got]

    alive = take(list(candidates), 1, rules.first_repeats)
    best = min((median(samples[k]) for k in alive), default=math.inf)
    alive = [k for k in alive if median(samples[k]) <= FIRST_SHOT * best]
    rounds = rules.rounds
    while len(alive) > rules.finalists and not enough():
        alive = take(alive, rounds, rules.repeats)
        kept = survivors({k: samples[k] for k in alive}, 0.5, rules.finalists)
        if len(kept) >= len(alive):
            kept = ranking({k: samples[k] for k in alive})[: max(rules.finalists, len(alive) // 2)]
        alive = kept
        rounds += rules.rounds
    if alive and not enough():
        take(alive, rules.final_rounds, rules.repeats)
    return samples
