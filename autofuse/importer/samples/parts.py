"""Pieces that the samples share, written in primitive operators as exporters write them."""

from __future__ import annotations

import math

import numpy as np

from autofuse.importer.samples.writer import Writer


def gelu_erf(w: Writer, x: str) -> str:
    """x * 0.5 * (1 + erf(x / sqrt 2))."""
    inner = w.op("Erf", w.op("Div", x, w.const(math.sqrt(2))))
    return w.op("Mul", w.op("Mul", x, w.op("Add", inner, w.const(1.0))), w.const(0.5))


def silu(w: Writer, x: str) -> str:
    """x * sigmoid(x)."""
    return w.op("Mul", x, w.op("Sigmoid", x))


def normalise(w: Writer, x: str, axis: int) -> str:
    """(x - mean) / sqrt(variance + eps), the variance computed from the differences."""
    difference = w.op("Sub", x, w.op("ReduceMean", x, axes=[axis], keepdims=1))
    variance = w.op("ReduceMean", w.op("Pow", difference, w.const(2.0)), axes=[axis], keepdims=1)
    return w.op("Div", difference, w.op("Sqrt", w.op("Add", variance, w.const(1e-5))))


def layernorm(w: Writer, x: str, n: int) -> str:
    """LayerNorm over the last axis, written out."""
    scaled = w.op("Mul", normalise(w, x, -1), w.vector(n, 1.0))
    return w.op("Add", scaled, w.vector(n))


def rmsnorm(w: Writer, x: str, n: int) -> str:
    """x / sqrt(mean(x^2) + eps) * scale, written out."""
    mean = w.op("ReduceMean", w.op("Pow", x, w.const(2.0)), axes=[-1], keepdims=1)
    root = w.op("Sqrt", w.op("Add", mean, w.const(1e-6)))
    return w.op("Mul", w.op("Mul", x, w.op("Reciprocal", root)), w.vector(n, 1.0))


def rotary_tables(positions: int, width: int, base: float = 10000.0) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of shape (positions, width), each half repeated."""
    frequency = base ** (-np.arange(0, width, 2) / width)
    angle = np.arange(positions)[:, None] * frequency[None, :]
    both = np.concatenate([angle, angle], axis=1)
    return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


def rotary(w: Writer, x: str, cos: str, sin: str, width: int) -> str:
    """x * cos + concat(-x2, x1) * sin over the last axis."""
    half = width // 2
    axes = w.const([-1], np.int64)
    first = w.op("Slice", x, w.const([0], np.int64), w.const([half], np.int64), axes)
    second = w.op("Slice", x, w.const([half], np.int64), w.const([width], np.int64), axes)
    turned = w.op("Concat", w.op("Neg", second), first, axis=-1)
    return w.op("Add", w.op("Mul", x, cos), w.op("Mul", turned, sin))
