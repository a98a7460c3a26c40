"""The look of all plots: colours that colour-blind people can tell apart, a marker besides every colour, black on white for print."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator

from autofuse.report.units import bytes_text


@dataclass(frozen=True)
class Mark:
    """How one class of things looks everywhere. `hatch` tells filled areas apart in print."""

    colour: str
    marker: str
    label: str
    hatch: str = ""


# the palette of Okabe and Ito
BLACK, GREY = "#222222", "#8a8a8a"
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"

STEP_MARKS = {
    "unfused": Mark(GREY, "s", "unfused"),
    "tuned": Mark(SKY, "^", "tuned, not fused", "//"),
    "fused": Mark(BLUE, "o", "fused", ""),
    "other-algorithm": Mark(ORANGE, "D", "other algorithm", "xx"),
}
BASELINE_MARK = Mark("#ffffff", "P", "peer", "..")
KIND_MARKS = {
    "contract": Mark(BLUE, "o", "contraction"),
    "reduce": Mark(ORANGE, "^", "reduction"),
    "map": Mark(GREEN, "s", "element-wise"),
    "scan": Mark(PURPLE, "D", "recurrence"),
    "host": Mark(GREY, "X", "host"),
    "control": Mark(SKY, "P", "control flow"),
}

_RC: Any = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": BLACK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "xtick.color": BLACK,
    "ytick.color": BLACK,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "autofuse",
    "svg.fonttype": "path",
}


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's settings for one plot; nothing global is changed."""
    with matplotlib.rc_context(_RC):
        yield


class Plot(Figure):
    """A figure that notebooks show by themselves, whatever backend pyplot has."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def new_figure(width: float = 6.2, height: float = 4.1) -> tuple[Figure, Axes]:
    """A figure of its own, unknown to pyplot: no window opens and nothing has to be closed."""
    figure = Plot(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def byte_axis(axes: Axes, which: str) -> None:
    """Ticks at round binary sizes."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if axis.get_scale() == "linear":
        axis.set_major_locator(_BinaryLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: bytes_text(v).replace(".00 ", " ").replace(".0 ", " ")))


class _BinaryLocator(Locator):
    """At most six ticks, a power of two apart."""

    def __call__(self) -> list[float]:
        low, high = self.axis.get_view_interval() if self.axis is not None else (0.0, 1.0)
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """The multiples of the step between two sizes."""
        step = 1.0
        while (vmax - vmin) / step > 5:
            step *= 2
        return [k * step for k in range(math.ceil(vmin / step), math.floor(vmax / step) + 1)]


def nothing(axes: Axes, text: str) -> None:
    """Say in the middle of empty axes why they are empty."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=GREY, wrap=True)
