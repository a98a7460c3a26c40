"""Drop nodes whose results nobody reads."""

from __future__ import annotations

from autofuse.importer.rebuild import Edit
from autofuse.importer.rules.base import RuleResult
from autofuse.ir.graph import Graph


def apply(graph: Graph) -> RuleResult:
    """Graph outputs count as read."""
    wanted = set(graph.outputs)
    dead = []
    for n in reversed(graph.nodes):
        if wanted.isdisjoint(n.outputs):
            dead.append(n)
        else:
            wanted.update(n.inputs)
    if not dead:
        return RuleResult(graph)
    edit = Edit(graph)
    for n in dead:
        edit.replace(n)
    return RuleResult(edit.finish(), len(dead))
