"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofuse.ir.graph import Graph

Refusal = tuple[str, str]
"""The node, as people know it, and why the rule left it alone."""


@dataclass(frozen=True)
class RuleResult:
    """A rewritten graph, how often the rule applied, and what it refused."""

    graph: Graph
    applied: int = 0
    refusals: tuple[Refusal, ...] = ()


Rule = Callable[[Graph], RuleResult]
