"""Tables of candidates: the legal schedules of a variant, which of them are untried, and the nearest to a wish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autofuse.kernels.base import Choice as Value
from autofuse.kernels.base import Schedule, Variant


class Table:
    """The schedules of one variant, in the order of its search space; `open` marks the untried ones.

    `choices` are the categories of its family; a schedule is a row of positions in them, so that the distance to a wish is one numpy expression.
    """

    def __init__(
        self, variant: Variant, schedules: Sequence[Schedule], choices: Sequence[tuple[str, tuple[Value, ...]]]
    ) -> None:
        self.variant = variant
        self.schedules = tuple(schedules)
        self._at = {s: k for k, s in enumerate(self.schedules)}
        self._names = [name for name, _ in choices]
        self._positions = {name: {v: k for k, v in enumerate(values)} for name, values in choices}
        spans = [max(1, len(values) - 1) for _, values in choices]
        rows = [[self._positions[n].get(s.values.get(n, ""), 0) for n in self._names] for s in self.schedules]
        self._matrix = np.asarray(rows, np.float64).reshape(len(rows), len(spans)) / np.asarray(spans, np.float64)
        self._spans = spans
        self.open = np.ones(len(self.schedules), bool)

    @property
    def left(self) -> int:
        """How many are untried."""
        return int(self.open.sum())

    def untried(self) -> list[Schedule]:
        """The untried ones, in order."""
        return [self.schedules[k] for k in np.flatnonzero(self.open)]

    def close(self, schedule: Schedule) -> None:
        """Mark one as tried; others are no business of this table."""
        k = self._at.get(schedule)
        if k is not None:
            self.open[k] = False

    def named(self, text: str) -> Schedule | None:
        """The schedule with a text."""
        return next((s for s in self.schedules if s.text() == text), None)

    def nearest(self, wish: Mapping[str, object]) -> Schedule | None:
        """The untried schedule with the fewest steps to a wish; None where all are tried."""
        if not self.open.any():
            return None
        target = np.asarray(
            [self._position(n, wish.get(n)) / span for n, span in zip(self._names, self._spans, strict=True)]
        )
        distance = np.abs(self._matrix - target).sum(axis=1)
        distance[~self.open] = np.inf
        return self.schedules[int(np.argmin(distance))]

    def _position(self, name: str, value: object) -> int:
        for known, k in self._positions[name].items():
            if known == value:
                return k
        return 0
