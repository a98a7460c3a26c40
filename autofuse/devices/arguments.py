"""What a program is given, held against what its kernels rely on: arguments of launches and inputs of runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autofuse.devices.base import BufferRef, Launch, Port
from autofuse.errors import InputError, LaunchError
from autofuse.loops.ir import Buffer, Kernel

ALIGN = 64
"""Every place begins at a multiple of so many bytes."""


def check_count(label: str, launch: Launch, kernel: Kernel) -> None:
    """LaunchError where a launch has more or fewer arguments than its kernel has parameters."""
    if len(launch.arguments) != len(kernel.params):
        raise LaunchError(f"launch {label}: {len(launch.arguments)} arguments for {len(kernel.params)} parameters")


def check_place(label: str, ref: BufferRef, buffer: Buffer, size: int) -> None:
    """LaunchError where an argument does not lie inside its place, which has `size` bytes, or not as its kernel relies on."""
    end = ref.offset + buffer.size * buffer.dtype.itemsize
    if ref.offset < 0 or end > size:
        raise LaunchError(
            f"launch {label}: {buffer.name} needs bytes {ref.offset} to {end} of {ref.place} {ref.index}, which has {size}"
        )
    if ref.offset % min(buffer.align, ALIGN) != 0:
        raise LaunchError(
            f"launch {label}: {buffer.name} lies at byte {ref.offset} of {ref.place} {ref.index}, but its kernel relies on an "
            f"alignment of {buffer.align}"
        )


def check_inputs(ports: Sequence[Port], inputs: Sequence[np.ndarray]) -> None:
    """InputError where the arrays of a run are not those that a program takes."""
    if len(inputs) != len(ports):
        raise InputError(f"the program takes {len(ports)} inputs, got {len(inputs)}")
    for port, array in zip(ports, inputs, strict=True):
        if array.shape != port.shape or array.dtype != port.dtype.numpy:
            raise InputError(
                f"input {port.name} must be {port.dtype} of shape {port.shape}, got {array.dtype} of shape {array.shape}"
            )
