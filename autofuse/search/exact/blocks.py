"""Large graphs block by block: cuts where one value passes, and a table over how that value is given.

A cut is a place in the order of nodes that no column spans and over which only one value passes whose layout is a choice (others may pass that
are plain in any case). The block before decides in which layout the value is given, the block after pays for the layouts that it
wants besides: so the best chain of blocks is found by dynamic programming, each block being a small integer program. Equal blocks
with equal costs are solved once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise

from autofuse.search.exact.problem import PLAIN, Column, Costs, Problem, Solution, reorders_of, seconds_of
from autofuse.search.exact.program import ANY, Fixed, Program, State

FEWEST_NODES = 12
"""Cuts are taken no closer: a program of a dozen nodes is solved as fast as one of two."""
_REMEMBERED = 20_000
_GENEROUS = 4.0
"""How many times its share of the time a program may take: most take less."""
_LINEAR_SECONDS = 5.0
MANY = 24
"""From so many blocks on a quick way through them is looked for first."""

Shape = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a problem. `columns` and `values` lead from its own numbers to the whole problem's."""

    problem: Problem
    columns: tuple[int, ...]
    values: tuple[int, ...]
    left: int | None
    right: int | None
    shape: Shape
    base: int
    """What its node 0 is in the whole problem."""


@dataclass
class _Part:
    block: Block
    program: Program
    number: int
    states: list[State] = field(default_factory=list)


