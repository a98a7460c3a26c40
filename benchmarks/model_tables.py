"""What benchmarks/models.py shows of its rows: a table in Markdown, a summary in words, and a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from memory import HEAD as MEMORY_HEAD
from memory import cells as memory_cells

from autofuse.measure.nearness import near_rounds

Row = Mapping[str, Any]
_FEWEST_ROUNDS = 5
PEERS = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO"}
"""Of which the better one is compared with."""
OTHERS = {"torch": "torch.compile"}
HEAD = (
    "model",
    "nodes",
    "host",
    "launches unfused/best",
    "MB unfused/best",
    "error (ORT)",
    "error (float64)",
    "floor ms",
    "heuristic ms",
    "unfused ms",
    "best ms",
    "exact ms",
    "onnxruntime ms",
    "OpenVINO ms",
    "torch.compile ms",
    "copy ms",
    "unfused/best",
    "heuristic/best",
    "onnxruntime/best",
    "OpenVINO/best",
    "torch.compile/best",
    "best/copy",
    "exact/best",
    "error exact (float64)",
    *MEMORY_HEAD,
    "tuned in s",
    "within 5 % after s",
)


def median_ms(row: Row, name: str) -> float | None:
    """Median latency in milliseconds."""
    samples = row["times_ns"].get(name)
    return float(np.median(samples)) / 1e6 if samples else None


def ratios(row: Row, a: str, b: str) -> np.ndarray | None:
    """The paired ratios a/b, one a round."""
    times = row["times_ns"]
    if a not in times or b not in times:
        return None
    return np.array(times[a], float) / np.array(times[b], float)


def ratio(row: Row, a: str, b: str) -> float | None:
    """The median of the paired ratios a/b."""
    found = ratios(row, a, b)
    return None if found is None else float(np.median(found))


def better_peer(row: Row) -> str | None:
    """The peer with the lower median."""
    there = {p: ms for p in PEERS if (ms := median_ms(row, p)) is not None}
    return min(there, key=lambda p: there[p]) if there else None


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for r in rows:
        if "failed" in r:
            lines.append(f"| {r['model']} | failed: {r['failed']} |" + " |" * (len(HEAD) - 2))
        else:
            lines.append("| " + " | ".join(_cells(r)) + " |")
    return "\n".join(lines) + "\n"


def _cells(r: Row) -> list[str]:
    def show(x: float | None, unit: str = "") -> str:
        return "–" if x is None or not math.isfinite(x) else f"{x:.2f}{unit}"

    seconds = r["seconds_to_5_percent"]
    return [
        r["model"],
        str(r["nodes"]),
        str(r["host_nodes"]),
        f"{r['launches_unfused']} / {r['launches_best']}",
        f"{r['bytes_unfused'] / 1e6:.1f} / {r['bytes_best'] / 1e6:.1f}",
        f"{r['error']:.1e}",
        f"{r['error_float64']:.1e}",
        show(r["floor_ms"]),
        *(show(median_ms(r, n)) for n in ("heuristic", "unfused", "best", "exact", *PEERS, *OTHERS, "copy")),
        *(show(ratio(r, n, "best"), "x") for n in ("unfused", "heuristic", *PEERS, *OTHERS)),
        show(ratio(r, "best", "copy"), "x"),
        show(ratio(r, "exact", "best"), "x"),
        "–" if r.get("error_exact") is None else f"{r['error_exact']:.1e}",
        *(memory_cells(r["memory"]) if r.get("memory") else ("–", "–")),
        f"{r['tune_seconds']:.0f}",
        "–" if seconds is None else f"{seconds:.0f}",
    ]


def summary(rows: Sequence[Row]) -> str:
    """Geometric means over all models, a line each."""
    done = [r for r in rows if "failed" not in r]
    parts = []
    for name, shown in (
        ("unfused", "its own tuned unfused plan"),
        ("heuristic", "its own untuned plan"),
        ("exact", "its plan under --accuracy exact"),
        *PEERS.items(),
        *OTHERS.items(),
    ):
        found = [x for r in done if (x := ratio(r, name, "best")) is not None]
        if found:
            parts.append(
                f"- {shown} / best: geometric mean {_mean(found):.2f}x over {len(found)} models, least {min(found):.2f}x"
            )
    better = [x for r in done if (p := better_peer(r)) is not None and (x := ratio(r, p, "best")) is not None]
    if better:
        parts.append(f"- the better of the two / best: geometric mean {_mean(better):.2f}x, least {min(better):.2f}x")
    floors = [x for r in done if (x := ratio(r, "best", "copy")) is not None]
    if floors:
        parts.append(f"- best / a copy of the same bytes: geometric mean {_mean(floors):.2f}x, most {max(floors):.2f}x")
    return "\n".join([*parts, *_by_nearness(done)]) + "\n"


def _by_nearness(rows: Sequence[Row]) -> list[str]:
    """The ratios to the better peer of rounds with near cores and of those with cores apart, where there were both: a virtual machine's move."""
    looks = [(r, k, ns) for r in rows for k, ns in enumerate(r.get("exchange_ns", ()))]
    near = near_rounds([ns for _, _, ns in looks])
    if all(near):
        return []
    parts = [f"- the threads' cores were apart in {near.count(False)} of {len(near)} rounds, in which all take longer"]
    for name, wanted in (("near", True), ("apart", False)):
        found, chosen = [], [(r, k, ns) for (r, k, ns), n in zip(looks, near, strict=True) if n == wanted]
        for r in rows:
            rounds = [k for other, k, _ in chosen if other is r]
            peer = better_peer(r)
            pairs = None if peer is None else ratios(r, peer, "best")
            if pairs is not None and len(rounds) >= _FEWEST_ROUNDS:
                found.append(float(np.median(pairs[rounds])))
        if found:
            ns = float(np.median([ns for _, _, ns in chosen]))
            parts.append(
                f"- with cores {name} (a cache line there and back in {ns:.0f} ns) the better of the two / best: geometric mean "
                f"{_mean(found):.2f}x over {len(found)} models, least {min(found):.2f}x"
            )
    return parts


