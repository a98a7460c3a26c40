"""Result folders: what a tune leaves on disk, and finding a saved plan again.

`<output>/<stem>-<hash8>/<device>/<shapes-accuracy-threads>/`. All files of a tune are written beside the folder's own first and then take
their places together (`report.places`): whenever a process is killed or a disk is full, a reader finds the old results or the new ones.
"""

from __future__ import annotations

import dataclasses
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from autofuse.errors import StorageError
from autofuse.report.edges import edge_table
from autofuse.report.naming import case_folder, device_folder, model_folder, safe_name
from autofuse.report.places import PLAN, RUN
from autofuse.report.replacing import replace_files, write_whole
from autofuse.report.structure import region_table, value_table
from autofuse.report.tables import RAW_COLUMNS, kernel_table, trade_off_table
from autofuse.search.outcome import TuneOutcome
from autofuse.version import __version__

FORMAT = 1
TABLES = ("trade_offs", "kernels", "verdicts", "regions", "values")
REPORT = "report.html"
KERNELS = "kernels"


def folder_of(outcome: TuneOutcome, output: Path) -> Path:
    """Where a tune's results belong."""
    case = case_folder(outcome.shapes, outcome.accuracy, outcome.threads)
    structure = outcome.graph.structural_hash
    return output / model_folder(outcome.model, structure) / device_folder(outcome.target) / case


def check_writable(output: Path) -> None:
    """StorageError where results could not be written later: a tune of minutes must not end with nowhere to put it.

    Nothing is made: the nearest folder that exists is tried.
    """
    nearest = next(p for p in (output.absolute(), *output.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as e:
        raise StorageError(
            f"{output}: no results can be written there: {e.strerror}; choose another folder with --output"
        ) from e


def write_results(outcome: TuneOutcome, output: Path, environment: Mapping[str, Any] | None = None) -> Path:
    """Write a result folder and give back its path. StorageError where it can't be written; files of other names are left alone."""
    folder = folder_of(outcome, output)
    trade_offs = trade_off_table(outcome)
    tables = {
        "trade_offs": trade_offs,
        "kernels": kernel_table(outcome),
        "verdicts": edge_table(outcome),
        "regions": region_table(
            outcome.graph, outcome.best, outcome.target, outcome.calibration, _best_region_ns(outcome)
        ),
        "values": value_table(outcome.graph, outcome.best),
    }
    csv = trade_offs.drop(columns=list(RAW_COLUMNS)).to_csv(index=False)
    run = json.dumps(run_record(outcome, environment or {}), indent=1, default=_plain)
    files = {f"{name}.parquet": _parquet(tables[name]) for name in TABLES}
    files |= {"trade_offs.csv": csv.encode(), **_kernel_files(outcome)}
    files |= {PLAN: json.dumps(outcome.best.to_json(), indent=1).encode(), RUN: run.encode()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # a report and kernels of an earlier tune would contradict the new tables
        replace_files(folder, files, (REPORT, f"{KERNELS}/*.cu", f"{KERNELS}/*.cpp"))
    except OSError as error:
        raise StorageError(
            f"{folder}: the results cannot be written: {error.strerror or error}; choose another folder with --output. "
            "What was measured is kept in the records, and the best plan with it: the next tune begins with that."
        ) from error
    return folder


def _best_region_ns(outcome: TuneOutcome) -> tuple[float, ...]:
    found = [p.region_ns for p in outcome.plans if p.region_ns and p.plan.key == outcome.best.key]
    return found[-1] if found else ()


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False, compression="zstd")
    return buffer.getvalue()


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; StorageError where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}; choose another place") from error


def _kernel_files(outcome: TuneOutcome) -> dict[str, bytes]:
    """The kernel text of the best engine, for reading only: a plan never loads it."""
    ending = "cu" if outcome.target.is_cuda else "cpp"
    return {f"{KERNELS}/{safe_name(k[:24], 'kernel')}.{ending}": t.encode() for k, t in outcome.best_text.items()}


def run_record(outcome: TuneOutcome, environment: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json holds: how the tune was made, and on what."""
    t = outcome.target
    return {
        "format": FORMAT,
        "autofuse": __version__,
        "command": outcome.command,
        "model": outcome.model,
        "graph": outcome.graph.structural_hash,
        "weights": outcome.graph.weights_digest,
        "nodes": len(outcome.graph.nodes),
        "onnx_nodes": len({n.origin for n in outcome.graph.nodes}),
        "host_nodes": [f"{n.op}#{n.id}" for n in outcome.graph.host_nodes],
        "shapes": {name: list(dims) for name, dims in outcome.shapes.items()},
        "accuracy": outcome.accuracy,
        "threads": outcome.threads,
        "seed": outcome.seed,
        "objectives": list(outcome.objectives),
        "best": outcome.best.key,
        "seconds": outcome.seconds,
        "interrupted": outcome.interrupted,
        "device": dataclasses.asdict(t),
        "calibration": {
            "bandwidth": outcome.calibration.bandwidth,
            "flops": outcome.calibration.flops,
            "launch": outcome.calibration.launch,
            "cached": outcome.calibration.cached,
            "shared": outcome.calibration.shared,
        },
        "noise": outcome.noise.facts() if outcome.noise is not None else None,
        "baselines": {name: list(samples) for name, samples in outcome.baselines.items()},
        "notes": list(outcome.notes),
        "import_notes": list(outcome.graph.notes),
        "environment": dict(environment),
    }


def _plain(x: object) -> object:
    if isinstance(x, np.integer | np.floating | np.bool_):
        return x.item()
    if isinstance(x, Path):
        return str(x)
    raise TypeError(f"{type(x).__name__} does not belong in run.json")
