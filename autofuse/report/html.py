"""One HTML file that holds everything: no scripts, no links to other places, pictures inside."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from html import escape

import pandas as pd
from matplotlib.figure import Figure

from autofuse.report import plots
from autofuse.report.console import error_text
from autofuse.report.explain import signed, unfused
from autofuse.report.results import Results
from autofuse.report.style import styled
from autofuse.report.summary import gained
from autofuse.report.units import (
    bytes_text,
    count_text,
    gain_text,
    microseconds_text,
    milliseconds_text,
    off_text,
    percent_text,
)

_STYLE = """
:root { --ink: #1d1d1f; --soft: #62666d; --line: #dcdfe4; --accent: #0072B2; --good: #e8f3ee; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--ink); margin: 0 auto; max-width: 1260px;
       padding: 2.2rem 1.4rem 4rem; background: #fff; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .6rem; padding-top: .6rem; border-top: 2px solid var(--ink); }
p { max-width: 46rem; } .soft { color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.4rem 0; }
.card { flex: 1 1 9rem; border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem; }
.card b { display: block; font-size: 1.35rem; font-weight: 650; } .card span { color: var(--soft); font-size: .85rem; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; display: block; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1.2rem; } @media (max-width: 820px) { .pair { grid-template-columns: 1fr; } }
.scroll { overflow-x: auto; margin: .6rem 0; } table { border-collapse: collapse; font-size: .84rem; width: 100%; }
th { text-align: left; font-weight: 600; border-bottom: 1.5px solid var(--ink); white-space: nowrap; }
th, td { padding: .28rem .6rem .28rem 0; vertical-align: top; } 
td { border-bottom: 1px solid var(--line); overflow-wrap: break-word; max-width: 23rem; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } tr.best td { background: var(--good); font-weight: 600; }
code, pre { font: .82rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; } pre { overflow-x: auto; background: #f6f7f9; padding: .8rem; }
summary { cursor: pointer; color: var(--accent); } .k { white-space: nowrap; }
@media print { body { max-width: none; padding: 0; } h2 { break-after: avoid; } tr, figure { break-inside: avoid; } }
"""

Column = tuple[str, Callable[[pd.Series], str], bool]
"""Heading, the cell's text from a row, whether it is a number."""


def html_report(r: Results) -> str:
    """The whole report as one HTML text. Everything that comes from a model or a device is escaped."""
    title = f"autofuse: {r.title}"
    parts = [
        f"<h1>{escape(r.title)}</h1>",
        f'<p class="soft">{escape(_subtitle(r))}</p>',
        _cards(r),
        _list(r.run["notes"]),
        "<h2>Where the gain comes from</h2>",
        '<div class="pair">',
        _figure(r.plot_gains(), "Latency of the best plan of each step, peers and floor"),
        _figure(r.plot_launches_bytes(), "Launches and bytes of each step"),
        "</div>",
        _table(r.steps, _STEP_COLUMNS),
        "<h2>Trade-offs</h2>",
        "<p>Every plan that was measured. A plan stands on the Pareto front when no other is at least as good in latency, peak memory "
        "and error (by its order: 1, 2, 5 times a power of ten) and better in one of them.</p>",
        '<div class="pair">',
        _figure(r.plot_pareto(), f"Latency against {'memory' if 'memory' in r.run.get('objectives', ()) else 'error'}"),
        _figure(r.plot_trials(), "Latency over the time of the tune"),
        _figure(r.plot_additive(), "Kernels added up against the whole"),
        "</div>",
        _trade_offs(r),
        "<h2>The best plan, region by region</h2>",
        '<div class="pair">',
        _figure(plots.time_plot(r.regions), "Time by region"),
        _figure(r.plot_roofline(), "Roofline of the regions"),
        "</div>",
        _fold(_table(r.regions, _REGION_COLUMNS), f"All regions ({len(r.regions)})", open_=len(r.regions) <= 40),
        "<h2>Why edges were not fused</h2>",
        _edges(r),
        "<h2>How it was measured</h2>",
        _facts(r),
        _list(r.run["import_notes"]),
    ]
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body>\n{body}\n</body></html>\n"
    )


def _subtitle(r: Results) -> str:
    shapes = ", ".join(f"{name} {'x'.join(map(str, dims)) or 'scalar'}" for name, dims in r.run["shapes"].items())
    state = "interrupted, best so far" if r.run["interrupted"] else "finished"
    return f"{shapes}. Tuned for {r.run['seconds']:.0f} s ({state}); {len(r.trade_offs)} plans and {len(r.kernels)} kernels measured."


def _cards(r: Results) -> str:
    best = r.best
    if best is None:
        return "<p><b>No plan ran right.</b></p>"
    saying = gain_text(float(best["gain"])) if gained(r) else "no gain"
    cards = [
        (milliseconds_text(best["median_ms"]), f"latency (p10 {best['p10_ms']:.3g}, p90 {best['p90_ms']:.3g} ms)"),
        (saying, "over the unfused plan" if gained(r) else "beyond the noise over the unfused plan"),
        (str(best["launches"]), "launch a run" if best["launches"] == 1 else "launches a run"),
        (bytes_text(best["bytes_model"]), "moved a run, by the model"),
        (percent_text(best["share_of_floor"]), f"of the time is the floor; {best['bound']}-bound"),
        (error_text(best["error"]), "largest relative error"),
    ]
    inner = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in cards)
    return f'<div class="cards">{inner}</div>'


