"""Which of the measured plans is the best one: the fastest, the one that needs least memory, or the fastest within a limit."""

from __future__ import annotations

import dataclasses

import numpy as np

from autofuse.api.arguments import bytes_of
from autofuse.devices.base import Device
from autofuse.errors import AutofuseError, UsageError
from autofuse.report.units import bytes_text
from autofuse.search.outcome import PlanRow, TuneOutcome
from autofuse.search.tune import best_text

OBJECTIVES = ("latency", "memory")


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the best plan shall be. `memory` bounds the bytes of intermediates and scratch buffers."""

    objective: str = "latency"
    memory: int | None = None

    @staticmethod
    def of(objective: str, memory: int | str | None) -> Wish:
        """Checked: UsageError for an unknown objective or what is no size."""
        if objective not in OBJECTIVES:
            raise UsageError(f"the objective is one of {', '.join(OBJECTIVES)}, found {objective!r}")
        return Wish(objective, bytes_of(memory) if isinstance(memory, str) else memory)


def selected(outcome: TuneOutcome, device: Device, wish: Wish) -> TuneOutcome:
    """The outcome with the plan that is wished for as its best. AutofuseError where no measured plan keeps to the limit."""
    good = [p for p in outcome.plans if p.status == "ok" and p.samples_ns]
    fitting = [p for p in good if wish.memory is None or p.peak_bytes <= wish.memory]
    if not fitting:
        least = min((p.peak_bytes for p in good), default=0)
        limit = bytes_text(wish.memory or 0)
        raise AutofuseError(
            f"no measured plan keeps its intermediates within {limit}; the least that one needs is {bytes_text(least)}"
        )
    if wish.objective == "latency" and any(p.plan == outcome.best for p in fitting):
        return outcome
    chosen = min(fitting, key=_memory if wish.objective == "memory" else _latency)
    if chosen.plan == outcome.best:
        return outcome
    note = f"the fastest plan gives way to one that needs {bytes_text(chosen.peak_bytes)} of memory, as was asked for"
    text = best_text(outcome.graph, chosen.plan, device)
    return dataclasses.replace(outcome, best=chosen.plan, best_text=text, notes=(*outcome.notes, note))


def _latency(p: PlanRow) -> tuple[float, int]:
    return float(np.median(p.samples_ns)), p.peak_bytes


def _memory(p: PlanRow) -> tuple[int, float]:
    return p.peak_bytes, float(np.median(p.samples_ns))
