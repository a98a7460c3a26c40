"""cuda-emulated: CUDA kernels run on the CPU and are checked; results are proven, speed never.

Each launch runs in three orders of its blocks and threads. Memory that a kernel may write is the same before each, and must be the same,
bit by bit, after each: a result that hangs on the order of threads is a race.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.devices.arguments import ALIGN, check_count, check_inputs, check_place
from autofuse.devices.base import BufferRef, Compiled, Device, Executable, Launch, Program
from autofuse.devices.cache import KernelCache
from autofuse.devices.cuda_targets import cuda_target
from autofuse.devices.emulation_build import ORDERS, EmulationCompiler, emulate
from autofuse.devices.nvrtc import CubinCompiler, cuda_source
from autofuse.errors import LaunchError, UsageError
from autofuse.ir.target import Target
from autofuse.loops.ir import Buffer, Kernel, Rendered, loops_of

_POISON = 0xFF  # NaN in every float type, -1 in integers


def aligned_bytes(size: int) -> np.ndarray:
    """Poisoned bytes that begin at a multiple of 64."""
    raw = np.full(size + ALIGN, _POISON, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + size]


class EmulatedCudaDevice:
    """A GPU of the given architecture, emulated. `orders` says how many orders of threads are tried."""

    def __init__(
        self,
        arch: str = "sm_80",
        cache: KernelCache | None = None,
        compiler: EmulationCompiler | None = None,
        orders: int = len(ORDERS),
    ) -> None:
        self._target = cuda_target(arch, "cuda-emulated")
        self._cache = cache if cache is not None else KernelCache()
        self._compiler = compiler if compiler is not None else EmulationCompiler(self._cache)
        self._orders = orders

    @property
    def target(self) -> Target:
        return self._target

    @property
    def threads(self) -> int:
        return 1

    def text(self, kernel: Kernel) -> str:
        return cuda_source(kernel)

    def compile(self, kernels: Iterable[Kernel | Rendered]) -> list[Compiled | Exception]:
        return self._compiler.compiled([loops_of(k) for k in kernels])

    def nvrtc_check(
        self, kernels: Sequence[Kernel], archs: Sequence[str] = ("sm_80", "sm_90")
    ) -> dict[str, list[Compiled | Exception]]:
        """The same kernels compiled for real, an entry an architecture: registers, spills and shared memory need no GPU."""
        compiler = CubinCompiler(self._cache)
        return {arch: compiler.compiled(kernels, arch) for arch in archs}

    def load(self, program: Program) -> Executable:
        return EmulatedExecutable(
            program, self.compile([loops_of(launch.kernel) for launch in program.launches]), self._orders
        )


@dataclass(frozen=True)
class _Step:
    """A launch that is ready: where its arguments lie, and the memory that it may write."""

    launch: Launch
    compiled: Compiled
    addresses: tuple[int, ...]
    written: tuple[np.ndarray, ...]


class EmulatedExecutable:
    """A program on emulated memory."""

    def __init__(self, program: Program, compiled: Sequence[Compiled | Exception], orders: int) -> None:
        for c in compiled:
            if isinstance(c, Exception):
                raise c
        self._program = program
        self._orders = orders
        self._arena = aligned_bytes(program.arena_bytes)
        self._constants = [_copied(c) for c in program.constants]
        self._inputs = [aligned_bytes(_bytes(p.shape, p.dtype.itemsize)) for p in program.inputs]
        self._outputs = [aligned_bytes(_bytes(p.shape, p.dtype.itemsize)) for p in program.outputs]
        self._steps = [
            self._step(launch, c)
            for launch, c in zip(program.launches, compiled, strict=True)
            if isinstance(c, Compiled)
        ]

    def _step(self, launch: Launch, compiled: Compiled) -> _Step:
        kernel = loops_of(launch.kernel)
        check_count(launch.label or kernel.family, launch, kernel)
        views = [self._view(launch, ref, b) for ref, b in zip(launch.arguments, kernel.params, strict=True)]
        written = tuple(v for v, b in zip(views, kernel.params, strict=True) if b.written)
        return _Step(launch, compiled, tuple(v.ctypes.data for v in views), written)

    def _view(self, launch: Launch, ref: BufferRef, buffer: Buffer) -> np.ndarray:
        """The bytes of an argument; LaunchError where they do not lie inside their place."""
        match ref.place:
            case "arena":
                memory = self._arena
            case "constant":
                memory = self._constants[ref.index]
            case "input":
                memory = self._inputs[ref.index]
            case "output":
                memory = self._outputs[ref.index]
        size = buffer.size * buffer.dtype.itemsize
        check_place(launch.label or launch.kernel.family, ref, buffer, memory.size)
        return memory[ref.offset : ref.offset + size]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.bind(inputs)
        for memory in (self._arena, *self._outputs):
            memory.fill(_POISON)
        for step in self._steps:
            self._launch(step)
        return [
            m.view(p.dtype.numpy).reshape(p.shape).copy()
            for m, p in zip(self._outputs, self._program.outputs, strict=True)
        ]

    def _launch(self, step: _Step) -> None:
        """One launch in every order; the memory that it may write must end up the same."""
        label = step.launch.label or step.launch.kernel.family
        before = [w.copy() for w in step.written]
        first: list[np.ndarray] = []
        for order in range(self._orders):
            if order:
                for memory, old in zip(step.written, before, strict=True):
                    memory[:] = old
            try:
                emulate(loops_of(step.launch.kernel), step.compiled, step.addresses, order)
            except LaunchError as e:
                raise LaunchError(f"launch {label}: {e}") from e
            if not order:
                first = [w.copy() for w in step.written]
                continue
            for number, (memory, expected) in enumerate(zip(step.written, first, strict=True)):
                differ = np.flatnonzero(memory != expected)
                if differ.size:
                    buffer = [b for b in step.launch.kernel.params if b.written][number]
                    raise LaunchError(
                        f"launch {label}: {buffer.name}, element {int(differ[0]) // buffer.dtype.itemsize}, depends on the order of threads: "
                        f"{ORDERS[0]} and {ORDERS[order]} give different results"
                    )

    def bind(self, inputs: Sequence[np.ndarray]) -> None:
        check_inputs(self._program.inputs, inputs)
        for array, memory in zip(inputs, self._inputs, strict=True):
            memory[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def time(self, repeats: int) -> list[int]:
        raise _no_times()

    def stamps(self, repeats: int) -> np.ndarray:
        raise _no_times()

    def close(self) -> None:
        """Nothing outlives the object."""


def _no_times() -> UsageError:
    return UsageError(
        "the device cuda-emulated proves results and cannot be timed; to tune, use --device cuda on a machine with a GPU, or --device cpu"
    )


def _bytes(shape: tuple[int, ...], itemsize: int) -> int:
    return int(np.prod(shape, dtype=np.int64)) * itemsize


def _copied(array: np.ndarray) -> np.ndarray:
    memory = aligned_bytes(array.nbytes)
    memory[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memory


def _is_device(device: EmulatedCudaDevice) -> Device:
    """Holds the class to the contract when types are checked."""
    return device
