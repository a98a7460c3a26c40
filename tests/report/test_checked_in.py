"""The result folders that are checked in: they open, and their best plans are plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autofuse

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = sorted(p.parent for kind in ("examples", "samples") for p in (RESULTS / kind).rglob("run.json"))


def test_the_nine_samples_are_there() -> None:
    assert len([f for f in FOLDERS if f.is_relative_to(RESULTS / "samples")]) == 9


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.parts[-3])
def test_a_folder_opens(folder: Path) -> None:
    results = autofuse.open_results(folder)
    run = json.loads((folder / "run.json").read_text())
    best = results.best
    assert best is not None and best["status"] == "ok"
    assert results.plan.key == run["best"] == best["plan"]
    assert len(best["samples_ns"]) > 0
    unfused = results.trade_offs[results.trade_offs["step"] == "unfused"]
    assert (unfused["status"] == "ok").any()
