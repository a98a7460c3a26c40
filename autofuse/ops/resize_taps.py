"""Where Resize reads along one axis and with which weights: coordinate transformations, nearest, linear and cubic kernels.

All of it is worked out when a model is imported, in double precision, by the standard's formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autofuse.ops.declare import Call, Unsupported


@dataclass(frozen=True)
class Axis:
    """One axis: for every output position the taps' positions (unclamped) and weights, and what lies outside."""

    size: int
    positions: np.ndarray
    weights: np.ndarray | None
    outside: np.ndarray | None


def _coordinates(mode: str, n: int, out: int, scale: float, roi: tuple[float, float]) -> np.ndarray:
    """Where each output position lies in the input, by the standard's formulas."""
    o = np.arange(out, dtype=np.float64)
    length = scale * n
    half = (o + 0.5) / scale - 0.5
    match mode:
        case "half_pixel":
            return half
        case "pytorch_half_pixel":
            return half if length != 1 else np.full(out, -0.5)
        case "half_pixel_symmetric":
            return n / 2 * (1 - out / length) + (o + 0.5) / scale - 0.5
        case "asymmetric":
            return o / scale
        case "align_corners":
            return o * (n - 1) / (length - 1) if length != 1 else np.zeros(out)
        case "tf_half_pixel_for_nn":
            return (o + 0.5) / scale
        case "tf_crop_and_resize":
            first, last = roi
            if length == 1:
                return np.full(out, (first + last) * (n - 1) / 2)
            return first * (n - 1) + o * (last - first) * (n - 1) / (length - 1)
        case _:
            raise Unsupported(f"the coordinate transformation {mode!r}")


def _rounded(x: np.ndarray, how: str, scale: float) -> np.ndarray:
    match how:
        case "round_prefer_floor":
            found = np.ceil(x - 0.5)
        case "round_prefer_ceil":
            found = np.floor(x + 0.5)
        case "floor":
            found = np.floor(x)
        case "ceil":
            found = np.ceil(x)
        case "simple":  # before opset 11: up by repeating, down by skipping
            found = np.ceil(x) if scale < 1 else np.floor(x)
        case _:
            raise Unsupported(f"rounding of mode {how!r}")
    return found.astype(np.int64)[:, None]


def _cubic(ratio: np.ndarray, a: float) -> np.ndarray:
    """Weights of the four neighbours (Keys)."""
    near, far = ratio, 1 - ratio

    def outer(t: np.ndarray) -> np.ndarray:
        return np.asarray(((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a)

    def inner(t: np.ndarray) -> np.ndarray:
        return np.asarray(((a + 2) * t - (a + 3)) * t * t + 1)

    return np.stack([outer(near), inner(near), inner(far), outer(far)], axis=1)


def _smoothed(ratio: np.ndarray, scale: float, reach: int, kernel: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Weights of a kernel (of `reach` elements to each side) widened by 1 / scale, for the offsets that `_widened` gives."""
    weights = kernel((_widened(scale, reach) - ratio[:, None]) * scale)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _widened(scale: float, reach: int) -> np.ndarray:
    """Offsets from the element at or before a position that the widened kernel may reach."""
    first = int(np.floor(-reach / scale)) + 1
    return np.arange(first, 2 - first)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(1 - np.abs(x), 0, 1))


def _keys(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic kernel itself (Keys), zero beyond two elements."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0.0)))


def axis_of(c: Call, n: int, out: int, scale: float, roi: tuple[float, float], old: bool) -> Axis:
    """The taps of an axis of n elements that gets `out`. `old` asks for the meaning below opset 11; Unsupported for modes that are unknown."""
    mode = str(c.attr("mode", "nearest"))
    place = "asymmetric" if old else str(c.attr("coordinate_transformation_mode", "half_pixel"))
    x = _coordinates(place, n, out, scale, roi)
    outside = (x < 0) | (x > n - 1) if place == "tf_crop_and_resize" else None
    if outside is not None and not outside.any():
        outside = None
    if mode == "nearest":
        how = (
            ("floor" if c.op == "Upsample" else "simple") if old else str(c.attr("nearest_mode", "round_prefer_floor"))
        )
        return Axis(n, _rounded(x, how, scale), None, outside)
    low = np.floor(x)
    ratio = x - low
    # antialiasing widens the kernel where an axis shrinks, and changes nothing where it grows
    smooth = bool(c.attr("antialias", 0)) and scale < 1
    if mode in ("linear", "bilinear"):
        weights = _smoothed(ratio, scale, 1, _triangle) if smooth else np.stack([1 - ratio, ratio], axis=1)
        positions = low[:, None] + (_widened(scale, 1) if smooth else np.arange(2))
    elif mode == "cubic":
        a = float(c.attr("cubic_coeff_a", -0.75))
        weights = _smoothed(ratio, scale, 2, lambda x: _keys(x, a)) if smooth else _cubic(ratio, a)
        positions = low[:, None] + (_widened(scale, 2) if smooth else np.arange(-1, 3))
    else:
        raise Unsupported(f"interpolation of mode {mode!r}")
    if c.attr("exclude_outside", 0):
        weights = np.where((positions < 0) | (positions >= n), 0.0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return Axis(n, positions.astype(np.int64), weights, outside)
