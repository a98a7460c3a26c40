"""How near cores are, by the round trips of a cache line."""

from __future__ import annotations

from autofuse.measure.nearness import Nearness, near_rounds


def test_two_threads_of_one_core_make_no_other_core_far() -> None:
    """Round trips as they were seen: within a core, within a last cache, and between two of them."""
    seen = Nearness()
    assert [seen.look(ns) for ns in (68, 26, 70, 330, 60, 0)] == [False, False, False, True, False, False]
    assert (seen.nearest, seen.farthest) == (26, 330)
    assert near_rounds([68, 26, 330, 0]) == [True, True, False, True]


def test_nothing_is_said_of_cores_that_stay() -> None:
    seen = Nearness()
    assert seen.text() == ""
    seen.look(60)
    seen.look(75)
    seen.count(10, apart=False)
    assert "apart" not in seen.text() and "60 ns" in seen.text()