class BlockSolver:
    """Solves a problem again and again as costs become known. `fixed` forces or forbids nodes to share a column."""

    def __init__(self, problem: Problem, fixed: Fixed | None = None, fewest: int = FEWEST_NODES) -> None:
        self.problem = problem
        self.solved = 0
        """Integer programs that were solved."""
        programs: dict[Shape, tuple[Program, int]] = {}
        self.parts: list[_Part] = []
        for block in split(problem, fixed, fewest):
            mine = _inside(fixed, block)
            if block.shape not in programs or mine is not None:
                programs[block.shape] = (Program(block.problem, block.left, block.right, mine), len(self.parts))
            program, number = programs[block.shape]
            self.parts.append(_Part(block, program, number, program.right_states()))
        self._known: dict[tuple[object, ...], tuple[Solution | None, float]] = {}
        self._fixed: dict[tuple[Shape, Fixed], tuple[Program, int]] = {}

    def fixed(self, fixed: Fixed) -> BlockSolver | None:
        """The same problem with nodes that must or must not share a column; None where no column holds what must be together.

        All blocks but those that hold the nodes are this solver's, with what it solved of them.
        """
        for wish in fixed.together:
            if not any(wish <= set(c.nodes) for c in self.problem.columns):
                return None
        found = copy(self)
        found.parts = []
        for part in self.parts:
            mine = _inside(fixed, part.block)
            if mine is None:
                found.parts.append(part)
                continue
            key = (part.block.shape, mine)
            if key not in self._fixed:
                block = part.block
                number = len(self.parts) + len(self._fixed)
                self._fixed[key] = (Program(block.problem, block.left, block.right, mine), number)
            program, number = self._fixed[key]
            found.parts.append(_Part(part.block, program, number, part.states))
        return found

    def table(self, costs: Costs, seconds: float = math.inf) -> tuple[Solution | None, float]:
        """The best solution by all ways in which blocks can give values to each other, and the bound; no sweep before: most of it is known."""
        return self._table(costs, time.monotonic() + seconds)

    def transitions(self, costs: Costs, seconds: float) -> list[dict[tuple[State | None, State | None], float]]:
        """For each block what it costs at least, by how the values at its two ends are given."""
        deadline = time.monotonic() + seconds
        out: list[dict[tuple[State | None, State | None], float]] = []
        lefts: Sequence[State | None] = [None]
        for k, part in enumerate(self.parts):
            local = local_costs(part.block, costs)
            rights: Sequence[State | None] = part.states if part.block.right is not None else [None]
            share = max((deadline - time.monotonic()) / (len(self.parts) - k), 0.01)
            out.append({(a, b): self._solve(part, local, a, b, share)[1] for a in lefts for b in rights})
            lefts = rights
        return out

    def solve(self, costs: Costs, seconds: float = math.inf) -> tuple[Solution | None, float]:
        """The best solution found and the bound below all; no solution where there is none, or none was found in time."""
        deadline = time.monotonic() + seconds
        if not math.isfinite(seconds):
            return self._table(costs, deadline)
        swept: tuple[Solution | None, float] = (None, 0.0)
        if len(self.parts) >= MANY:
            before, start = self.solved, time.monotonic()
            swept = self.sweep(costs, deadline)
            each = (time.monotonic() - start) / max(1, self.solved - before)
            states = [len(p.states) for p in self.parts]
            programs = states[0] + sum(a * b for a, b in pairwise(states))
            if each * programs > deadline - time.monotonic():
                return swept
        found, bound = self._table(costs, deadline)
        bound = max(bound, swept[1])
        if found is None and math.isfinite(bound) and swept[0] is None:
            swept = self.sweep(costs, deadline + seconds / 2)
        best = min((s for s in (found, swept[0]) if s is not None), key=lambda s: s.seconds, default=None)
        return (None if best is None else replace(best, lower=min(bound, best.seconds))), bound

    def sweep(self, costs: Costs, deadline: float) -> tuple[Solution | None, float]:
        """One way through the blocks, each continued from how the one before gives its value; where a program takes too long, its nodes one
        by one. The bound is that of programs where every value from the left is there in all layouts at once: linear ones first, whole
        ones as far as time allows."""
        state: State | None = None
        ways: list[tuple[int, ...]] | None = []
        bounds: list[float] = []
        local = [local_costs(part.block, costs) for part in self.parts]
        for k, part in enumerate(self.parts):
            right = ANY if part.block.right is not None else None
            left = ANY if part.block.left is not None else None
            bounds.append(part.program.solve(local[k], left, right, _LINEAR_SECONDS, relaxed=True)[1])
            share = max(0.05, _GENEROUS * (deadline - time.monotonic()) / (len(self.parts) - k))
            late = time.monotonic() >= deadline
            found, bound = (None, 0.0) if late else self._solve(part, local[k], state, right, share)
            if left is None:
                bounds[k] = max(bounds[k], bound)
            chosen = found.columns if found is not None else part.program.singles(local[k])
            if ways is None or chosen is None:
                ways = None
                continue
            ways.append(tuple(part.block.columns[c] for c in chosen))
            state = part.program.state_of(chosen)
        for k, part in enumerate(self.parts):
            if time.monotonic() >= deadline:
                break
            if part.block.left is not None:
                right = ANY if part.block.right is not None else None
                bounds[k] = max(bounds[k], self._solve(part, local[k], ANY, right, deadline - time.monotonic())[1])
        if ways is None:
            return None, sum(bounds)
        return self._whole(costs, ways, sum(bounds)), sum(bounds)

    def _whole(self, costs: Costs, ways: Sequence[tuple[int, ...]], bound: float) -> Solution:
        chosen = tuple(sorted(c for way in ways for c in way))
        total = seconds_of(self.problem, costs, chosen)
        return Solution(chosen, tuple(sorted(reorders_of(self.problem, chosen))), total, min(bound, total))

    def _table(self, costs: Costs, deadline: float) -> tuple[Solution | None, float]:
        """The best chain of blocks over all ways in which values can be given."""
        # By state of the last cut: cost and the columns that lead there, and the bound.
        best: dict[State | None, tuple[float, tuple[tuple[int, ...], ...]]] = {None: (0.0, ())}
        below: dict[State | None, float] = {None: 0.0}
        for k, part in enumerate(self.parts):
            local = local_costs(part.block, costs)
            least: dict[State | None, tuple[float, tuple[tuple[int, ...], ...]]] = {}
            lower: dict[State | None, float] = {}
            goals: Sequence[State | None] = part.states if part.block.right is not None else [None]
            for right in goals:
                for left in below:
                    share = (deadline - time.monotonic()) / max(1, len(self.parts) - k)
                    found, bound = self._solve(part, local, left, right, max(share, 0.01))
                    lower[right] = min(lower.get(right, math.inf), below[left] + bound)
                    if found is None or left not in best:
                        continue
                    seconds_so_far, ways = best[left]
                    total = seconds_so_far + found.seconds
                    if right not in least or total < least[right][0]:
                        chosen = tuple(part.block.columns[c] for c in found.columns)
                        least[right] = (total, (*ways, chosen))
            best, below = least, lower
        bound = min(below.values(), default=math.inf)
        if not best:
            return None, bound
        _, ways = min(best.values(), key=lambda b: b[0])
        solution = self._whole(costs, ways, bound)
        return solution, solution.lower

    def _solve(
        self, part: _Part, costs: Costs, left: State | None, right: State | None, seconds: float
    ) -> tuple[Solution | None, float]:
        key = (part.number, tuple(costs.columns), tuple(sorted(costs.reorders.items())), left, right)
        found = self._known.get(key)
        if found is None:
            found = part.program.solve(costs, left, right, seconds)
            self.solved += 1
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            done = found[0].closed if found[0] is not None else left == ANY or math.isinf(found[1])
            if done:
                self._known[key] = found
        return found


def local_costs(block: Block, costs: Costs) -> Costs:
    """The costs of a block's columns and values, in its own numbers."""
    return Costs([costs.columns[k] for k in block.columns], {k: costs.reorder(v) for k, v in enumerate(block.values)})


def _inside(fixed: Fixed | None, block: Block) -> Fixed | None:
    """What is fixed of a block's nodes, in its own numbers."""
    if fixed is None:
        return None
    nodes = {n for c in block.problem.columns for n in c.nodes}

    def mine(wishes: tuple[frozenset[int], ...]) -> tuple[frozenset[int], ...]:
        shifted = (frozenset(n - block.base for n in wish) for wish in wishes)
        return tuple(wish for wish in shifted if wish <= nodes)

    found = Fixed(mine(fixed.together), mine(fixed.apart))
    return found if found.together or found.apart else None


