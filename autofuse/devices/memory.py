"""Host memory for programs: aligned, in large pages where it is large, and used again once outputs are dropped."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from autofuse.errors import LaunchError

ALIGNMENT = 64
_HUGE = 2 << 20
_HUGE_FROM = 1 << 20  # what fills half of a large page gets one
_SMALL = 256 << 10  # below this a fresh numpy array costs less than keeping pages
_KEPT_BYTES = 512 << 20  # at most this much is kept for later outputs


class Memory:
    """Anonymous pages, aligned to 64 bytes and, from 1 MiB on, to large pages. Freed when nothing refers to it.

    They are private: shared ones (Python's default) never get large pages where a system gives none to shared memory, and a process
    that was forked would write into its parent's.
    """

    def __init__(self, size: int) -> None:
        huge = size >= _HUGE_FROM
        length = -(-size // _HUGE) * _HUGE + _HUGE if huge else max(size, 1)
        try:
            self._map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as e:
            raise LaunchError(f"{size / 1e6:.0f} MB of memory cannot be had: {e}") from e
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # large pages are an optimisation that a system may not offer
                self._map.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.address = -(-start // _HUGE) * _HUGE if huge else start
        self.size = size

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def poison(self) -> None:
        """Fill it with a pattern that is NaN in every float type."""
        ctypes.memset(self.address, 0xFF, self.size)


class _Loan:
    """Memory lent to an array that a caller owns; the pool gets it back when the last view of it is gone."""

    def __init__(self, memory: Memory, pool: OutputPool) -> None:
        self.__array_interface__ = memory.__array_interface__
        weakref.finalize(self, pool._take_back, memory).atexit = False


class OutputPool:
    """Gives out arrays for outputs, in memory whose pages earlier outputs have already faulted in."""

    def __init__(self) -> None:
        # a deque's append and popleft are atomic: finalizers may run in any thread at any time, so no lock is taken
        self._free: dict[int, deque[Memory]] = {}
        self._kept = 0

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """A new uninitialised array, aligned to 64 bytes."""
        n = math.prod(shape) * dtype.itemsize
        if n < _SMALL:
            raw = np.empty(n + ALIGNMENT, np.uint8)
            start = -raw.ctypes.data % ALIGNMENT
            return raw[start : start + n].view(dtype).reshape(shape)
        try:
            memory = self._free[n].popleft()
            self._kept -= n
        except (KeyError, IndexError):
            memory = Memory(n)
        return np.asarray(_Loan(memory, self)).view(dtype).reshape(shape)

    def _take_back(self, memory: Memory) -> None:
        if self._kept + memory.size <= _KEPT_BYTES:
            self._kept += memory.size
            self._free.setdefault(memory.size, deque()).append(memory)


def is_aligned(array: np.ndarray) -> bool:
    """Whether an array's first element lies at a multiple of 64 bytes."""
    return bool(array.ctypes.data % ALIGNMENT == 0)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy in aligned memory of its own."""
    out = np.asarray(Memory(max(array.nbytes, 1)))[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(out, array)
    return out


def together(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same arrays in the same order, small ones (below 2 MiB) as copies side by side in one memory, each at a multiple of 64 bytes.

    With pages of their own, hundreds of small weights would need as many entries of the TLB and begin at the same sets of a cache.
    """
    small = [k for k, a in enumerate(arrays) if a.nbytes < _HUGE]
    sizes = [-(-arrays[k].nbytes // ALIGNMENT) * ALIGNMENT for k in small]
    out = list(arrays)
    if not small:
        return out
    memory = np.asarray(Memory(sum(sizes)))
    start = 0
    for k, size in zip(small, sizes, strict=True):
        a = arrays[k]
        out[k] = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
        np.copyto(out[k], a)
        start += size
    return out
