"""Simplification rules: one a file, listed in RULES, run in turn until none applies."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from autofuse.importer.rules import (
    common_subexpressions,
    dead_code,
    fold_affine,
    fold_constants,
    merge_affine,
    merge_views,
    remove_identity,
    scalar_literals,
    split_phases,
)
from autofuse.importer.rules.base import Refusal, Rule, RuleResult
from autofuse.ir.graph import Graph

__all__ = ["RULES", "Rule", "RuleResult", "simplify"]

RULES: Mapping[str, Rule] = {
    "fold constants": fold_constants.apply,
    "scalar literals": scalar_literals.apply,
    "merge views": merge_views.apply,
    "remove identity": remove_identity.apply,
    "common subexpressions": common_subexpressions.apply,
    "dead code": dead_code.apply,
    "fold affine": fold_affine.apply,
    "merge affine": merge_affine.apply,
}
"""In the order in which they run: what is dead must be gone before a rule counts readers."""

FINISHING: Mapping[str, Rule] = {"split phases": split_phases.apply}
"""Run once, when nothing else applies: what they make would hide from the others what they look for."""

ROUNDS = 50
"""Every rule makes the graph smaller or leaves it, so the fixed point comes much earlier."""


def simplify(graph: Graph) -> Graph:
    """Run every rule in turn until a whole round changes nothing. Notes say what was done, and what was refused and why."""
    applied: Counter[str] = Counter()
    refused: dict[tuple[str, Refusal], None] = {}
    for _ in range(ROUNDS):
        changed = False
        refused.clear()
        for name, rule in RULES.items():
            result = rule(graph)
            graph = result.graph
            applied[name] += result.applied
            changed |= result.applied > 0
            refused.update(((name, r), None) for r in result.refusals)
        if not changed:
            break
    for name, rule in FINISHING.items():
        result = rule(graph)
        graph = result.graph
        applied[name] += result.applied
    notes = [f"{name}: applied {applied[name]} times" for name in (*RULES, *FINISHING) if applied[name]]
    notes += [f"{name}: refused at {where}: {reason}" for name, (where, reason) in refused]
    return dataclasses.replace(graph, notes=(*graph.notes, *notes))
