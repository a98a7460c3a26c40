"""The plots: trade-offs, the course of the search, the roofline, gains told apart, launches and bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from autofuse.report.style import (
    BASELINE_MARK,
    BLACK,
    KIND_MARKS,
    STEP_MARKS,
    VERMILION,
    byte_axis,
    new_figure,
    nothing,
    styled,
)
from autofuse.report.units import bytes_text, gain_text, milliseconds_text
from autofuse.search.outcome import Calibration

LABELS = {
    "median_ms": "latency, median (ms)",
    "p10_ms": "latency, p10 (ms)",
    "p90_ms": "latency, p90 (ms)",
    "error": "largest relative error",
    "bytes_model": "bytes moved, by the model",
    "launches": "launches",
    "peak_bytes": "peak memory of intermediates",
    "compile_seconds": "compile time (s)",
    "floor_ms": "floor (ms)",
    "flops": "floating-point operations",
}
NO_PLAN = "no plan ran right, so there is nothing to show"


def pareto_plot(table: pd.DataFrame, front: pd.DataFrame, x: str, y: str) -> Figure:
    """Every measured plan by two of its properties; the front is drawn as a staircase."""
    good = table[table["status"] == "ok"]
    with styled():
        figure, axes = new_figure()
        if not len(good):
            nothing(axes, NO_PLAN)
            return figure
        _by_step(axes, good, x, y)
        axes.step(front[x], front[y], where="post", color=BLACK, lw=1.2, ls="--", zorder=2, label="nothing beats these")
        best = good[good["best"]]
        if len(best):
            axes.scatter(
                best[x].iloc[-1:],
                best[y].iloc[-1:],
                s=190,
                fc="none",
                ec=VERMILION,
                lw=1.8,
                zorder=4,
                label="best plan",
            )
        _axis(axes, "x", x, good[x])
        _axis(axes, "y", y, good[y])
        axes.set_title("Trade-offs: every measured plan")
        axes.legend(loc="best")
        return figure


def _by_step(axes: Axes, rows: pd.DataFrame, x: str, y: str) -> None:
    for step, mark in STEP_MARKS.items():
        mine = rows[rows["step"] == step]
        if len(mine):
            axes.scatter(
                mine[x],
                mine[y],
                s=42,
                color=mark.colour,
                marker=mark.marker,
                ec=BLACK,
                lw=0.5,
                label=mark.label,
                zorder=3,
            )


def _axis(axes: Axes, which: str, name: str, values: pd.Series) -> None:
    """Label one axis; logarithmic where the values span more than a decade."""
    numbers = values.to_numpy(dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    wide = len(numbers) > 0 and numbers.min() > 0 and numbers.max() > 10 * numbers.min()
    label = LABELS.get(name, name)
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(label)
    if wide:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        if name.endswith("_ms"):
            _plain_log(axes, which)
    if name.endswith("bytes") or name.startswith("bytes"):
        byte_axis(axes, which)
    elif not wide and len(numbers) and (numbers == np.round(numbers)).all():
        (axes.xaxis if which == "x" else axes.yaxis).set_major_locator(MaxNLocator(integer=True))


def _plain_log(axes: Axes, which: str) -> None:
    """Plain numbers at the ticks of a logarithmic axis."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(NullFormatter())


def trials_plot(table: pd.DataFrame) -> Figure:
    """Latency of each plan when it was measured, the best so far as a line, failures along the upper edge."""
    with styled():
        figure, axes = new_figure()
        good = table[table["status"] == "ok"].sort_values("elapsed_seconds", kind="stable")
        if not len(good):
            nothing(axes, NO_PLAN)
            return figure
        _by_step(axes, good, "elapsed_seconds", "median_ms")
        best = good["median_ms"].cummin()
        axes.step(good["elapsed_seconds"], best, where="post", color=BLACK, lw=1.4, label="best so far", zorder=2)
        bad = table[table["status"] != "ok"]
        if len(bad):
            level = np.full(len(bad), 1.0)
            axes.scatter(
                bad["elapsed_seconds"],
                level,
                marker="x",
                color=VERMILION,
                transform=axes.get_xaxis_transform(),
                clip_on=False,
                label=f"did not run right ({len(bad)})",
                zorder=5,
            )
        _axis(axes, "y", "median_ms", good["median_ms"])
        axes.set_xlabel("time since the tune began (s)")
        axes.set_title("The course of the search")
        axes.legend(loc="best")
        return figure


