"""Preparations: what is done to a constant when an engine is built, where a layout alone is not enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

WINOGRAD_WEIGHTS: Mapping[int, tuple[tuple[float, ...], ...]] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
"""G of Winograd's F(m, 3), by m (Lavin and Gray 2015)."""


@dataclass(frozen=True)
class Preparation:
    """A named transformation of a constant. `size` is the output's tile, `block` the channels of a vector.

    "winograd": weights [K, C, 3, 3] become G w G^T as [K / block][tile position][C rounded up to blocks][block], zeros in the padding.
    """

    kind: str
    size: int
    block: int

    def elements(self, shape: tuple[int, ...]) -> int:
        """How many elements a constant of this shape becomes."""
        k, c = (-(-n // self.block) * self.block for n in shape[:2])
        return k * c * (self.size + 2) ** 2

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The constant as it lies in memory (flat)."""
        g = np.array(WINOGRAD_WEIGHTS[self.size])
        k, c = array.shape[:2]
        pad = [(0, -k % self.block), (0, -c % self.block), (0, 0), (0, 0)]
        w = np.pad(array.astype(np.float64), pad)
        tile = np.einsum("ia,kcab,jb->kijc", g, w, g, optimize=True)
        points = (self.size + 2) ** 2
        split = tile.reshape(w.shape[0] // self.block, self.block, points, w.shape[1])
        return np.ascontiguousarray(split.transpose(0, 2, 3, 1)).reshape(-1).astype(array.dtype)

    def text(self) -> str:
        """Short and stable."""
        return f"{self.kind}{self.size}x{self.block}"
