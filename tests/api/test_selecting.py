"""Choosing among measured plans by memory."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

import outcomes

from autofuse.api.selecting import Wish, selected
from autofuse.devices.cpu import CpuDevice
from autofuse.errors import AutofuseError, LaunchError, UsageError
from autofuse.search.outcome import TuneOutcome


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(1)


@pytest.fixture(scope="module")
def outcome() -> TuneOutcome:
    """Of three plans the best one needs most memory."""
    base = outcomes.small()
    sizes = (4000, 4000, 3000, 9000, 9000, 0)
    rows = tuple(dataclasses.replace(p, peak_bytes=n) for p, n in zip(base.plans, sizes, strict=True))
    return dataclasses.replace(base, plans=rows)


def test_the_fastest_stays_where_it_fits(outcome: TuneOutcome, device: CpuDevice) -> None:
    assert selected(outcome, device, Wish()) is outcome
    assert selected(outcome, device, Wish.of("latency", "1M")) is outcome


def test_a_limit_picks_the_fastest_within_it(outcome: TuneOutcome, device: CpuDevice) -> None:
    chosen = selected(outcome, device, Wish.of("latency", 8000))
    assert chosen.best == outcome.plans[2].plan and chosen.best_text and "as was asked for" in chosen.notes[-1]


def test_least_memory(outcome: TuneOutcome, device: CpuDevice) -> None:
    assert selected(outcome, device, Wish.of("memory", None)).best == outcome.plans[2].plan


def test_a_limit_that_nothing_keeps_to(outcome: TuneOutcome, device: CpuDevice) -> None:
    with pytest.raises(AutofuseError, match=r"2\.93 KiB"):
        selected(outcome, device, Wish.of("latency", "1K"))


def test_plans_that_all_failed_in_the_end_are_no_matter_of_memory(outcome: TuneOutcome, device: CpuDevice) -> None:
    rows = tuple(dataclasses.replace(p, status="crashed", reason="the process ended: SIGABRT") for p in outcome.plans)
    with pytest.raises(LaunchError, match=r"failed before the tune ended.*SIGABRT"):
        selected(dataclasses.replace(outcome, plans=rows), device, Wish())


def test_which_point_of_a_front_is_saved_is_told(outcome: TuneOutcome, device: CpuDevice) -> None:
    chosen = selected(outcome, device, Wish.of("latency,memory", None))
    assert chosen.best == outcome.best and "plan.json is the plan with least latency" in chosen.notes[-1]
    assert "2 of the measured plans stand on the front" in chosen.notes[-1]
    assert selected(outcome, device, Wish.of("memory,latency", None)).best == outcome.plans[2].plan


@pytest.mark.parametrize(
    ("objective", "memory"),
    [("memory,error", None), ("latency,latency", None), ("beauty", None), ("latency", "much"), ("latency", "")],
)
def test_wishes_that_make_no_sense(objective: str, memory: str | None) -> None:
    with pytest.raises(UsageError):
        Wish.of(objective, memory)
