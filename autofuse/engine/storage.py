"""Storage: which memory each value lies in, from liveness.

A storage is a value in a layout. Views make storages share memory at an offset: an alias lies in what it views, a part of an in-place join
lies in the joined tensor. What shares memory forms one root, alive from its first write to its last read; roots get arena
offsets by the greedy-by-size rule (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGN = 64


@dataclass(frozen=True)
class Interval:
    """A root's bytes and the steps (inclusive) during which it is alive."""

    nbytes: int
    first: int
    last: int


def place(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """Arena offsets of all intervals, and the arena's size in bytes. Largest first, each into the lowest gap that fits."""
    order = sorted(range(len(intervals)), key=lambda k: (-intervals[k].nbytes, intervals[k].first))
    offsets = [0] * len(intervals)
    placed: list[int] = []
    size = 0
    for k in order:
        mine = intervals[k]
        need = -(-mine.nbytes // ALIGN) * ALIGN
        busy = sorted(
            (offsets[j], offsets[j] + -(-intervals[j].nbytes // ALIGN) * ALIGN)
            for j in placed
            if intervals[j].first <= mine.last and mine.first <= intervals[j].last
        )
        at = 0
        for begin, end in busy:
            if begin - at >= need:
                break
            at = max(at, end)
        offsets[k] = at
        placed.append(k)
        size = max(size, at + need)
    return offsets, size


class Sharing:
    """Storages that share memory: a forest in which every storage lies at a byte offset in its parent."""

    def __init__(self) -> None:
        self._parent: list[tuple[int, int]] = []

    def add(self) -> int:
        """A new storage with memory of its own."""
        self._parent.append((len(self._parent), 0))
        return len(self._parent) - 1

    def root(self, s: int) -> tuple[int, int]:
        """The root of a storage and the byte offset in it."""
        offset = 0
        while self._parent[s][0] != s:
            offset += self._parent[s][1]
            s = self._parent[s][0]
        return s, offset

    def put(self, part: int, whole: int, offset: int) -> None:
        """Make the root `part` lie in `whole` at a byte offset."""
        root, inside = self.root(part)
        if root != part or inside:
            raise ValueError(f"storage {part} already lies in storage {root}")
        self._parent[part] = (whole, offset)
