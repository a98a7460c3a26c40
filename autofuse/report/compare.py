"""Two results side by side: what one stores and the other doesn't, launches, bytes, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from autofuse.report.frame import columns, typed
from autofuse.report.results import Results
from autofuse.report.tables import is_tie
from autofuse.report.units import bytes_text, gain_text, milliseconds_text, percent_text


@dataclass(frozen=True, eq=False)
class Comparison:
    """The outcome of comparing two results' best plans.

    `only_a` and `only_b` list the intermediates that just one of the two stores: value, name, shape, bytes, how often it is loaded, the bytes
    that its store and loads move, and the regions that make and read it. `times` is a row per kind of work with both times, `parts` a row
    per part of the graph that the two cut differently (of one graph only), `totals` a row per figure. `weights` are the digests of both.
    `verdict` says which is faster, or that it is a tie.
    """

    a: str
    b: str
    same_graph: bool
    totals: pd.DataFrame
    only_a: pd.DataFrame
    only_b: pd.DataFrame
    times: pd.DataFrame
    parts: pd.DataFrame
    verdict: str
    structures: tuple[str, str]
    weights: tuple[str, str]

    @property
    def same_weights(self) -> bool:
        """Whether the constants are the same, bit for bit."""
        return self.weights[0] == self.weights[1]


_SHOWN = ["value", "name", "dtype", "shape", "bytes", "loads", "bytes_moved", "launches"]


def compare(a: Results, b: Results) -> Comparison:
    """Compare two best plans. Values are matched by number in one graph, by name between different ones."""
    same = a.run["graph"] == b.run["graph"]
    key = "value" if same else "name"
    stored_a, stored_b = _stored(a), _stored(b)
    only_a = stored_a[~stored_a[key].isin(set(stored_b[key]))]
    only_b = stored_b[~stored_b[key].isin(set(stored_a[key]))]
    return Comparison(
        str(a.path),
        str(b.path),
        same,
        _totals(a, b),
        only_a[_SHOWN],
        only_b[_SHOWN],
        _times(a, b),
        _parts(a, b) if same else _parts(a, a).head(0),
        _verdict(a, b),
        (str(a.run["graph"]), str(b.run["graph"])),
        (str(a.run["weights"]), str(b.run["weights"])),
    )


def _stored(r: Results) -> pd.DataFrame:
    """The intermediates that a result's best plan stores: the bytes that storing and loading each moves, and the launches at its ends."""
    rows = r.values[r.values["materialised"] & (r.values["role"] == "intermediate")].copy()
    makers: dict[int, set[int]] = {}
    readers: dict[int, set[int]] = {}
    for k, planned in enumerate(r.plan.regions):
        for v in planned.region.outputs:
            makers.setdefault(v, set()).add(k)
        for v in planned.region.inputs:
            readers.setdefault(v, set()).add(k)
    launches = list(r.regions["launches"])
    loads = [len(readers.get(int(v), ())) for v in rows["value"]]
    ends = [makers.get(int(v), set()) | readers.get(int(v), set()) for v in rows["value"]]
    rows["loads"] = np.asarray(loads, np.int64)
    rows["bytes_moved"] = rows["bytes"] * (1 + rows["loads"])
    rows["launches"] = np.asarray([sum(int(launches[k]) for k in e) for e in ends], np.int64)
    return rows.sort_values("bytes", ascending=False, kind="stable")


def _parts(a: Results, b: Results) -> pd.DataFrame:
    """The smallest sets of nodes that both plans compute in regions of their own, where the two differ: regions, launches, bytes and time of
    each, the largest difference first."""
    group: dict[int, int] = {}

    def root(n: int) -> int:
        while group.setdefault(n, n) != n:
            n = group[n]
        return n

    owned = [[[int(n) for n in nodes] for nodes in r.regions["nodes"]] for r in (a, b)]
    for side in owned:
        for nodes in side:
            for n in nodes[1:]:
                group[root(n)] = root(nodes[0])
    members: dict[int, tuple[list[int], list[int]]] = {}
    for k, side in enumerate(owned):
        for region, nodes in enumerate(side):
            if nodes:
                members.setdefault(root(nodes[0]), ([], []))[k].append(region)
    rows = []
    for mine in members.values():
        cut = [sorted(tuple(owned[k][region]) for region in mine[k]) for k in (0, 1)]
        tables = [r.regions.iloc[regions] for r, regions in zip((a, b), mine, strict=True)]
        kernels = [list(t["family"] + "/" + t["algorithm"]) for t in tables]
        if cut[0] == cut[1] and kernels[0] == kernels[1]:
            continue
        nodes = sorted({n for side in cut for ns in side for n in ns})
        row: dict[str, object] = {
            "nodes": nodes,
            "operators_a": _operators(tables[0]),
            "operators_b": _operators(tables[1]),
        }
        for name, t in zip("ab", tables, strict=True):
            row[f"regions_{name}"] = len(t)
            row[f"launches_{name}"] = int(t["launches"].sum())
            row[f"bytes_{name}"] = int(t["bytes_model"].sum())
            row[f"us_{name}"] = float(t["time_us"].sum(min_count=1))
        rows.append(row)
    found = typed(rows, _PART_COLUMNS)
    weight = (found["us_b"] - found["us_a"]).abs().fillna(0)
    moved = (found["bytes_b"] - found["bytes_a"]).abs()
    order = pd.DataFrame({"w": weight, "m": moved}).sort_values(["w", "m"], ascending=False, kind="stable").index
    return found.loc[order].reset_index(drop=True)


_PART_COLUMNS = columns(
    "nodes operators_a operators_b regions_a:i regions_b:i launches_a:i launches_b:i bytes_a:i bytes_b:i us_a:f us_b:f"
)


def _operators(regions: pd.DataFrame) -> str:
    return " | ".join(regions["operators"])


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
    lines = [f"A  {c.a}", f"B  {c.b}", "", c.verdict, ""]
    lines += [_digests("structure", c.structures), _digests("weights", c.weights)]
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
            loads = f"loaded {r['loads']} times" if r["loads"] != 1 else "loaded once"
            lines.append(
                f"  {r['name']!r:<40} {r['dtype']} {r['shape']:<20} {bytes_text(r['bytes']):>10}, {loads}: {bytes_text(r['bytes_moved'])} "
                f"moved, between {r['launches']} launches"
            )
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
    lines += _parts_text(c.parts, listed)
    return "\n".join(lines)


def _digests(what: str, pair: tuple[str, str]) -> str:
    a, b = (x[:16] for x in pair)
    return f"{what}: the same ({a})" if pair[0] == pair[1] else f"{what}: different (A {a}, B {b})"


def _parts_text(parts: pd.DataFrame, listed: int) -> list[str]:
    if not len(parts):
        return []
    lines = ["", f"Where the two cut the graph, or compute it, differently ({len(parts)} parts):"]
    for _, r in parts.head(listed).iterrows():
        nodes = f"{len(r['nodes'])} nodes from #{r['nodes'][0]} on"
        figures = [
            f"{name.upper()} {r[f'launches_{name}']} launches, {bytes_text(r[f'bytes_{name}'])}, {_us(r[f'us_{name}'])}"
            for name in "ab"
        ]
        lines.append(f"  {nodes}: {'; '.join(figures)}")
        lines += [f"      A: {r['operators_a']}", f"      B: {r['operators_b']}"]
    if len(parts) > listed:
        lines.append(f"  ... and {len(parts) - listed} more")
    return lines


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
