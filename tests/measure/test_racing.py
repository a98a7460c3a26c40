"""Races on the clock of a simulated busy machine: equal candidates tie, faster ones win, and what is far behind is dropped early."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from machine import Machine

from autofuse.measure.racing import (
    Levels,
    RaceRules,
    compare,
    compare_levels,
    levels,
    median,
    near,
    pick,
    race,
    ranking,
    settled,
    tied,
)
from autofuse.measure.sequential import log_evidence, median_interval, p_value, rounds_needed

SEEDS = 20
MANY = 200


# ---- the test


def test_peeking_after_every_round_raises_false_alarms_no_higher_than_the_level() -> None:
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(1500):
        ahead = np.cumsum(generator.random(200) < 0.5)
        alarms += any(p_value(int(k), n + 1 - int(k)) <= 0.05 for n, k in enumerate(ahead))
    assert alarms <= 1500 * 0.05


def test_the_wager_is_fair() -> None:
    """The mean over both outcomes of the next round is what is owned now, or less: a bettor cannot win in the mean where the odds are even."""
    for ahead, behind in ((0, 0), (3, 1), (9, 2), (2, 7), (40, 60)):
        now = np.exp(log_evidence(ahead, behind))
        later = 0.5 * (np.exp(log_evidence(ahead + 1, behind)) + np.exp(log_evidence(ahead, behind + 1)))
        assert later == pytest.approx(now) if ahead == behind == 0 else later <= now * (1 + 1e-9)


def test_the_interval_holds_the_median_at_every_round_at_once() -> None:
    generator = np.random.default_rng(1)
    missed = 0
    for _ in range(200):
        values = generator.standard_t(1.5, 120) + 0.7
        found = [median_interval(values[:n], 0.05) for n in range(1, 121, 3)]
        missed += not all(low <= 0.7 <= high for low, high in found)
        assert found[0] == (-np.inf, np.inf) and found[-1][1] - found[-1][0] < 2
    assert missed <= 200 * 0.05


def test_rounds_that_a_level_takes() -> None:
    assert [rounds_needed(x) for x in (0.1, 0.01, 0.01 / 28)] == [6, 10, 15]
    assert p_value(0, 0) == 1.0 and p_value(5, 5) == 1.0


# ---- comparisons


def pair(ns: dict[str, float], seed: int, rounds: int, repeats: int = 3) -> tuple[list[int], list[int]]:
    got = Machine(ns, seed).shoot(list(ns), rounds, repeats)
    return got["a"], got["b"]


@pytest.mark.parametrize("seed", range(5))
def test_five_per_cent_are_found_under_a_drift_that_is_larger(seed: int) -> None:
    a, b = pair({"a": 1.00e5, "b": 1.05e5}, seed, 100)
    result = compare(a, b, repeats=3)
    assert result.winner == "a" and result.pairs == 100
    assert result.low <= result.ratio <= result.high < 1
    assert compare(b, a, repeats=3).winner == "b"


def test_few_pairs_and_small_differences_are_ties() -> None:
    assert compare([100] * 4, [200] * 4).tie
    assert compare([], [1]).tie
    assert compare([1000] * 50, [1005] * 50).tie  # half a per cent, however sure
    assert compare([1000] * 50, [1020] * 50).winner == "a" and compare([1000] * 50, [1020] * 50, notable=0.03).tie
    assert compare([1000] * 50, [1000] * 50).p == 1.0
    # ten runs of one round are one observation
    assert compare([1000] * 20, [1100] * 20, repeats=10).tie


def test_failed_candidates_never_win() -> None:
    rounds: dict[str, Levels] = {"failed": [], "slow": [9.0] * 20, "fast": [5.0] * 20}
    assert ranking(rounds) == ["fast", "slow", "failed"]
    assert tied(rounds) == ["fast"]
    assert pick(rounds, lambda k: (0,)) == "fast"
    assert pick({"failed": []}, lambda k: (0,)) is None
    assert median([]) == float("inf")


def test_a_round_cut_short_counts_for_nothing() -> None:
    assert len(levels([5, 5, 5, 5, 5], 2)) == 2 and len(levels([], 3)) == 0


def test_among_ties_preference_decides_only_where_the_noise_allows() -> None:
    generator = np.random.default_rng(0)
    base = generator.normal(0, 0.3, 40)  # a drift that all share
    rounds: dict[str, Levels] = {
        "fastest": base + generator.normal(0, 0.02, 40),
        "equal": base + generator.normal(0.004, 0.02, 40),
        "behind": base + generator.normal(0.04, 0.02, 40),
        "wild": base + generator.normal(0.4, 2.0, 40),
    }
    assert set(near(rounds, "fastest")) == {"fastest", "equal"}
    order = {"wild": 0, "behind": 1, "equal": 2, "fastest": 3}
    assert pick(rounds, lambda k: (order[k],)) == "equal"


# ---- many equal candidates, and one that is faster


def run_race(seed: int, planted: dict[int, float], spread: float = 0.05) -> tuple[list[int], int, int | None]:
    machine = Machine({k: 1e5 * planted.get(k, 1.0) for k in range(MANY)}, seed, spread)
    done = race(range(MANY), machine.shoot)
    return done.tied, len(done.finals), done.found


def test_of_200_equal_candidates_a_tie_is_reported() -> None:
    ties = 0
    for seed in range(SEEDS):
        equal, finalists, found = run_race(seed, {})
        ties += len(equal) == finalists and found is None
    assert ties >= 19


def test_one_of_200_that_is_five_per_cent_faster_is_found() -> None:
    assert sum(run_race(1000 + seed, {137: 0.95})[2] == 137 for seed in range(SEEDS)) >= 18


def test_two_races_with_one_preference_agree_where_all_are_equal() -> None:
    """Finals of six equal plans, twice: the winner is the one that is preferred, not the lucky one."""
    agreed = 0
    for seed in range(SEEDS):
        machine = Machine(dict.fromkeys(range(6), 200000.0), seed)
        chosen = []
        for _ in range(2):
            got = machine.shoot(range(6), 40, 5)
            chosen.append(pick({k: levels(s, 5) for k, s in got.items()}, lambda k: (k,)))
        agreed += chosen[0] == chosen[1]
    assert agreed >= 16


# ---- how a race spends its time


class Shooter:
    """Answers from a table and counts what it was asked."""

    def __init__(self, seconds: dict[str, int], crash: str = "") -> None:
        self.seconds = seconds
        self.crash = crash
        self.asked: dict[str, int] = dict.fromkeys(seconds, 0)

    def __call__(self, candidates: Sequence[str], rounds: int, repeats: int) -> dict[str, list[int]]:
        out = {}
        for k in candidates:
            if k == self.crash and self.asked[k]:
                continue
            self.asked[k] += rounds * repeats
            out[k] = [self.seconds[k]] * (rounds * repeats)
        return out


def test_three_times_slower_ones_are_dropped_at_the_first_shot() -> None:
    shoot = Shooter({"a": 100, "b": 110, "c": 301, "d": 1100})
    done = race(list(shoot.seconds), shoot, RaceRules(first_repeats=2))
    assert [len(done.samples[k]) for k in "cd"] == [4, 2]
    assert len(done.samples["a"]) == len(done.samples["b"]) > 4
    assert done.dropped == {"c": "first shot", "d": "first shot"}
    assert done.tied == ["a"] and done.found == "a"


def test_a_burst_at_the_first_shot_drops_nobody() -> None:
    class Burst(Shooter):
        def __call__(self, candidates: Sequence[str], rounds: int, repeats: int) -> dict[str, list[int]]:
            got = super().__call__(candidates, rounds, repeats)
            if self.asked["a"] == repeats:
                got["a"] = [5 * x for x in got["a"]]
            return got

    shoot = Burst({"a": 100, "b": 110})
    assert race(["a", "b"], shoot).found == "a"


def test_halving_spends_most_on_the_best() -> None:
    shoot = Shooter({f"k{n}": 100 + 5 * n for n in range(16)})
    done = race(list(shoot.seconds), shoot)
    counts = [len(done.samples[f"k{n}"]) for n in range(16)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 3 * counts[15]
    assert set(done.finals) == {"k0", "k1", "k2", "k3"} and done.found == "k0"


def test_finals_end_as_soon_as_they_are_decided() -> None:
    clear, close = Shooter({"a": 100, "b": 150}), Shooter({"a": 1000, "b": 1012})
    assert len(race(["a", "b"], clear).finals["a"]) == 16
    assert len(race(["a", "b"], close, over=lambda: True).finals["a"]) == 8
    equal = Shooter({"a": 1000, "b": 1000})
    done = race(["a", "b"], equal)
    assert len(done.finals["a"]) <= 24 and set(done.tied) == {"a", "b"}
    assert settled({"a": [1.0]}) and not settled({"a": [1.0] * 5, "b": [2.0] * 5})


def test_a_candidate_that_fails_on_the_way_is_out_of_the_race() -> None:
    shoot = Shooter({"a": 100, "b": 90, "c": 120, "d": 110, "e": 105}, crash="b")
    done = race(list(shoot.seconds), shoot)
    assert len(done.samples["b"]) == 3 and done.dropped["b"] == "failed"
    assert done.found == "a"


def test_time_that_is_up_ends_a_race_with_what_is_there() -> None:
    shoot = Shooter({"a": 100, "b": 90})
    done = race(["a", "b"], shoot, RaceRules(first_repeats=2, looks=1), enough=lambda: True)
    assert done.samples == {"a": [100, 100], "b": [90, 90]}
    assert done.tied == ["b", "a"]


def test_a_drift_between_rounds_is_no_part_of_a_ranking() -> None:
    drift = np.linspace(0, 3, 12)
    rounds: dict[str, Levels] = {"a": drift[:6] + 0.1, "b": drift, "c": drift + 0.2}
    assert ranking(rounds) == ["b", "a", "c"]
    assert compare_levels(rounds["b"], rounds["c"]).winner == "a"
