"""Quantities in words: three significant digits and a unit that fits."""

from __future__ import annotations

import math


def scaled(value: float, units: tuple[str, ...], step: float) -> str:
    """The value in the largest of `units` that keeps it at 1 or more; each unit is `step` times the one before."""
    if math.isnan(value):
        return "-"
    k = 0
    while k < len(units) - 1 and abs(value) >= step:
        value /= step
        k += 1
    if k == 0 and value == int(value):
        return f"{int(value)} {units[k]}"
    # '#' keeps trailing zeros, so that columns of figures have equal precision
    digits = f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:.0f}"
    return f"{digits} {units[k]}"


def bytes_text(n: float) -> str:
    """Bytes in binary units."""
    return scaled(float(n), ("B", "KiB", "MiB", "GiB", "TiB"), 1024.0)


def microseconds_text(us: float) -> str:
    """A duration given in microseconds."""
    return scaled(float(us) * 1000, ("ns", "us", "ms", "s"), 1000.0)


def milliseconds_text(ms: float) -> str:
    """A duration given in milliseconds."""
    return microseconds_text(float(ms) * 1000)


def count_text(n: float) -> str:
    """A count in decimal units, for FLOPs."""
    return scaled(float(n), ("", "k", "M", "G", "T", "P"), 1000.0).rstrip()


def percent_text(share: float) -> str:
    """A share as a percentage."""
    return "-" if math.isnan(share) else f"{100 * share:.0f} %"


def gain_text(gain: float) -> str:
    """A ratio of times: 1.85x."""
    return "-" if math.isnan(gain) else f"{gain:.2f}x"


def off_text(share: float) -> str:
    """A relative difference with its sign: -14 %."""
    return "-" if math.isnan(share) else f"{100 * share:+.0f} %"
