"""The noise of a simulated machine: calibrated, watched, waited out within a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from machine import Machine

from autofuse.measure.noise import Learnt, Patience, Watched, calibrated, jitters, marked, noisy_rounds


def calm(seed: int, **changes: float) -> Machine:
    """A machine with a spread and rare bursts."""
    values = {"burst_every": 10.0, "spread": 0.02, "drift": 0.02, **changes}
    return Machine({"a": 1e5, "b": 1e5, "c": 1.3e5}, seed, **values)


def test_an_engine_against_itself_is_one_within_its_spread() -> None:
    outside = 0
    for seed in range(20):
        got = calm(seed).shoot(["a", "b"], 24, 5)
        noise = calibrated([got["a"], got["b"]], 5)
        assert noise is not None
        outside += not noise.low <= 1 <= noise.high
        assert 0.005 < noise.spread < 0.03 and 0.01 < noise.jitter < 0.04
        assert noise.rounds == 24 and noise.repeats == 5 and noise.copies == 2
        assert noise.notable == 0.01 or not noise.low <= 1 <= noise.high
        assert "second copy of itself over 24 rounds" in noise.text()
        assert noise.facts()["samples_ns"] == [got["a"], got["b"]]
    assert outside <= 1


def test_copies_that_differ_for_sure_raise_what_counts_as_a_difference() -> None:
    noise = calibrated([[1000 + k % 3 for k in range(40)], [1030 + k % 3 for k in range(40)]], 2)
    assert noise is not None and 0.025 < noise.notable < 0.032
    far = calibrated([[1000] * 40, [1500] * 40], 2)
    assert far is not None and far.notable == pytest.approx(0.05)


def test_a_lone_engine_is_paired_with_itself() -> None:
    got = calm(0).shoot(["a"], 12, 2)
    noise = calibrated([got["a"]], 2)
    assert noise is not None and noise.rounds == 12 and noise.copies == 1
    assert 0.9 < noise.ratio < 1.1 and "itself" in noise.text()
    assert calibrated([[5, 5]], 1) is None


def noise_of(machine: Machine) -> object:
    got = machine.shoot(["a", "b"], 24, 5)
    return calibrated([got["a"], got["b"]], 5)


def test_a_neighbour_and_throttling_are_noticed_and_a_calm_machine_is_not() -> None:
    false, missed_jitter, missed_level = 0, 0, 0
    for seed in range(10):
        machine = calm(seed)
        noise = noise_of(machine)
        expected = {k: machine.ns[k] for k in ("a", "b", "c")}
        false += sum(noisy_rounds(machine.shoot(["a", "b", "c"], 20, 3), 3, noise, expected))  # type: ignore[arg-type]
        machine.jitter = 8.0
        missed_jitter += 20 - sum(noisy_rounds(machine.shoot(["a", "b", "c"], 20, 3), 3, noise, expected))  # type: ignore[arg-type]
        machine.jitter, machine.slower = 1.0, 1.4
        missed_level += 20 - sum(noisy_rounds(machine.shoot(["a", "b", "c"], 20, 3), 3, noise, expected))  # type: ignore[arg-type]
    assert false <= 4 and missed_jitter <= 40 and missed_level == 0


def test_which_rounds_are_noisy_does_not_depend_on_who_is_ahead() -> None:
    """Swapping two candidates' samples changes no mark: leaving rounds out cannot favour one of them."""
    for seed in range(5):
        machine = Machine({"a": 1e5, "b": 1e5}, seed, 0.1)
        noise = noise_of(calm(seed))
        got = machine.shoot(["a", "b"], 30, 3)
        one = noisy_rounds(got, 3, noise, {"a": 1e5, "b": 1e5})  # type: ignore[arg-type]
        assert one == noisy_rounds({"a": got["b"], "b": got["a"]}, 3, noise, {"a": 1e5, "b": 1e5})  # type: ignore[arg-type]
        assert any(one) and not all(one)


def test_single_runs_are_compared_with_the_turn_before() -> None:
    assert list(jitters([100, 100, 200], 1)[1:]) == pytest.approx([0, 0.693], abs=1e-3)
    assert len(jitters([], 2)) == 0
    assert noisy_rounds({"a": [1, 2, 3]}, 1, None) == [False] * 3
    assert marked([False, True, True], 2, 10) == [12, 13, 14, 15]


def test_waiting_is_bounded() -> None:
    waits: list[float] = []
    patience = Patience(1.0, waits.append)
    while patience.wait():
        pass
    assert sum(waits) == pytest.approx(1.0) == patience.waited
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.3])
    again = Patience(1.0, waits.append)
    again.wait(), again.wait()
    again.calm()
    again.wait()
    assert waits[-3:] == pytest.approx([0.1, 0.2, 0.1])


class Neighbour:
    """A machine whose neighbour comes after some shots and goes once it was waited for long enough."""

    def __init__(self, machine: Machine, comes: int, seconds: float) -> None:
        self.machine, self.comes, self.seconds = machine, comes, seconds
        self.shots = 0

    def shoot(self, candidates: Sequence[str], rounds: int, repeats: int) -> Mapping[str, Sequence[int]]:
        self.shots += 1
        self.machine.jitter = 12.0 if self.shots > self.comes and self.seconds > 0 else 1.0
        return self.machine.shoot(candidates, rounds, repeats)

    def pause(self, seconds: float) -> None:
        self.seconds -= seconds


@pytest.mark.parametrize("stays,waited", [(0.5, 0.7), (100.0, 2.0)])
def test_kernels_wait_for_a_neighbour_to_go_and_mark_what_they_took_meanwhile(stays: float, waited: float) -> None:
    world = Neighbour(calm(3), 10, stays)
    watched = Watched(world.shoot, Learnt(), Patience(2.0, world.pause))
    for _ in range(10):
        got = watched(["a", "b"], 4, 2)
        assert len(got["a"]) == 8
    assert watched.busy <= 2
    before = watched.rounds
    got = watched(["a", "b"], 4, 2)
    assert watched.patience.waited == pytest.approx(waited)
    assert len(got["a"]) == 2 * (watched.rounds - before) > 8
    assert watched.noisy["a"] == watched.noisy["b"] and max(watched.noisy["a"]) < 2 * watched.rounds
    assert len(watched.noisy["a"]) >= 2 * (watched.rounds - before - 4) * 0.7
