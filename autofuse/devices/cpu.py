"""The host's processor as a device: kernels through its C++ compiler, programs on a thread team."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np

from autofuse.devices.base import BufferRef, Compiled, Launch, Program, Resources
from autofuse.devices.cache import KernelCache, content_key
from autofuse.devices.cpuinfo import host_info, host_target, usable_cores
from autofuse.devices.memory import ALIGNMENT, Memory, OutputPool, aligned_copy, is_aligned
from autofuse.devices.team import CLaunch, CProgram, Library, Team
from autofuse.devices.toolchain import compile_shared, find_toolchain
from autofuse.errors import AutofuseError, CompileError, InputError, LaunchError, StorageError, UsageError
from autofuse.ir.target import Target
from autofuse.loops.ir import Kernel, Rendered
from autofuse.render.cpp import PRELUDE, render_cpp

_REMEMBERED_TEXTS = 1024
_RECORD = ".rec"
_COPIED_BYTES = 1 << 20
_SERIAL_SECONDS = 8e-6
_CHUNK_SECONDS = 2e-6
_FLOPS_PER_SECOND = 40e9  # of one core, roughly: only to tell tiny launches from others
_BYTES_PER_SECOND = 12e9


class CpuDevice:
    """The host. `threads` None takes the physical cores that this process may use."""

    def __init__(self, threads: int | None = None, cache: KernelCache | None = None) -> None:
        if threads is not None and not 1 <= threads <= 256:
            raise UsageError(f"{threads} threads: 1 to 256 can be used")
        self._threads = threads if threads is not None else usable_cores()
        self._target = host_target(self._threads)
        self._cache = cache if cache is not None else KernelCache()
        self._texts: OrderedDict[int, tuple[Kernel, str]] = OrderedDict()
        self.team = Team(self._threads)
        self.outputs = OutputPool()

    @property
    def target(self) -> Target:
        """Its limits."""
        return self._target

    @property
    def threads(self) -> int:
        """Threads of the team."""
        return self._threads

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know of compiling here."""
        return (self._cache.trouble,) if self._cache.trouble else ()

    def text(self, kernel: Kernel | Rendered) -> str:
        """The kernel as C++; CompileError where the host has no rendering of something in it."""
        if isinstance(kernel, Rendered):
            return kernel.text
        # by identity: hashing a kernel walks all of it; the kernel is kept so that its identity stays its own
        found = self._texts.get(id(kernel))
        if found is None:
            found = (kernel, render_cpp(kernel, self._target.vector_bytes))
            self._texts[id(kernel)] = found
            if len(self._texts) > _REMEMBERED_TEXTS:
                self._texts.popitem(last=False)
        return found[1]

    def recall(self, key: str) -> bytes | None:
        """See Remembers."""
        path = self._cache.get(key, _RECORD)
        try:
            return path.read_bytes() if path is not None else None
        except OSError:
            return None

    def remember(self, key: str, data: bytes) -> None:
        """See Remembers."""
        with contextlib.suppress(StorageError):  # it only saves time
            self._cache.put(key, _RECORD, data)

    def compile(self, kernels: Iterable[Kernel | Rendered]) -> list[Compiled | Exception]:
        """Compile a batch with as many compilers side by side as there are processors, the first kernels while the next are rendered."""
        find_toolchain()  # without a compiler nothing goes; one that fails later costs only the kernels that it fails on
        texts: list[str | Exception] = []
        made: dict[str, Future[Compiled | AutofuseError]] = {}
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            try:
                for k in kernels:
                    try:
                        text = self.text(k)
                    except CompileError as e:
                        texts.append(e)
                        continue
                    texts.append(text)
                    if text not in made:
                        made[text] = pool.submit(self._compile, text, k.family)
                return [made[t].result() if isinstance(t, str) else t for t in texts]
            finally:
                pool.shutdown(cancel_futures=True)  # what nobody waits for any more is not compiled

    def _compile(self, text: str, family: str) -> Compiled | AutofuseError:
        """A kernel, or why there is none: the compiler refused it, or is gone, or the disk is full."""
        toolchain = find_toolchain()
        flags = toolchain.flags(self._target.vector_bytes)
        key = content_key(text, _prelude_digest(), toolchain.identity, " ".join(flags), host_info().key)
        path = self._cache.get_file(key, ".so")
        if path is not None:
            return Compiled(key, text, str(path), Resources())
        start = time.perf_counter()
        try:
            with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
                source, built = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
                source.write_text(text)
                compile_shared(toolchain, source, built, flags, (PRELUDE,), f"kernel {family}")
                path = self._cache.put_file(key, ".so", built)
        except AutofuseError as e:
            return e
        except OSError as e:
            return StorageError(
                f"kernel {family}: temporary files cannot be written in {tempfile.gettempdir()}: {e.strerror or e}. "
                "Free space there, or set TMPDIR to a folder that can be written."
            )
        return Compiled(key, text, str(path), Resources(seconds=time.perf_counter() - start))

    def load(self, program: Program) -> CpuExecutable:
        """Compile what is not compiled and make the program ready."""
        kernels = list({id(l.kernel): l.kernel for l in program.launches}.values())
        libraries: dict[int, Library] = {}
        opened: dict[str, Library] = {}
        with contextlib.ExitStack() as unfinished:
            for kernel, made in zip(kernels, self.compile(kernels), strict=True):
                if not isinstance(made, Compiled):
                    raise made
                if made.path not in opened:
                    opened[made.path] = self._open(kernel, made)
                    unfinished.callback(opened[made.path].close)
                libraries[id(kernel)] = opened[made.path]
            executable = CpuExecutable(self, program, libraries)
            unfinished.pop_all()
        return executable

    def _open(self, kernel: Kernel | Rendered, made: Compiled) -> Library:
        """Load a kernel; a damaged or meanwhile pruned file of the cache is compiled again once."""
        try:
            return Library(made.path)
        except LaunchError:
            self._cache.discard(made.key, ".so")
            again = self._compile(made.text, kernel.family)
            if not isinstance(again, Compiled):
                raise again from None
            return Library(again.path)

    def close(self) -> None:
        """End the team's threads."""
        self.team.close()


