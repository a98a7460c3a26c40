"""Two results side by side: what one stores and the other doesn't, launches, bytes, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from autofuse.report.results import Results
from autofuse.report.tables import is_tie
from autofuse.report.units import bytes_text, gain_text, milliseconds_text, percent_text


@dataclass(frozen=True, eq=False)
class Comparison:
    """The outcome of comparing two results' best plans.

    `only_a` and `only_b` list the intermediates that just one of the two stores (value, name, shape, bytes), `times` a row per kind of
    work with both times, `totals` a row per figure. `verdict` says which is faster, or that it is a tie.
    """

    a: str
    b: str
    same_graph: bool
    totals: pd.DataFrame
    only_a: pd.DataFrame
    only_b: pd.DataFrame
    times: pd.DataFrame
    verdict: str


_SHOWN = ["value", "name", "dtype", "shape", "bytes"]


def compare(a: Results, b: Results) -> Comparison:
    """Compare two best plans. Values are matched by number in one graph, by name between different ones."""
    same = a.run["graph"] == b.run["graph"]
    key = "value" if same else "name"
    stored_a, stored_b = _stored(a), _stored(b)
    only_a = stored_a[~stored_a[key].isin(set(stored_b[key]))]
    only_b = stored_b[~stored_b[key].isin(set(stored_a[key]))]
    return Comparison(
        str(a.path), str(b.path), same, _totals(a, b), only_a[_SHOWN], only_b[_SHOWN], _times(a, b), _verdict(a, b)
    )


def _stored(r: Results) -> pd.DataFrame:
    rows = r.values[r.values["materialised"] & (r.values["role"] == "intermediate")]
    return rows.sort_values("bytes", ascending=False, kind="stable")


def _totals(a: Results, b: Results) -> pd.DataFrame:
    def of(r: Results) -> dict[str, float]:
        stored = _stored(r)
        best = r.best
        measured = {
            "latency_ms": float("nan") if best is None else float(best["median_ms"]),
            "error": float("nan") if best is None else float(best["error"]),
            "peak_bytes": float("nan") if best is None else float(best["peak_bytes"]),
        }
        return {
            **measured,
            "regions": float(len(r.regions)),
            "launches": float(r.regions["launches"].sum()),
            "bytes_model": float(r.regions["bytes_model"].sum()),
            "stored_values": float(len(stored)),
            "stored_bytes": float(stored["bytes"].sum()),
        }

    first, second = of(a), of(b)
    return pd.DataFrame({"figure": list(first), "a": list(first.values()), "b": list(second.values())})


def _times(a: Results, b: Results) -> pd.DataFrame:
    """Microseconds by kind of work; reorders and views apart."""

    def of(r: Results) -> pd.Series:
        kind = r.regions["kind"].where(r.regions["operators"] != "reorder", "reorder")
        return r.regions.groupby(kind)["time_us"].sum(min_count=1)

    table = pd.DataFrame({"a_us": of(a), "b_us": of(b)})
    table["difference_us"] = table["b_us"].fillna(0) - table["a_us"].fillna(0)
    return table.rename_axis("kind").reset_index().sort_values("difference_us", key=np.abs, ascending=False)


def _verdict(a: Results, b: Results) -> str:
    first, second = a.best, b.best
    if first is None or second is None:
        return "at least one of the two was never measured"
    ma, mb = float(first["median_ms"]), float(second["median_ms"])
    if a.run["graph"] != b.run["graph"]:
        return f"A {milliseconds_text(ma)}, B {milliseconds_text(mb)}; the models differ in structure, so neither wins"
    if is_tie(first, second):
        return f"a tie: A {milliseconds_text(ma)}, B {milliseconds_text(mb)}, each within the other's p10 to p90"
    faster, gain = ("A", mb / ma) if ma < mb else ("B", ma / mb)
    return f"{faster} is {gain_text(gain)} as fast: A {milliseconds_text(ma)}, B {milliseconds_text(mb)}"


def differences(a: Results, b: Results) -> list[str]:
    """What besides the plans is not the same, in words: it may explain what the figures show."""
    found = []
    pairs: Sequence[tuple[str, object, object]] = [
        ("model structure", a.run["graph"][:12], b.run["graph"][:12]),
        ("weights", a.run["weights"][:12], b.run["weights"][:12]),
        ("device", a.run["device"]["name"], b.run["device"]["name"]),
        ("threads", a.run["threads"], b.run["threads"]),
        ("accuracy", a.run["accuracy"], b.run["accuracy"]),
        ("autofuse", a.run["autofuse"], b.run["autofuse"]),
    ]
    for name, x, y in pairs:
        if x != y:
            found.append(f"{name}: A {x}, B {y}")
    return found


def text(c: Comparison, notes: Sequence[str] = (), listed: int = 20) -> str:
    """The comparison as plain text."""
    lines = [f"A  {c.a}", f"B  {c.b}", "", c.verdict]
    if notes:
        lines += ["", "Not the same in both:", *(f"  {n}" for n in notes)]
    lines += ["", f"{'':<28}{'A':>14}{'B':>14}"]
    for figure, x, y in c.totals.itertuples(index=False):
        lines.append(f"{_NAMES[figure]:<28}{_figure(figure, x):>14}{_figure(figure, y):>14}")
    for name, rows in (("A", c.only_a), ("B", c.only_b)):
        other = "B" if name == "A" else "A"
        total = bytes_text(float(rows["bytes"].sum()))
        lines += ["", f"Stored by {name} and not by {other}: {len(rows)} intermediates, {total}"]
        for _, r in rows.head(listed).iterrows():
            lines.append(f"  {r['name']!r:<40} {r['dtype']} {r['shape']:<20} {bytes_text(r['bytes']):>10}")
        if len(rows) > listed:
            lines.append(f"  ... and {len(rows) - listed} more")
    if c.times[["a_us", "b_us"]].notna().any().any():
        total_a, total_b = c.times["a_us"].sum(), c.times["b_us"].sum()
        lines += ["", f"{'Where the time goes':<28}{'A':>20}{'B':>20}"]
        for _, r in c.times.iterrows():
            cells = [
                f"{_us(r[k])} ({percent_text(r[k] / t if t else float('nan'))})"
                for k, t in (("a_us", total_a), ("b_us", total_b))
            ]
            lines.append(f"  {r['kind']:<26}{cells[0]:>20}{cells[1]:>20}")
    return "\n".join(lines)


_NAMES = {
    "latency_ms": "latency, median",
    "error": "error",
    "peak_bytes": "peak memory",
    "regions": "regions",
    "launches": "launches",
    "bytes_model": "bytes moved, by the model",
    "stored_values": "intermediates stored",
    "stored_bytes": "their bytes",
}


def _us(value: float) -> str:
    return milliseconds_text(value / 1000)


def _figure(name: str, value: float) -> str:
    if np.isnan(value):
        return "-"
    if name == "latency_ms":
        return milliseconds_text(value)
    if name == "error":
        return f"{value:.1e}"
    return bytes_text(value) if name.endswith("bytes") or name.startswith("bytes") else f"{value:.0f}"
