"""Tables of candidates: the legal schedules of a variant, which of them are untried, and the nearest to a wish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autofuse.kernels.base import Choice as Value
from autofuse.kernels.base import Schedule, Variant


class Legal:
    """The legal schedules of a family under certain facts, in the order of its search space: variants with the same facts share them.

    A schedule is a row of positions in the family's choices, so that the distance to a wish is one numpy expression.
    """

    def __init__(self, schedules: Sequence[Schedule], choices: Sequence[tuple[str, tuple[Value, ...]]]) -> None:
        self.schedules = tuple(schedules)
        self.at = {s: k for k, s in enumerate(self.schedules)}
        self._positions = [(name, {v: k for k, v in enumerate(values)}) for name, values in choices]
        self._spans = np.asarray([max(1, len(values) - 1) for _, values in choices], np.float64)
        rows = [[where.get(value, 0) for value, (_, where) in self._aligned(s)] for s in self.schedules]
        self._matrix = np.asarray(rows, np.float64).reshape(len(rows), len(self._spans)) / self._spans

    def _aligned(self, s: Schedule) -> list[tuple[Value, tuple[str, dict[Value, int]]]]:
        values = s.values
        return [(values.get(p[0], ""), p) for p in self._positions]

    def distance(self, wish: Mapping[str, object]) -> np.ndarray:
        """How many steps each schedule lies from a wish, in parts of each choice's list."""
        target = [_position(where, wish.get(name)) for name, where in self._positions]
        return np.asarray(np.abs(self._matrix - np.asarray(target, np.float64) / self._spans).sum(axis=1))


def _position(where: Mapping[Value, int], value: object) -> int:
    return where.get(value, 0) if isinstance(value, int | str) else 0


class Table:
    """The legal schedules of one variant; `open` marks the untried ones."""

    def __init__(self, variant: Variant, legal: Legal) -> None:
        self.variant = variant
        self._legal = legal
        self.open = np.ones(len(legal.schedules), bool)

    @property
    def left(self) -> int:
        """How many are untried."""
        return int(self.open.sum())

    def untried(self) -> list[Schedule]:
        """The untried ones, in order."""
        return [self._legal.schedules[k] for k in np.flatnonzero(self.open)]

    def close(self, schedule: Schedule) -> None:
        """Mark one as tried; others are no business of this table."""
        k = self._legal.at.get(schedule)
        if k is not None:
            self.open[k] = False

    def named(self, text: str) -> Schedule | None:
        """The schedule with a text."""
        return next((s for s in self._legal.schedules if s.text() == text), None)

    def nearest(self, wish: Mapping[str, object]) -> Schedule | None:
        """The untried schedule with the fewest steps to a wish; None where all are tried."""
        if not self.open.any():
            return None
        distance = self._legal.distance(wish)
        distance[~self.open] = np.inf
        return self._legal.schedules[int(np.argmin(distance))]