class CpuExecutable:
    """A program on the host: its constants and arena in memory, its launches in one C array."""

    def __init__(self, device: CpuDevice, program: Program, libraries: dict[int, Library]) -> None:
        self._device = device
        self._program = program
        self._libraries = libraries
        self._constants = [c if is_aligned(c) and c.flags.c_contiguous else aligned_copy(c) for c in program.constants]
        self._arena = Memory(program.arena_bytes)
        self._arena.poison()
        self._scratch = max((l.kernel.shared_bytes for l in program.launches), default=0)
        self._table = (ctypes.c_uint64 * max(1, sum(len(l.arguments) for l in program.launches)))()
        self._places: dict[tuple[str, int], list[tuple[int, int]]] = {}  # a port's positions in the table, with offsets
        self._launches = self._layout()
        self._c_program = CProgram(ctypes.addressof(self._launches), len(program.launches))
        self._bound: tuple[list[np.ndarray], list[np.ndarray]] | None = None
        self._closed = False
        self._takes = [(p.dtype.numpy, p.shape) for p in program.inputs]
        self._gives = [(p.shape, p.dtype.numpy) for p in program.outputs]

    def _layout(self) -> ctypes.Array[CLaunch]:
        """Fill in the launches and all addresses that never change; note where inputs and outputs go."""
        launches = (CLaunch * max(1, len(self._program.launches)))()
        table = ctypes.addressof(self._table)
        position = 0
        for c, launch in zip(launches, self._program.launches, strict=False):
            self._check(launch)
            serial, chunk = _sharing(launch.kernel, self._device.threads)
            c.kernel = self._libraries[id(launch.kernel)].entry
            c.args = table + 8 * position
            c.grid, c.chunk, c.serial = launch.kernel.grid, chunk, serial
            for ref in launch.arguments:
                if ref.place in ("input", "output"):
                    self._places.setdefault((ref.place, ref.index), []).append((position, ref.offset))
                else:
                    self._table[position] = self._address(ref)
                position += 1
        return launches

    def _address(self, ref: BufferRef) -> int:
        if ref.place == "constant":
            return int(self._constants[ref.index].ctypes.data) + ref.offset
        return self._arena.address + ref.offset

    def _check(self, launch: Launch) -> None:
        """Arguments lie inside their places, and what is written lies as its kernel relies on: places begin at multiples of 64."""
        kernel, name = launch.kernel, launch.label or launch.kernel.family
        if len(launch.arguments) != len(kernel.params):
            raise LaunchError(
                f"launch {name} has {len(launch.arguments)} arguments for {len(kernel.params)} parameters"
            )
        for ref, b in zip(launch.arguments, kernel.params, strict=True):
            size, end = self._place_bytes(ref), ref.offset + b.size * b.dtype.itemsize
            where = f"launch {name}: {b.name} lies at bytes {ref.offset} to {end} of {ref.place} {ref.index}"
            if ref.offset < 0 or end > size:
                raise LaunchError(f"{where}, which has {size}")
            needed = min(b.align, ALIGNMENT) if b.written else b.dtype.itemsize
            if ref.offset % needed:
                raise LaunchError(f"{where}, but its kernel relies on an alignment of {needed}")

    def _place_bytes(self, ref: BufferRef) -> int:
        match ref.place:
            case "arena":
                return self._program.arena_bytes
            case "constant":
                return self._constants[ref.index].nbytes
            case "input" | "output":
                ports = self._program.inputs if ref.place == "input" else self._program.outputs
                return math.prod(ports[ref.index].shape) * ports[ref.index].dtype.itemsize

    # ---- running

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once on these inputs; the outputs are new arrays."""
        held = self._point_inputs(inputs, copy=False)
        outputs = self._point_outputs()
        self._go(1, None, None)
        del held  # the inputs had to live until here
        return outputs

    def bind(self, inputs: Sequence[np.ndarray]) -> None:
        """Copy the inputs, for `time` and `stamps`."""
        self._bound = None
        held = self._point_inputs(inputs, copy=True)
        self._bound = (held, self._point_outputs())

    def time(self, repeats: int) -> list[int]:
        """Nanoseconds of each of `repeats` runs on the bound inputs."""
        whole = np.zeros(repeats, np.int64)
        self._point_bound()
        self._go(repeats, whole.ctypes.data, None)
        return [int(t) for t in whole]

    def stamps(self, repeats: int) -> np.ndarray:
        """Nanoseconds of each launch in each run on the bound inputs."""
        out = np.zeros((repeats, len(self._program.launches)), np.int64)
        self._point_bound()
        self._go(repeats, None, out.ctypes.data)
        return out

    def close(self) -> None:
        """Unload the kernels and let go of the memory."""
        if self._closed:
            return
        self._closed = True
        for library in set(self._libraries.values()):
            library.close()
        self._bound = None
        self._constants = []
        self._arena = Memory(0)

    def _go(self, repeats: int, whole: int | None, stamps: int | None) -> None:
        if self._closed:
            raise LaunchError("the program was closed; load it again")
        self._device.team.run(self._c_program, self._scratch, repeats, whole, stamps)

    def _point_inputs(self, inputs: Sequence[np.ndarray], copy: bool) -> list[np.ndarray]:
        """Put the inputs' addresses into the table; gives the arrays that must stay alive.

        Kernels read from any address, only faster from aligned ones: small inputs are copied into aligned memory, large
        ones are read where they are, since copying them would cost more than it gains.
        """
        ports = self._program.inputs
        if len(inputs) != len(ports):
            raise InputError(f"the program takes {len(ports)} inputs, got {len(inputs)}")
        held: list[np.ndarray] = []
        for k, (array, (dtype, shape)) in enumerate(zip(inputs, self._takes, strict=True)):
            if array.dtype != dtype or array.shape != shape:
                port = ports[k]
                raise InputError(
                    f"input {port.name!r} is {array.dtype}{list(array.shape)}, "
                    f"the program takes {port.dtype}{list(port.shape)}"
                )
            a = np.ascontiguousarray(array)
            address = a.ctypes.data
            if copy or (address % ALIGNMENT and a.nbytes <= _COPIED_BYTES) or address % a.itemsize:
                fresh = self._device.outputs.array(a.shape, a.dtype)
                np.copyto(fresh, a)
                a, address = fresh, fresh.ctypes.data
            held.append(a)
            self._point("input", k, address)
        return held

    def _point_outputs(self) -> list[np.ndarray]:
        out = [self._device.outputs.array(shape, dtype) for shape, dtype in self._gives]
        for k, a in enumerate(out):
            self._point("output", k, a.ctypes.data)
        return out

    def _point_bound(self) -> None:
        if self._bound is None:
            raise LaunchError("no inputs are bound: call bind() first")
        for place, arrays in zip(("input", "output"), self._bound, strict=True):
            for k, a in enumerate(arrays):
                self._point(place, k, a.ctypes.data)

    def _point(self, place: str, k: int, address: int) -> None:
        for position, offset in self._places.get((place, k), ()):
            self._table[position] = address + offset


def _sharing(kernel: Kernel | Rendered, threads: int) -> tuple[bool, int]:
    """Whether one thread should run a launch alone, and how many blocks a thread takes at a time otherwise."""
    nbytes = kernel.bytes or sum(b.size * b.dtype.itemsize for b in kernel.params)
    seconds = kernel.flops / _FLOPS_PER_SECOND + nbytes / _BYTES_PER_SECOND
    if threads == 1 or kernel.grid <= 1 or seconds < _SERIAL_SECONDS:
        return True, max(1, kernel.grid)
    wanted = int(_CHUNK_SECONDS * kernel.grid / seconds) + 1
    return False, max(1, min(wanted, kernel.grid // (4 * threads)))


@lru_cache(maxsize=1)
def _prelude_digest() -> str:
    return content_key(*(p.read_bytes() for p in sorted(PRELUDE.glob("host*.h"))))
