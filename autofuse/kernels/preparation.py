"""Preparations: what is done to a constant when an engine is built, where a layout alone is not enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autofuse.kernels.cook_toom import short_filter


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
        wide = _wide(array.shape)
        w = array.reshape(*array.shape[:2], *wide).astype(np.float64)
        w = np.pad(w, [(0, -n % self.block) for n in array.shape[:2]] + [(0, 0)] * len(wide))
        tile = (
            np.einsum("ia,kca->kic", g, w) if len(wide) == 1 else np.einsum("ia,kcab,jb->kijc", g, w, g, optimize=True)
        )
        points = (self.size + self.taps - 1) ** len(wide)
        split = tile.reshape(w.shape[0] // self.block, self.block, points, w.shape[1])
        return np.ascontiguousarray(split.transpose(0, 2, 3, 1)).reshape(-1).astype(array.dtype)

    def text(self) -> str:
        """Short and stable."""
        return f"{self.kind}{self.size}k{self.taps}x{self.block}"


def _wide(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape[2:] if n != 1)
