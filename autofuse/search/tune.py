"""Tuning: from a graph and a device to the best plan, within a budget of time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from autofuse.devices.base import Device
from autofuse.engine.plan import Plan
from autofuse.ir.graph import Graph
from autofuse.measure.reference import Tolerance
from autofuse.search.outcome import TuneOutcome
from autofuse.search.progress import Progress, silent


def tune(
    graph: Graph,
    device: Device,
    *,
    model: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    budget_seconds: float = 300.0,
    accuracy: str = "default",
    threads: int | None = None,
    seed: int = 0,
    storage: str | None = None,
    spaces_dir: str | None = None,
    trials: int | None = None,
    sampler: str = "tpe",
    tolerance: Tolerance | None = None,
    progress: Progress = silent,
    baseline: str | None = None,
    onnx_model: bytes | str | None = None,
    records: Path | None = None,
    previous: Plan | None = None,
    command: str = "",
) -> TuneOutcome:
    """Find the fastest plan for a graph.

    `model` is the model's name for the report. `inputs` are drawn where they are left out. `storage` is a URL of Optuna's (none: nothing is kept),
    `records` the file of measurements (none: the user's data folder). `baseline` names another runtime to measure beside the plans; it
    gets `onnx_model`, a path or a serialised model. `previous` is the best plan of an earlier tune, which is measured first.
    """
    raise NotImplementedError
