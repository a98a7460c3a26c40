"""Tables of what `run`, `verify`, `doctor` and `cache` have to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autofuse.report.console import cells, error_text, table
from autofuse.report.units import bytes_text, microseconds_text, milliseconds_text, percent_text


def outputs(facts: Mapping[str, Mapping[str, object]]) -> Table:
    """Outputs in a few figures each."""
    found = table("", "output", "type", "shape", ">min", ">max", ">mean")
    for name, f in facts.items():
        numbers = [f"{x:.4g}" if isinstance(x, float) else "-" for x in (f["min"], f["max"], f["mean"])]
        shape = f["shape"]
        text = "x".join(map(str, shape)) or "scalar" if isinstance(shape, list) else "-"
        found.add_row(*cells(name, f["type"], text, *numbers))
    return found


def profile(rows: pd.DataFrame, whole_ms: float) -> Group:
    """Time and bytes of each kernel, in the order of running."""
    found = table(
        f"{len(rows)} launches, one run {milliseconds_text(whole_ms)}",
        ">launch", ">region", "operators", "implementation", ">time", ">share", ">bytes", ">GB/s", ">GFLOP/s",
    )  # fmt: skip
    for r in rows.to_dict(orient="records"):
        found.add_row(
            *cells(
                r["launch"], r["region"], r["operators"], r["implementation"], microseconds_text(r["time_us"]),
                percent_text(r["time_share"]), bytes_text(r["bytes"]), f"{r['gbytes_per_s']:.1f}", f"{r['gflops']:.1f}",
            )
        )  # fmt: skip
    total = float(rows["time_us"].sum()) / 1000
    parts: list[RenderableType] = [found]
    if whole_ms == whole_ms and total > 0:
        between = whole_ms - total
        parts.append(
            Text(f"kernels together {milliseconds_text(total)}; between them {milliseconds_text(max(between, 0.0))}")
        )
    return Group(*parts)


def verification(errors: Mapping[str, float], oracle: str, refused: Mapping[str, str]) -> Group:
    """The error of each output, and who was asked."""
    found = table("", "output", ">largest relative error")
    for name, error in errors.items():
        found.add_row(*cells(name, error_text(error)))
    parts: list[RenderableType] = [Text(f"Compared with {oracle}:", style="bold"), found]
    parts += [Text(f"{name} could not run this model: {why}") for name, why in refused.items()]
    return Group(*parts)


def listing(title: str, rows: Mapping[str, object]) -> Table:
    """Facts by name."""
    found = table(title, "", "")
    for name, value in rows.items():
        found.add_row(*cells(name, value))
    return found


_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}


def diagnosis(rows: Sequence[tuple[str, str, str, str]]) -> Table:
    """Topic, state, text and mend of each finding."""
    found = table("", "", "", "found", "mend")
    for topic, state, text, mend in rows:
        found.add_row(Text(topic), Text(state, style=_STYLES[state]), Text(text), Text(mend))
    return found


def operators(rows: Sequence[tuple[str, str, int, str, Sequence[str], Sequence[str]]]) -> Group:
    """Operators by domain: since which version, how they run, for which types there are kernels, what they may fuse into."""
    parts: list[RenderableType] = []
    for domain in dict.fromkeys(r[0] for r in rows):
        found = table(domain, "operator", ">since", "runs as", "types", "fuses into")
        for _, name, since, how, types, fuses in (r for r in rows if r[0] == domain):
            found.add_row(*cells(name, since, how, _types_text(types), " ".join(fuses) or "-"))
        parts.append(found)
    parts.append(
        Text(
            "definition: by the standard's function body, in terms of operators with kernels. host: in onnx's reference evaluator, slower, "
            "never refused. --json and --markdown give more."
        )
    )
    return Group(*parts)


_WIDTHS = {"int": ("int8", "int16", "int32", "int64"), "uint": ("uint8", "uint16", "uint32", "uint64")}


def _types_text(types: Sequence[str]) -> str:
    """Types in short: all widths of a kind as one word."""
    left = list(types)
    for word, widths in _WIDTHS.items():
        if set(widths) <= set(left):
            left = [*(t for t in left if t not in widths), word]
    return " ".join(left) or "-"
