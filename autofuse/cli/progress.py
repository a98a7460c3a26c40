"""The progress of a tune on a terminal; where there is none, a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from autofuse.report.units import gain_text, microseconds_text
from autofuse.search import progress as events

_LINE_SECONDS = 20.0


@contextmanager
def shown_progress(console: Console, budget: float) -> Iterator[events.Progress]:
    """A progress that draws a bar of the budget on a terminal, and otherwise prints a line at each phase and every 20 seconds."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    bar = Progress(
        BarColumn(bar_width=28),
        TextColumn("{task.fields[clock]}"),
        TextColumn("{task.fields[best]}"),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )
    with bar:
        yield _Bar(bar, bar.add_task("starting", total=budget, clock="", best=""))


class _Bar:
    """Feeds rich's bar. The bar's own thread draws, so that measuring is not disturbed more than ten times a second."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def __call__(self, event: events.Event) -> None:
        self._bar.update(
            self._task,
            completed=min(event.seconds, event.budget),
            total=event.budget,
            # words from a model are shown as they are, never read as markup
            description=Text(_doing(event)).markup,
            clock=f"{event.left:3.0f} of {event.budget:.0f} s left",
            best=_best(event),
        )


class _Lines:
    """Prints where there is no terminal to draw on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase: events.Phase | None = None
        self._next = 0.0

    def __call__(self, event: events.Event) -> None:
        now = time.monotonic()
        if event.phase is self._phase and now < self._next:
            return
        self._phase = event.phase
        self._next = now + _LINE_SECONDS
        best = _best(event)
        self._console.print(
            f"[{event.seconds:6.1f} s, {event.left:.0f} s left] {_doing(event)}{'; ' + best if best else ''}",
            markup=False,
            soft_wrap=True,
        )


def _doing(event: events.Event) -> str:
    count = f" {event.done}/{event.total}" if event.total else ""
    text = f": {event.text}" if event.text else ""
    return f"{event.phase.value}{count}{text}"


def _best(event: events.Event) -> str:
    if not event.best_ns > 0:
        return ""
    gain = f" ({gain_text(event.first_ns / event.best_ns)})" if event.first_ns > 0 else ""
    gap = f", at most {event.gap:.1%} left" if event.gap == event.gap and event.gap > 0 else ""
    return f"best {microseconds_text(event.best_ns / 1000)}{gain}{gap}{_saved(event.kernels)}"


def _saved(kernels: events.Kernels) -> str:
    """What was measured of the kernels that there are, and what the bounds saved."""
    if not kernels.every:
        return ""
    return f", {kernels.measured:,} of {kernels.every:,} kernels measured, {kernels.spared:,} spared by their bounds"
