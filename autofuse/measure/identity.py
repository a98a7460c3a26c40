"""What a measurement depends on besides the kernel: the device, and the environment that its kernels are made and run with."""

from __future__ import annotations

from autofuse.devices.base import Device
from autofuse.devices.driver import driver_version
from autofuse.devices.nvrtc import find_nvrtc
from autofuse.devices.toolchain import find_toolchain
from autofuse.errors import AutofuseError


def environment_of(device: Device) -> str:
    """The host compiler, or the GPU's driver and NVRTC; "" where they can't be told."""
    try:
        if device.target.is_cuda:
            return f"driver {driver_version()}, NVRTC {find_nvrtc().version}"
        return find_toolchain().identity
    except AutofuseError:
        return ""
