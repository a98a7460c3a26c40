"""Tables for a terminal."""

from __future__ import annotations

import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autofuse.report.console import cells, error_text, table
from autofuse.report.estimate import Estimate
from autofuse.report.results import Results
from autofuse.report.units import (
    bytes_text,
    count_text,
    gain_text,
    microseconds_text,
    milliseconds_text,
    off_text,
    percent_text,
)

_STEP_NAMES = {
    "unfused": "unfused",
    "tuned": "tuned, not fused",
    "fused": "fused",
    "other-algorithm": "other algorithm",
}


def gains(r: Results) -> Table:
    """The best plan of each step, peers and the floor."""
    found = table(
        "Where the gain comes from",
        "step", ">median", ">p10", ">p90", ">gain", ">launches", ">bytes", ">error",
    )  # fmt: skip
    for s in r.steps.to_dict(orient="records"):
        times = [milliseconds_text(s[k]) for k in ("median_ms", "p10_ms", "p90_ms")]
        found.add_row(
            _STEP_NAMES[s["step"]], *times, gain_text(s["gain"]), str(s["launches"]), bytes_text(s["bytes_model"]), error_text(s["error"])
        )  # fmt: skip
    first = float(r.steps["median_ms"].iloc[0] * r.steps["gain"].iloc[0]) if len(r.steps) else float("nan")
    for name, (low, middle, high) in r.baselines.items():
        times = [milliseconds_text(x) for x in (middle, low, high)]
        found.add_row(*cells(f"({name})", *times, gain_text(first / middle), "", "", ""), style="dim")
    if r.floor_ms > 0:
        found.add_row("(floor)", milliseconds_text(r.floor_ms), *[""] * 6, style="dim")
    return found


def trade_offs(rows: pd.DataFrame, most: int = 15) -> Table:
    """The plans that ran right, fastest first. "summed" is the additive figure, the sum of its kernels, and "off" how far that was from
    the whole plan when it was tried ("-" where some of them had not been measured by then); "floor" is its share of the time, "front" the
    Pareto front, and * the best plan."""
    good = rows[rows["status"] == "ok"].sort_values("median_ms")
    shown = good.head(most)
    more = f" (the fastest {len(shown)} of {len(good)})" if len(good) > len(shown) else ""
    found = table(
        f"Measured plans{more}",
        "plan", "step", ">median", ">p10", ">p90", ">summed", ">off", ">launches", ">bytes", ">floor", "bound", ">memory", ">error", "front",
    )  # fmt: skip
    for s in shown.to_dict(orient="records"):
        found.add_row(
            f"{'*' if s['best'] else ' '}{str(s['plan'])[:8]}",
            _STEP_NAMES.get(s["step"], str(s["step"])),
            *[milliseconds_text(s[k]) for k in ("median_ms", "p10_ms", "p90_ms")],
            milliseconds_text(s["estimate_ms"]),
            off_text(s.get("additive_error", float("nan"))),
            str(s["launches"]),
            bytes_text(s["bytes_model"]),
            percent_text(s["share_of_floor"]),
            str(s["bound"]),
            bytes_text(s["peak_bytes"]),
            error_text(s["error"]),
            "yes" if s["pareto"] else "",
            style="bold" if s["best"] else "",
        )
    return found


def failures(rows: pd.DataFrame, most: int = 8) -> Table | None:
    """Plans that did not run right, by status and reason; None where there are none."""
    bad = rows[rows["status"] != "ok"]
    if not len(bad):
        return None
    counts = bad.groupby(["status", "reason"], sort=False).size().sort_values(ascending=False)
    found = table("Plans without a time", "status", ">plans", "reason")
    for s in counts.head(most).reset_index(name="plans").to_dict(orient="records"):
        found.add_row(*cells(s["status"], s["plans"], str(s["reason"]).partition("\n")[0]))
    return found


