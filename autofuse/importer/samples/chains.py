"""Memory-bound chains written in primitive operators, as exporters write them. Each is bounded by the bytes it must move."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from autofuse.importer.samples import parts
from autofuse.importer.samples.writer import Writer


def gelu(rows: int = 4096, columns: int = 1024) -> ModelProto:
    """residual + Gelu(x + bias), Gelu through erf."""
    w = Writer("chain_gelu")
    x, residual = w.input("x", (rows, columns)), w.input("residual", (rows, columns))
    y = w.op("Add", parts.gelu_erf(w, w.op("Add", x, w.vector(columns))), residual)
    return w.model([(y, "y", (rows, columns))])


def layernorm(rows: int = 4096, columns: int = 1024) -> ModelProto:
    """LayerNorm over the last axis, written out."""
    w = Writer("chain_layernorm")
    y = parts.layernorm(w, w.input("x", (rows, columns)), columns)
    return w.model([(y, "y", (rows, columns))])


def rmsnorm(rows: int = 4096, columns: int = 1024) -> ModelProto:
    """h = x + residual and RMSNorm(h); both are results."""
    w = Writer("chain_rmsnorm")
    h = w.op("Add", w.input("x", (rows, columns)), w.input("residual", (rows, columns)))
    y = parts.rmsnorm(w, h, columns)
    return w.model([(y, "y", (rows, columns)), (h, "h", (rows, columns))])


def softmax(heads: int = 16, queries: int = 512, keys: int = 512) -> ModelProto:
    """Softmax(x / 8 + mask) over the last axis with a causal mask as an input."""
    w = Writer("chain_softmax")
    scaled = w.op("Mul", w.input("x", (heads, queries, keys)), w.const(0.125))
    masked = w.op("Add", scaled, w.input("mask", (1, queries, keys)))
    return w.model([(w.op("Softmax", masked, axis=-1), "y", (heads, queries, keys))])


def swiglu(rows: int = 2048, columns: int = 4096) -> ModelProto:
    """silu(a) * b, where a and b are the halves of x."""
    w = Writer("chain_swiglu")
    half = columns // 2
    a, b = w.ops("Split", 2, w.input("x", (rows, columns)), w.const([half, half], np.int64), axis=-1)
    return w.model([(w.op("Mul", parts.silu(w, a), b), "y", (rows, half))])


def rotary(heads: int = 16, positions: int = 1024, width: int = 64) -> ModelProto:
    """Rotary position embedding, in the form that turns halves."""
    w = Writer("chain_rotary")
    x = w.input("x", (heads, positions, width))
    cos, sin = parts.rotary_tables(positions, width)
    y = parts.rotary(w, x, w.const(cos), w.const(sin), width)
    return w.model([(y, "y", (heads, positions, width))])


def groupnorm(channels: int = 128, height: int = 128, width: int = 128, groups: int = 32) -> ModelProto:
    """GroupNorm written out, and SiLU."""
    w = Writer("chain_groupnorm")
    x = w.input("x", (1, channels, height, width))
    flat = w.op("Reshape", x, w.const([1, groups, -1], np.int64))
    normal = parts.normalise(w, flat, -1)
    back = w.op("Reshape", normal, w.const([1, channels, height, width], np.int64))
    scale = w.const(1 + 0.1 * w.rng.standard_normal((channels, 1, 1)))
    bias = w.const(0.1 * w.rng.standard_normal((channels, 1, 1)))
    y = parts.silu(w, w.op("Add", w.op("Mul", back, scale), bias))
    return w.model([(y, "y", (1, channels, height, width))])
