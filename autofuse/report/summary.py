"""The outcome of a tune in a few lines, for people and for machines."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autofuse.measure import racing
from autofuse.report import terminal
from autofuse.report.results import Results
from autofuse.report.tables import reference_row
from autofuse.report.units import gain_text, milliseconds_text, percent_text

TIE = 0.02
"""A difference from a peer of this share is no gain: repeats of one plan differ by as much."""


def gained(r: Results) -> bool:
    """Whether the best plan is faster than the unfused one by more than the noise: sample by sample, as both ran in the same rounds."""
    first = reference_row(r.trade_offs)
    if first is None or r.best is None:
        return False
    noise = r.run.get("noise") or {}
    repeats = int(r.best.get("repeats", 1))
    if repeats != int(first.get("repeats", 1)):
        return False  # not of the same rounds
    found = racing.compare(
        list(r.best["samples_ns"]),
        list(first["samples_ns"]),
        notable=float(noise.get("notable", racing.NOTABLE)),
        repeats=repeats,
    )
    return found.winner == "a"


def verdict(r: Results) -> str:
    """What was gained, plainly; also when it is nothing."""
    best = r.best
    if best is None:
        return "No plan ran right; the table says why."
    gain = float(best["gain"])
    time = milliseconds_text(float(best["median_ms"]))
    share = percent_text(float(best["share_of_floor"]))
    rest = f"{_launches(int(best['launches']))}; the floor is {share} of its time, it is {best['bound']}-bound"
    first = reference_row(r.trade_offs)
    if first is None:
        return f"Best plan: {time}, {rest}. The unfused plan did not run right, so there is no gain to quote."
    if not gained(r):
        unfused = milliseconds_text(float(first["median_ms"]))
        return f"Nothing gained beyond the noise: the best plan takes {time}, the unfused one {unfused}; {rest}."
    return f"Best plan: {time}, {gain_text(gain)} over the unfused plan; {rest}."


def _launches(n: int) -> str:
    return "1 launch" if n == 1 else f"{n} launches"


def peers(r: Results) -> list[str]:
    """How the best plan stands against peers that were measured beside it."""
    if r.best is None:
        return []
    mine = float(r.best["median_ms"])
    found = []
    for name, (_, middle, _) in r.baselines.items():
        ratio = middle / mine
        words = f"{gain_text(ratio)} as fast as" if ratio >= 1 + TIE else "as fast as"
        if ratio <= 1 - TIE:
            words = f"slower ({gain_text(1 / ratio)} the time) than"
        found.append(f"{words} {name} ({milliseconds_text(middle)})")
    return found


def text(r: Results) -> RenderableType:
    """What `tune` prints at its end."""
    parts: list[RenderableType] = [terminal.gains(r)]
    failures = terminal.failures(r.trade_offs, most=4)
    if failures is not None:
        parts.append(failures)
    parts.append(Text(verdict(r), style="bold"))
    parts += [Text(f"It is {line}.") for line in peers(r)]
    hosts = r.run["host_nodes"]
    if hosts:
        parts.append(Text(f"{len(hosts)} nodes have no kernel and ran on the host: {', '.join(hosts[:8])}"))
    parts += [Text(f"Note: {n}") for n in r.run["notes"]]
    return Group(*parts)


def as_json(r: Results) -> dict[str, Any]:
    """The same for machines."""
    best = r.best
    keys = (
        "median_ms",
        "p10_ms",
        "p90_ms",
        "gain",
        "launches",
        "bytes_model",
        "flops",
        "share_of_floor",
        "bound",
        "peak_bytes",
        "error",
    )
    return {
        "model": r.run["model"],
        "device": dict(r.run["device"]),
        "folder": str(r.path),
        "plan": r.plan.key,
        "best": None if best is None else {k: best[k] for k in keys},
        "floor_ms": r.floor_ms,
        "steps": r.steps.to_dict(orient="records"),
        "baselines": {name: {"p10_ms": a, "median_ms": b, "p90_ms": c} for name, (a, b, c) in r.baselines.items()},
        "plans": len(r.trade_offs),
        "plans_failed": int((r.trade_offs["status"] != "ok").sum()),
        "kernels": len(r.kernels),
        "seconds": r.run["seconds"],
        "interrupted": r.run["interrupted"],
        "gained": gained(r),
        "verdict": verdict(r),
        "notes": list(r.run["notes"]),
    }
