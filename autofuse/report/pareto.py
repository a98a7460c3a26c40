"""Pareto fronts: what nothing else beats in everything at once."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

OBJECTIVES = ("median_ms", "peak_bytes", "error_step")
"""What the Pareto flag of the trade-off table weighs against each other; less is better in each."""


def front(points: np.ndarray) -> np.ndarray:
    """Which rows of `points` (n x objectives, less is better) no other row beats.

    A row is beaten by one that is nowhere worse and somewhere better; equal rows stand together. Rows with NaN never stand.
    """
    values = np.asarray(points, dtype=np.float64)
    standing: np.ndarray = np.asarray(~np.isnan(values).any(axis=1))
    for k in np.flatnonzero(standing):
        others = values[standing]
        no_worse = (others <= values[k]).all(axis=1)
        better = (others < values[k]).any(axis=1)
        if (no_worse & better).any():
            standing[k] = False
    return standing


def error_step(error: float) -> float:
    """An error rounded up to 1, 2 or 5 times a power of ten.

    Two orders of summation differ in the last digit for no good reason: that alone shall put no plan on the front.
    """
    if not error > 0 or math.isinf(error):
        return error
    exponent = math.floor(math.log10(error))
    lead = error / 10**exponent
    for step in (1.0, 2.0, 5.0):
        if lead <= step * (1 + 1e-9):
            return step * 10.0**exponent
    return 10.0 ** (exponent + 1)


def flags(table: pd.DataFrame) -> pd.Series:
    """The Pareto flag of each row of a trade-off table; rows that did not run right have none."""
    good = (table["status"] == "ok").to_numpy()
    points = np.column_stack(
        [
            table["median_ms"].to_numpy(dtype=np.float64),
            table["peak_bytes"].to_numpy(dtype=np.float64),
            np.array([error_step(float(e)) for e in table["error"]], dtype=np.float64),
        ]
    )
    points[~good] = np.nan
    return pd.Series(front(points), index=table.index, name="pareto")
