"""Transformer blocks as exporters write them: an encoder in the manner of BERT, a decoder in the manner of Llama."""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto

from autofuse.importer.samples import parts
from autofuse.importer.samples.writer import Writer


def _split_heads(w: Writer, x: str, sequence: int, heads: int, width: int, order: list[int]) -> str:
    shaped = w.op("Reshape", x, w.const([1, sequence, heads, width], np.int64))
    return w.op("Transpose", shaped, perm=order)


def _attention(w: Writer, q: str, k_transposed: str, v: str, width: int, mask: str) -> str:
    scores = w.op("Div", w.op("MatMul", q, k_transposed), w.const(math.sqrt(width)))
    return w.op("MatMul", w.op("Softmax", w.op("Add", scores, mask), axis=-1), v)


def _join_heads(w: Writer, x: str, sequence: int, hidden: int) -> str:
    return w.op("Reshape", w.op("Transpose", x, perm=[0, 2, 1, 3]), w.const([1, sequence, hidden], np.int64))


def bert_block(sequence: int = 128, hidden: int = 256, heads: int = 4) -> ModelProto:
    """Self-attention with a padding mask, Gelu through erf; the first LayerNorm is the operator, the second is written out."""
    w = Writer("bert_block")
    width = hidden // heads
    x = w.input("x", (1, sequence, hidden))
    attended = w.input("attention_mask", (1, sequence))
    room = w.op("Unsqueeze", attended, w.const([1, 2], np.int64))
    mask = w.op("Mul", w.op("Sub", w.const(1.0), room), w.const(-10000.0))
    q = _split_heads(w, w.linear(x, hidden, hidden), sequence, heads, width, [0, 2, 1, 3])
    k = _split_heads(w, w.linear(x, hidden, hidden), sequence, heads, width, [0, 2, 3, 1])
    v = _split_heads(w, w.linear(x, hidden, hidden), sequence, heads, width, [0, 2, 1, 3])
    mixed = _join_heads(w, _attention(w, q, k, v, width, mask), sequence, hidden)
    added = w.op("Add", w.linear(mixed, hidden, hidden), x)
    h = w.op("LayerNormalization", added, w.vector(hidden, 1.0), w.vector(hidden), axis=-1, epsilon=1e-5)
    inner = parts.gelu_erf(w, w.linear(h, hidden, 4 * hidden))
    y = parts.layernorm(w, w.op("Add", w.linear(inner, 4 * hidden, hidden), h), hidden)
    return w.model([(y, "y", (1, sequence, hidden))])


def gpt_block(sequence: int = 128, hidden: int = 384, heads: int = 6) -> ModelProto:
    """Causal self-attention with rotary embedding between RMSNorms, and SwiGLU."""
    w = Writer("gpt_block")
    width, inner = hidden // heads, hidden * 8 // 3
    x = w.input("x", (1, sequence, hidden))
    cos, sin = (w.const(t) for t in parts.rotary_tables(sequence, width))
    lowest = float(np.finfo(np.float32).min)
    mask = w.const(np.triu(np.full((1, 1, sequence, sequence), lowest), 1))
    h = parts.rmsnorm(w, x, hidden)
    order = [0, 2, 1, 3]
    q = _split_heads(w, w.linear(h, hidden, hidden, bias=False), sequence, heads, width, order)
    k = _split_heads(w, w.linear(h, hidden, hidden, bias=False), sequence, heads, width, order)
    v = _split_heads(w, w.linear(h, hidden, hidden, bias=False), sequence, heads, width, order)
    q, k = parts.rotary(w, q, cos, sin, width), parts.rotary(w, k, cos, sin, width)
    mixed = _attention(w, q, w.op("Transpose", k, perm=[0, 1, 3, 2]), v, width, mask)
    x = w.op("Add", x, w.linear(_join_heads(w, mixed, sequence, hidden), hidden, hidden, bias=False))
    h = parts.rmsnorm(w, x, hidden)
    gate = parts.silu(w, w.linear(h, hidden, inner, bias=False))
    up = w.linear(h, hidden, inner, bias=False)
    y = w.op("Add", x, w.linear(w.op("Mul", gate, up), inner, hidden, bias=False))
    return w.model([(y, "y", (1, sequence, hidden))])
