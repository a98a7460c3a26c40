"""Building data frames whose column types do not depend on the rows: an empty table has the types of a full one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd

ColumnType = Literal["float64", "int64", "bool", "object"]


def typed(rows: Sequence[Mapping[str, object]], columns: Mapping[str, ColumnType]) -> pd.DataFrame:
    """A frame of the rows with exactly these columns in this order. Text and lists are "object"."""
    return pd.DataFrame({c: pd.Series([r[c] for r in rows], dtype=t) for c, t in columns.items()})


def columns(text: str) -> dict[str, ColumnType]:
    """Columns from a listing "name:f name:i name:b name" (float, integer, boolean, else object)."""
    kinds: dict[str, ColumnType] = {"f": "float64", "i": "int64", "b": "bool", "": "object"}
    pairs = (word.partition(":") for word in text.split())
    return {name: kinds[kind] for name, _, kind in pairs}