def additive_plot(table: pd.DataFrame) -> Figure:
    """The sum of each plan's kernels against the whole plan, with a band of a tenth beside the diagonal."""
    with styled():
        figure, axes = new_figure()
        known = table["additive_error"].notna() if "additive_error" in table else pd.Series(False, table.index)
        rows = table[(table["status"] == "ok") & known]
        if not len(rows):
            nothing(axes, "no plan had all its kernels measured before it was run")
            return figure
        both = pd.concat([rows["estimate_ms"], rows["whole_ms"]])
        ends = np.asarray([0.9 * both.min(), 1.1 * both.max()])
        axes.fill_between(ends, ends / 1.1, ends / 0.9, color=BLACK, alpha=0.08, lw=0, label="within a tenth", zorder=1)
        axes.plot(ends, ends, color=BLACK, lw=1.2, zorder=2)
        _by_step(axes, rows, "estimate_ms", "whole_ms")
        again = rows[rows["again"]]
        if len(again):
            axes.scatter(
                again["estimate_ms"],
                again["whole_ms"],
                s=130,
                facecolors="none",
                edgecolors=VERMILION,
                label=f"measured again in place ({len(again)})",
                zorder=5,
            )
        _axis(axes, "x", "estimate_ms", both)
        _axis(axes, "y", "median_ms", both)
        axes.set_xlabel("sum of the plan's kernels (ms)")
        axes.set_ylabel("whole plan when it was tried (ms)")
        axes.set_title("Kernels added up against the whole")
        axes.legend(loc="best")
        return figure


