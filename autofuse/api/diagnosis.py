"""What works on this machine, what is missing, and how to mend it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autofuse.api.devices import open_device
from autofuse.api.environment import package_version
from autofuse.devices.cache import KernelCache
from autofuse.devices.nvrtc import find_nvrtc
from autofuse.devices.toolchain import find_toolchain
from autofuse.errors import AutofuseError
from autofuse.kernels.space import load_spaces
from autofuse.measure.records import default_path
from autofuse.report.units import bytes_text
from autofuse.version import __version__

OK, MISSING, BROKEN = "ok", "missing", "broken"
"""What is missing is optional; what is broken is needed."""

PACKAGES = ("numpy", "onnx", "optuna", "pandas", "pyarrow", "scipy", "matplotlib", "typer", "rich")
_LEAST_FREE = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    state: str
    text: str
    mend: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All findings. `ok` says whether models can be tuned on the CPU at least."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing that is needed is broken."""
        return all(f.state != BROKEN for f in self.findings)


def diagnose() -> Diagnosis:
    """Look at everything; nothing is changed, compiled or sent."""
    looks: list[Callable[[], list[Finding]]] = [
        _versions, _compiler, _cpu, _gpu, _nvrtc, _oracle, _dashboard, _spaces, _folders,
    ]  # fmt: skip
    return Diagnosis(tuple(f for look in looks for f in look()))


def _versions() -> list[Finding]:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    found = [Finding("autofuse", OK, f"{__version__}, Python {platform.python_version()} ({sys.executable}), {system}")]
    have = {name: package_version(name) for name in PACKAGES}
    lost = [name for name, version in have.items() if version is None]
    text = ", ".join(f"{name} {version}" for name, version in have.items() if version)
    if lost:
        found.append(Finding("packages", BROKEN, f"not installed: {', '.join(lost)}", f"pip install {' '.join(lost)}"))
    else:
        found.append(Finding("packages", OK, text))
    return found


def _compiler() -> list[Finding]:
    try:
        found = find_toolchain()
    except AutofuseError as error:
        return [
            Finding("C++ compiler", BROKEN, str(error), 'install g++ or clang++, or: pip install "autofuse[toolchain]"')
        ]
    return [Finding("C++ compiler", OK, f"{found.version} ({' '.join(found.command)})")]


def _cpu() -> list[Finding]:
    try:
        t = open_device("cpu").target
    except AutofuseError as error:
        return [Finding("cpu", BROKEN, str(error))]
    caches = ", ".join(f"L{k} {bytes_text(n)}" for k, n in ((1, t.l1), (2, t.l2), (3, t.l3)) if n)
    text = f"{t.name}: {t.arch}, vectors of {8 * t.vector_bytes} bits, {t.cores} usable cores, {caches}"
    return [Finding("cpu", OK, text)]


def _gpu() -> list[Finding]:
    if (
        package_version("cupy-cuda12x") is None
        and package_version("cupy-cuda13x") is None
        and package_version("cupy") is None
    ):
        mend = 'with an NVIDIA GPU: pip install "autofuse[cuda12]" (or cuda13, as the driver allows)'
        return [Finding("cuda", MISSING, "CuPy is not installed", mend)]
    try:
        t = open_device("cuda").target
    except AutofuseError as error:
        return [Finding("cuda", MISSING, str(error), "look at what nvidia-smi says of GPU and driver")]
    return [Finding("cuda", OK, f"{t.name}: {t.arch}, {t.cores} multiprocessors, L2 {bytes_text(t.l2)}")]


def _nvrtc() -> list[Finding]:
    try:
        archs = find_nvrtc().architectures()
    except AutofuseError as error:
        mend = "pip install nvidia-cuda-nvrtc-cu12; needed to compile for GPUs, also where there is none"
        return [Finding("nvrtc", MISSING, str(error).partition("\n")[0], mend)]
    return [Finding("nvrtc", OK, f"compiles for {archs[0]} to {archs[-1]}")]


def _oracle() -> list[Finding]:
    version = package_version("onnxruntime")
    if version is None:
        text = "not installed; `verify` uses onnx.reference, `--baseline onnxruntime` is not possible"
        return [Finding("onnxruntime", MISSING, text, "pip install onnxruntime")]
    return [Finding("onnxruntime", OK, f"{version} (verify, --baseline)")]


def _dashboard() -> list[Finding]:
    version = package_version("optuna-dashboard")
    if version is None:
        return [
            Finding(
                "optuna-dashboard",
                MISSING,
                "not installed; only for looking at studies kept with --storage",
                "pip install optuna-dashboard",
            )
        ]
    return [Finding("optuna-dashboard", OK, version)]


def _spaces() -> list[Finding]:
    try:
        text = ", ".join(f"{len(load_spaces(kind).spaces)} families for {kind}" for kind in ("cpu", "cuda"))
    except AutofuseError as error:
        return [Finding("search spaces", BROKEN, str(error), "install autofuse again")]
    return [Finding("search spaces", OK, text)]


def _folders() -> list[Finding]:
    return [
        _folder("kernel cache", KernelCache().root, "AUTOFUSE_CACHE"),
        _folder("measurements", default_path().parent, "AUTOFUSE_DATA"),
    ]


def _folder(topic: str, path: Path, variable: str) -> Finding:
    """Whether a folder, or the nearest one above it that exists, can be written."""
    there = next(p for p in (path, *path.parents) if p.exists())
    if not os.access(there, os.W_OK):
        return Finding(topic, BROKEN, f"{path} cannot be written", f"set {variable} to a folder that can")
    free = shutil.disk_usage(there).free
    if free < _LEAST_FREE:
        return Finding(topic, MISSING, f"{path}: only {bytes_text(free)} free", f"free some space, or set {variable}")
    return Finding(topic, OK, f"{path} ({bytes_text(free)} free)")