def _mean(xs: Sequence[float]) -> float:
    return math.exp(sum(math.log(x) for x in xs) / len(xs))


def plot(rows: Sequence[Row], path: Path) -> None:
    """A bar a model: how many times as long the better peer takes, with the 10th and 90th percentile of the paired ratios."""
    found = []
    for r in rows:
        peer = None if "failed" in r else better_peer(r)
        pairs = None if peer is None else ratios(r, peer, "best")
        if peer is not None and pairs is not None:
            found.append((r["model"], peer, pairs))
    if not found:
        return
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.42 * len(found)), layout="constrained")
    colours = {"onnxruntime": "#4c72b0", "openvino": "#dd8452"}
    for k, (_, peer, pairs) in enumerate(found):
        low, middle, high = np.percentile(pairs, [10, 50, 90])
        axes.barh(k, middle, color=colours[peer], height=0.65)
        axes.plot([low, high], [k, k], color="black", linewidth=1.2)
        axes.text(max(high, middle) + 0.03, k, f"{middle:.2f}x", va="center", fontsize=8)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(found)), [name for name, _, _ in found], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, axes.get_xlim()[1] * 1.08)
    mean = _mean([float(np.median(p)) for _, _, p in found])
    axes.set_xlabel(
        "latency of the better peer / latency of the best plan (bars: median, lines: 10th to 90th percentile)"
    )
    axes.set_title(
        f"Against the better of onnxruntime (blue) and OpenVINO (orange): geometric mean {mean:.2f}x", fontsize=10
    )
    for suffix in (".svg", ".png"):
        figure.savefig(path.with_suffix(suffix), dpi=120)
    plt.close(figure)
