"""Memory that ends at pages nobody may touch: a kernel that reads or writes past its buffers ends the process.

In ordinary memory such an access hits whatever lies next and does no harm most of the time, so no test would fail.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
import pytest

from autofuse.devices import cpu, memory
from autofuse.devices.cpu import CpuExecutable

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class GuardedMemory(memory.Memory):
    """`size` bytes between two guard pages. They end where the second one begins, but for what `alignment` asks of their start."""

    def __init__(self, size: int, alignment: int = memory.ALIGNMENT) -> None:
        inner = -(-max(size, 1) // PAGE) * PAGE
        self._length = inner + 2 * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = _libc.mmap(None, self._length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        assert start not in (None, ctypes.c_void_p(-1).value), f"no {size} bytes: errno {ctypes.get_errno()}"
        self._start = start
        for page in (start, start + PAGE + inner):
            assert _libc.mprotect(page, PAGE, 0) == 0
        self.address = start + PAGE + (inner - size) // alignment * alignment
        self.size = size

    def __del__(self) -> None:
        _libc.munmap(self._start, self._length)


def guarded_copy(array: np.ndarray) -> np.ndarray:
    """A copy whose last element lies right before a guard page; aligned to its elements only, which is all that readers may rely on."""
    place = GuardedMemory(array.nbytes, max(1, array.itemsize))
    out = np.asarray(place)[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(out, array)
    return out


def install(patch: pytest.MonkeyPatch) -> None:
    """Give the CPU device guarded memory for constants, arenas, outputs and, by a copy, for inputs."""
    patch.setattr(memory, "Memory", GuardedMemory)
    patch.setattr(cpu, "Memory", GuardedMemory)
    patch.setattr(memory, "_SMALL", 0)
    patch.setattr(cpu, "_COPIED_BYTES", -1)
    patch.setattr(cpu, "is_aligned", lambda array: False)
    patch.setattr(cpu, "aligned_copy", guarded_copy)
    plain = CpuExecutable.run

    def run(self: CpuExecutable, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return plain(self, [guarded_copy(a) if type(a) is np.ndarray else a for a in inputs])

    patch.setattr(CpuExecutable, "run", run)
