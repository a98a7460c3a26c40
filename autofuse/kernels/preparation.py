"""Preparations: what is done to a constant when an engine is built, where a layout alone is not enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autofuse.kernels.cook_toom import short_filter


class Prepared(Protocol):
    """What is done to a constant."""

    def elements(self, shape: tuple[int, ...]) -> int:
        """How many elements (of its own type) a constant of this shape becomes."""

    def saving(self, shape: tuple[int, ...]) -> float:
        """How many times fewer multiplications the algorithm does that reads it."""

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The constant as it lies in memory."""

    def text(self) -> str:
        """Short and stable."""


@dataclass(frozen=True)
class Preparation:
    """A named transformation of a constant. `size` is the output's tile, `taps` the weights in each dimension, `block` the channels of a vector.

    "winograd": weights [K, C, taps, taps] or [K, C, taps] (with dimensions of one left out) become G w G^T or G w as
    [K / block][tile position][C rounded up to blocks][block], zeros in the padding.
    """

    kind: str
    size: int
    taps: int
    block: int

    def elements(self, shape: tuple[int, ...]) -> int:
        """How many elements a constant of this shape becomes."""
        k, c = (-(-n // self.block) * self.block for n in shape[:2])
        return k * c * int((self.size + self.taps - 1) ** len(_wide(shape)))

    def saving(self, shape: tuple[int, ...]) -> float:
        """How many times fewer multiplications the algorithm does that reads a constant of this shape, transforms left aside."""
        return float((self.size * self.taps / (self.size + self.taps - 1)) ** len(_wide(shape)))

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The constant as it lies in memory (flat)."""
        g = np.array([[float(x) for x in row] for row in short_filter(self.size, self.taps).weight])
        rank = len(_wide(array.shape))
        whole = g if rank == 1 else np.kron(g, g)
        outer, inner = array.shape[:2]
        channels = -(-inner // self.block) * self.block
        w = array.reshape(outer, inner, self.taps**rank)
        tile = np.empty((-(-outer // self.block), len(whole), channels, self.block), array.dtype)
        part = np.zeros((self.taps**rank, channels, self.block))
        # a block of output channels at a time: what passes through float64 stays in cache
        for k, made in enumerate(tile):
            rows = w[k * self.block : (k + 1) * self.block]
            part[:, :inner, : len(rows)] = rows.transpose(2, 1, 0)
            part[:, :inner, len(rows) :] = 0
            made[:] = (whole @ part.reshape(len(part), -1)).reshape(made.shape)
        return tile.reshape(-1)

    def text(self) -> str:
        """Short and stable."""
        return f"{self.kind}{self.size}k{self.taps}x{self.block}"


def _wide(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape[2:] if n != 1)
