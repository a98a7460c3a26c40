"""NVRTC: NVIDIA's compiler for CUDA C++ as a library. It needs no GPU and no CUDA toolkit, only the wheel that CuPy needs too.

It is called through ctypes. A compilation gives machine code for one architecture and what ptxas says about it: registers, spills,
shared memory. Both are kept in the kernel cache under the hash of everything that they depend on.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autofuse.devices.base import Compiled, Resources
from autofuse.devices.cache import KernelCache, content_key
from autofuse.devices.toolchain import first_lines
from autofuse.errors import AutofuseError, CompileError, ToolchainError
from autofuse.loops.ir import Kernel
from autofuse.render.cuda import KERNEL_NAME, dynamic_shared_bytes, render_cuda
from autofuse.render.prelude import prelude

HEADERS = ("cuda.h", "cuda_types.h", "cuda_narrow.h", "cuda_functions.h")
OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--diag-suppress=177", "--device-as-default-execution-space")
_WHEELS = ("cuda_nvrtc/lib", "cu13/lib", "cu12/lib")
_MEND = 'run: pip install "autofuse[cuda12]" (or "autofuse[cuda13]" for a driver of CUDA 13)'
_THREADS = 4


@dataclass(frozen=True)
class Cubin:
    """Machine code of one kernel for one architecture. `log` is the compiler's."""

    path: Path
    key: str
    resources: Resources
    log: str


def cuda_source(kernel: Kernel) -> str:
    """A kernel's text as NVRTC gets it, the prelude included by reference."""
    return f'#include "cuda.h"\n\n{render_cuda(kernel)}'


def _libraries() -> list[str]:
    """Where NVRTC may be, best first: wheels of this environment, then the system."""
    found: list[str] = []
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec is not None else []:
        for folder in _WHEELS:
            names = Path(root, folder).glob("libnvrtc.so*")
            found += [str(p) for p in sorted(names, reverse=True)]
    system = ctypes.util.find_library("nvrtc")
    return found + ([system] if system else [])


class Nvrtc:
    """The library, loaded."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = f"{major.value}.{minor.value}"

    def _check(self, status: int) -> None:
        if status != 0:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise ToolchainError(f"NVRTC failed: {self._library.nvrtcGetErrorString(status).decode()}")

    def architectures(self) -> tuple[str, ...]:
        """The architectures that it makes machine code for."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(numbers))
        return tuple(f"sm_{n}" for n in numbers)

    def compile(self, source: str, arch: str, name: str = "kernel.cu") -> tuple[bytes, str]:
        """Machine code and log of a source. CompileError shows the compiler's first lines."""
        texts = [prelude(h).encode() for h in HEADERS]
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program),
                source.encode(),
                name.encode(),
                len(HEADERS),
                (ctypes.c_char_p * len(HEADERS))(*texts),
                (ctypes.c_char_p * len(HEADERS))(*(h.encode() for h in HEADERS)),
            )
        )
        try:
            options = [f"--gpu-architecture={arch}".encode(), *(o.encode() for o in OPTIONS)]
            status = self._library.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
            log = self._fetch(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status != 0:
                raise CompileError(f"{name}: NVRTC {self.version} refused it for {arch}:\n{first_lines(log)}")
            return self._fetch(program, "CUBIN"), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _fetch(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw


@lru_cache(maxsize=1)
def find_nvrtc() -> Nvrtc:
    """NVRTC; ToolchainError names the mend where it is missing."""
    tried: list[str] = []
    for path in _libraries():
        try:
            return Nvrtc(ctypes.CDLL(path))
        except OSError as e:
            tried.append(f"{path}: {e}")
    detail = "; ".join(tried) or "no wheel and no system library"
    raise ToolchainError(f"NVRTC, which compiles CUDA kernels, was not found ({detail}). To get it, {_MEND}")


_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_ENTRY = re.compile(rf"Compiling entry function '{KERNEL_NAME}'")


def resources_of(log: str, dynamic_shared: int = 0, seconds: float = 0.0) -> Resources:
    """What ptxas reports in a log, plus the shared memory that is asked for at launch."""
    entry = _ENTRY.search(log)
    used = _USED.search(log, entry.end()) if entry else None
    if used is None:
        raise CompileError(f"NVRTC's log holds no report of the kernel's registers:\n{first_lines(log)}")
    assert entry is not None
    spills = _SPILLS.search(log, entry.end())
    shared = _SHARED.search(log, used.end())
    return Resources(
        registers=int(used.group(1)),
        spill_bytes=int(spills.group(1)) if spills else 0,
        shared_bytes=(int(shared.group(1)) if shared else 0) + dynamic_shared,
        seconds=seconds,
    )


class CubinCompiler:
    """Kernels to cubins, through the cache."""

    def __init__(self, cache: KernelCache | None = None, nvrtc: Nvrtc | None = None) -> None:
        self.nvrtc = nvrtc if nvrtc is not None else find_nvrtc()
        self.cache = cache if cache is not None else KernelCache()

    def key(self, source: str, arch: str) -> str:
        """The hash of all that the machine code depends on."""
        return content_key(source, *(prelude(h) for h in HEADERS), arch, self.nvrtc.version, *OPTIONS)

    def cubin(self, kernel: Kernel, arch: str) -> Cubin:
        """One kernel's machine code. CompileError where NVRTC refuses it."""
        source = cuda_source(kernel)
        key = self.key(source, arch)
        dynamic = dynamic_shared_bytes(kernel)
        path, log_path = self.cache.get(key, ".cubin"), self.cache.get(key, ".log")
        if path is not None and log_path is not None:
            return Cubin(path, key, resources_of(log := _read_log(log_path), dynamic), log)
        start = time.perf_counter()
        code, log = self.nvrtc.compile(source, arch, f"{kernel.family}.cu")
        seconds = time.perf_counter() - start
        # the log goes first: a cubin that is there has its log
        self.cache.put(key, ".log", json.dumps(log).encode())
        path = self.cache.put(key, ".cubin", code)
        return Cubin(path, key, resources_of(log, dynamic, seconds), log)

    def compiled(self, kernels: Sequence[Kernel], arch: str) -> list[Compiled | Exception]:
        """A batch, side by side; an error takes the place of what failed."""

        def one(kernel: Kernel) -> Compiled | Exception:
            try:
                cubin = self.cubin(kernel, arch)
            except AutofuseError as e:
                return e
            return Compiled(cubin.key, cuda_source(kernel), str(cubin.path), cubin.resources)

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(one, kernels))


def _read_log(path: Path) -> str:
    return str(json.loads(path.read_text()))
