"""Toom's and Cook's bilinear form of a short filter, F(m, r): m outputs of r taps with m + r - 1 multiplications.

The m outputs are A^T [(G w) * (B^T d)] of r weights w and m + r - 1 inputs d. The rows follow from polynomials through chosen points (S. Winograd,
Arithmetic Complexity of Computations, 1980; for convolutions of networks: Lavin and Gray, 2015). Everything that could be scaled
stands in G, which is applied when an engine is built: the other two are then of small whole numbers for the first few points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

POINTS = tuple(Fraction(p) for p in (0, 1, -1, 2, -2, "1/2", "-1/2"))
"""Points in the order in which they are taken, with infinity as the last one: a point stands beside its negative, so that they share sums."""

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Filter:
    """The three matrices of F(m, r) with n = m + r - 1: `output` is A^T (m, n), `weight` is G (n, r), `input` is B^T (n, n)."""

    output: Matrix
    weight: Matrix
    input: Matrix


@lru_cache(maxsize=32)
def short_filter(m: int, r: int) -> Filter:
    """F(m, r). ValueError where m + r is even (a point would stand without its negative), or more points are wanted than there are."""
    n = m + r - 1
    if n % 2 or n - 1 > len(POINTS):
        raise ValueError(f"F({m}, {r}): m + r must be odd and at most {len(POINTS) + 2}")
    points = POINTS[: n - 1]
    output = [(*(p**i for p in points), Fraction(int(i == m - 1))) for i in range(m)]
    weight: list[tuple[Fraction, ...]] = []
    inputs: list[tuple[Fraction, ...]] = []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        weight.append(tuple(p**k / scale for k in range(r)))
        inputs.append((*_product(others), Fraction(0)))
    weight.append(tuple(Fraction(int(k == r - 1)) for k in range(r)))
    inputs.append(_product(points))
    return Filter(tuple(output), tuple(weight), tuple(inputs))


def _product(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the product of (x - root), the constant one first."""
    out = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *out]
        out = [a - root * b for a, b in zip(shifted, [*out, Fraction(0)], strict=True)]
    return tuple(out)
