"""Finding result folders and saved plans again. Light to import: whoever only runs a model needs no more of the report than this."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from autofuse.engine.plan import Plan, load_plan
from autofuse.errors import PlanError, StorageError
from autofuse.ir.target import Target
from autofuse.report.naming import device_folder

RUN = "run.json"
PLAN = "plan.json"


def find_results(path: Path) -> Path:
    """The result folder that a path means: itself, the folder of a file in it, or the only one below it."""
    start = path.parent if path.is_file() else path
    if (start / RUN).is_file():
        return start
    if not start.is_dir():
        raise StorageError(f"there is no folder {path}. Give a result folder, as `autofuse tune` prints it.")
    found = sorted(p.parent for p in start.glob("*/" * 3 + RUN)) or sorted(p.parent for p in start.rglob(RUN))
    if len(found) == 1:
        return found[0]
    if not found:
        raise StorageError(
            f"{path} holds no results (no {RUN}). Give a folder that `autofuse tune` has written, or tune first."
        )
    listing = "\n  ".join(str(p) for p in found[:20])
    raise StorageError(f"{path} holds {len(found)} results; name one of them:\n  {listing}")


def saved_plans(output: Path, structure: str, target: Target) -> Iterator[tuple[Path, Plan]]:
    """The saved plans for a graph on an architecture, newest first. Damaged or foreign files are passed over."""
    kept: list[tuple[float, Path]] = []
    for path in output.glob(f"*-{structure[:8]}/{device_folder(target)}/*/{PLAN}"):
        with contextlib.suppress(OSError):
            kept.append((path.stat().st_mtime, path))
    for _, path in sorted(kept, reverse=True):
        with contextlib.suppress(PlanError):
            plan = load_plan(path)
            if plan.graph == structure and plan.arch == target.arch:
                yield path, plan
