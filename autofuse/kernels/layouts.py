"""Which layouts the tensors of a map or a reduction may have: flexible families follow what contractions like."""

from __future__ import annotations

from functools import lru_cache

from autofuse.fusion.region import RegionProgram, Tensor
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import const, var
from autofuse.ir.layout import Layout
from autofuse.ir.target import Target

LayoutPair = tuple[tuple[Layout, ...], tuple[Layout, ...]]


def channel_block(target: Target) -> int:
    """The block of channels in blocked layouts: as many float32 as a vector has."""
    return target.lanes(DType.FLOAT32.itemsize)


def can_block(tensor: Tensor, block: int) -> bool:
    """Whether a tensor may be blocked along axis 1: an activation with spatial axes and at least a block of channels."""
    return not tensor.constant and len(tensor.shape) >= 3 and tensor.shape[1] >= block


def blocked(tensor: Tensor, block: int) -> Layout:
    """The blocked layout of a tensor where it may have one, else row-major."""
    rank = len(tensor.shape)
    return Layout.blocked(rank, 1, block) if can_block(tensor, block) else Layout.plain(rank)


def map_layouts(program: RegionProgram, target: Target) -> list[LayoutPair]:
    """Layout combinations of a map or a reduction: all plain, all blocked, and the two that change between them."""
    block = channel_block(target)
    ins = program.inputs
    outs = tuple(program.tensor(n) for n in program.outputs)
    plain_in = tuple(Layout.plain(len(t.shape)) for t in ins)
    plain_out = tuple(Layout.plain(len(t.shape)) for t in outs)
    found: list[LayoutPair] = [(plain_in, plain_out)]
    if target.is_cuda:
        return found
    block_in = tuple(blocked(t, block) for t in ins)
    block_out = tuple(blocked(t, block) for t in outs)
    for pair in ((block_in, block_out), (plain_in, block_out), (block_in, plain_out)):
        if pair not in found:
            found.append(pair)
    return found


@lru_cache(maxsize=1 << 14)
def same_memory(a: Layout, b: Layout, shape: tuple[int, ...]) -> bool:
    """Whether two layouts put every element of a tensor of this shape at the same address (and are equally padded)."""
    if a == b:
        return True
    if a.size(shape) != b.size(shape):
        return False
    index = tuple(var(f"i{k}", n) if n > 1 else const(0) for k, n in enumerate(shape))
    return ix.sub(a.offset(index, shape), b.offset(index, shape)) is const(0)
