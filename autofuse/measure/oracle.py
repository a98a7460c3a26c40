"""Whole models: the float64 reference of a graph, and the check of an engine's outputs before it is timed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from autofuse.importer.reference import run_reference
from autofuse.ir.dtype import NARROW_FLOATS, DType
from autofuse.ir.graph import Graph
from autofuse.measure.reference import Check, Tolerance, compare_floats

WHOLE_FLOPS = 2e10
"""Up to here the whole model is evaluated in float64; beyond, the unfused engine, whose kernels are checked one by one, stands in."""

_DISCRETE_SHARE = 1e-3


def whole_reference(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's outputs by name in float64 (sequences and the like are left out)."""
    results = run_reference(graph, inputs, wide=True)
    pairs = zip(graph.output_names, results, strict=True)
    return {name: np.asarray(r) for name, r in pairs if isinstance(r, np.ndarray | np.generic)}


def graph_flops(graph: Graph) -> int:
    """Arithmetic of all nodes, each once."""
    return sum(n.compute.flops for n in graph.nodes)


def compare_model(
    graph: Graph, got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], tolerance: Tolerance
) -> Check:
    """Compare a model's outputs. Rounding adds up over a model's depth, so the tolerance is that of the narrowest float type in it.

    Integers of a model with float arithmetic (classes, positions) may differ in a thousandth of the elements, those of 8 bits, which are
    quantised values, by one step anywhere: each kernel's own integers were checked exactly before.
    """
    narrow = _narrowest(graph)
    worst = 0.0
    for name, v in zip(graph.output_names, graph.outputs, strict=True):
        dtype = graph.values[v].dtype
        if name not in wanted or name not in got or dtype is DType.STRING:
            continue
        mine, ref = np.asarray(got[name]), wanted[name]
        if mine.shape != ref.shape:
            return Check(False, math.inf, f"output {name!r} has shape {mine.shape}, the reference {ref.shape}")
        if dtype.is_float and not dtype.is_narrow:
            loose = narrow if narrow is not None else dtype
            error, reason = compare_floats(mine, ref, dtype, Tolerance(*tolerance.of(loose)))
            worst = max(worst, error)
            if reason:
                return Check(False, error, f"output {name!r}: {reason}")
        else:
            apart = (mine != ref) & ((mine == mine) | (ref == ref))
            if narrow is not None and dtype.is_integer and dtype.itemsize == 1:
                # A quantised value at a tie is rounded one way in float32 and the other in float64, perhaps everywhere.
                apart &= np.abs(mine.astype(np.int64) - ref.astype(np.int64)) > 1
            differ = int(apart.sum())
            allowed = 0 if narrow is None else max(1, int(_DISCRETE_SHARE * ref.size))
            if differ > allowed:
                return Check(False, math.inf, f"output {name!r}: {differ} of {ref.size} elements differ")
    return Check(True, worst)


def _narrowest(graph: Graph) -> DType | None:
    """The float type with the fewest bits of precision that the graph stores; None where it has no floats."""
    order = (*NARROW_FLOATS, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)
    present = {v.dtype for v in graph.values}
    return next((t for t in order if t in present), None)
