"""Races on synthetic noise: equal candidates tie, faster ones win, and what is far behind is dropped early."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from autofuse.measure.racing import RaceRules, compare, median, pick, race, ranking, survivors, tied


def noisy(base: float, rounds: int, generator: np.random.Generator, drift: np.ndarray | None = None) -> list[int]:
    """Timings with a skewed tail, now and then a lost time slice, and a drift that all candidates share."""
    shared = drift if drift is not None else np.ones(rounds)
    noise = 1 + generator.gamma(1.5, 0.02, rounds)
    spikes = np.where(generator.random(rounds) < 0.05, generator.uniform(2, 8, rounds), 1.0)
    return [int(x) for x in base * shared * noise * spikes]


@pytest.mark.parametrize("seed", range(5))
def test_of_200_identical_candidates_a_tie_is_reported(seed: int) -> None:
    generator = np.random.default_rng(seed)
    drift = np.exp(generator.normal(0, 0.3, 20))
    samples = {k: noisy(1e6, 20, generator, drift) for k in range(200)}
    assert len(tied(samples)) == 200
    # and the choice among them is by preference, not by luck
    assert pick(samples, lambda k: (-k,)) == 199


@pytest.mark.parametrize("seed", range(5))
def test_five_per_cent_are_found_under_a_drift_that_is_larger(seed: int) -> None:
    generator = np.random.default_rng(seed)
    drift = np.exp(generator.normal(0, 0.5, 30))
    a, b = noisy(1.00e6, 30, generator, drift), noisy(1.05e6, 30, generator, drift)
    result = compare(a, b)
    assert result.winner == "a"
    assert result.low < result.ratio < result.high < 1
    assert compare(b, a).winner == "b"


def test_few_pairs_and_small_differences_are_ties() -> None:
    assert compare([100] * 4, [200] * 4).tie
    assert compare([], [1]).tie
    assert compare([1000] * 50, [1005] * 50).tie  # half a per cent, however sure
    assert compare([1000] * 50, [1000] * 50).p == 1.0


def test_false_alarms_stay_below_the_level() -> None:
    generator = np.random.default_rng(1)
    alarms = sum(
        not compare(noisy(1e6, 20, generator), noisy(1e6, 20, generator), level=0.05, notable=0).tie for _ in range(300)
    )
    assert alarms <= 300 * 0.05 * 1.5


def test_failed_candidates_never_win() -> None:
    samples: dict[str, list[int]] = {"failed": [], "slow": [900] * 20, "fast": [500] * 20}
    assert ranking(samples) == ["fast", "slow", "failed"]
    assert tied(samples) == ["fast"]
    assert pick(samples, lambda k: (0,)) == "fast"
    assert pick({"failed": []}, lambda k: (0,)) is None
    assert median([]) == float("inf")


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
    shoot = Shooter({"a": 100, "b": 110, "c": 301, "d": 1000})
    samples = race(list(shoot.seconds), shoot, RaceRules(first_repeats=2))
    assert len(samples["c"]) == len(samples["d"]) == 2
    assert len(samples["a"]) == len(samples["b"]) > 2


def test_halving_spends_most_on_the_best() -> None:
    shoot = Shooter({f"k{n}": 100 + 5 * n for n in range(16)})
    samples = race(list(shoot.seconds), shoot)
    counts = [len(samples[f"k{n}"]) for n in range(16)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 3 * counts[15]


def test_a_candidate_that_fails_on_the_way_is_out_of_the_race() -> None:
    shoot = Shooter({"a": 100, "b": 90, "c": 120, "d": 110, "e": 105}, crash="b")
    samples = race(list(shoot.seconds), shoot)
    assert len(samples["b"]) == 3
    assert ranking({k: v for k, v in samples.items() if k != "b"})[0] == "a"


def test_time_that_is_up_ends_a_race_with_what_is_there() -> None:
    shoot = Shooter({"a": 100, "b": 90})
    samples = race(["a", "b"], shoot, RaceRules(first_repeats=2), enough=lambda: True)
    assert samples == {"a": [100, 100], "b": [90, 90]}


def test_survivors_keep_near_ties() -> None:
    samples = {"a": [100], "b": [101], "c": [102], "d": [180], "e": [300]}
    kept = survivors(samples, 0.4, 1)
    assert kept[:2] == ["a", "b"]
    assert "c" in kept and "e" not in kept
