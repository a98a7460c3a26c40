"""The partition as a problem of numbers: columns that compute nodes, values in layouts that they read and give, costs.

A *column* is a region with one way to run it. It reads values in layouts and gives values in layouts. A solution is a set of columns that
supply each other and the outputs, each value by one column. A value that its maker does not give in a wanted layout is reordered,
once per layout; reorders start at what a column (or the model's caller) really gives, never at another reorder. Layout 0 is the plain one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

PLAIN = 0
Need = tuple[int, int]
"""A value in a layout."""
Copy = tuple[int, int, int]
"""A reordered value: value, layout, and the level at which it is made (0 for the plain layout, which passes between levels)."""


@dataclass(frozen=True)
class Column:
    """`level` is the number of Host steps that must have run before: only plain values pass from one level to another.

    `view` is "alias" where the output is memory of the input, "in_place" where the inputs' makers write straight into the output: a value
    can lie in only one such output, and not where it is itself an alias.
    """

    nodes: tuple[int, ...]
    reads: tuple[Need, ...]
    gives: tuple[Need, ...]
    level: int = 0
    view: str = ""


@dataclass(frozen=True, eq=False)
class Problem:
    """`once` are the nodes that are computed in just one column; others may be computed again. `inputs` are there, plain, from the start;
    `outputs` are wanted plain. `order` gives each value's maker and its readers among the nodes."""

    columns: tuple[Column, ...]
    once: frozenset[int]
    inputs: frozenset[int]
    outputs: tuple[int, ...]
    producer: Mapping[int, int] = field(default_factory=dict)
    readers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def makers(self) -> Mapping[int, tuple[int, ...]]:
        """The columns that give each value, in any layout."""
        found: dict[int, list[int]] = {}
        for k, c in enumerate(self.columns):
            for v, _ in c.gives:
                found.setdefault(v, []).append(k)
        return {v: tuple(ks) for v, ks in found.items()}


@dataclass(frozen=True)
class Costs:
    """Seconds of each column (infinity: not to be used), and of a reorder of each value."""

    columns: Sequence[float]
    reorders: Mapping[int, float]

    def reorder(self, v: int) -> float:
        return self.reorders.get(v, math.inf)


@dataclass(frozen=True)
class Solution:
    """Chosen columns and reorders with their cost; `lower` is what no solution can be below."""

    columns: tuple[int, ...]
    reorders: tuple[Copy, ...]
    seconds: float
    lower: float

    @property
    def closed(self) -> bool:
        """Whether it is the optimum."""
        return self.seconds <= self.lower * (1 + 1e-6) + 1e-15


def makers_of(problem: Problem, chosen: Sequence[int]) -> dict[int, int]:
    """The column that gives each value."""
    return {v: k for k in chosen for v, _ in problem.columns[k].gives}


def copy_of(need: Need, level: int) -> Copy:
    """A value in a layout as it is read or given at a level."""
    return (*need, level if need[1] != PLAIN else 0)


def reorders_of(problem: Problem, chosen: Sequence[int], given: Mapping[int, Need] | None = None) -> set[Copy]:
    """The values in layouts that chosen columns and the outputs want and that no maker gives. `given`: layouts and levels of values made
    elsewhere."""
    columns = [problem.columns[k] for k in chosen]
    have = {copy_of(n, c.level) for c in columns for n in c.gives}
    have |= {(v, PLAIN, 0) for v in problem.inputs}
    have |= {copy_of((v, layout), level) for v, (layout, level) in (given or {}).items()}
    want = {copy_of(n, c.level) for c in columns for n in c.reads}
    want |= {(v, PLAIN, 0) for v in problem.outputs}
    return want - have


def needed(problem: Problem, chosen: Sequence[int], also: Sequence[int] = ()) -> tuple[int, ...]:
    """The chosen columns without those that compute nothing that must be, and give nothing that is read (a view costs nothing)."""
    kept = list(chosen)
    while True:
        wanted = {v for k in kept for v, _ in problem.columns[k].reads} | set(problem.outputs) | set(also)
        useful = [
            k
            for k in kept
            if problem.once & set(problem.columns[k].nodes) or any(v in wanted for v, _ in problem.columns[k].gives)
        ]
        if len(useful) == len(kept):
            return tuple(kept)
        kept = useful


def order_of(problem: Problem, chosen: Sequence[int]) -> list[int] | None:
    """The columns in an order in which each can run after its suppliers; None where they wait for each other."""
    maker = makers_of(problem, chosen)
    needs = {k: {maker[v] for v, _ in problem.columns[k].reads if v in maker} for k in chosen}
    feeds: dict[int, list[int]] = {k: [] for k in chosen}
    for k, sources in needs.items():
        for s in sources:
            feeds[s].append(k)
    missing = {k: len(s) for k, s in needs.items()}
    ready = sorted((k for k in chosen if not missing[k]), key=lambda k: problem.columns[k].nodes, reverse=True)
    out: list[int] = []
    while ready:
        k = ready.pop()
        out.append(k)
        for f in feeds[k]:
            missing[f] -= 1
            if not missing[f]:
                ready.append(f)
        ready.sort(key=lambda k: (problem.columns[k].level, problem.columns[k].nodes), reverse=True)
    return out if len(out) == len(chosen) else None


def fault_of(problem: Problem, chosen: Sequence[int]) -> str | None:
    """Why chosen columns are no solution, or None."""
    columns = [problem.columns[k] for k in chosen]
    outside = problem.inputs
    made: dict[int, Column] = {}
    for c in columns:
        for v, _ in c.gives:
            if v in made or v in outside:
                return f"value {v} is given twice"
            made[v] = c
    counts: dict[int, int] = {}
    for c in columns:
        for n in c.nodes:
            counts[n] = counts.get(n, 0) + 1
    wrong = [n for n in problem.once if counts.get(n, 0) != 1]
    if wrong:
        return f"node {wrong[0]} is computed {counts.get(wrong[0], 0)} times"
    wanted = [v for c in columns for v, _ in c.reads] + list(problem.outputs)
    missing = [v for v in wanted if v not in made and v not in outside]
    if missing:
        return f"value {missing[0]} is given by no column"
    for c in columns:
        for v, layout in c.reads:
            maker = made.get(v)
            if layout == PLAIN or maker is None or maker.level == c.level:
                continue
            if (v, PLAIN) not in maker.gives:
                return f"value {v} passes between levels in a layout of its own"
    joins = [v for c in columns if c.view == "in_place" for v, _ in c.reads]
    if len(joins) != len(set(joins)):
        return "a value lies in two joins"
    if any(made[v].view == "alias" for v in joins if v in made):
        return "an alias lies in a join"
    if order_of(problem, chosen) is None:
        return "columns wait for each other"
    return None


def seconds_of(problem: Problem, costs: Costs, chosen: Sequence[int], given: Mapping[int, Need] | None = None) -> float:
    """What a solution costs."""
    reorders = reorders_of(problem, chosen, given)
    return sum(costs.columns[k] for k in chosen) + sum(costs.reorder(v) for v, _, _ in reorders)
