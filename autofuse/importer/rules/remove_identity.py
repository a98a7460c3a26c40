"""Remove nodes that copy a tensor element by element."""

from __future__ import annotations

from autofuse.importer.rebuild import Edit
from autofuse.importer.rules.base import RuleResult, in_place, view_of
from autofuse.ir.graph import Graph, Node


def apply(graph: Graph) -> RuleResult:
    """Readers, and the graph's outputs, take the source itself. An output keeps its name; it may then be an input or constant."""
    edit = Edit(graph)
    applied = 0
    for n in graph.nodes:
        if _copies(graph, n):
            edit.alias(n.outputs[0], n.inputs[0])
            edit.replace(n)
            applied += 1
    return RuleResult(edit.finish() if applied else graph, applied)


def _copies(graph: Graph, node: Node) -> bool:
    ld = view_of(node)
    if ld is None or ld.fill is not None or not in_place(ld.index, node.stage.axes):
        return False
    return graph.values[node.inputs[0]].shape == node.stage.shape
