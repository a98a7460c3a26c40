"""Devices by the names that people use."""

from __future__ import annotations

from autofuse.devices.base import Device
from autofuse.devices.cpu import CpuDevice
from autofuse.devices.cuda import CudaDevice, device_count
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.errors import ToolchainError, UsageError

NAMES = ("auto", "cuda", "cpu", "cuda-emulated")


def open_device(name: str = "auto", threads: int | None = None) -> Device:
    """A device. `auto` is cuda where CuPy finds a GPU, else cpu; `threads` counts on the CPU only (default: all usable physical cores).

    UsageError for an unknown name, ToolchainError where the device or its compiler is missing.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, found {threads}")
    match name:
        case "cpu":
            return CpuDevice(threads)
        case "cuda":
            return CudaDevice()
        case "cuda-emulated":
            return EmulatedCudaDevice()
        case "auto":
            return CudaDevice() if _has_gpu() else CpuDevice(threads)
        case _:
            raise UsageError(f"there is no device {name!r}; there are: {', '.join(NAMES)}")


def _has_gpu() -> bool:
    """Whether CuPy is installed and finds a GPU."""
    try:
        return device_count() > 0
    except ToolchainError:
        return False
