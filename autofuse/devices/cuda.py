"""CUDA GPUs through CuPy: memory, launches, graphs and events. CuPy is optional and imported only when a GPU is used.

Kernels are compiled by NVRTC (devices/nvrtc.py) and loaded as machine code, so what runs is what was reported on. A program is captured
once in a CUDA graph: a run costs one launch, however many kernels it has.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from autofuse.devices.arguments import check_count, check_inputs, check_place
from autofuse.devices.base import BufferRef, Compiled, Device, Executable, Launch, Program
from autofuse.devices.cache import KernelCache
from autofuse.devices.cuda_targets import make_target
from autofuse.devices.nvrtc import CubinCompiler, cuda_source
from autofuse.errors import LaunchError, ToolchainError
from autofuse.ir.target import Target
from autofuse.loops.ir import Buffer, Kernel, Rendered, loops_of
from autofuse.render.cuda import KERNEL_NAME, dynamic_shared_bytes, launch_grid

_TO_DEVICE, _TO_HOST = 1, 2
_MEND = 'run: pip install "autofuse[cuda12]" (or "autofuse[cuda13]" for a driver of CUDA 13)'
_POISON = 0xFF


@lru_cache(maxsize=1)
def _cupy() -> Any:
    try:
        # optional: machines without a GPU don't have it
        import cupy
    except ImportError as e:
        raise ToolchainError(f"CuPy, which runs kernels on a GPU, cannot be imported ({e}). To get it, {_MEND}") from e
    return cupy


def device_count() -> int:
    """How many GPUs can be used. ToolchainError where CuPy is missing; 0 where there is no driver or no GPU."""
    cupy = _cupy()
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    """CUDA's own errors as LaunchError."""
    cupy = _cupy()
    try:
        yield
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as e:
        raise LaunchError(f"{what}: CUDA reports {e}") from e
    except cupy.cuda.memory.OutOfMemoryError as e:
        raise LaunchError(f"{what}: the GPU's memory is full ({e}). Close other programs or use a smaller batch") from e


class CudaDevice:
    """One GPU, by its CUDA index."""

    def __init__(self, index: int = 0, cache: KernelCache | None = None) -> None:
        count = device_count()
        if index >= count:
            raise ToolchainError(
                f"GPU {index} was asked for, but CUDA finds {count}. Check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES; "
                "without a GPU, use --device cpu"
            )
        self.index = index
        self._target = _target_of(index)
        self._compiler = CubinCompiler(cache)
        known = self._compiler.nvrtc.architectures()
        if self._target.arch not in known:
            raise ToolchainError(
                f"NVRTC {self._compiler.nvrtc.version} makes no code for {self._target.arch} (it knows {', '.join(known)}). "
                f"Another version may: {_MEND}"
            )

    @property
    def target(self) -> Target:
        return self._target

    @property
    def threads(self) -> int:
        return 1

    @property
    def uuid(self) -> str:
        """The GPU's own identity, which stays when indices change."""
        return bytes(_cupy().cuda.runtime.getDeviceProperties(self.index)["uuid"]).hex()

    def text(self, kernel: Kernel) -> str:
        return cuda_source(kernel)

    def compile(self, kernels: Iterable[Kernel | Rendered]) -> list[Compiled | Exception]:
        return self._compiler.compiled([loops_of(k) for k in kernels], self._target.arch)

    def load(self, program: Program) -> Executable:
        compiled = self.compile([loops_of(launch.kernel) for launch in program.launches])
        return CudaExecutable(self.index, self._target, program, compiled)


def _target_of(index: int) -> Target:
    """A GPU's limits, as the driver gives them."""
    runtime = _cupy().cuda.runtime

    def attribute(name: str) -> int:
        return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), index))

    with _reported(f"GPU {index}"):
        arch = f"sm_{_cupy().cuda.Device(index).compute_capability}"
        name = runtime.getDeviceProperties(index)["name"]
        return make_target(
            arch,
            "cuda",
            name.decode() if isinstance(name, bytes) else str(name),
            attribute("MultiProcessorCount"),
            attribute("MaxSharedMemoryPerBlockOptin"),
            attribute("MaxSharedMemoryPerMultiprocessor"),
            attribute("L2CacheSize"),
        )


