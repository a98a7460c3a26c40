"""What a rule is, and small questions that rules ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofuse.ir.expr import Expr, Load, Var, const, loads
from autofuse.ir.graph import Graph, Node
from autofuse.ir.stage import Stage

Refusal = tuple[str, str]
"""The node, as people know it, and why the rule left it alone."""


@dataclass(frozen=True)
class RuleResult:
    """A rewritten graph, how often the rule applied, and what it refused."""

    graph: Graph
    applied: int = 0
    refusals: tuple[Refusal, ...] = ()


Rule = Callable[[Graph], RuleResult]


def in_place(index: Sequence[Expr], axes: Sequence[Var]) -> bool:
    """Whether an index is the axes themselves; along an axis of one element it may be written as 0."""
    if len(index) != len(axes):
        return False
    return all(i is a or (a.extent == 1 and i is const(0)) for i, a in zip(index, axes, strict=True))


def where(node: Node) -> str:
    """How a node is named to people."""
    return f"{node.label or node.id} ({node.op})"


def view_of(node: Node) -> Load | None:
    """The load of a node that only moves elements of one tensor, at indices that do not depend on data; else None."""
    match node.compute:
        case Stage(combine=None, body=Load(guard=None) as ld) if len(node.inputs) == 1:
            if ld.dtype is node.compute.dtype and not any(loads(i) for i in ld.index):
                return ld
            return None
        case _:
            return None