def _list(notes: Sequence[object]) -> str:
    items = "".join(f"<li>{escape(str(n))}</li>" for n in notes)
    return f"<ul>{items}</ul>" if items else ""


_STEP_COLUMNS: list[Column] = [
    ("step", lambda s: str(s["step"]), False),
    ("plan", lambda s: str(s["plan"])[:8], False),
    ("median", lambda s: milliseconds_text(s["median_ms"]), True),
    ("p10", lambda s: milliseconds_text(s["p10_ms"]), True),
    ("p90", lambda s: milliseconds_text(s["p90_ms"]), True),
    ("gain over unfused", lambda s: gain_text(s["gain"]), True),
    ("of this step", lambda s: gain_text(s["gain_here"]), True),
    ("launches", lambda s: str(s["launches"]), True),
    ("bytes", lambda s: bytes_text(s["bytes_model"]), True),
    ("error", lambda s: error_text(s["error"]), True),
]
_PLAN_COLUMNS: list[Column] = [
    ("plan", lambda s: str(s["plan"])[:8], False),
    ("step", lambda s: str(s["step"]), False),
    ("origin", lambda s: str(s["origin"]), False),
    ("median", lambda s: milliseconds_text(s["median_ms"]), True),
    ("p10", lambda s: milliseconds_text(s["p10_ms"]), True),
    ("p90", lambda s: milliseconds_text(s["p90_ms"]), True),
    ("kernels summed", lambda s: milliseconds_text(s["estimate_ms"]), True),
    ("off", lambda s: off_text(s.get("additive_error", float("nan"))), True),
    ("launches", lambda s: str(s["launches"]), True),
    ("bytes", lambda s: bytes_text(s["bytes_model"]), True),
    ("of floor", lambda s: percent_text(s["share_of_floor"]), True),
    ("bound", lambda s: str(s["bound"]), False),
    ("memory", lambda s: bytes_text(s["peak_bytes"]), True),
    ("compile", lambda s: f"{s['compile_seconds']:.1f} s", True),
    ("error", lambda s: error_text(s["error"]), True),
    ("Pareto", lambda s: "yes" if s["pareto"] else "", False),
]
_FAILED_COLUMNS: list[Column] = [
    ("plan", lambda s: str(s["plan"])[:8], False),
    ("step", lambda s: str(s["step"]), False),
    ("origin", lambda s: str(s["origin"]), False),
    ("status", lambda s: str(s["status"]), False),
    ("reason", lambda s: str(s["reason"]), False),
]
_REGION_COLUMNS: list[Column] = [
    ("region", lambda s: str(s["region"]), True),
    ("operators", lambda s: str(s["operators"]), False),
    ("delivers", lambda s: str(s["outputs"]), False),
    ("implementation", lambda s: f"{s['family']}/{s['algorithm']} {s['schedule']}", False),
    ("time", lambda s: microseconds_text(s["time_us"]), True),
    ("share", lambda s: percent_text(s["time_share"]), True),
    ("of floor", lambda s: percent_text(s["share_of_floor"]), True),
    ("bound", lambda s: str(s["bound"]), False),
    ("launches", lambda s: str(s["launches"]), True),
    ("bytes", lambda s: bytes_text(s["bytes_model"]), True),
    ("FLOPs", lambda s: count_text(s["flops"]), True),
]
_EDGE_COLUMNS: list[Column] = [
    ("edge", lambda s: f"e{s['edge']}", False),
    ("value", lambda s: str(s["value_name"]), False),
    ("from", lambda s: str(s["producer_name"]), False),
    ("to", lambda s: str(s["consumer_name"]), False),
    ("size", lambda s: f"{s['dtype']} {s['shape']}, {bytes_text(s['bytes'])}", False),
    ("price", lambda s: microseconds_text(s["price_us"]), True),
    ("fused instead", lambda s: signed(s["other_us"]) if s["other_us"] == s["other_us"] else "-", True),
    ("verdict", lambda s: f"{s['state']} [{s['rule']}]" if s["rule"] else str(s["state"]), False),
    ("reason", lambda s: str(s["reason"]), False),
]


