"""Variants of a contraction on the host: which axis the vector runs along, and the layouts that this asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Apply, Const, Expr, Load, Var
from autofuse.ir.layout import Dim, Layout
from autofuse.ir.target import Target
from autofuse.kernels.base import Variant
from autofuse.kernels.contract_roles import Contraction, contraction, dimension, tensor_loads, variables_of
from autofuse.kernels.layouts import blocked, channel_block

LayoutPair = tuple[tuple[Layout, ...], tuple[Layout, ...]]


def direct_variants(family: str, program: RegionProgram, target: Target) -> Iterator[Variant]:
    """Convolutions on channel blocks where they fit, and the best one or two vector axes on row-major tensors."""
    c = contraction(program)
    if c is None or target.is_cuda:
        return
    seen: set[tuple[str, LayoutPair]] = set()
    for axis, (ins, outs) in [*_channel_blocked(c, target), *_row_major(c, target)]:
        if (axis.name, (ins, outs)) not in seen:
            seen.add((axis.name, (ins, outs)))
            yield Variant(family, f"direct-{axis.name}", program, ins, outs)


def vector_axis(c: Contraction, variant: Variant) -> tuple[int, Var]:
    """The factor that is read by vectors, and the axis along which."""
    name = variant.algorithm.removeprefix("direct-")
    for side in (0, 1):
        for a in c.only(side):
            if a.name == name:
                return side, a
    raise ValueError(f"{variant.algorithm}: the region has no such axis")


def channel_axis(c: Contraction, side: int) -> tuple[Load, Var] | None:
    """The activation that a factor reads with a reduced axis along its dimension 1 (channels), and that axis."""
    for ld in tensor_loads(c.factors[side]):
        if c.form.program.inputs[number_of(ld)].constant or len(ld.index) < 3:
            continue
        for k in c.reduced:
            if dimension(ld.index, k) == 1:
                return ld, k
    return None


def number_of(ld: Load) -> int:
    assert isinstance(ld.source, int)
    return ld.source


# ---- channel-blocked activations


def _channel_blocked(c: Contraction, target: Target) -> Iterator[tuple[Var, LayoutPair]]:
    block = channel_block(target)
    program = c.form.program
    for side in (0, 1):
        found = channel_axis(c, 1 - side)
        if found is None:
            continue
        activation, channel = found
        for n in c.only(side):
            if not _constant_along(c, side, n) or dimension(c.outputs[0][0], n) != 1:
                continue
            inner = can_block_input(c, activation, channel, block)
            outer = [can_block_output(c, k, n, block) for k in range(len(c.outputs))]
            pairs = [(inner, outer)]
            if inner:
                pairs += [(False, outer), (True, [False] * len(outer))]
            for block_in, block_out in pairs:
                if not block_in and not any(block_out):
                    continue
                ins = wanted_layouts(c, side, n, target, any(block_out), activation if block_in else None, channel)
                outs = tuple(
                    blocked(program.tensor(o), block) if b else Layout.plain(len(program.tensor(o).shape))
                    for o, b in zip(program.outputs, block_out, strict=True)
                )
                yield n, (ins, outs)


def can_block_input(c: Contraction, activation: Load, channel: Var, block: int) -> bool:
    """Whether the activation may be blocked: its other terms keep to whole blocks, and padding lanes add only zeros."""
    tensor = c.form.program.inputs[number_of(activation)]
    if blocked(tensor, block).is_plain or not _whole(activation.index[1], channel, block):
        return False
    if (channel.extent or 0) % block == 0:
        return True
    side = next(s for s in (0, 1) if activation in tensor_loads(c.factors[s]))
    return is_plain_read(c.factors[side])


def can_block_output(c: Contraction, k: int, n: Var, block: int) -> bool:
    program = c.form.program
    index = c.outputs[k][0]
    if blocked(program.tensor(program.outputs[k]), block).is_plain or dimension(index, n) != 1:
        return False
    return _whole(index[1], n, block)


def _whole(index: Expr, axis: Var, block: int) -> bool:
    """Whether the blocks of a dimension are blocks of this axis: what else stands in the index is a multiple of the block."""
    parts, constant = ix.terms(index)
    others = [k for a, k in parts if a is not axis]
    if constant % block or any(k % block for k in others):
        return False
    return not others or (axis.extent or 0) % block == 0


def is_plain_read(e: Expr) -> bool:
    """Whether a factor is one read, possibly converted and padded with zeros: zero in memory is zero as a value."""
    match e:
        case Load():
            return True
        case Apply("cast", (a,)):
            return a.dtype.has_zero and is_plain_read(a)
        case Apply("select", (_, a, Const(value=v))):
            return v == 0 and is_plain_read(a)
        case _:
            return False


def _constant_along(c: Contraction, side: int, n: Var) -> bool:
    """Whether all that a factor reads along an axis are constants that can be packed along it."""
    for ld in tensor_loads(c.factors[side]):
        if n in variables_of(ld.index):
            if not c.form.program.inputs[number_of(ld)].constant or dimension(ld.index, n) is None:
                return False
    return True


# ---- row-major tensors


def _row_major(c: Contraction, target: Target) -> Iterator[tuple[Var, LayoutPair]]:
    lanes = target.lanes(c.dtype.itemsize)
    ranked: list[tuple[float, str, int, Var]] = []
    for side in (0, 1):
        for n in c.only(side):
            cost = _cost(c, side, n, lanes)
            if cost is not None:
                ranked.append((cost, n.name, side, n))
    ranked.sort(key=lambda r: (r[0], r[1]))
    outs = tuple(Layout.plain(len(c.form.program.tensor(o).shape)) for o in c.form.program.outputs)
    for cost, _, side, n in ranked[:2]:
        if cost <= 1.5 * ranked[0][0]:
            yield n, (wanted_layouts(c, side, n, target, False, None, None), outs)


def _cost(c: Contraction, side: int, n: Var, lanes: int) -> float | None:
    """A rough cost per multiply-add of a vector along an axis; None where nothing is gained from vectors."""
    extent = n.extent or 1
    others = math.prod(a.extent or 1 for a in c.only(1 - side))
    depth = max(1, c.form.reduced_points)
    cost = -(-extent // lanes) * lanes / extent
    program = c.form.program
    index, _ = c.outputs[0]
    shape = program.tensor(program.outputs[0]).shape
    scattered = 0 if _stride(index, shape, n) == 1 else 1
    extra = scattered * 16.0 / depth
    if not _constant_along(c, side, n):
        strides = {
            _stride(ld.index, program.inputs[number_of(ld)].shape, n) for ld in tensor_loads(c.factors[side])
        } - {0}
        if strides != {1}:
            if others < 8:
                return None
            extra += 12.0 / others
    tile = max([a.extent or 1 for a in c.only(1 - side)], default=1)
    return cost * (1 + extra) * (1 + 1 / min(tile, 8))


def _stride(index: tuple[Expr, ...], shape: tuple[int, ...], n: Var) -> int | None:
    """How far apart in memory neighbours along an axis lie in a row-major tensor."""
    offset = ix.flatten(index, shape)
    found = 0
    for atom, k in ix.terms(offset)[0]:
        if atom is n:
            found = k
        elif n in variables_of((atom,)):
            return None
    return found


# ---- layouts of inputs


def wanted_layouts(
    c: Contraction, side: int, n: Var, target: Target, block_out: bool, activation: Load | None, channel: Var | None
) -> tuple[Layout, ...]:
    program = c.form.program
    block = channel_block(target)
    lanes = target.lanes(c.dtype.itemsize)
    found: dict[int, Layout] = {}
    if activation is not None:
        number = number_of(activation)
        found[number] = blocked(program.inputs[number], block)
    split = channel if activation is not None else None
    width = max(lanes, block) if block_out else lanes
    for ld in tensor_loads(c.factors[side]):
        number = number_of(ld)
        if program.inputs[number].constant and number not in found and n in variables_of(ld.index):
            packed = _packed(c, ld, n, width, split, block)
            if packed is not None:
                found[number] = packed
    for _, value in c.outputs:
        for ld in tensor_loads(value):
            number = number_of(ld)
            if number in found or n not in variables_of(ld.index):
                continue
            tensor = program.inputs[number]
            d = dimension(ld.index, n)
            if tensor.constant and d is not None and _whole(ld.index[d], n, width):
                found[number] = Layout.blocked(len(tensor.shape), d, width)
            elif block_out and d == 1 and _whole(ld.index[1], n, block):
                found[number] = blocked(tensor, block)
    return tuple(found.get(k, Layout.plain(len(t.shape))) for k, t in enumerate(program.inputs))


def _packed(c: Contraction, ld: Load, n: Var, width: int, channel: Var | None, block: int) -> Layout | None:
    """Constants in the order in which the kernel reads them: batch, vectors of n, reduced axes, n within the vector."""
    d = dimension(ld.index, n)
    if d is None or not _whole(ld.index[d], n, width):
        return None
    batch: list[int] = []
    rest: list[tuple[int, int]] = []
    for k, i in enumerate(ld.index):
        if k == d:
            continue
        inside = [p for p, a in enumerate(c.reduced) if a in variables_of((i,))]
        if inside:
            rest.append((inside[0], k))
        else:
            batch.append(k)
    dims = [*(Dim(k) for k in batch), Dim(d), *(Dim(k) for _, k in sorted(rest))]
    split = dimension(ld.index, channel) if channel is not None else None
    if channel is not None and split is not None and split != d and ld.index[split] is channel:
        dims.append(Dim(split, block))
    return Layout((*dims, Dim(d, width)))
