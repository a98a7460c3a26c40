"""Compute once what is written twice: the same computation of the same values."""

from __future__ import annotations

from collections.abc import Hashable

from autofuse.importer.rebuild import Edit, canonical
from autofuse.importer.rules.base import Refusal, RuleResult, where
from autofuse.ir.graph import SMALL_CONSTANT, Graph, Node
from autofuse.ir.stage import Control, Host


def apply(graph: Graph) -> RuleResult:
    """Host nodes are refused: they may be random; so may graphs inside nodes. Equal small integer constants are merged as
    well; learned values are not compared, so that a fine-tuned model keeps its structure."""
    edit = Edit(graph)
    applied = _constants(graph, edit)
    seen: dict[Hashable, Node] = {}
    hosts: dict[Hashable, Node] = {}
    refusals: list[Refusal] = []
    for n in graph.nodes:
        inputs, compute = canonical([edit.resolve(v) for v in n.inputs], n.compute)
        key = (inputs, compute)
        if isinstance(compute, Control):
            continue
        if isinstance(compute, Host):
            if key in hosts:
                refusals.append((where(n), f"it repeats {where(hosts[key])}, but runs on the host"))
            hosts.setdefault(key, n)
            continue
        first = seen.setdefault(key, n)
        if first is n:
            continue
        for old, new in zip(n.outputs, first.outputs, strict=True):
            edit.alias(old, new)
        edit.replace(n)
        applied += 1
    return RuleResult(edit.finish() if applied else graph, applied, tuple(refusals))


def _constants(graph: Graph, edit: Edit) -> int:
    seen: dict[Hashable, int] = {}
    merged = 0
    for v, a in graph.constants.items():
        if a.size > SMALL_CONSTANT or a.dtype.kind not in "iub":
            continue
        first = seen.setdefault((a.dtype.str, a.shape, a.tobytes()), v)
        if first != v:
            edit.alias(v, first)
            merged += 1
    return merged
