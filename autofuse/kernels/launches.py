"""Launches: a loop nest as a kernel that takes just what it uses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from autofuse.ir.expr import loads
from autofuse.kernels.access import Binding
from autofuse.kernels.base import Argument, RegionLaunch
from autofuse.loops.ir import AsyncCopy, Buffer, For, Kernel, Store, expressions, statements
from autofuse.loops.verify import verify_kernel


def used_buffers(nest: For) -> set[Hashable]:
    """The buffers that a loop nest reads or writes."""
    used: set[Hashable] = set()
    for s in statements(nest):
        used |= {ld.source for e in expressions(s) for ld in loads(e)}
        match s:
            case Store():
                used.add(s.buffer)
            case AsyncCopy():
                used |= {s.source, s.target}
            case _:
                pass
    return used


def region_launch(
    family: str, nest: For, threads: int, flops: int, binding: Binding, scratch: Sequence[Buffer] = ()
) -> RegionLaunch:
    """A verified kernel over a nest's grid. Of the operands and scratch buffers it takes those that it uses."""
    used = used_buffers(nest)
    offered: list[tuple[Buffer, Argument]] = [
        *zip(binding.parameters, binding.arguments, strict=True),
        *((b, ("scratch", k)) for k, b in enumerate(scratch)),
    ]
    taken = [(b, a) for b, a in offered if b in used]
    params = tuple(b for b, _ in taken)
    nbytes = sum(b.size * b.dtype.itemsize for b in params)
    grid = nest.var.extent or 0
    kernel = Kernel(family, params, nest, grid, threads, flops=flops, bytes=nbytes)
    return RegionLaunch(verify_kernel(kernel), tuple(a for _, a in taken))
