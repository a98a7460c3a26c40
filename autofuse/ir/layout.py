"""Layouts: how a tensor's logical index becomes an address.

A layout lists physical dimensions, outermost first; each is a whole axis, or the outer or inner part of an axis split by
a block. Plain row-major, channels-last, NCHW16c and packed weights are all of this form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, const


@dataclass(frozen=True)
class Dim:
    """A physical dimension: `axis` of the tensor; `block` 0 for the whole axis (or, with another Dim of the same axis
    carrying a block, its outer part), else the inner part of that many elements."""

    axis: int
    block: int = 0


@dataclass(frozen=True)
class Layout:
    """Physical dimensions of a tensor of rank `rank`. At most one Dim of each axis has a block.

    An axis that its block does not divide is padded; padded elements exist in memory and hold zeros in prepared constants and in
    whatever a kernel writes.
    """

    dims: tuple[Dim, ...]

    @staticmethod
    def plain(rank: int) -> Layout:
        return Layout(tuple(Dim(a) for a in range(rank)))

    @staticmethod
    def permuted(order: tuple[int, ...]) -> Layout:
        return Layout(tuple(Dim(a) for a in order))

    @staticmethod
    def blocked(rank: int, axis: int, block: int) -> Layout:
        """Plain, but with `axis` split and its inner part innermost: NCHW16c is blocked(4, 1, 16)."""
        return Layout((*(Dim(a) for a in range(rank)), Dim(axis, block)))

    @cached_property
    def blocks(self) -> dict[int, int]:
        return {d.axis: d.block for d in self.dims if d.block}

    @property
    def rank(self) -> int:
        return len({d.axis for d in self.dims})

    @cached_property
    def is_plain(self) -> bool:
        return self.dims == tuple(Dim(a) for a in range(len(self.dims)))

    def extents(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The physical extents of a tensor of this shape."""
        return tuple(d.block or -(-shape[d.axis] // self.blocks.get(d.axis, 1)) for d in self.dims)

    def size(self, shape: tuple[int, ...]) -> int:
        """Elements in memory, padding included."""
        return math.prod(self.extents(shape))

    def is_padded(self, shape: tuple[int, ...]) -> bool:
        return any(shape[a] % b for a, b in self.blocks.items())

    def physical(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The physical index of a logical one."""
        return tuple(
            ix.floor_mod(index[d.axis], d.block) if d.block else ix.floor_div(index[d.axis], self.blocks.get(d.axis, 1))
            for d in self.dims
        )

    def logical(self, physical: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The logical index of a physical one (it lies outside the shape in padding)."""
        out: list[Expr] = [const(0)] * self.rank
        for d, i in zip(self.dims, physical, strict=True):
            scale = 1 if d.block else self.blocks.get(d.axis, 1)
            out[d.axis] = ix.add(out[d.axis], ix.mul(i, scale))
        return tuple(out)

    def offset(self, index: tuple[Expr, ...], shape: tuple[int, ...]) -> Expr:
        """The flat element offset of a logical index."""
        return ix.flatten(self.physical(index), self.extents(shape))

    def pack(self, array: np.ndarray) -> np.ndarray:
        """The array as it lies in memory (physical shape), padding zero."""
        return np.ascontiguousarray(self.view(array))

    def view(self, array: np.ndarray) -> np.ndarray:
        """The array in the physical shape, not moved: a view where there is no padding."""
        if self.is_plain:
            return array
        pads = [(0, -n % self.blocks.get(a, 1)) for a, n in enumerate(array.shape)]
        padded = np.pad(array, pads) if any(p for _, p in pads) else array
        split: list[int] = []
        position: dict[Dim, int] = {}
        for axis, n in enumerate(padded.shape):
            block = self.blocks.get(axis, 0)
            position[Dim(axis)] = len(split)
            split.append(n // block if block else n)
            if block:
                position[Dim(axis, block)] = len(split)
                split.append(block)
        return padded.reshape(split).transpose([position[d] for d in self.dims])

    def unpack(self, memory: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The inverse of pack: a plain array of the logical shape."""
        physical = memory.reshape(self.extents(shape))
        order = sorted(range(len(self.dims)), key=lambda k: (self.dims[k].axis, self.dims[k].block > 0))
        padded = physical.transpose(order).reshape([-(-n // b) * b for n, b in _with_blocks(shape, self.blocks)])
        return np.ascontiguousarray(padded[tuple(slice(0, n) for n in shape)])

    def text(self) -> str:
        """Short and stable: axes as letters a, b, ...; a block as its size and letter (abcd16b)."""
        return "".join(f"{d.block or ''}{chr(97 + d.axis)}" for d in self.dims)

    @staticmethod
    def parse(text: str) -> Layout:
        """The inverse of text(); ValueError when it is not one."""
        dims: list[Dim] = []
        number = ""
        for ch in text:
            if ch.isdigit():
                number += ch
            elif "a" <= ch <= "z":
                dims.append(Dim(ord(ch) - 97, int(number or 0)))
                number = ""
            else:
                raise ValueError(f"not a layout: {text!r}")
        layout = Layout(tuple(dims))
        split = [d.axis for d in dims if d.block]
        if len(set(split)) != len(split):
            raise ValueError(f"not a layout: {text!r} splits an axis twice")
        if number or sorted({d.axis for d in dims}) != list(range(layout.rank)) or len(set(dims)) != len(dims):
            raise ValueError(f"not a layout: {text!r}")
        return layout


def _with_blocks(shape: tuple[int, ...], blocks: dict[int, int]) -> list[tuple[int, int]]:
    return [(n, blocks.get(a, 1)) for a, n in enumerate(shape)]
