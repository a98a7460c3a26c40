"""Write constants of rank 0 into the expressions that read them."""

from __future__ import annotations

from autofuse.importer.literals import inline_literals, takes
from autofuse.importer.rules.base import RuleResult
from autofuse.ir.graph import Graph


def apply(graph: Graph) -> RuleResult:
    """Learned scalars of higher rank are left as data, so that a fine-tuned model keeps its structure."""
    count = sum(any(takes(graph, n, v) for v in n.inputs) for n in graph.nodes)
    return RuleResult(inline_literals(graph) if count else graph, count)
