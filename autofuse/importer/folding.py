"""Evaluating what depends on constants alone, within limits on memory and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autofuse.importer.hosts import fold as fold_host
from autofuse.ir.expr import Load, Var
from autofuse.ir.graph import Node, ValueId
from autofuse.ir.stage import Control, Host, Stage
from autofuse.ops.alone import evaluate_alone
from autofuse.ops.evaluate import evaluate

SMALL_BYTES = 16 << 20
GROWTH = 8
"""A folded constant may have SMALL_BYTES, or this many times the bytes of what it is made from (int8 weights widen to
float32 in two steps); a larger one, such as a broadcast table, stays a computation."""
POINTS = 1 << 28
CONTRACTION_FLOPS = 1 << 34


def fold(node: Node, constants: Mapping[ValueId, np.ndarray]) -> list[np.ndarray] | None:
    """The node's outputs, or None where it depends on what is not constant or would grow too large."""
    if any(v not in constants for v in node.inputs):
        return None
    inputs = [constants[v] for v in node.inputs]
    match node.compute:
        case Stage() as stage:
            return [_stage(stage, inputs)] if _affordable(stage, inputs) else None
        case Host() as host:
            return fold_host(host, inputs, SMALL_BYTES)
        case Control() as control:
            return fold_host(control.host, inputs, SMALL_BYTES)
        case alone:
            sizes = [math.prod(s) * d.itemsize for s, d in zip(alone.shapes, alone.dtypes, strict=True)]
            return list(evaluate_alone(alone, inputs)) if sum(sizes) <= SMALL_BYTES else None


def _affordable(stage: Stage, inputs: Sequence[np.ndarray]) -> bool:
    points = math.prod(stage.shape)
    room = max(SMALL_BYTES, GROWTH * sum(a.nbytes for a in inputs))
    if points * stage.dtype.itemsize > room:
        return False
    if stage.contraction is not None:
        return stage.flops <= CONTRACTION_FLOPS
    return points * math.prod(a.extent or 0 for a in stage.reduce_axes) <= POINTS


def _stage(stage: Stage, inputs: Sequence[np.ndarray]) -> np.ndarray:
    viewed = _permuted(stage, inputs)
    return viewed if viewed is not None else evaluate(stage, inputs)


def _permuted(stage: Stage, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """A plain copy with its axes in another order, which numpy does without computing an index per element."""
    match stage.body:
        case Load(source=0, fill=None) as ld if stage.combine is None and ld.dtype is stage.dtype:
            axes = {a: k for k, a in enumerate(stage.axes)}
            order = [axes.get(i) if isinstance(i, Var) else None for i in ld.index]
            if None in order or len(set(order)) != len(stage.axes) or inputs[0].shape != _source_shape(stage, order):
                return None
            back = sorted(range(len(order)), key=lambda d: order[d] or 0)
            return np.ascontiguousarray(inputs[0].transpose(back))
        case _:
            return None


def _source_shape(stage: Stage, order: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(stage.shape[k] for k in order if k is not None)
