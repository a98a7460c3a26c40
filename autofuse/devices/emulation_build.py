"""Emulated CUDA kernels: the source around a kernel's text, its compilation by the host's C++ compiler, and calling it."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import cast

from autofuse.devices.base import Compiled, Resources
from autofuse.devices.cache import KernelCache, content_key
from autofuse.devices.toolchain import Toolchain, compile_shared, find_toolchain
from autofuse.errors import AutofuseError, LaunchError
from autofuse.loops.ir import Kernel
from autofuse.render.cuda import KERNEL_NAME, launch_grid, render_cuda, uses_fibers
from autofuse.render.cuda_types import TYPES
from autofuse.render.prelude import FOLDER, prelude

HEADERS = (
    "emulation.h",
    "emulation_fibers.h",
    "emulation_memory.h",
    "emulation_launch.h",
    "cuda_types.h",
    "cuda_narrow.h",
    "cuda_functions.h",
)
ORDERS = ("forward", "reversed", "random")
_MESSAGE_BYTES = 512
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    # threads change stacks, which a fortified longjmp takes for an attack
    "-U_FORTIFY_SOURCE",
    "-w",
)


def emulation_source(kernel: Kernel, text: str | None = None) -> str:
    """The source that the host's compiler gets. `text` stands in for the kernel's own rendering.

    Line numbers are those of the kernel's text, so that a message about a barrier points into it.
    """
    arguments = ", ".join(
        f'af_global<{TYPES[b.dtype]}>{{({TYPES[b.dtype]}*)af_arguments[{k}], {b.size}LL, "{b.name}"}}'
        for k, b in enumerate(kernel.params)
    )
    return (
        f"#define AF_FIBERS {int(uses_fibers(kernel))}\n"
        '#include "emulation.h"\n'
        '#line 1 "kernel.cu"\n'
        f"{render_cuda(kernel) if text is None else text}"
        "static void** af_arguments;\n"
        f"static void af_call() {{ {KERNEL_NAME}({arguments}); }}\n"
        '#include "emulation_launch.h"\n'
    )


class EmulationCompiler:
    """Kernels to shared libraries, through the cache."""

    def __init__(self, cache: KernelCache | None = None, toolchain: Toolchain | None = None) -> None:
        self.cache = cache if cache is not None else KernelCache()
        self.toolchain = toolchain if toolchain is not None else find_toolchain()
        self.flags = _FLAGS + (("-fno-sanitize=all", "-nostdlib++") if self.toolchain.is_zig else ())

    def build(self, kernel: Kernel, text: str | None = None) -> Compiled:
        """Compile one kernel. CompileError where the host's compiler refuses it."""
        source = emulation_source(kernel, text)
        key = content_key(source, *(prelude(h) for h in HEADERS), self.toolchain.identity, *self.flags)
        found = self.cache.get_file(key, ".so")
        seconds = 0.0
        if found is None:
            start = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
                written, built = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
                written.write_text(source)
                compile_shared(self.toolchain, written, built, self.flags, (FOLDER,), kernel.family)
                found = self.cache.put_file(key, ".so", built)
            seconds = time.perf_counter() - start
        return Compiled(key, source, str(found), Resources(shared_bytes=kernel.shared_bytes, seconds=seconds))

    def compiled(self, kernels: Sequence[Kernel]) -> list[Compiled | Exception]:
        """A batch, side by side; an error takes the place of what failed."""

        def one(kernel: Kernel) -> Compiled | Exception:
            try:
                return self.build(kernel)
            except AutofuseError as e:
                return e

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(one, kernels))


_RUNNING = threading.Lock()
"""Held while a kernel runs: a compiled kernel keeps the block that it is at in static memory."""


@lru_cache(maxsize=512)
def _entry(path: str) -> Callable[..., int]:
    try:
        function = ctypes.CDLL(path).af_run
    except OSError as e:
        raise LaunchError(f"the compiled kernel {path} cannot be loaded: {e}") from e
    function.restype = ctypes.c_int
    function.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_longlong,
        ctypes.c_uint,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_ulonglong,
        ctypes.c_char_p,
        ctypes.c_int,
    ]
    return cast(Callable[..., int], function)


def emulate(kernel: Kernel, compiled: Compiled, addresses: Sequence[int], order: int, seed: int = 1) -> None:
    """Run a compiled kernel once on memory at the given addresses, its blocks and threads in one of ORDERS. LaunchError tells which rule it broke."""
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    entry = _entry(compiled.path)
    with _RUNNING:
        status = _call(entry, kernel, addresses, order, seed, message)
    if status != 0:
        raise LaunchError(f"kernel {kernel.family}, {ORDERS[order]} order: {message.value.decode(errors='replace')}")


def _call(
    entry: Callable[..., int],
    kernel: Kernel,
    addresses: Sequence[int],
    order: int,
    seed: int,
    message: ctypes.Array[ctypes.c_char],
) -> int:
    return entry(
        (ctypes.c_void_p * max(1, len(addresses)))(*addresses),
        kernel.grid,
        launch_grid(kernel)[0],
        kernel.threads,
        kernel.shared_bytes,
        order,
        seed,
        message,
        _MESSAGE_BYTES,
    )
