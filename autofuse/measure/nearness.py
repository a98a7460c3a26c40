"""How near the cores of the threads are: a virtual machine's may share a last cache for some seconds and lie on two of them for the next.

What one thread wrote and another reads takes several times longer then. One thread alone, or arithmetic on all of them, is as fast as before;
a whole model may take 1.7 times as long, and another plan may be the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

APART = 3.0
"""Cores between which a cache line takes this many times longer than it was seen to take are further apart than they were. Seen were 26 ns (two
threads of one core), 60 to 70 ns (one last cache) and 330 ns (two of them); only the last makes models slower."""


@dataclass
class Nearness:
    """Round trips of a cache line between cores, in nanoseconds, as they were seen; 0 before any was. `apart` of `rounds` rounds were timed while the
    cores were further apart than they can be."""

    nearest: int = 0
    farthest: int = 0
    rounds: int = 0
    apart: int = 0

    def look(self, ns: int) -> bool:
        """Note a round trip; whether the cores are apart now. 0 means that nothing is known, and is not noted."""
        if ns <= 0:
            return False
        self.nearest = min(ns, self.nearest or ns)
        self.farthest = max(ns, self.farthest)
        return ns > APART * self.nearest

    def count(self, rounds: int, apart: bool) -> None:
        """Note that rounds were timed in such a state."""
        self.rounds += rounds
        self.apart += rounds if apart else 0

    def text(self) -> str:
        """In words; empty where nothing is known."""
        if self.farthest <= APART * self.nearest:
            return (
                f"a cache line took {self.nearest} ns from one thread's core to another and back"
                if self.nearest
                else ""
            )
        return (
            f"a cache line took {self.nearest} to {self.farthest} ns from one thread's core to another and back: the machine moves its "
            f"cores, and they were apart in {self.apart} of {self.rounds} final rounds"
        )


def near_rounds(exchange_ns: Sequence[int]) -> list[bool]:
    """Which rounds were timed with cores as near as they can be, by the round trips seen in each; all where nothing is known."""
    known = [ns for ns in exchange_ns if ns > 0]
    return [ns <= APART * min(known, default=0) or ns <= 0 for ns in exchange_ns]
