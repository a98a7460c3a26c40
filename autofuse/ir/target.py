"""What a device can do, as plain data: the limits that legality, schedules and lowering look at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A device's limits. Sizes are bytes unless said otherwise.

    `kind` is "cpu", "cuda" or "cuda-emulated"; `dialect` is the renderer ("cpp" or "cuda"); `arch` is what compiled code depends on:
    another arch needs another tune ("x86-64-avx512", "sm_90").
    """

    kind: str
    dialect: str
    arch: str
    name: str
    vector_bytes: int
    vector_registers: int
    cores: int
    max_threads_per_block: int
    warp: int
    shared_memory: int
    registers_per_thread: int
    l1: int
    l2: int
    l3: int
    max_parameters: int

    @property
    def is_cuda(self) -> bool:
        """True where kernels are rendered as CUDA C++."""
        return self.dialect == "cuda"

    def lanes(self, itemsize: int) -> int:
        """Elements of that size in one vector."""
        return max(1, self.vector_bytes // itemsize)