def regions(rows: pd.DataFrame, most: int = 20) -> Table:
    """The regions of a plan that take most time (in the order of running where nothing was timed)."""
    timed = rows[rows["launches"] + rows["time_us"].fillna(0) > 0]
    order = timed.sort_values("time_us", ascending=False) if timed["time_us"].notna().any() else timed
    more = f" ({most} of {len(order)})" if len(order) > most else ""
    found = table(
        f"Regions of the best plan{more}",
        ">region", "operators", "implementation", ">time", ">share", ">of floor", "bound", ">launches", ">bytes",
    )  # fmt: skip
    for s in order.head(most).to_dict(orient="records"):
        found.add_row(
            *cells(
                s["region"],
                s["operators"],
                f"{s['family']}/{s['algorithm']}",
                microseconds_text(s["time_us"]),
                percent_text(s["time_share"]),
                percent_text(s["share_of_floor"]),
                s["bound"],
                s["launches"],
                bytes_text(s["bytes_model"]),
            )
        )
    return found


def results(r: Results) -> Group:
    """All that `report` prints."""
    parts: list[RenderableType] = [Text(r.title, style="bold"), Text(""), gains(r), trade_offs(r.trade_offs)]
    bad = failures(r.trade_offs)
    if bad is not None:
        parts.append(bad)
    parts.append(regions(r.regions))
    parts += [Text(f"Note: {n}") for n in r.run["notes"]]
    return Group(*parts)


def estimate(e: Estimate, most: int = 12) -> Group:
    """All that `estimate` prints."""
    device = f"{e.target.name}, {e.threads} threads" if e.target.kind == "cpu" else e.target.name
    facts = table("", "", ">")
    facts.add_row("arithmetic of one run", f"{count_text(e.flops)}FLOP")
    facts.add_row("bytes that every plan must move", bytes_text(e.boundary_bytes))
    facts.add_row(f"floor (bound by {e.bound})", microseconds_text(e.floor_seconds * 1e6))
    facts.add_row("bytes that the unfused plan moves beyond that", bytes_text(e.avoidable_bytes))
    facts.add_row("fusion can save at most", microseconds_text(e.most_seconds * 1e6))
    facts.add_row("fusing all that may be saves of it", microseconds_text(e.greedy_seconds * 1e6))
    facts.add_row("edges that hold 80 % of that", f"{e.holding()} of {len(e.edges)}")
    cases = table("", "", ">regions", ">launches", ">bytes", ">predicted")
    for c in (e.unfused, e.greedy):
        name = "unfused" if c.name == "unfused" else "all fused that may be"
        cases.add_row(
            name, str(c.regions), str(c.cost.launches), bytes_text(c.cost.bytes), microseconds_text(c.seconds * 1e6)
        )
    edges = table(
        f"Edges that fusion can remove, dearest first ({min(most, len(e.edges))} of {len(e.edges)})",
        "edge", "value", "from", "to", "shape", ">bytes", ">saves about",
    )  # fmt: skip
    for s in e.edges.head(most).to_dict(orient="records"):
        edges.add_row(
            *cells(
                f"e{s['edge']}", s["value_name"], s["producer_name"], s["consumer_name"], f"{s['dtype']} {s['shape']}",
                bytes_text(s["bytes"]), microseconds_text(s["price_us"]),
            )
        )  # fmt: skip
    rates = e.calibration
    basis = (
        f"Predicted from {'measured' if e.measured_rates else 'assumed'} rates of {device}: {rates.bandwidth / 1e9:.0f} GB/s, "
        f"{rates.flops / 1e9:.0f} GFLOP/s, "
        f"{microseconds_text(rates.launch * 1e6)} a launch. Nothing was run; `autofuse tune` measures."
    )
    parts: list[RenderableType] = [Text(e.graph.name, style="bold"), facts, cases, edges]
    if e.host_nodes:
        parts.append(
            Text(f"{len(e.host_nodes)} nodes have no kernel and run on the host: {', '.join(e.host_nodes[:8])}")
        )
    parts += [Text(f"Note: {n}") for n in e.graph.notes]
    parts.append(Text(basis, style="dim"))
    return Group(*parts)
