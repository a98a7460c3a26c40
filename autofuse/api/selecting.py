"""Which of the measured plans is the best one: the one with least of the first objective that keeps to the limit on memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from autofuse.api.arguments import bytes_of
from autofuse.devices.base import Device
from autofuse.errors import AutofuseError, LaunchError, UsageError
from autofuse.report.pareto import error_step, front
from autofuse.report.units import bytes_text
from autofuse.search.front import ERROR, LATENCY, MEMORY, OBJECTIVES
from autofuse.search.outcome import PlanRow, TuneOutcome
from autofuse.search.tune import best_text


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the best plan shall be. It has least of the first objective; `memory` bounds the bytes of intermediates and scratch buffers."""

    objectives: tuple[str, ...] = (LATENCY,)
    memory: int | None = None

    @staticmethod
    def of(objective: str, memory: int | str | None) -> Wish:
        """Checked: UsageError for unknown objectives or what is no size."""
        names = tuple(word.strip() for word in objective.split(","))
        wrong = [n for n in names if n not in OBJECTIVES]
        if wrong or len(set(names)) != len(names) or len([n for n in names if n != LATENCY]) > 1:
            raise UsageError(
                f"the objective is {', '.join(OBJECTIVES)}, or {LATENCY} with one of the others ({LATENCY},{MEMORY}), found {objective!r}"
            )
        limit = bytes_of(memory) if isinstance(memory, str) else memory
        if limit is not None and limit <= 0:
            raise UsageError(f"a limit on memory must be more than nothing, found {memory!r}")
        return Wish(names, limit)


def selected(outcome: TuneOutcome, device: Device, wish: Wish) -> TuneOutcome:
    """The outcome with the plan that is wished for as its best. AutofuseError where no measured plan keeps to the limit, LaunchError where none
    was left when the tune ended."""
    good = [p for p in outcome.plans if p.status == "ok" and p.samples_ns]
    if not good:
        why = next((p.reason for p in outcome.plans if p.reason), "no reason is known")
        raise LaunchError(
            f"every plan for {outcome.model} failed before the tune ended: {why}. Results of earlier tunes stand as they were; tune again, "
            "and if that ends alike, `autofuse doctor` looks at the compiler and the device"
        )
    fitting = [p for p in good if wish.memory is None or p.peak_bytes <= wish.memory]
    if not fitting:
        least = min(p.peak_bytes for p in good)
        limit = bytes_text(wish.memory or 0)
        raise AutofuseError(
            f"no measured plan keeps its intermediates within {limit}; the least that one needs is {bytes_text(least)}"
        )
    first = wish.objectives[0]
    if first == LATENCY and any(p.plan == outcome.best for p in fitting):
        return _told(outcome, wish)
    chosen = min(fitting, key=_ORDERS[first])
    if chosen.plan == outcome.best:
        return _told(outcome, wish)
    has = (
        f"has an error of {chosen.error:.1e}" if first == ERROR else f"needs {bytes_text(chosen.peak_bytes)} of memory"
    )
    note = f"the fastest plan gives way to one that {has}, as was asked for"
    text = best_text(outcome.graph, chosen.plan, device)
    return _told(dataclasses.replace(outcome, best=chosen.plan, best_text=text, notes=(*outcome.notes, note)), wish)


def _told(outcome: TuneOutcome, wish: Wish) -> TuneOutcome:
    """With a note on which point of the front became the best plan, where a front was asked for."""
    if len(wish.objectives) == 1:
        return outcome
    good = [p for p in outcome.plans if p.status == "ok" and p.samples_ns]
    points = np.array([[_VALUES[o](p) for o in wish.objectives] for p in good])
    standing = len({p.plan.key for p, on in zip(good, front(points), strict=True) if on})
    limited = "" if wish.memory is None else " within the limit on memory"
    note = (
        f"{standing} of the measured plans stand on the front of {' and '.join(wish.objectives)}. plan.json is the plan with least "
        f"{wish.objectives[0]}{limited}; the others are in the trade-off table (results.pareto(), results.plans)"
    )
    return dataclasses.replace(outcome, notes=(*outcome.notes, note))


def _latency(p: PlanRow) -> tuple[float, float]:
    return float(np.median(p.samples_ns)), float(p.peak_bytes)


def _memory(p: PlanRow) -> tuple[float, float]:
    return float(p.peak_bytes), float(np.median(p.samples_ns))


def _error(p: PlanRow) -> tuple[float, float]:
    return error_step(p.error), float(np.median(p.samples_ns))


_VALUES: dict[str, Callable[[PlanRow], float]] = {
    LATENCY: lambda p: float(np.median(p.samples_ns)),
    MEMORY: lambda p: float(p.peak_bytes),
    ERROR: lambda p: error_step(p.error),
}
_ORDERS: dict[str, Callable[[PlanRow], tuple[float, float]]] = {LATENCY: _latency, MEMORY: _memory, ERROR: _error}
