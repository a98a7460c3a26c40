"""Reading a result folder back: tables, plans, plots and words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from autofuse.engine.plan import Plan, load_plan, plan_from_json
from autofuse.errors import StorageError, UsageError
from autofuse.report import explain, pareto, plots, tables
from autofuse.report.edges import EDGE_COLUMNS
from autofuse.report.folder import FORMAT, KERNELS
from autofuse.report.places import PLAN, RUN, find_results
from autofuse.report.what_if import Answer, Asker
from autofuse.search.outcome import Calibration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Results:
    """A result folder. Tables are read when they are first asked for."""

    path: Path
    run: Mapping[str, Any]
    """run.json: command, seed, versions, device, calibration, baselines, notes."""
    plan: Plan
    """The best plan."""

    # ---- tables

    @cached_property
    def trade_offs(self) -> pd.DataFrame:
        """A row per measured plan (docs/data-dictionary.md), raw samples included."""
        return self._table("trade_offs")

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """A row per measured kernel and schedule."""
        return self._table("kernels")

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """A row per edge of the graph: fused or not, the rule and the reason, the price."""
        found = self._table("verdicts")
        for name in EDGE_COLUMNS:  # folders of earlier versions know less
            if name not in found:
                found[name] = np.nan if EDGE_COLUMNS[name] == "float64" else ""
        return found

    @cached_property
    def regions(self) -> pd.DataFrame:
        """A row per region of the best plan: bound, time, launches, bytes."""
        return self._table("regions")

    @cached_property
    def values(self) -> pd.DataFrame:
        """A row per value of the graph, and whether the best plan stores it."""
        return self._table("values")

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Every raw sample in nanoseconds, in long form."""
        return tables.sample_table(self.trade_offs, self.kernels, self.run["baselines"])

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The best plan of each step: unfused, tuned, fused, other algorithm."""
        return tables.step_table(self.trade_offs)

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """Every measured plan by its key."""
        rows = zip(self.trade_offs["plan"], self.trade_offs["plan_json"], strict=True)
        return {str(k): plan_from_json(json.loads(text), f"{self.path}: plan {k}") for k, text in rows}

    @property
    def kernel_files(self) -> list[Path]:
        """The kernel text of the best engine."""
        return sorted((self.path / KERNELS).glob("*.c*"))

    @property
    def calibration(self) -> Calibration:
        """What the device reached when this was measured."""
        c = self.run["calibration"]
        return Calibration(float(c["bandwidth"]), float(c["flops"]), float(c["launch"]))

    @cached_property
    def best(self) -> pd.Series | None:
        """The best plan's row of the trade-off table in its last measurement; None where it was not measured."""
        rows = self.trade_offs[self.trade_offs["best"]]
        return rows.iloc[-1] if len(rows) else None

    @property
    def title(self) -> str:
        """Model, device and threads in one line."""
        device = self.run["device"]
        threads = f", {self.run['threads']} threads" if device["kind"] == "cpu" else ""
        return f"{self.run['model']} on {device['name']}{threads}, accuracy {self.run['accuracy']}"

    def pareto(self, x: str = "median_ms", y: str | None = None) -> pd.DataFrame:
        """The plans that no other beats in both columns, sorted by `x`; less is better in each.

        Without `y` it is latency against what the tune had for its second objective (error where it had none).
        """
        y = self._second if y is None else y
        good = self.trade_offs[self.trade_offs["status"] == "ok"]
        for name in (x, y):
            if name not in good or not pd.api.types.is_numeric_dtype(good[name]):
                numeric = [c for c in good.columns if pd.api.types.is_numeric_dtype(good[c])]
                raise UsageError(f"{name!r} is no column of numbers; there are: {', '.join(numeric)}")
        standing = pareto.front(good[[x, y]].to_numpy(dtype=np.float64))
        return good[standing].sort_values([x, y])

    # ---- plots and words

    @property
    def _second(self) -> str:
        return "peak_bytes" if "memory" in self.run.get("objectives", ()) else "error"

    def plot_pareto(self, x: str = "median_ms", y: str | None = None) -> Figure:
        """Two columns of the trade-off table against each other, with the front that nothing beats."""
        y = self._second if y is None else y
        return plots.pareto_plot(self.trade_offs, self.pareto(x, y), x, y)

    def plot_trials(self) -> Figure:
        """Every measured plan over the time of the tune, and the best so far."""
        return plots.trials_plot(self.trade_offs)

    def plot_additive(self) -> Figure:
        """The sum of each plan's kernels against the whole plan."""
        return plots.additive_plot(self.trade_offs)

    def plot_roofline(self) -> Figure:
        """The regions of the best plan against what the device reaches."""
        return plots.roofline_plot(self.regions, self.calibration)

    def plot_gains(self) -> Figure:
        """What tuning, fusion and other algorithms each gain, next to the peers and the floor."""
        return plots.gains_plot(self.steps, self.baselines, self.floor_ms)

    def plot_launches_bytes(self) -> Figure:
        """Launches and bytes of each step: what fusion removes."""
        return plots.launches_bytes_plot(self.steps)

    def explain_text(self, names: Sequence[str] = ()) -> str:
        """Why edges were or weren't fused: all that weren't, or those between the named nodes and values."""
        return explain.explain_text(self.verdicts, names)

    def what_if(
        self, fuse: Sequence[str] = (), split: Sequence[str] = (), model: str | None = None, measure: float = 0.0
    ) -> Answer:
        """What it would cost to compute in one kernel what lies between two nodes or values (or at an edge), or to split it.

        The partition is searched again by the kernels that the tune measured, and by estimates where it measured none; a region that the tune
        did not come to is formed where the rules allow it. `model` is the model's path where it isn't the one that was tuned. `measure`: up
        to so many seconds, kernels that the answer has by estimate are measured on this machine's device (nothing is written down). UsageError
        where the names mean no two nodes.
        """
        if bool(fuse) == bool(split):
            raise UsageError("what_if takes either fuse or split: one or two names, as `explain` prints them")
        key = model or ""
        if key not in self._askers:
            self._askers[key] = Asker(self.run, self.plan, self.kernels, self.trade_offs, model)
        return self._askers[key].ask(self.verdicts, tuple(fuse or split), bool(split), measure)

    @cached_property
    def _askers(self) -> dict[str, Asker]:
        return {}

    @property
    def floor_ms(self) -> float:
        """The least time by arithmetic and boundary bytes; NaN where no plan ran."""
        floors = self.trade_offs.loc[self.trade_offs["status"] == "ok", "floor_ms"]
        return float(floors.min()) if len(floors) else float("nan")

    @property
    def baselines(self) -> dict[str, tuple[float, float, float]]:
        """p10, median and p90 of the peers, in milliseconds."""
        return {name: tables.quantiles(samples) for name, samples in self.run["baselines"].items() if samples}

    def _table(self, name: str) -> pd.DataFrame:
        path = self.path / f"{name}.parquet"
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise StorageError(f"{path} cannot be read: {error}. Tune again into another --output.") from error


def open_results(path: str | Path) -> Results:
    """Open what a tune wrote. `path` is a result folder, a file in it, or a folder with just one result below it.

    StorageError where there is none, or where it is damaged.
    """
    folder = find_results(Path(path))
    try:
        run = json.loads((folder / RUN).read_text())
    except (OSError, ValueError) as error:
        raise StorageError(f"{folder / RUN} is damaged: {error}. Tune again.") from error
    if not isinstance(run, dict) or run.get("format") != FORMAT:
        found = run.get("format") if isinstance(run, dict) else type(run).__name__
        raise StorageError(f"{folder / RUN}: format {found!r} is unknown; this autofuse reads format {FORMAT}")
    plan = load_plan(folder / PLAN)
    if plan.key != run.get("best"):
        raise StorageError(
            f"{folder}: plan.json and run.json are of different tunes, as when writing was cut short. Tune again: "
            "what was measured is kept and serves at once."
        )
    return Results(folder, run, plan)