def roofline_plot(regions: pd.DataFrame, rates: Calibration) -> Figure:
    """Regions of the best plan by FLOPs a byte and what they reach; a marker's area is its share of the time."""
    with styled():
        figure, axes = new_figure()
        rows = regions[(regions["time_us"] > 0) & (regions["bytes_model"] > 0) & (regions["flops"] > 0)]
        if not len(rows) or not rates.bandwidth or not rates.flops:
            nothing(axes, "the best plan's regions were not timed one by one, so there is no roofline")
            return figure
        intensity = rows["flops"] / rows["bytes_model"]
        reached = rows["flops"] / rows["time_us"] / 1e3
        ridge = rates.flops / rates.bandwidth
        low = min(float(intensity.min()), ridge) / 3
        high = max(float(intensity.max()), ridge) * 3
        xs = np.geomspace(low, high, 200)
        axes.plot(xs, np.minimum(xs * rates.bandwidth, rates.flops) / 1e9, color=BLACK, lw=1.6, zorder=2)
        for kind, mark in KIND_MARKS.items():
            mine = (rows["kind"] == kind).to_numpy()
            if mine.any():
                area = 18 + 500 * rows["time_share"][mine].fillna(0.0)
                axes.scatter(
                    intensity[mine],
                    reached[mine],
                    s=area,
                    color=mark.colour,
                    marker=mark.marker,
                    ec=BLACK,
                    lw=0.6,
                    alpha=0.85,
                    label=f"{mark.label} ({int(mine.sum())})",
                    zorder=3,
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        _plain_log(axes, "x")
        _plain_log(axes, "y")
        top = rates.flops / 1e9
        axes.annotate(
            f"{top:.0f} GFLOP/s", (high, top), textcoords="offset points", xytext=(-4, 4), ha="right", va="bottom"
        )
        axes.annotate(
            f"{rates.bandwidth / 1e9:.0f} GB/s",
            (1.7 * low, 1.7 * low * rates.bandwidth / 1e9),
            textcoords="offset points",
            xytext=(8, -8),
            ha="left",
        )
        axes.set_xlabel("FLOPs a byte of memory traffic (by the model)")
        axes.set_ylabel("GFLOP/s reached")
        axes.set_title("Roofline of the best plan's regions (area: share of time)")
        legend = axes.legend(loc="lower right")
        for handle in legend.legend_handles:
            if handle is not None and hasattr(handle, "set_sizes"):
                handle.set_sizes([42.0])
        return figure


def gains_plot(steps: pd.DataFrame, baselines: Mapping[str, tuple[float, float, float]], floor_ms: float) -> Figure:
    """A bar a step with p10 to p90, the peers below, the floor as a line."""
    with styled():
        count = len(steps) + len(baselines)
        figure, axes = new_figure(6.2, 1.5 + 0.55 * max(count, 2))
        if not count:
            nothing(axes, NO_PLAN)
            return figure
        first = float(steps["median_ms"].iloc[0] * steps["gain"].iloc[0]) if len(steps) else float("nan")
        rows = [
            (STEP_MARKS[s["step"]], STEP_MARKS[s["step"]].label, s["p10_ms"], s["median_ms"], s["p90_ms"])
            for _, s in steps.iterrows()
        ]
        rows += [(BASELINE_MARK, name, low, middle, high) for name, (low, middle, high) in baselines.items()]
        longest = max(high for *_, high in rows)
        for k, (mark, _, low, middle, high) in enumerate(rows):
            axes.barh(k, middle, height=0.62, color=mark.colour, ec=BLACK, lw=0.7, hatch=mark.hatch, zorder=3)
            axes.plot([low, high], [k, k], color=BLACK, lw=1.6, zorder=4, marker="|", ms=7)
            gain = gain_text(first / middle)
            axes.annotate(
                f"{milliseconds_text(middle)}   {gain}",
                (max(high, middle), k),
                textcoords="offset points",
                xytext=(7, 0),
                va="center",
            )
        axes.set_yticks(range(count), [label for _, label, *_ in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, longest * 1.28)
        if floor_ms > 0:
            axes.axvline(floor_ms, color=VERMILION, lw=1.4, ls=":", zorder=5)
            axes.annotate(
                f"floor {milliseconds_text(floor_ms)}",
                (floor_ms, 1.0),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                xytext=(4, 1),
                ha="left",
                va="bottom",
                color=VERMILION,
            )
        axes.set_xlabel("latency (ms): median, p10 to p90; gain over the unfused plan")
        axes.set_title("Where the gain comes from", pad=16)
        return figure


def launches_bytes_plot(steps: pd.DataFrame) -> Figure:
    """Two panels of bars: launches and bytes of the best plan of each step."""
    with styled():
        figure, left = new_figure(6.2, 1.5 + 0.5 * max(len(steps), 2))
        if not len(steps):
            nothing(left, NO_PLAN)
            return figure
        left.remove()
        panels = figure.subplots(1, 2, sharey=True)
        marks = [STEP_MARKS[s] for s in steps["step"]]
        for axes, column, text in ((panels[0], "launches", str), (panels[1], "bytes_model", bytes_text)):
            numbers = steps[column].to_numpy(dtype=np.float64)
            for k, (mark, n) in enumerate(zip(marks, numbers, strict=True)):
                axes.barh(k, n, height=0.62, color=mark.colour, ec=BLACK, lw=0.7, hatch=mark.hatch, zorder=3)
                shown = text(int(n)) + (f" ({n / numbers[0] - 1:+.0%})" if k and 0 < numbers[0] != n else "")
                axes.annotate(shown, (n, k), textcoords="offset points", xytext=(5, 0), va="center")
            axes.set_xlim(0, max(float(numbers.max()), 1.0) * 1.55)
            axes.grid(visible=False, axis="y")
        panels[0].xaxis.set_major_locator(MaxNLocator(4, integer=True))
        panels[0].set_yticks(range(len(marks)), [m.label for m in marks])
        panels[0].invert_yaxis()
        panels[0].set_xlabel("launches a run")
        panels[1].set_xlabel("bytes moved a run, by the model")
        byte_axis(panels[1], "x")
        panels[0].set_title("What fusion removes")
        return figure


def time_plot(regions: pd.DataFrame, most: int = 14) -> Figure:
    """The regions that take most of the best plan's time, with the floor of each."""
    with styled():
        rows = regions[regions["time_us"] > 0].sort_values("time_us", ascending=False)
        shown = rows.head(most)
        figure, axes = new_figure(6.2, 1.4 + 0.32 * max(len(shown), 2))
        if not len(shown):
            nothing(axes, "the best plan's regions were not timed one by one")
            return figure
        for k, (_, r) in enumerate(shown.iterrows()):
            mark = KIND_MARKS[r["kind"]]
            axes.barh(k, r["time_us"], height=0.66, color=mark.colour, ec=BLACK, lw=0.6, zorder=3, alpha=0.85)
            axes.plot([r["floor_us"]] * 2, [k - 0.33, k + 0.33], color=VERMILION, lw=2.2, zorder=4)
        labels = [f"{r['region']}  {_short(str(r['operators']))}" for _, r in shown.iterrows()]
        axes.set_yticks(range(len(shown)), labels, fontsize=8.5)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        rest = "" if len(rows) <= most else f" ({most} of {len(rows)} regions)"
        axes.set_title(f"Where the time of the best plan goes{rest}")
        axes.set_xlabel("median time in place (us)")
        handles = [axes.plot([], [], color=VERMILION, lw=2.2)[0]]
        names = ["floor of the region"]
        for kind in dict.fromkeys(shown["kind"]):
            handles.append(axes.plot([], [], color=KIND_MARKS[kind].colour, marker="s", ls="", ms=8)[0])
            names.append(KIND_MARKS[kind].label)
        figure.legend(handles, names, loc="outside lower right", ncols=len(names))
        return figure


def _short(text: str, most: int = 34) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
