"""The numbers of a convolution by Winograd's algorithm on the host: tiles, blocks of channels, and the products that it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, const
from autofuse.ir.target import Target
from autofuse.kernels.base import Variant
from autofuse.kernels.layouts import channel_block
from autofuse.kernels.winograd_transform import Setting, multiplications, setting, transforms

Cell = tuple[int, ...]
"""A position in a tile."""


class Shape:
    """The numbers of a variant."""

    def __init__(self, variant: Variant, target: Target) -> None:
        found = setting(variant.program, target)
        assert found is not None
        self.variant = variant
        self.s: Setting = found
        self.size = int(variant.algorithm.removeprefix("winograd-f"))
        self.side = self.size + found.reach - 1
        self.rank = len(found.spaces)
        self.points = self.side**self.rank
        self.block = channel_block(target)
        self.blocks = -(-(found.channel.extent or 1) // self.block)
        self.vectors = -(-(found.n.extent or 1) // self.block)
        self.extents = tuple(a.extent or 1 for a in found.spaces)
        along = [-(-n // d) for n, d in zip(self.extents, found.strides, strict=True)]
        self.shape = (*(a.extent or 1 for a in found.images), *found.strides, *(-(-n // self.size) for n in along))
        self.tiles = math.prod(self.shape)

    def outputs(self, places: Sequence[Expr], cell: Cell) -> tuple[Expr, ...]:
        """Where an output of a tile lies along each space. Taps that read every d-th input are d convolutions side by side: a tile
        takes every d-th output from a phase on."""
        phases, tiles = places[-2 * self.rank : -self.rank], places[-self.rank :]
        return tuple(
            ix.add(ix.mul(ix.add(ix.mul(t, self.size), const(k)), d), phase)
            for t, phase, d, k in zip(tiles, phases, self.s.strides, cell, strict=True)
        )

    def flat(self, cell: Cell) -> int:
        """The number of a position among the points of a tile."""
        return sum(k * self.side**d for d, k in enumerate(reversed(cell)))


def whole_products(variant: Variant, target: Target) -> int:
    """FLOPs of the products of all tiles in whole vectors of features, and half of the transforms: sums that are shared save no more."""
    w = Shape(variant, target)
    return multiplications(w.s, w.size, w.tiles, w.vectors * w.block) + transforms(w.s, w.size, w.tiles) // 2
