"""Following the contents of fed inputs as far as they may decide about shapes.

Axes, target shapes and counts are small, and what is computed from them is integer arithmetic. So contents are followed
through stages with few elements, and never further: the numbers of a model are left to its kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autofuse.importer.folding import fold
from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.graph import Node
from autofuse.ir.stage import Stage
from autofuse.ops.builder import Builder, Contents

INTEGERS = 1024
FLOATS = 16
"""At most so many elements are followed: scales and regions of Resize, limits of Range are floats."""


def _followed(dtype: DType, shape: tuple[int, ...] | None) -> bool:
    if shape is None or dtype is DType.STRING:
        return False
    return math.prod(shape) <= (FLOATS if dtype.is_float else INTEGERS)


def take(builder: Builder, fed: Mapping[str, Any]) -> None:
    """Note what the graph's inputs hold, where they are small tensors of the declared type and shape."""
    for v in builder.inputs:
        value = builder.values[v]
        given = fed.get(value.name)
        if not isinstance(given, np.ndarray | np.generic) or not _followed(value.dtype, value.shape):
            continue
        array = np.array(given)
        try:
            fits = from_numpy(array.dtype) is value.dtype and array.shape == value.shape
        except KeyError:
            continue
        if fits:
            array.setflags(write=False)
            builder.contents[v] = Contents(array, frozenset({v}))


def follow(builder: Builder, node: Node) -> None:
    """Note what a node's outputs hold, where that follows from noted contents and constants."""
    if not isinstance(node.compute, Stage) or node.compute.contraction is not None:
        return
    if not any(v in builder.contents for v in node.inputs):
        return
    if not all(_followed(builder.dtype(v), builder.values[v].shape) for v in node.outputs):
        return
    known = {v: c.array for v in node.inputs if (c := builder.contents.get(v)) is not None}
    known |= {v: a for v in node.inputs if (a := builder.constants.get(v)) is not None}
    found = fold(node, known)
    if found is None:
        return
    sources = frozenset(s for v in node.inputs if v in builder.contents for s in builder.contents[v].sources)
    for v, array in zip(node.outputs, found, strict=True):
        array.setflags(write=False)
        builder.contents[v] = Contents(array, sources)
