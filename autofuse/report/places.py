"""Finding result folders and saved plans again. Light to import: whoever only runs a model needs no more of the report than this."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from autofuse.engine.plan import Plan, load_plan
from autofuse.errors import PlanError, StorageError
from autofuse.ir.target import Target
from autofuse.report.naming import device_folder
from autofuse.report.replacing import settle

RUN = "run.json"
PLAN = "plan.json"


def find_results(path: Path) -> Path:
    """The result folder that a path means: itself, the folder of a file in it, or the only one below it."""
    start = path.parent if path.is_file() else path
    settle(start)
    if (start / RUN).is_file():
        return start
    if not start.is_dir():
        raise StorageError(f"there is no folder {path}. Give a result folder, as `autofuse tune` prints it.")
    for ready in start.glob("*/" * 3 + ".ready"):
        settle(ready.parent)
    found = sorted(p.parent for p in start.glob("*/" * 3 + RUN)) or sorted(p.parent for p in start.rglob(RUN))
    if len(found) == 1:
        return found[0]
    if not found:
        raise StorageError(
            f"{path} holds no results (no {RUN}). Give a folder that `autofuse tune` has written, or tune first."
        )
    listing = "\n  ".join(str(p) for p in found[:20])
    raise StorageError(f"{path} holds {len(found)} results; name one of them:\n  {listing}")


def saved_plans(
    output: Path, structure: str, target: Target, notes: list[str] | None = None
) -> Iterator[tuple[Path, Plan]]:
    """The saved plans for a graph on an architecture, newest first. Damaged or foreign files are passed over; `notes` gets their reasons."""
    kept: list[tuple[float, Path]] = []
    cases = f"*-{structure[:8]}/{device_folder(target)}/*"
    for ready in output.glob(f"{cases}/.ready"):
        settle(ready.parent)
    for path in output.glob(f"{cases}/{PLAN}"):
        with contextlib.suppress(OSError):
            kept.append((path.stat().st_mtime, path))
    for _, path in sorted(kept, reverse=True):
        try:
            plan = load_plan(path)
        except PlanError as e:
            if notes is not None:
                notes.append(f"a saved plan could not be used: {e}")
            continue
        if plan.graph == structure and plan.arch == target.arch:
            yield path, plan
        elif notes is not None:
            notes.append(f"{path}: this plan is for another model or device; it was not used")