def _trade_offs(r: Results) -> str:
    good = r.trade_offs[r.trade_offs["status"] == "ok"].sort_values("median_ms")
    bad = r.trade_offs[r.trade_offs["status"] != "ok"]
    parts = [_table(good.head(25), _PLAN_COLUMNS)]
    if len(good) > 25:
        parts.append(_fold(_table(good.iloc[25:], _PLAN_COLUMNS), f"Slower plans ({len(good) - 25})"))
    if len(bad):
        parts.append(_fold(_table(bad, _FAILED_COLUMNS), f"Plans without a time, and why ({len(bad)})"))
    return "\n".join(parts)


def _edges(r: Results, most: int = 30) -> str:
    rows = unfused(r.verdicts)
    fused = len(r.verdicts) - len(rows)
    text = (
        f"<p>{len(r.verdicts)} edges between kernels: {fused} fused, {len(rows)} not. The price of an edge is what its bytes "
        'and its launch cost by the model; "fused instead" is how much longer the likely best plan with that edge fused takes.</p>'
    )
    if not len(rows):
        return text
    parts = [text, _table(rows.head(most), _EDGE_COLUMNS)]
    if len(rows) > most:
        parts.append(_fold(_table(rows.iloc[most:], _EDGE_COLUMNS), f"Cheaper edges ({len(rows) - most})"))
    return "\n".join(parts)


def _facts(r: Results) -> str:
    c, run = r.calibration, r.run
    rows = [
        ("command", run["command"]),
        ("seed", run["seed"]),
        ("device", f"{run['device']['name']} ({run['device']['kind']}, {run['device']['arch']})"),
        ("what the device reached", f"{c.bandwidth / 1e9:.1f} GB/s, {c.flops / 1e9:.0f} GFLOP/s, {c.launch * 1e6:.2g} us a launch"),
        ("graph", f"{run['nodes']} nodes from {run['onnx_nodes']} of ONNX; {len(run['host_nodes'])} run on the host"),
        ("structure, weights", f"{run['graph'][:16]}, {run['weights'][:16]}"),
        *sorted(run["environment"].items()),
    ]  # fmt: skip
    cells = "".join(f'<tr><td class="k">{escape(str(k))}</td><td>{escape(str(v))}</td></tr>' for k, v in rows)
    return f'<div class="scroll"><table>{cells}</table></div>'


def _table(rows: pd.DataFrame, columns: Sequence[Column]) -> str:
    head = "".join(f'<th{_class(number)}>{escape(name)}</th>' for name, _, number in columns)  # fmt: skip
    lines = []
    for _, row in rows.iterrows():
        best = ' class="best"' if "best" in row.index and row["best"] else ""
        cells = "".join(f"<td{_class(number)}>{escape(cell(row))}</td>" for _, cell, number in columns)
        lines.append(f"<tr{best}>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _class(number: bool) -> str:
    return ' class="n"' if number else ""


def _fold(inner: str, title: str, open_: bool = False) -> str:
    return f"<details{' open' if open_ else ''}><summary>{escape(title)}</summary>{inner}</details>"


def _figure(figure: Figure, description: str) -> str:
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<figure><img alt="{escape(description)}" src="data:image/svg+xml;base64,{data}"></figure>'
