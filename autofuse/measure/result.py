"""What came of trying something: its status and reason, and raw samples. A failure is never a number."""

from __future__ import annotations

import enum
import statistics
from dataclasses import dataclass, field


class Status(enum.StrEnum):
    """How a trial of a kernel or a plan ended."""

    OK = "ok"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    COMPILE_FAILED = "compile-failed"
    OUT_OF_MEMORY = "out-of-memory"
    SKIPPED = "skipped"
    """Correct, but not timed: the budget ended first, or the first shot was far behind."""


@dataclass(frozen=True)
class Opened:
    """A candidate that was loaded and checked. `error` is the largest deviation over the tolerance's scale max|ref|."""

    status: Status
    reason: str = ""
    error: float = float("nan")
    seconds: float = 0.0
    """Spent loading and checking."""
    launches: int = 0
    bytes_model: int = 0
    flops: int = 0
    peak_bytes: int = 0
    weight_bytes: int = 0
    region_of_launch: tuple[int, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    """Kernel texts of an engine by kernel key, where they were asked for."""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK


@dataclass(frozen=True)
class Measurement:
    """A kernel with a schedule as it was observed on one device. `key` is the digest of its texts, flags and compiler.

    `state` is the cache state that it was timed in: "rotated" where weights came from memory, else "warm".
    """

    key: str
    signature: str
    family: str
    algorithm: str
    layouts: str
    schedule: str
    status: Status
    reason: str = ""
    samples_ns: tuple[int, ...] = ()
    error: float = float("nan")
    compile_seconds: float = 0.0
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    flops: int = 0
    bytes_model: int = 0
    state: str = "warm"
    repeats: int = 1
    """Samples of one round, which lie side by side."""
    noisy: tuple[int, ...] = ()
    """Positions of samples that were taken while the machine was noisier than it had been."""
    cached: bool = field(default=False, compare=False)
    tune: str = field(default="", compare=False)
    """The tune that a cached one is of, "" where that is not known."""

    @property
    def ok(self) -> bool:
        """Whether it may be used and has a time."""
        return self.status is Status.OK and len(self.samples_ns) > 0

    @property
    def seconds(self) -> float:
        """Median of the samples in seconds; infinity where there is none."""
        return statistics.median(self.samples_ns) * 1e-9 if self.samples_ns else float("inf")
