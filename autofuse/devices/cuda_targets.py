"""Limits of NVIDIA GPUs by architecture, for planning where no GPU is at hand.

Figures: CUDA C++ Programming Guide, "Compute Capabilities"; shared memory is what one block may ask for. L2 and the count of
multiprocessors differ between products of an architecture: those of the named one are given.
"""

from __future__ import annotations

from autofuse.errors import UsageError
from autofuse.ir.target import Target

KIB, MIB = 1024, 1024 * 1024

_PRODUCTS: dict[str, tuple[str, int, int, int, int]] = {
    # arch: product, multiprocessors, shared memory of a block, L1 with shared memory, L2
    "sm_75": ("T4", 40, 64 * KIB, 96 * KIB, 4 * MIB),
    "sm_80": ("A100", 108, 163 * KIB, 192 * KIB, 40 * MIB),
    "sm_86": ("A10", 72, 99 * KIB, 128 * KIB, 6 * MIB),
    "sm_89": ("L4", 58, 99 * KIB, 128 * KIB, 48 * MIB),
    "sm_90": ("H100", 132, 227 * KIB, 256 * KIB, 50 * MIB),
    "sm_100": ("B200", 148, 227 * KIB, 256 * KIB, 126 * MIB),
    "sm_120": ("RTX 5090", 170, 99 * KIB, 128 * KIB, 96 * MIB),
}


def cuda_target(arch: str, kind: str = "cuda") -> Target:
    """The limits of an architecture's usual product. `kind` is "cuda" or "cuda-emulated"."""
    if arch not in _PRODUCTS:
        raise UsageError(f"no GPU architecture {arch!r} is known; there are: {', '.join(_PRODUCTS)}")
    product, cores, shared, l1, l2 = _PRODUCTS[arch]
    name = product if kind == "cuda" else f"{product} (emulated)"
    return make_target(arch, kind, name, cores, shared, l1, l2)


def make_target(arch: str, kind: str, name: str, cores: int, shared: int, l1: int, l2: int) -> Target:
    """A GPU's limits; those that all architectures share are filled in."""
    return Target(
        kind=kind,
        dialect="cuda",
        arch=arch,
        name=name,
        vector_bytes=16,
        vector_registers=255,
        cores=cores,
        max_threads_per_block=1024,
        warp=32,
        shared_memory=shared,
        registers_per_thread=255,
        l1=l1,
        l2=l2,
        l3=0,
        max_parameters=500,  # 4 KiB of parameters, a pointer each
    )
