"""The integer program of a block: coverage and demand rows, reorders, joins in place, and cuts for cycles as they turn up.

Demands are summed over columns of which only one can be chosen, since they share a node that is computed once (or a value that has one
maker): one such row is as strong as all of theirs together and keeps the relaxation tight. HiGHS solves it through scipy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from autofuse.search.exact.problem import (
    PLAIN,
    Column,
    Copy,
    Costs,
    Problem,
    Solution,
    copy_of,
    makers_of,
    needed,
    order_of,
    reorders_of,
    seconds_of,
)

_SCALE = 1e4
_OPTIMAL, _LIMIT, _INFEASIBLE = 0, 1, 2
_MOST_CUTS = 400

Group = tuple[str, int]


@dataclass(frozen=True, order=True)
class State:
    """How the value at a cut between blocks is given: layout, level of its maker, whether it is an alias."""

    layout: int
    level: int = 0
    alias: bool = False


ANY = State(-1)
"""To the left: the value is there in every layout at once, which costs less than any way to make it. To the right: however it is given."""


@dataclass(frozen=True)
class Fixed:
    """What is to be in a solution: nodes that must (or must not) share a column."""

    together: tuple[frozenset[int], ...] = ()
    apart: tuple[frozenset[int], ...] = ()


@dataclass
class _Row:
    index: list[int]
    weight: list[float]
    low: float
    high: float


class Program:
    """One block. `left` is the value that comes from the block before, `right` the one that the next block needs."""

    def __init__(
        self, problem: Problem, left: int | None = None, right: int | None = None, fixed: Fixed | None = None
    ) -> None:
        self.problem = problem
        self.left = left
        self.right = right
        self._size = len(problem.columns)
        self._copies: dict[Copy, int] = {}
        self._rows: list[_Row] = []
        self._cuts: list[_Row] = []
        self._left_rows: list[tuple[int, int, int]] = []
        self._allowed = np.ones(self._size, bool)
        self._fix(fixed or Fixed())
        self._make_copies()
        self._cover()
        self._demands()
        self._outputs()
        self._joins()
        self._matrix = self._sparse(self._rows)
        self._low = np.asarray([r.low for r in self._rows])
        self._high = np.asarray([r.high for r in self._rows])

    # ---- rows

    def _add(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> int:
        summed: dict[int, float] = {}
        for k, w in terms:
            summed[k] = summed.get(k, 0.0) + w
        self._rows.append(_Row(list(summed), list(summed.values()), low, high))
        return len(self._rows) - 1

    def _fix(self, fixed: Fixed) -> None:
        for nodes in fixed.together:
            self._add(((k, 1.0) for k, c in enumerate(self.problem.columns) if nodes <= set(c.nodes)), 1.0, math.inf)
        for nodes in fixed.apart:
            for k, c in enumerate(self.problem.columns):
                if nodes <= set(c.nodes):
                    self._allowed[k] = False

    def _source(self, v: int) -> bool:
        """Whether a value comes from outside."""
        return v in self.problem.inputs or v == self.left

    def _make_copies(self) -> None:
        wanted = {copy_of(n, c.level) for c in self.problem.columns for n in c.reads}
        wanted |= {(v, PLAIN, 0) for v in self.problem.outputs}
        for v, layout, level in sorted(wanted):
            if v in self.problem.inputs and layout == PLAIN:
                continue
            givers = self.problem.makers.get(v, ())
            if v != self.left and givers and all((v, layout) in self.problem.columns[k].gives for k in givers):
                if layout == PLAIN or all(self.problem.columns[k].level == level for k in givers):
                    continue
            self._copies[(v, layout, level)] = self._size + len(self._copies)
        for (v, layout, level), y in self._copies.items():
            if self._source(v):
                continue
            sources = [k for k in self.problem.makers.get(v, ()) if self._reaches(k, v, layout, level)]
            self._add([(y, 1.0), *((k, -1.0) for k in sources)], -math.inf, 0.0)

    def _reaches(self, k: int, v: int, layout: int, level: int) -> bool:
        """Whether what a column gives can be reordered for a reader of that level."""
        c = self.problem.columns[k]
        return layout == PLAIN or c.level == level or (v, PLAIN) in c.gives

    def _cover(self) -> None:
        computing: dict[int, list[int]] = {n: [] for n in sorted(self.problem.once)}
        for k, c in enumerate(self.problem.columns):
            for n in c.nodes:
                if n in computing:
                    computing[n].append(k)
        for ks in computing.values():
            self._add(((k, 1.0) for k in ks), 1.0, 1.0)
        for givers in self.problem.makers.values():
            shared = set.intersection(*(set(self.problem.columns[k].nodes) for k in givers)) & self.problem.once
            if len(givers) > 1 and not shared:
                self._add(((k, 1.0) for k in givers), -math.inf, 1.0)

    def _group(self, k: int, v: int) -> Group:
        """A node or value of a column that no other chosen column can have."""
        c = self.problem.columns[k]
        mine = [n for n in c.nodes if n in self.problem.once]
        reading = [n for n in mine if n in self.problem.readers.get(v, ())]
        if reading or mine:
            return ("node", (reading or mine)[0])
        return ("value", c.gives[0][0])

    def _demands(self) -> None:
        exact: dict[tuple[Copy, Group], list[int]] = {}
        any_layout: dict[tuple[int, Group], list[int]] = {}
        for k, c in enumerate(self.problem.columns):
            for v, layout in c.reads:
                if v in self.problem.inputs and layout == PLAIN:
                    continue
                group = self._group(k, v)
                copy = copy_of((v, layout), c.level)
                exact.setdefault((copy, group), []).append(k)
                if not self._source(v):
                    any_layout.setdefault((v, group), []).append(k)
        for (copy, _), readers in exact.items():
            terms = [(k, 1.0) for k in readers] + [(k, -1.0) for k in self._suppliers(copy)]
            row = self._add(terms, -math.inf, 0.0)
            if copy[0] == self.left:
                self._left_rows.append((row, copy[1], copy[2]))
        for (v, _), readers in any_layout.items():
            givers = self.problem.makers.get(v, ())
            self._add([*((k, 1.0) for k in readers), *((k, -1.0) for k in givers)], -math.inf, 0.0)

    def _suppliers(self, copy: Copy) -> list[int]:
        """The variables that give a value in a layout (at a level)."""
        v, layout, level = copy
        found = [
            k
            for k in self.problem.makers.get(v, ())
            if (v, layout) in self.problem.columns[k].gives
            and (layout == PLAIN or self.problem.columns[k].level == level)
        ]
        y = self._copies.get(copy)
        return found if y is None else [*found, y]

    def _outputs(self) -> None:
        for v in self.problem.outputs:
            if v in self.problem.inputs:
                continue
            row = self._add(((k, 1.0) for k in self._suppliers((v, PLAIN, 0))), 1.0, math.inf)
            if v == self.left:
                self._left_rows.append((row, PLAIN, 0))

    def _joins(self) -> None:
        joins: dict[int, list[int]] = {}
        for k, c in enumerate(self.problem.columns):
            if c.view == "in_place":
                for v, _ in c.reads:
                    joins.setdefault(v, []).append(k)
        self._join_left = joins.get(self.left, []) if self.left is not None else []
        for v, ks in joins.items():
            aliases = [k for k in self.problem.makers.get(v, ()) if self.problem.columns[k].view == "alias"]
            if len(ks) + len(aliases) > 1:
                self._add(((k, 1.0) for k in (*ks, *aliases)), -math.inf, 1.0)

    # ---- solving

    def right_states(self) -> list[State]:
        """How the right value may be given."""
        if self.right is None:
            return [State(PLAIN)]
        return sorted({self._given(self.problem.columns[k]) for k in self.problem.makers.get(self.right, ())})

    def state_of(self, chosen: Sequence[int]) -> State | None:
        """How chosen columns give the right value."""
        if self.right is None:
            return None
        return self._given(self.problem.columns[makers_of(self.problem, chosen)[self.right]])

    def singles(self, costs: Costs) -> tuple[int, ...] | None:
        """Every node in a column of its own, all values plain: a solution at no effort; None where a node has no such column."""
        best: dict[int, int] = {}
        nodes: set[int] = set()
        for k, c in enumerate(self.problem.columns):
            nodes |= set(c.nodes)
            plain = all(layout == PLAIN for _, layout in (*c.reads, *c.gives)) and not c.view
            if len(c.nodes) == 1 and plain and self._allowed[k] and math.isfinite(costs.columns[k]):
                n = c.nodes[0]
                if n not in best or costs.columns[k] < costs.columns[best[n]]:
                    best[n] = k
        return tuple(best[n] for n in sorted(nodes)) if len(best) == len(nodes) else None

    def _given(self, c: Column) -> State:
        layout = next(layout for v, layout in c.gives if v == self.right)
        return State(layout, c.level, c.view == "alias")

    def solve(
        self,
        costs: Costs,
        left: State | None = None,
        right: State | None = None,
        seconds: float = math.inf,
        relaxed: bool = False,
    ) -> tuple[Solution | None, float]:
        """The cheapest solution and the bound below all of them; no solution and infinity where there is none. With ANY to the left there is
        a bound alone, as where the program is `relaxed` to a linear one."""
        deadline = time.monotonic() + seconds
        if not self._size + len(self._copies):  # a graph whose outputs are all constants or inputs
            return Solution((), (), 0.0, 0.0), 0.0
        prices, usable = self.prices(costs, left)
        unit = _SCALE / max(float(prices.max(initial=0.0)), 1e-30)
        given = {self.left: (left.layout, left.level)} if self.left is not None and left is not None else {}
        lower = 0.0
        for _ in range(_MOST_CUTS):
            matrix, lows, highs = self.rows(left, right)
            left_over = deadline - time.monotonic()
            if left_over <= 0:
                return None, lower
            found = milp(
                prices * unit,
                integrality=np.full(len(prices), int(not relaxed), np.int64),
                bounds=Bounds(0, usable.astype(float)),
                constraints=LinearConstraint(matrix, lows, highs),
                options={"mip_rel_gap": 0.0, **({"time_limit": left_over} if math.isfinite(left_over) else {})},
            )
            if found.status == _INFEASIBLE:
                return None, math.inf
            bound = getattr(found, "mip_dual_bound", None)
            if bound is not None and math.isfinite(bound):
                lower = max(lower, float(bound) / unit)
            if found.x is None:
                return None, lower
            if relaxed:
                return None, max(lower, float(found.fun) / unit if found.status == _OPTIMAL else 0.0)
            if left == ANY:
                return None, lower
            chosen = tuple(int(k) for k in np.flatnonzero(found.x[: self._size] > 0.5))
            if self._cut_cycles(chosen):
                continue
            chosen = needed(self.problem, chosen, () if self.right is None else (self.right,))
            copies = tuple(sorted(reorders_of(self.problem, chosen, given)))
            total = seconds_of(self.problem, costs, chosen, given)
            if found.status == _OPTIMAL:
                lower = total
            return Solution(chosen, copies, total, min(lower, total)), min(lower, total)
        return None, lower

    def prices(self, costs: Costs, left: State | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The price of each variable, columns first, then reorders, and which of them may be chosen; what may not be has no price."""
        prices = np.zeros(self._size + len(self._copies))
        prices[: self._size] = costs.columns
        for (v, _, _), y in self._copies.items():
            prices[y] = costs.reorder(v)
        usable = np.isfinite(prices)
        usable[: self._size] &= self._allowed
        if left is not None and left != ANY:
            if left.alias:
                usable[self._join_left] = False
            for (v, layout, level), y in self._copies.items():
                if v == self.left and layout != PLAIN and left.layout != PLAIN and level != left.level:
                    usable[y] = False
        prices[~usable] = 0.0
        return prices, usable

    def rows(self, left: State | None = None, right: State | None = None) -> tuple[csr_array, np.ndarray, np.ndarray]:
        """The rows by which variables depend on each other, with what each is at least and at most; cuts that were found are among them."""
        low, high = self._limits(left)
        extra = [self._state_row(right)] if self.right is not None and right is not None else []
        rows = [*extra, *self._cuts]
        matrix = vstack([self._matrix, self._sparse(rows)], format="csr") if rows else self._matrix
        return matrix, np.concatenate([low, [r.low for r in rows]]), np.concatenate([high, [r.high for r in rows]])

    def _limits(self, left: State | None) -> tuple[np.ndarray, np.ndarray]:
        low, high = self._low.copy(), self._high.copy()
        if left is None:
            return low, high
        for row, layout, level in self._left_rows:
            if left == ANY or (layout == left.layout and (layout == PLAIN or left.level == level)):
                if math.isinf(low[row]):
                    high[row] += 1.0
                else:
                    low[row] -= 1.0
        return low, high

    def _state_row(self, right: State) -> _Row:
        assert self.right is not None
        ks = [
            k
            for k in self.problem.makers.get(self.right, ())
            for c in [self.problem.columns[k]]
            if right in (ANY, self._given(c))
        ]
        return _Row(ks, [1.0] * len(ks), 1.0, math.inf)

    def _sparse(self, rows: Sequence[_Row]) -> csr_array:
        where = np.repeat(np.arange(len(rows)), [len(r.index) for r in rows])
        index = np.concatenate([r.index for r in rows]) if rows else np.zeros(0)
        weight = np.concatenate([r.weight for r in rows]) if rows else np.zeros(0)
        shape = (len(rows), self._size + len(self._copies))
        return csr_array((weight.astype(float), (where, index.astype(np.int64))), shape=shape)

    def _cut_cycles(self, chosen: Sequence[int]) -> bool:
        """Forbid every cycle that is found; False where there is none."""
        if order_of(self.problem, chosen) is not None:
            return False
        for cycle in _cycles(self.problem, chosen):
            terms: dict[int, float] = {}
            for before, v in zip([cycle[-1], *cycle[:-1]], cycle, strict=True):
                for k in self.problem.makers[v]:
                    if any(r == before for r, _ in self.problem.columns[k].reads):
                        terms[k] = terms.get(k, 0.0) + 1.0
            # Each value has one maker: that all of them read the value before is what is forbidden, whoever they are.
            self._cuts.append(_Row(list(terms), list(terms.values()), -math.inf, len(cycle) - 1.0))
        return True


def _cycles(problem: Problem, chosen: Sequence[int]) -> list[list[int]]:
    """Cycles of values, each made by a chosen column that reads the one before it; a shortest one through each column that has one."""
    maker = makers_of(problem, chosen)
    sources: Mapping[int, list[tuple[int, int]]] = {
        k: [(v, maker[v]) for v, _ in problem.columns[k].reads if v in maker] for k in chosen
    }
    found: dict[frozenset[int], list[int]] = {}
    for start in chosen:
        came: dict[int, tuple[int, int]] = {}
        queue = [start]
        closing: tuple[int, int] | None = None
        while queue and closing is None:
            k = queue.pop(0)
            for v, source in sources[k]:
                if source == start:
                    closing = (v, k)
                    break
                if source not in came:
                    came[source] = (v, k)
                    queue.append(source)
        if closing is None:
            continue
        v, k = closing
        values = [v]
        while k != start:
            v, k = came[k]
            values.append(v)
        # `values` runs from the value that `start` makes towards the one that it reads.
        found.setdefault(frozenset(values), values)
    return list(found.values())
