"""Fold per-channel scales and offsets behind a convolution or matmul into its weights and one bias.

BatchNorm, Mul and Add by a constant, Sub, Div and every chain of them: out = a[c] * (W x) + b[c] = (a[c] W) x + b[c]. The
new weights are computed in float64 and rounded once. A weight that others use too is copied, never changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.importer.rebuild import Edit
from autofuse.importer.rules.affine import Affine, affine_of
from autofuse.importer.rules.base import Refusal, RuleResult, where
from autofuse.ir.expr import Expr, Load, call, cast_to, load
from autofuse.ir.graph import Graph, Node
from autofuse.ir.stage import Stage


class _Refused(Exception):
    """Why a foldable-looking contraction is left alone."""


@dataclass(frozen=True)
class _Match:
    """A contraction, its weight's slot and load, and the chain of maps behind it as one affine function."""

    node: Node
    slot: int
    weight: Load
    chain: tuple[Node, ...]
    total: Affine


def apply(graph: Graph) -> RuleResult:
    """Refused where the unscaled result is also an output or has other readers, where the scale is not per channel, where the
    weights are integers, and where the scaled weights would overflow."""
    edit = Edit(graph)
    applied = 0
    refusals: list[Refusal] = []
    for n in graph.nodes:
        try:
            match = _match(graph, n)
            if match is None:
                continue
            _fold(graph, edit, match)
            applied += 1
        except _Refused as e:
            refusals.append((where(n), str(e)))
    return RuleResult(edit.finish() if applied else graph, applied, tuple(refusals))


def _match(graph: Graph, node: Node) -> _Match | None:
    operand = _weight(graph, node)
    if operand is None:
        return None
    slot, weight = operand
    free = tuple(k for k, a in enumerate(node.stage.axes) if weight.index.count(a) == 1)
    chain: list[Node] = []
    total = Affine(None, None)
    last = node
    while True:
        step = _next(graph, last, node.stage, free)
        if isinstance(step, str) and total.scale is None:
            raise _Refused(step)
        if step is None or isinstance(step, str):
            break
        last, affine = step
        chain.append(last)
        total = total.then(affine)
    if not chain or (len(chain) == 1 and total.scale is None):
        return None
    if not graph.values[node.inputs[slot]].dtype.is_float:
        raise _Refused("its weights are stored as integers")
    return _Match(node, slot, weight, tuple(chain), total)


def _weight(graph: Graph, node: Node) -> tuple[int, Load] | None:
    """The constant operand of a floating-point contraction."""
    stage = node.compute
    if not isinstance(stage, Stage) or stage.contraction is None or not stage.dtype.is_float:
        return None
    found = [ld for ld in stage.contraction if node.inputs[_slot(ld)] in graph.constants]
    if len(found) != 1 or found[0].fill is not None:
        return None
    return _slot(found[0]), found[0]


def _slot(ld: Load) -> int:
    assert isinstance(ld.source, int)
    return ld.source


def _next(graph: Graph, before: Node, of: Stage, free: Sequence[int]) -> tuple[Node, Affine] | str | None:
    """The affine map that alone reads a node's result, if there is one that is constant but along the axes `free`.

    A reason where there is a scale that cannot be folded, None where there is nothing to fold.
    """
    v = before.outputs[0]
    readers = graph.consumers.get(v, ())
    steps = [(r, a) for r in readers if (a := affine_of(graph, r, v)) is not None and r.stage.dtype is of.dtype]
    learned = any(a.scale is not None and any(i in graph.constants for i in r.inputs) for r, a in steps)
    reason = None
    if v in graph.output_set:
        reason = "its unscaled result is an output of the graph"
    elif len(readers) > 1:
        reason = f"its unscaled result is read by {len(readers)} nodes"
    elif steps and not steps[0][1].varies_along(free):
        reason = "the scale or offset behind it varies along other axes than its channels"
    if reason is None:
        return steps[0] if steps else None
    return reason if learned else None


def _fold(graph: Graph, edit: Edit, match: _Match) -> None:
    node, total, stage = match.node, match.total, match.node.stage
    weights = graph.values[node.inputs[match.slot]]
    result = node.outputs[0]
    inputs = list(node.inputs)
    if total.scale is not None:
        array = graph.constants[node.inputs[match.slot]]
        scaled = _scaled(array, match.weight, stage, total.scale)
        if np.isfinite(array.astype(np.float64)).all() and not np.isfinite(scaled.astype(np.float64)).all():
            raise _Refused(f"the scaled weights are not finite in {weights.dtype.value}")
        inputs[match.slot] = edit.constant(scaled, weights.name)
    last = match.chain[-1]
    for m in match.chain:
        edit.replace(m)
    edit.replace(node, dataclasses.replace(node, inputs=tuple(inputs)))
    if total.offset is None:
        edit.alias(last.outputs[0], result)
        return
    compute = stage.dtype.compute
    kept = tuple(k for k, n in enumerate(total.offset.shape) if n > 1)
    bias = edit.constant(total.offset.reshape([total.offset.shape[k] for k in kept]).astype(compute.numpy), "bias")
    value: Expr = cast_to(load(0, stage.axes, stage.dtype), compute)
    body = call("add", value, load(1, tuple(stage.axes[k] for k in kept), compute))
    added = Stage(stage.axes, body, stage.dtype)
    edit.replace(last, dataclasses.replace(last, inputs=(result, bias), compute=added))


def _scaled(array: np.ndarray, weight: Load, stage: Stage, scale: np.ndarray) -> np.ndarray:
    """The weights times a scale that is given over the contraction's output axes."""
    position = {a: k for k, a in enumerate(stage.axes)}
    along = [position[i] if i in position and scale.shape[position[i]] > 1 else None for i in weight.index]
    used = [k for k in along if k is not None]
    rest = [k for k in range(scale.ndim) if k not in used]
    factor = scale.transpose([*used, *rest]).reshape([1 if k is None else scale.shape[k] for k in along])
    with np.errstate(over="ignore"):
        return np.asarray(array.astype(np.float64) * factor, dtype=array.dtype)
