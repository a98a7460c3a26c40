"""What the host's processor can do, read from the system."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autofuse.ir.target import Target

_CPU = Path("/sys/devices/system/cpu")
_VECTORS = {"x86-64-avx512": (64, 32), "x86-64-avx2": (32, 16), "x86-64-sse2": (16, 16), "aarch64-neon": (16, 32)}
"""Bytes and number of the vector registers by architecture."""


@dataclass(frozen=True)
class HostInfo:
    """The processor in figures; sizes in bytes. `cores` counts physical cores that this process may use, `features` its instruction sets."""

    name: str
    arch: str
    vector_bytes: int
    vector_registers: int
    cores: int
    l1: int
    l2: int
    l3: int
    features: str

    @property
    def key(self) -> str:
        """What -march=native code depends on."""
        return hashlib.sha256(f"{platform.machine()} {self.name} {self.features}".encode()).hexdigest()[:16]


def _proc() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; empty where there is none."""
    out: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if not line.strip():
                break
            key, _, value = line.partition(":")
            out[key.strip()] = value.strip()
    return out


def _cache_size(level: int) -> int:
    """Bytes of a data or unified cache of the first processor; 0 where the system does not tell."""
    for entry in sorted((_CPU / "cpu0/cache").glob("index*")):
        with contextlib.suppress(OSError, ValueError):
            kind = (entry / "type").read_text().strip()
            if int((entry / "level").read_text()) == level and kind in ("Data", "Unified"):
                return _bytes((entry / "size").read_text().strip())
    with contextlib.suppress(OSError, ValueError):
        name = "SC_LEVEL1_DCACHE_SIZE" if level == 1 else f"SC_LEVEL{level}_CACHE_SIZE"
        return max(os.sysconf(name), 0)
    return 0


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def usable_cores() -> int:
    """Physical cores that this process may use: affinity, hardware threads that share a core, and a container's quota."""
    allowed = os.sched_getaffinity(0)
    cores: set[str] = set()
    for cpu in allowed:
        siblings = str(cpu)
        with contextlib.suppress(OSError):
            siblings = (_CPU / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        cores.add(siblings)
    count = len(cores)
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    return max(1, count)


@lru_cache(maxsize=1)
def host_info() -> HostInfo:
    """The processor of this machine."""
    proc = _proc()
    machine = platform.machine()
    features = proc.get("flags") or proc.get("Features") or ""
    flags = set(features.split())
    if machine in ("x86_64", "AMD64"):
        wide = {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= flags
        arch = f"x86-64-{'avx512' if wide else 'avx2' if 'avx2' in flags else 'sse2'}"
    elif machine in ("aarch64", "arm64"):
        arch = "aarch64-neon"
    else:
        arch = machine
    width, registers = _VECTORS.get(arch, (16, 16))
    name = proc.get("model name") or proc.get("Processor") or platform.processor() or machine
    return HostInfo(
        name=name,
        arch=arch,
        vector_bytes=width,
        vector_registers=registers,
        cores=usable_cores(),
        l1=_cache_size(1) or 32 << 10,
        l2=_cache_size(2) or 1 << 20,
        l3=_cache_size(3),
        features=" ".join(sorted(flags)),
    )


def cpu_target(arch: str, name: str, threads: int, caches: tuple[int, int, int]) -> Target:
    """A processor as a target of `threads` threads, this machine's or another one's. `caches` are bytes of L1, L2 and L3."""
    width, registers = _VECTORS.get(arch, (16, 16))
    l1, l2, l3 = caches
    return Target(
        kind="cpu",
        dialect="cpp",
        arch=arch,
        name=name,
        vector_bytes=width,
        vector_registers=registers,
        cores=threads,
        max_threads_per_block=1,
        warp=1,
        shared_memory=max(l2, 1 << 20) * 4,
        registers_per_thread=registers,
        l1=l1,
        l2=l2,
        l3=l3,
        max_parameters=1024,
    )


def host_target(threads: int) -> Target:
    """The host as a target of `threads` threads."""
    info = host_info()
    return cpu_target(info.arch, info.name, threads, (info.l1, info.l2, info.l3))