@dataclass(frozen=True)
class _Step:
    """A launch that is ready: CuPy's kernel, its grid and block, and its arguments as addresses."""

    label: str
    kernel: Any
    grid: tuple[int, int]
    block: tuple[int]
    arguments: tuple[np.uint64, ...]
    shared: int

    def launch(self) -> None:
        """Enqueue on the current stream."""
        self.kernel(self.grid, self.block, self.arguments, shared_mem=self.shared)


@dataclass(frozen=True)
class _Memory:
    """A piece of the GPU's memory. The pointer keeps it alive."""

    pointer: Any
    size: int

    @property
    def address(self) -> int:
        return int(self.pointer.ptr)


class CudaExecutable:
    """A program on a GPU: its memory, its kernels and its graph."""

    def __init__(self, index: int, target: Target, program: Program, compiled: Sequence[Compiled | Exception]) -> None:
        for c in compiled:
            if isinstance(c, Exception):
                raise c
        self._program = program
        self._cupy = _cupy()
        self._device = self._cupy.cuda.Device(index)
        self._graph: Any = None
        self._closed = False
        with _reported("loading a program"), self._device:
            self._pool = self._cupy.cuda.MemoryPool()
            # a stream of its own: the default one would wait for everybody
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            self._arena = self._memory(program.arena_bytes)
            self._constants = [self._uploaded(c) for c in program.constants]
            self._inputs = [self._memory(_bytes(p.shape, p.dtype.itemsize)) for p in program.inputs]
            self._outputs = [self._memory(_bytes(p.shape, p.dtype.itemsize)) for p in program.outputs]
            # written between timed runs, so that they don't find their inputs and weights in the L2 cache
            self._flush = self._memory(2 * target.l2)
            self._modules: dict[str, Any] = {}
            self._steps = [
                self._step(launch, c)
                for launch, c in zip(program.launches, compiled, strict=True)
                if isinstance(c, Compiled)
            ]
            self._poison()
            self._stream.synchronize()

    # ---- setting up

    def _memory(self, size: int) -> _Memory:
        return _Memory(self._pool.malloc(max(size, 1)), size)

    def _uploaded(self, array: np.ndarray) -> _Memory:
        memory = self._memory(array.nbytes)
        self._copy_in(memory, array)
        return memory

    def _step(self, launch: Launch, compiled: Compiled) -> _Step:
        kernel = loops_of(launch.kernel)
        label = launch.label or kernel.family
        check_count(label, launch, kernel)
        if compiled.path not in self._modules:
            self._modules[compiled.path] = self._cupy.RawModule(path=compiled.path)
        function = self._modules[compiled.path].get_function(KERNEL_NAME)
        with _reported(f"loading the kernel of launch {label}"):
            # asking for an attribute loads the kernel now: while a graph is captured it could not be
            _ = function.num_regs
        dynamic = dynamic_shared_bytes(kernel)
        if dynamic:
            function.max_dynamic_shared_size_bytes = dynamic
        arguments = tuple(
            np.uint64(self._address(label, ref, b)) for ref, b in zip(launch.arguments, kernel.params, strict=True)
        )
        return _Step(label, function, launch_grid(kernel), (kernel.threads,), arguments, dynamic)

    def _address(self, label: str, ref: BufferRef, buffer: Buffer) -> int:
        """Where an argument lies; LaunchError where it does not lie inside its place."""
        match ref.place:
            case "arena":
                memory = self._arena
            case "constant":
                memory = self._constants[ref.index]
            case "input":
                memory = self._inputs[ref.index]
            case "output":
                memory = self._outputs[ref.index]
        check_place(label, ref, buffer, memory.size)
        return memory.address + ref.offset

    def _poison(self) -> None:
        """Outputs and the arena hold NaN before the first run, so that what a kernel leaves out shows."""
        runtime = self._cupy.cuda.runtime
        for memory in (self._arena, *self._outputs):
            if memory.size:
                runtime.memsetAsync(memory.address, _POISON, memory.size, self._stream.ptr)

    # ---- copies

    def _copy_in(self, memory: _Memory, array: np.ndarray) -> None:
        held = np.ascontiguousarray(array)
        if held.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(memory.address, held.ctypes.data, held.nbytes, _TO_DEVICE, self._stream.ptr)
            # the host's memory may go away as soon as this returns
            self._stream.synchronize()

    def _copy_out(self, memory: _Memory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        out = np.empty(shape, dtype)
        if out.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(out.ctypes.data, memory.address, out.nbytes, _TO_HOST, self._stream.ptr)
            self._stream.synchronize()
        return out

    # ---- running

    def _captured(self) -> Any:
        """The graph of all launches, made at the first run."""
        if self._graph is None:
            with self._stream:
                self._stream.begin_capture()
                try:
                    for step in self._steps:
                        with _reported(f"launch {step.label}"):
                            step.launch()
                finally:
                    graph = self._stream.end_capture()
                self._graph = graph
        return self._graph

    def _replay(self) -> None:
        if self._steps:
            self._captured().launch(self._stream)

    @contextlib.contextmanager
    def _open(self, what: str) -> Iterator[None]:
        if self._closed:
            raise LaunchError(f"{what}: the executable was closed")
        with _reported(what), self._device:
            yield

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.bind(inputs)
        with self._open("running a program"):
            self._replay()
            self._stream.synchronize()
            return [
                self._copy_out(m, p.shape, p.dtype.numpy)
                for m, p in zip(self._outputs, self._program.outputs, strict=True)
            ]

    def bind(self, inputs: Sequence[np.ndarray]) -> None:
        check_inputs(self._program.inputs, inputs)
        with self._open("copying inputs"):
            for array, memory in zip(inputs, self._inputs, strict=True):
                self._copy_in(memory, array)

    def time(self, repeats: int) -> list[int]:
        cuda = self._cupy.cuda
        with self._open("timing a program"):
            self._replay()
            pairs = [(cuda.Event(), cuda.Event()) for _ in range(repeats)]
            for begin, end in pairs:
                self._clear_cache()
                begin.record(self._stream)
                self._replay()
                end.record(self._stream)
            self._stream.synchronize()
            return [self._elapsed(begin, end) for begin, end in pairs]

    def stamps(self, repeats: int) -> np.ndarray:
        cuda = self._cupy.cuda
        out = np.zeros((repeats, len(self._steps)), np.int64)
        with self._open("timing a program's launches"), self._stream:
            self._replay()
            for row in out:
                self._clear_cache()
                events = [cuda.Event() for _ in range(len(self._steps) + 1)]
                events[0].record(self._stream)
                for step, event in zip(self._steps, events[1:], strict=True):
                    step.launch()
                    event.record(self._stream)
                self._stream.synchronize()
                row[:] = [self._elapsed(a, b) for a, b in itertools.pairwise(events)]
        return out

    def _clear_cache(self) -> None:
        if self._flush.size:
            self._cupy.cuda.runtime.memsetAsync(self._flush.address, 0, self._flush.size, self._stream.ptr)

    def _elapsed(self, begin: Any, end: Any) -> int:
        """Nanoseconds between two events (CUDA tells milliseconds, to about half a microsecond)."""
        return round(float(self._cupy.cuda.get_elapsed_time(begin, end)) * 1e6)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._graph = None
        self._steps = []
        self._modules = {}
        self._constants, self._inputs, self._outputs = [], [], []
        nothing = _Memory(None, 0)
        self._arena = self._flush = nothing
        self._pool.free_all_blocks()


def _bytes(shape: tuple[int, ...], itemsize: int) -> int:
    return int(np.prod(shape, dtype=np.int64)) * itemsize


def _is_device(device: CudaDevice) -> Device:
    """Holds the class to the contract when types are checked."""
    return device
