"""A stand-in for CuPy on machines without a GPU: memory is the host's, kernels run under emulation, graphs are lists of launches.

It has just what devices/cuda.py uses, with CuPy's names and argument orders, so that the device's own logic (addresses, capture and
replay, copies, timing) can be tested.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from autofuse.devices.emulated import aligned_bytes
from autofuse.devices.emulation_build import EmulationCompiler, emulate
from autofuse.loops.ir import Kernel
from autofuse.render.cuda import dynamic_shared_bytes, launch_grid


class CudaError(RuntimeError):
    """What CuPy raises for errors of CUDA."""


class OutOfMemory(MemoryError):
    """What CuPy raises where memory is full."""


class FakeStream:
    current: FakeStream | None = None

    def __init__(self, non_blocking: bool = False) -> None:
        self.ptr = 1
        self.recorded: list[Callable[[], None]] | None = None
        self.before: FakeStream | None = None

    def __enter__(self) -> FakeStream:
        self.before, FakeStream.current = FakeStream.current, self
        return self

    def __exit__(self, *_: object) -> None:
        FakeStream.current = self.before

    def begin_capture(self) -> None:
        assert FakeStream.current is self and self.recorded is None
        self.recorded = []

    def end_capture(self) -> SimpleNamespace:
        recorded, self.recorded = self.recorded, None
        assert recorded is not None

        def launch(stream: FakeStream) -> None:
            for action in recorded:
                action()

        return SimpleNamespace(launch=launch)

    def synchronize(self) -> None:
        assert self.recorded is None, "a stream that is being captured cannot be waited for"


class FakeFunction:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.num_regs = 32
        self.max_dynamic_shared_size_bytes = 0

    def __call__(
        self, grid: tuple[int, int], block: tuple[int], args: tuple[np.uint64, ...], shared_mem: int = 0
    ) -> None:
        kernel = self.kernel
        assert grid == launch_grid(kernel) and block == (kernel.threads,)
        assert shared_mem == dynamic_shared_bytes(kernel) <= max(self.max_dynamic_shared_size_bytes, 0)
        assert all(type(a) is np.uint64 for a in args)
        assert FakeStream.current is not None, "a launch goes to the current stream"

        def run() -> None:
            emulate(kernel, EmulationCompiler().build(kernel), [int(a) for a in args], 0)

        if FakeStream.current.recorded is not None:
            FakeStream.current.recorded.append(run)
        else:
            run()


class FakeDevice:
    compute_capability = "90"

    def __init__(self, index: int = 0) -> None:
        self.id = index

    def __enter__(self) -> FakeDevice:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakeCupy:
    """The module. `kernels` tells which kernel a cubin holds; `limit` is the GPU's memory in bytes."""

    def __init__(self, gpus: int = 1, limit: int = 1 << 30) -> None:
        self.gpus, self.limit, self.clock = gpus, limit, 0.0
        self.kernels: dict[str, Kernel] = {}
        attributes = {
            "MultiProcessorCount": 132,
            "MaxSharedMemoryPerBlockOptin": 227 * 1024,
            "MaxSharedMemoryPerMultiprocessor": 228 * 1024,
            "L2CacheSize": 1 << 16,
        }
        names = list(attributes)
        runtime = SimpleNamespace(
            CUDARuntimeError=CudaError,
            getDeviceCount=self._count,
            getDeviceProperties=lambda i: {"name": b"Fake GPU", "uuid": bytes(range(16))},
            deviceGetAttribute=lambda number, i: attributes[names[number]],
            memcpyAsync=lambda dst, src, size, kind, stream: ctypes.memmove(dst, src, size) and None,
            memsetAsync=lambda dst, value, size, stream: ctypes.memset(dst, value, size) and None,
            **{f"cudaDevAttr{name}": k for k, name in enumerate(names)},
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            driver=SimpleNamespace(CUDADriverError=CudaError),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemory),
            Device=FakeDevice,
            Stream=FakeStream,
            Event=lambda: SimpleNamespace(record=self._tick, at=0.0),
            MemoryPool=lambda: SimpleNamespace(malloc=self._malloc, free_all_blocks=lambda: None),
            get_elapsed_time=lambda a, b: 0.25,
        )

    def _count(self) -> int:
        if self.gpus == 0:
            raise CudaError("cudaErrorNoDevice: no CUDA-capable device is detected")
        return self.gpus

    def _tick(self, stream: FakeStream) -> None:
        assert isinstance(stream, FakeStream)

    def _malloc(self, size: int) -> Any:
        if size > self.limit:
            raise OutOfMemory(f"Out of memory allocating {size} bytes")
        memory = aligned_bytes(size)
        return SimpleNamespace(ptr=memory.ctypes.data, memory=memory)

    def RawModule(self, path: str) -> Any:
        return SimpleNamespace(get_function=lambda name: FakeFunction(self.kernels[path]))
