"""The smallest samples: a perceptron and a softmax."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from onnx import ModelProto

from autofuse.importer.samples.writer import Writer


def mlp(batch: int = 32, sizes: Sequence[int] = (784, 512, 256, 10)) -> ModelProto:
    """Fully connected layers as Gemm and Relu, and a Softmax."""
    w = Writer("mlp")
    x = w.input("x", (batch, sizes[0]))
    for k, (n, m) in enumerate(itertools.pairwise(sizes)):
        last = k == len(sizes) - 2
        x = w.op("Gemm", x, w.weight(n, m, gain=1.0 if last else float(np.sqrt(2))), w.vector(m))
        x = w.op("Softmax", x, axis=-1) if last else w.op("Relu", x)
    return w.model([(x, "y", (batch, sizes[-1]))])


def softmax(rows: int = 1024, columns: int = 1000) -> ModelProto:
    """One Softmax over the last axis."""
    w = Writer("softmax")
    y = w.op("Softmax", w.input("x", (rows, columns)), axis=-1)
    return w.model([(y, "y", (rows, columns))])
