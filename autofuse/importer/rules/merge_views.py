"""Merge a reshape, transpose, slice or expansion into one that reads it: the indices are composed.

Views that undo each other become the identity, which another rule removes.
"""

from __future__ import annotations

import dataclasses

from autofuse.importer.rebuild import Edit
from autofuse.importer.rules.base import Refusal, RuleResult, view_of, where
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Load, load
from autofuse.ir.graph import Graph, Node, ValueId
from autofuse.ir.stage import Stage


def apply(graph: Graph) -> RuleResult:
    """Refused where the reader pads: what lies outside of the inner view need not lie outside of its source."""
    edit = Edit(graph)
    views: dict[ValueId, tuple[ValueId, Stage]] = {}
    applied = 0
    refusals: list[Refusal] = []
    for n in graph.nodes:
        ld = view_of(n)
        if ld is None:
            continue
        inner = views.get(n.inputs[0])
        if inner is None:
            views[n.outputs[0]] = (n.inputs[0], n.stage)
            continue
        source, stage = inner
        if ld.fill is not None and ix.in_range(ld.index, stage.shape) is not ix.TRUE:
            refusals.append((where(n), "it reads outside of the view before it (padding)"))
            views[n.outputs[0]] = (n.inputs[0], n.stage)
            continue
        merged = _composed(graph, n, ld, source, stage)
        edit.replace(n, merged)
        views[n.outputs[0]] = (source, merged.stage)
        applied += 1
    return RuleResult(edit.finish() if applied else graph, applied, tuple(refusals))


def _composed(graph: Graph, node: Node, ld: Load, source: ValueId, inner: Stage) -> Node:
    below = inner.body
    assert isinstance(below, Load)
    at: dict[Expr, Expr] = dict(zip(inner.axes, ld.index, strict=True))
    index = tuple(ix.substitute(i, at) for i in below.index)
    inside = ix.in_range(index, graph.values[source].dims) is ix.TRUE
    body = load(0, index, below.dtype, None if inside else below.fill)
    return dataclasses.replace(node, inputs=(source,), compute=dataclasses.replace(node.stage, body=body))
