"""Merge a chain of maps that scale and shift by constants into one a[c] * x + b[c].

A BatchNorm before an activation, or one written as Mul and Add on top of another, reads two vectors instead of four. The
constants are computed in float64 and rounded once.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from autofuse.importer.rebuild import Edit
from autofuse.importer.rules.affine import Affine, affine_of
from autofuse.importer.rules.base import Refusal, RuleResult, where
from autofuse.ir.expr import Expr, call, cast_to, load
from autofuse.ir.graph import Graph, Node, ValueId
from autofuse.ir.stage import Stage


def apply(graph: Graph) -> RuleResult:
    """Refused where the value between is an output or has other readers, and where the merged constants would be larger.

    Literal factors are no reason to merge: who adds and subtracts a number may want its rounding.
    """
    edit = Edit(graph)
    applied = 0
    refusals: list[Refusal] = []
    done: set[int] = set()
    for n in graph.nodes:
        if n.id in done:
            continue
        first = _step(graph, n)
        if first is None:
            continue
        x, total = first
        chain = [n]
        while True:
            found = _reader(graph, chain[-1])
            if found is None:
                break
            node, affine = found
            v = chain[-1].outputs[0]
            reason = _reason(graph, v, total, affine)
            if reason is not None:
                refusals.append((where(node), reason))
                break
            total = total.then(affine)
            chain.append(node)
        if len(chain) > 1:
            done.update(m.id for m in chain)
            _merge(edit, x, chain, total)
            applied += 1
    return RuleResult(edit.finish() if applied else graph, applied, tuple(refusals))


def _step(graph: Graph, node: Node) -> tuple[ValueId, Affine] | None:
    """The value that a node scales or shifts by constant tensors, and how."""
    fed = [v for v in node.inputs if v not in graph.constants]
    if len(fed) != 1 or len(node.inputs) < 2 or not isinstance(node.compute, Stage) or not node.compute.dtype.is_float:
        return None
    affine = affine_of(graph, node, fed[0])
    if affine is None or graph.values[fed[0]].dtype is not node.compute.dtype:
        return None
    return fed[0], affine


def _reader(graph: Graph, node: Node) -> tuple[Node, Affine] | None:
    for r in graph.consumers.get(node.outputs[0], ()):
        step = _step(graph, r)
        if step is not None:
            return r, step[1]
    return None


def _reason(graph: Graph, between: ValueId, first: Affine, second: Affine) -> str | None:
    if between in graph.output_set:
        return "the value before it is an output of the graph"
    if len(graph.consumers[between]) > 1:
        return "the value before it has other readers"
    total = first.then(second)
    parts = [a for f in (first, second) for a in (f.scale, f.offset) if a is not None]
    merged = [a for a in (total.scale, total.offset) if a is not None]
    if max(a.size for a in merged) > max(a.size for a in parts):
        return "the merged constants would be larger"
    if any(not np.isfinite(a).all() for a in merged):
        return "the merged constants are not finite"
    return None


def _merge(edit: Edit, x: ValueId, chain: list[Node], total: Affine) -> None:
    last = chain[-1]
    stage = last.stage
    compute = stage.dtype.compute
    inputs = [x]
    body: Expr = cast_to(load(0, stage.axes, stage.dtype), compute)
    for fn, array in (("mul", total.scale), ("add", total.offset)):
        if array is None:
            continue
        kept = tuple(k for k, n in enumerate(array.shape) if n > 1)
        inputs.append(edit.constant(array.reshape([array.shape[k] for k in kept]).astype(compute.numpy), fn))
        body = call(fn, body, load(len(inputs) - 1, tuple(stage.axes[k] for k in kept), compute))
    for m in chain[:-1]:
        edit.replace(m)
    edit.replace(last, dataclasses.replace(last, inputs=tuple(inputs), compute=Stage(stage.axes, body, stage.dtype)))