def split(problem: Problem, fixed: Fixed | None = None, fewest: int = FEWEST_NODES) -> list[Block]:
    """The blocks of a problem, in order; one where there is no cut."""
    cuts = _cuts(problem, fixed, fewest)
    last = max((n for c in problem.columns for n in c.nodes), default=-1)
    by_block: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    ends = [p for p, _ in cuts] + [last]
    number = 0
    for k in sorted(range(len(problem.columns)), key=lambda k: problem.columns[k].nodes[-1]):
        while problem.columns[k].nodes[-1] > ends[number]:
            number += 1
        by_block[number].append(k)
    blocks: list[Block] = []
    made: set[int] = set()
    left: int | None = None
    for number, ks in enumerate(by_block):
        right = cuts[number][1] if number < len(cuts) else None
        blocks.append(_block(problem, sorted(ks), left, right, made, ends[number]))
        made |= {v for k in ks for v, _ in problem.columns[k].gives}
        left = right
    return blocks


def _cuts(problem: Problem, fixed: Fixed | None, fewest: int) -> list[tuple[int, int | None]]:
    """Places after which to cut (a node), each with the value that passes there (None where all that pass are plain)."""
    last = max((n for c in problem.columns for n in c.nodes), default=-1)
    spans = [0] * (last + 2)
    for group in (*(c.nodes for c in problem.columns), *(fixed.together if fixed is not None else ())):
        if group:
            spans[min(group)] += 1
            spans[max(group)] -= 1
    choice = _with_choice(problem)
    present = {n for c in problem.columns for n in c.nodes}
    until: dict[int, int] = {}
    since: dict[int, int] = {}
    for v in {*problem.producer, *problem.inputs}:
        readers = problem.readers.get(v, ())
        if readers:
            until[v], since[v] = max(readers), min(readers)
    passing: set[int] = {v for v in problem.inputs if v in until and v in choice and until[v] != since[v]}
    starts: dict[int, list[int]] = {}
    for v, n in problem.producer.items():
        if v in until:
            starts.setdefault(n, []).append(v)
    cuts: list[tuple[int, int | None]] = []
    open_spans, nodes, previous = 0, 0, -1
    for p in range(last):
        open_spans += spans[p]
        nodes += p in present
        passing |= set(starts.get(p, ()))
        passing = {v for v in passing if until[v] > p}
        if open_spans or nodes < fewest:
            continue
        free = [v for v in passing if v in choice]
        if len(free) > 1 or any(problem.producer.get(v, -1) <= previous or since[v] <= p for v in free):
            continue
        cuts.append((p, free[0] if free else None))
        previous, nodes = p, 0
    return cuts


def _with_choice(problem: Problem) -> set[int]:
    """The values of which it matters how they are given: other layouts than the plain one, or memory that views share."""
    found: set[int] = set()
    for c in problem.columns:
        found |= {v for v, layout in (*c.reads, *c.gives) if layout != PLAIN}
        if c.view == "alias":
            found |= {v for v, _ in c.gives}
        elif c.view == "in_place":
            found |= {v for v, _ in c.reads}
    return found


def _block(
    problem: Problem, columns: Sequence[int], left: int | None, right: int | None, made: set[int], end: int
) -> Block:
    local: dict[int, int] = {}
    base = min((n for k in columns for n in problem.columns[k].nodes), default=0)

    def value(v: int) -> int:
        return local.setdefault(v, len(local))

    if left is not None:
        value(left)
    mine: list[Column] = []
    for k in columns:
        c = problem.columns[k]
        reads = tuple((value(v), layout) for v, layout in c.reads)
        gives = tuple((value(v), layout) for v, layout in c.gives)
        mine.append(Column(tuple(n - base for n in c.nodes), reads, gives, c.level, c.view))
    nodes = {n for c in mine for n in c.nodes}
    own = {v for c in mine for v, _ in c.gives}
    names = {k: v for v, k in local.items()}
    inputs = frozenset(k for k, v in names.items() if v != left and (v in problem.inputs or v in made))
    passing = {k for k in own if names[k] != right and any(r > end for r in problem.readers.get(names[k], ()))}
    wanted = {local[v] for v in problem.outputs if v in local and (local[v] in own or v == left) and v != right}
    outputs = tuple(sorted(passing | wanted))
    once = frozenset(n - base for n in problem.once if n - base in nodes)
    producer = {local[v]: n - base for v, n in problem.producer.items() if v in local and n - base in nodes}
    readers = {
        k: tuple(sorted(n - base for n in problem.readers.get(v, ()) if n - base in nodes)) for k, v in names.items()
    }
    part = Problem(tuple(mine), once, inputs, outputs, producer, readers)
    ends = (None if left is None else local[left], None if right is None else local[right])
    shape: Shape = (part.columns, once, inputs, outputs, ends)
    values = tuple(names[k] for k in range(len(local)))
    return Block(part, tuple(columns), values, ends[0], ends[1], shape, base)
