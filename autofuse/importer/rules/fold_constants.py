"""Compute at import what depends on constants alone: shape arithmetic, weights that are cast, scaled or transposed."""

from __future__ import annotations

from autofuse.importer.folding import fold
from autofuse.importer.rebuild import Edit
from autofuse.importer.rules.base import Refusal, RuleResult, where
from autofuse.ir.graph import Graph


def apply(graph: Graph) -> RuleResult:
    """Refused where the result would grow beyond the limits of `importer.folding`; inputs that are fed are never folded."""
    edit = Edit(graph)
    applied = 0
    refusals: list[Refusal] = []
    for n in graph.nodes:
        if any(v not in edit.constants for v in n.inputs):
            continue
        found = fold(n, edit.constants)
        if found is None:
            refusals.append((where(n), "it depends on constants alone, but is too large, random, or no plain tensor"))
            continue
        for v, array in zip(n.outputs, found, strict=True):
            edit.fix(v, array)
        edit.replace(n)
        applied += 1
    return RuleResult(edit.finish() if applied else graph, applied, tuple(refusals))
