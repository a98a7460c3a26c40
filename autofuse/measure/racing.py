"""Comparing noisy timings: pairs, ties, and races in rounds.

In a round every candidate has its turn, in an order that is drawn anew; the median of its runs there is one observation. Observations of one
round are compared in pairs: the logarithm of their ratio is free of what slowed both down. A difference counts where a test that may
be looked at after every round is sure of it (`sequential`) and it is worth the name; else it is a tie. With many candidates the best
of them is a lucky one: so a race first chooses who comes into its final rounds, and only those, measured afresh, decide; all pairs
among the finalists share the level of the test (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from autofuse.measure.sequential import median_interval, p_value, rounds_needed

LEVEL = 0.01
"""Chance of ever calling two equal candidates different, over a whole race."""
NOTABLE = 0.01
"""A difference below one per cent is a tie, however sure it is: the machine changes by more from hour to hour."""
PLAUSIBLE = 1.05
"""Among ties, preference never decides for one whose paired median is further behind than this."""
FIRST_SHOT = 3.0
"""A candidate this many times slower than the best at the first shot is dropped, by the fastest of its runs: a burst of noise drops nobody."""
HOPELESS = 10.0
"""This many times slower is not looked at twice."""
_DOUBT = 2.5
"""Standard errors of a paired median within which a tie is as good as the best."""

K = TypeVar("K")
Levels = Sequence[float] | np.ndarray
"""Logarithms of nanoseconds, one a round."""


@dataclass(frozen=True)
class Comparison:
    """a against b. `ratio` is the median of a/b; below 1 a is faster. `winner` is "a", "b" or "tie". `low` and `high` hold the ratio at
    every round at once, `p` is the p-value, valid at whatever round it is looked at."""

    ratio: float
    low: float
    high: float
    p: float
    winner: str
    pairs: int = 0

    @property
    def tie(self) -> bool:
        return self.winner == "tie"


def levels(samples: Sequence[int], repeats: int = 1) -> np.ndarray:
    """The logarithm of the median of each round, `repeats` samples a round; a round that was cut short counts for nothing."""
    rounds = len(samples) // max(1, repeats)
    if rounds == 0:
        return np.empty(0)
    values = np.asarray(samples[: rounds * repeats], float).reshape(rounds, max(1, repeats))
    return np.asarray(np.log(np.maximum(np.median(values, axis=1), 1e-9)))


def compare(
    a: Sequence[int], b: Sequence[int], level: float = LEVEL, notable: float = NOTABLE, repeats: int = 1
) -> Comparison:
    """Compare paired samples: those at one position were taken in the same round, `repeats` a round. Fewer than 5 pairs are always a tie."""
    return compare_levels(levels(a, repeats), levels(b, repeats), level, notable)


def compare_levels(a: Levels, b: Levels, level: float = LEVEL, notable: float = NOTABLE) -> Comparison:
    """The same for logarithms, one a round."""
    n = min(len(a), len(b))
    if n == 0:
        return Comparison(float("nan"), 0.0, math.inf, 1.0, "tie")
    logs = np.asarray(a[:n], float) - np.asarray(b[:n], float)
    middle = float(np.median(logs))
    low, high = median_interval(logs, level)
    p = p_value(int((logs < 0).sum()), int((logs > 0).sum()))
    sure = n >= 5 and p <= level and abs(math.expm1(middle)) >= notable
    winner = "tie" if not sure else ("a" if middle < 0 else "b")
    return Comparison(math.exp(middle), math.exp(low), math.exp(high), p, winner, n)


def median(samples: Sequence[int]) -> float:
    """The median; infinity where there is nothing."""
    return float(np.median(samples)) if len(samples) else math.inf


def doubt(logs: np.ndarray) -> float:
    """The standard error of the median of paired log-ratios, from their middle half: infinite below three."""
    if len(logs) < 3:
        return math.inf
    return float(1.2533 * 1.4826 * np.median(np.abs(logs - np.median(logs))) / math.sqrt(len(logs)))


def ranking(rounds: Mapping[K, Levels]) -> list[K]:
    """Candidates by their paired ratio to the field in the rounds that all of them have seen, the fastest first; those without any are last."""
    found = [k for k in rounds if len(rounds[k])]
    if not found:
        return list(rounds)
    n = min(len(rounds[k]) for k in found)
    table = np.asarray([rounds[k][:n] for k in found], float)
    # Without what a round did to all of them: each candidate's own level is taken off first, so that who takes part shifts nobody's score.
    drift = np.median(table - np.median(table, axis=1, keepdims=True), axis=0)
    scores = dict(zip(found, np.median(table - drift, axis=1), strict=True))
    return [*sorted(found, key=lambda k: float(scores[k])), *(k for k in rounds if not len(rounds[k]))]


def tied(rounds: Mapping[K, Levels], level: float = LEVEL, notable: float = NOTABLE) -> list[K]:
    """The candidates that can't be told from the fastest one, the fastest first, by the logarithms of their rounds.

    The level is shared among all pairs, since the fastest is known only afterwards: of many equal candidates none is found to be slower by luck.
    """
    order = [k for k in ranking(rounds) if len(rounds[k])]
    if not order:
        return []
    each = share(level, len(order))
    return [order[0]] + [
        k for k in order[1:] if compare_levels(rounds[order[0]], rounds[k], each, notable).winner != "a"
    ]


def share(level: float, count: int) -> float:
    """The level for one pair of so many candidates."""
    return level / max(1, count * (count - 1) // 2)


def pick(
    rounds: Mapping[K, Levels],
    prefer: Callable[[K], tuple[float, ...]],
    level: float = LEVEL,
    notable: float = NOTABLE,
) -> K | None:
    """The winner: of those within the noise of the fastest, the one that `prefer` puts first; None where nothing has rounds.

    A tie is no proof of being as fast: few or wild rounds tie with everything. So preference decides only among those whose paired median is within
    half of `notable`, or within a few of its own standard errors, of the fastest: measured again, it shall not turn out to be notably slower.
    """
    among = tied(rounds, level, notable)
    return min(near({k: rounds[k] for k in among}, among[0], notable), key=prefer) if among else None


def near(rounds: Mapping[K, Levels], first: K, notable: float = NOTABLE) -> list[K]:
    """Those whose paired median is not behind `first` by more than half of `notable`, or a few of its own standard errors; `first` is one of them."""
    out = []
    for k, mine in rounds.items():
        n = min(len(mine), len(rounds[first]))
        logs = np.asarray(mine[:n], float) - np.asarray(rounds[first][:n], float)
        margin = min(max(math.log1p(notable / 2), _DOUBT * doubt(logs)), math.log(PLAUSIBLE))
        if k == first or (n and float(np.median(logs)) <= margin):
            out.append(k)
    return out


def ratio(a: Levels, b: Levels) -> float:
    """The median of a/b over their common rounds; 1 where there are none."""
    n = min(len(a), len(b))
    return math.exp(float(np.median(np.asarray(a[:n], float) - np.asarray(b[:n], float)))) if n else 1.0


@dataclass(frozen=True)
class RaceRules:
    """How a race spends its time. The first shot is `looks` rounds. Halving begins with `rounds` rounds and takes as many more each time; the final
    rounds end where the front-runner is told from all others, at the latest after `final_rounds`; after each `chunk` of them is looked.
    All but the first shot run each candidate `repeats` times a round."""

    first_repeats: int = 3
    looks: int = 2
    rounds: int = 8
    repeats: int = 3
    finalists: int = 4
    final_rounds: int = 200
    chunk: int = 8
    level: float = LEVEL
    notable: float = NOTABLE


@dataclass(eq=False)
class Race(Generic[K]):
    """What a race saw. `samples` are all raw samples, in order, `rounds` the logarithms of the rounds' medians, the first shot left out;
    `finals` those of the rounds after the last choice, which decide. `tied` are those that can't be told from the fastest, which is the first
    of them; `dropped` says why others left."""

    samples: dict[K, list[int]]
    rounds: dict[K, list[float]] = field(default_factory=dict)
    finals: dict[K, list[float]] = field(default_factory=dict)
    dropped: dict[K, str] = field(default_factory=dict)
    tied: list[K] = field(default_factory=list)

    @property
    def found(self) -> K | None:
        """The candidate that is faster than all that it met in the finals; None where that is a tie."""
        return self.tied[0] if len(self.tied) == 1 else None


Shoot = Callable[[Sequence[K], int, int], Mapping[K, Sequence[int]]]


def race(
    candidates: Sequence[K],
    shoot: Shoot[K],
    rules: RaceRules | None = None,
    enough: Callable[[], bool] = lambda: False,
    over: Callable[[], bool] = lambda: False,
) -> Race[K]:
    """Time candidates by successive halving on paired log-ratios.

    `shoot(candidates, rounds, repeats)` runs each candidate `repeats` times in each round, in an order drawn anew for each round, and gives new
    samples, round after round; a candidate that it leaves out has failed and is dropped. `enough` says when time is up: what was measured so far
    stands. `over` is asked once the first final rounds are done: whether more of them are too dear.
    """
    rules = rules if rules is not None else RaceRules()
    out: Race[K] = Race({k: [] for k in candidates}, {k: [] for k in candidates})

    def take(alive: Sequence[K], rounds: int, repeats: int, into: dict[K, list[float]] | None) -> list[K]:
        got = shoot(alive, rounds, repeats)
        for k in alive:
            mine = got.get(k)
            if mine is None:
                out.dropped[k] = "failed"
                continue
            out.samples[k] += mine
            if into is not None:
                into.setdefault(k, []).extend(float(x) for x in levels(mine, repeats))
        return [k for k in alive if k in got]

    def leave(alive: Sequence[K], staying: Sequence[K], why: str) -> list[K]:
        kept = set(staying)
        out.dropped.update({k: why for k in alive if k not in kept})
        return [k for k in alive if k in kept]

    alive = list(candidates)
    for look in range(rules.looks):
        alive = take(alive, 1, rules.first_repeats, None)
        fastest = {k: min(out.samples[k], default=0) for k in alive}
        limit = FIRST_SHOT if look == rules.looks - 1 else HOPELESS
        best = min(fastest.values(), default=0)
        alive = leave(alive, [k for k in alive if fastest[k] <= limit * best], "first shot")
    rounds, chosen = rules.rounds, False
    while len(alive) > rules.finalists and not enough():
        alive = take(alive, rounds, rules.repeats, out.rounds)
        chosen = True
        order = ranking({k: out.rounds[k] for k in alive})
        alive = leave(alive, order[: max(rules.finalists, len(alive) // 2)], "halving")
        rounds += rules.rounds
    done = 0
    while alive and done < rules.final_rounds and not enough() and not (done and over()):
        step = min(rules.chunk, rules.final_rounds - done)
        alive = take(alive, step, rules.repeats, out.finals)
        done += step
        if settled({k: out.finals[k] for k in alive}, rules.level, rules.notable):
            break
    for k, values in out.finals.items():
        out.rounds[k] = out.rounds[k] + values
    among = {k: out.finals[k] if chosen and out.finals else out.rounds[k] for k in alive if out.rounds[k]}
    out.tied = tied(among, rules.level, rules.notable) or sorted(alive, key=lambda k: median(out.samples[k]))
    return out


def settled(rounds: Mapping[K, Levels], level: float = LEVEL, notable: float = NOTABLE) -> bool:
    """Whether more rounds can change nothing: each of the others is slower for sure, or for sure within `notable` of the fastest."""
    order = [k for k in ranking(rounds) if len(rounds[k])]
    if len(order) < 2:
        return True
    each = share(level, len(order))
    if min(len(rounds[k]) for k in order) < rounds_needed(each):
        return False
    for k in order[1:]:
        c = compare_levels(rounds[order[0]], rounds[k], each, notable)
        equal = c.low >= 1 / (1 + notable) and c.high <= 1 + notable
        if c.winner != "a" and not equal:
            return False
    return True
