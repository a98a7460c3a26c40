"""The thread team of the C runtime, seen from Python."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from functools import lru_cache
from pathlib import Path

from autofuse.devices.cache import KernelCache, content_key
from autofuse.devices.cpuinfo import host_info
from autofuse.devices.toolchain import compile_shared, find_toolchain
from autofuse.errors import LaunchError

_SOURCE = Path(__file__).with_name("runtime") / "team.cpp"
_SPIN_NS = 20_000


class CLaunch(ctypes.Structure):
    """struct Launch of team.cpp."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("grid", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("serial", ctypes.c_int64),
    )


class CProgram(ctypes.Structure):
    """struct Program of team.cpp."""

    _fields_ = (("launches", ctypes.c_void_p), ("count", ctypes.c_int64))


@lru_cache(maxsize=1)
def runtime() -> ctypes.CDLL:
    """The C runtime, compiled on first use and cached like a kernel."""
    toolchain, cache = find_toolchain(), KernelCache()
    flags = toolchain.flags()
    text = _SOURCE.read_text()
    key = content_key("runtime", text, toolchain.identity, " ".join(flags), host_info().key)
    path = cache.get_file(key, ".so")
    if path is None:
        with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
            built = Path(folder) / "team.so"
            compile_shared(toolchain, _SOURCE, built, flags, libraries=("-lpthread", "-ldl"))
            path = cache.put_file(key, ".so", built)
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as e:
        cache.discard(key, ".so")
        raise LaunchError(f"the runtime {path} cannot be loaded ({e}); it was removed from the cache, try again") from e
    pointer, int64, integer = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    lib.af_team_create.restype, lib.af_team_create.argtypes = pointer, (integer, int64)
    lib.af_team_close.restype, lib.af_team_close.argtypes = None, (pointer,)
    lib.af_team_scratch.restype, lib.af_team_scratch.argtypes = integer, (pointer, int64)
    lib.af_run.restype, lib.af_run.argtypes = integer, (pointer, pointer, integer, pointer, pointer)
    lib.af_exchange.restype, lib.af_exchange.argtypes = int64, (integer,)
    lib.af_open.restype, lib.af_open.argtypes = pointer, (ctypes.c_char_p, pointer, ctypes.c_char_p, int64)
    lib.af_close.restype, lib.af_close.argtypes = None, (pointer,)
    return lib


class Library:
    """A loaded kernel. The machine code stays until `close`."""

    def __init__(self, path: str) -> None:
        entry, message = ctypes.c_void_p(), ctypes.create_string_buffer(512)
        self._handle = runtime().af_open(os.fsencode(path), ctypes.byref(entry), message, len(message))
        if not self._handle:
            raise LaunchError(f"the compiled kernel {path} cannot be loaded: {message.value.decode(errors='replace')}")
        self.entry = entry.value or 0

    def close(self) -> None:
        """Unload it."""
        if self._handle:
            runtime().af_close(self._handle)
            self._handle = None


class Team:
    """Threads that run programs together; programs of several callers take turns.

    The C team is made on the first run, and again in a process that was forked: threads do not survive a fork.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._handle: int | None = None
        self._process = 0
        self._lock = threading.Lock()

    def run(self, program: CProgram, scratch: int, repeats: int, whole: int | None, stamps: int | None) -> None:
        """Run a program; `whole` and `stamps` are addresses of int64 arrays for nanoseconds, or None."""
        with self._lock:
            handle = self._ready(scratch)
            if runtime().af_run(handle, ctypes.byref(program), repeats, whole, stamps) != 0:
                raise LaunchError(f"a team of {self.threads} threads cannot be started; ask for fewer with --threads")

    def _ready(self, scratch: int) -> int:
        if self._handle is None or self._process != os.getpid():
            handle = runtime().af_team_create(self.threads, _SPIN_NS)
            if not handle:
                raise LaunchError(f"a team of {self.threads} threads cannot be made")
            self._handle, self._process = int(handle), os.getpid()
        if runtime().af_team_scratch(self._handle, scratch) != 0:
            raise LaunchError(f"no memory for {scratch} bytes of scratch for each of {self.threads} threads")
        return self._handle

    def exchange(self) -> int:
        """Nanoseconds that a cache line takes between the cores of a team, there and back; 0 for one thread or one core. It takes a
        fraction of a millisecond. The host of a virtual machine may move its cores to one last cache or to several, for seconds to
        minutes: what threads hand to each other then takes several times as long, and a whole model up to twice."""
        with self._lock:
            return int(runtime().af_exchange(self.threads))

    def close(self) -> None:
        """End the threads. A later run starts them again."""
        with self._lock:
            if self._handle is not None and self._process == os.getpid():
                runtime().af_team_close(self._handle)
            self._handle = None
