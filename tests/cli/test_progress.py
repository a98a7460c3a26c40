"""Progress: a bar on a terminal, lines elsewhere; words from a model are never read as markup."""

from __future__ import annotations

import io
import math

from rich.console import Console

from autofuse.cli.progress import shown_progress
from autofuse.search.progress import Event, Kernels, Phase


def event(phase: Phase, text: str = "", **changes: object) -> Event:
    fields = {"done": 1, "total": 4, "best_ns": 2e6, "first_ns": 5e6, "gap": math.nan, "seconds": 3.0, "budget": 60.0}
    return Event(phase, text, **{**fields, **changes})  # type: ignore[arg-type]


def test_lines_come_with_phases_not_with_every_event() -> None:
    console = Console(file=io.StringIO(), width=120)
    with shown_progress(console, 60.0) as progress:
        for _ in range(50):
            progress(event(Phase.KERNELS, "[red]conv[/red]"))
        progress(event(Phase.PLANS, gap=0.1251, kernels=Kernels(214, 2711, 3120)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = text.splitlines()
    assert len(lines) == 2
    assert "kernels 1/4: [red]conv[/red]; best 2.00 ms (2.50x)" in lines[0]
    assert "at most 12.5% left, 214 of 3,120 kernels measured, 2,711 spared by their bounds" in lines[1]
    assert lines[1].startswith("[   3.0 s, 57 s left] plans")


def test_no_best_before_there_is_one() -> None:
    console = Console(file=io.StringIO(), width=120)
    with shown_progress(console, 60.0) as progress:
        progress(event(Phase.PREPARE, "reading", best_ns=0.0, total=0))
    assert "best" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_bar_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None)
    with shown_progress(console, 60.0) as progress:
        progress(event(Phase.KERNELS, "[/nonsense] of a [model"))
        progress(event(Phase.DONE, seconds=99.0))
    assert "of a [model" in console.file.getvalue() or "done" in console.file.getvalue()  # type: ignore[attr-defined]
