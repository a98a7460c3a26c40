"""What a measurement depends on besides the plan: versions, compiler, driver, machine. Written into run.json and compared on load."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

from autofuse.devices.base import Device
from autofuse.devices.driver import driver_version
from autofuse.devices.toolchain import find_toolchain
from autofuse.errors import ToolchainError
from autofuse.version import __version__

PACKAGES = (
    "numpy",
    "onnx",
    "optuna",
    "scipy",
    "onnxruntime",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-nvrtc",
)


def package_version(name: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def compiler_text() -> str:
    """The host compiler's first line about itself, or that there is none."""
    try:
        return find_toolchain().version
    except ToolchainError:
        return "none"


def environment(device: Device) -> dict[str, Any]:
    """The environment of a measurement on a device, as plain text by name."""
    found: dict[str, Any] = {
        "autofuse": __version__,
        "python": platform.python_version(),
        "system": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]),
        "device": device.target.name,
    }
    if device.target.is_cuda:
        found["driver"] = driver_version()
    else:
        found["compiler"] = compiler_text()
        found["flags"] = " ".join(find_toolchain().flags(device.target.vector_bytes))
    found |= {name: version for name in PACKAGES if (version := package_version(name)) is not None}
    return found


CHECKED = ("device", "compiler", "driver", "autofuse")
"""What a saved plan warns about when it has changed: kernels are compiled anew then, and speed may differ."""


def changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed since a plan was tuned, in words."""
    return [
        f"tuned with {name} {saved[name]!r}, running with {now[name]!r}"
        for name in CHECKED
        if name in saved and name in now and saved[name] != now[name]
    ]
