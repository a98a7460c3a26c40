"""Random partition problems, and the search over all solutions that the solver is compared with.

python tests/search/exact_problems.py 1000
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import time

from autofuse.search.exact.blocks import BlockSolver
from autofuse.search.exact.problem import PLAIN, Column, Costs, Problem, fault_of, needed, seconds_of
from autofuse.search.exact.program import Program

MOST_NODES = 12


class Maker:
    """A random graph of up to twelve nodes (diamonds, several outputs, recomputation, layouts, views, levels, would-be cycles)."""

    def __init__(self, seed: int, nodes: int | None = None, views: bool = False) -> None:
        self.views = views
        self.rng = random.Random(seed)
        self.count = nodes or self.rng.randint(3, MOST_NODES)
        self.layouts = self.rng.choice([1, 1, 2, 3])
        reach = self.rng.choice([2, 3, 12])
        # Value k is made by node k; value -1 is the input.
        self.reads: list[tuple[int, ...]] = []
        for n in range(self.count):
            known = list(range(max(-1, n - reach), n))
            count = min(len(known), self.rng.choice([1, 1, 2, 2, 3]))
            self.reads.append(tuple(sorted(self.rng.sample(known, count))))
        used = {v for r in self.reads for v in r}
        self.outputs = tuple(n for n in range(self.count) if n not in used or self.rng.random() < 0.1)
        self.cheap = {n for n in range(self.count) if self.rng.random() < 0.4}
        if views:
            self.cheap |= {n for n in range(self.count) if random.Random(seed + n).random() < 0.6}
        level, self.level = 0, []
        for _ in range(self.count):
            self.level.append(level)
            level += self.rng.random() < 0.05
        self.below = [self._reached({n}, forward=True) for n in range(self.count)]
        self.above = [self._reached({n}, forward=False) for n in range(self.count)]

    def _reached(self, start: set[int], forward: bool) -> set[int]:
        found = set(start)
        for n in range(self.count) if forward else reversed(range(self.count)):
            near = self.reads[n] if forward else [m for m in range(self.count) if n in self.reads[m]]
            if found & set(near):
                found.add(n)
        return found

    def convex(self, nodes: set[int]) -> bool:
        below = set().union(*(self.below[n] for n in nodes))
        above = set().union(*(self.above[n] for n in nodes))
        return below & above <= nodes

    def sets(self) -> list[tuple[int, ...]]:
        found: set[tuple[int, ...]] = {(n,) for n in range(self.count)}
        frontier = list(found)
        most = self.rng.choice([8, 20, 40])
        size = self.rng.choice([2, 3, 5, 8])
        while frontier and len(found) < self.count + most:
            base = frontier.pop(self.rng.randrange(len(frontier)))
            near = {m for n in base for m in range(self.count) if self._touch(n, m)} - set(base)
            for m in sorted(near):
                nodes = tuple(sorted({*base, m}))
                if len(nodes) <= size and nodes not in found and self.convex(set(nodes)) and self.rng.random() < 0.8:
                    found.add(nodes)
                    frontier.append(nodes)
        return sorted(found)

    def _touch(self, n: int, m: int) -> bool:
        return m in self.reads[n] or n in self.reads[m] or bool(set(self.reads[n]) & set(self.reads[m]))

    def columns(self) -> list[Column]:
        out: list[Column] = []
        for nodes in self.sets():
            inside = set(nodes)
            full = [
                n
                for n in nodes
                if n in self.outputs or any(n in self.reads[m] for m in range(self.count) if m not in inside)
            ]
            for dropped in self._drops(nodes, full):
                gives = [v for v in full if v not in dropped]
                reads = sorted({v for n in nodes for v in self.reads[n]} - inside)
                for k in range(self.rng.choice([1, self.layouts, 2 * self.layouts])):
                    pick = (lambda: PLAIN) if k == 0 else (lambda: self.rng.randrange(self.layouts))
                    view = ""
                    if len(nodes) == 1 and k and nodes[0] in self.cheap and nodes[0] not in self.outputs:
                        alias = len(reads) == 1
                        movable = len(reads) > 1 and not any(v < 0 or v in self.outputs for v in reads)
                        view = "alias" if alias else "in_place" if movable else ""
                    column = Column(
                        nodes,
                        tuple((v, pick()) for v in reads),
                        tuple((v, pick()) for v in gives),
                        max(self.level[n] for n in nodes),
                        view,
                    )
                    if column not in out:
                        out.append(column)
        return out + [c for n in sorted(self.cheap) for c in self._views(n) if self.views and c not in out]

    def _views(self, n: int) -> list[Column]:
        """A node as a view in plain layouts: an alias of its one input, or a join of several."""
        reads = self.reads[n]
        if n in self.outputs or (len(reads) > 1 and any(v < 0 or v in self.outputs for v in reads)):
            return []
        view = "alias" if len(reads) == 1 else "in_place"
        return [Column((n,), tuple((v, PLAIN) for v in reads), ((n, PLAIN),), self.level[n], view)]

    def _drops(self, nodes: tuple[int, ...], full: list[int]) -> list[tuple[int, ...]]:
        inside = [v for v in full if v in self.cheap and any(v in self.reads[m] for m in nodes)]
        found = [d for size in range(len(inside) + 1) for d in itertools.combinations(inside, size)]
        return [d for d in found if len(d) < len(full)][:4]

    def problem(self) -> Problem:
        readers = {v: tuple(m for m in range(self.count) if v in self.reads[m]) for v in range(-1, self.count)}
        once = frozenset(n for n in range(self.count) if n not in self.cheap)
        return Problem(
            tuple(self.columns()), once, frozenset({-1}), self.outputs, {n: n for n in range(self.count)}, readers
        )

    def costs(self, problem: Problem) -> Costs:
        """Costs with whole microseconds, so that ties occur; a fused column tends to be cheaper than its parts."""
        kind = self.rng.choice(["tied", "spread"])

        def cost(c: Column) -> float:
            if c.view:
                return 0.0
            size = len(c.nodes) ** self.rng.choice([0.5, 0.8, 1.1])
            one = self.rng.randint(1, 6) if kind == "tied" else self.rng.uniform(1, 10)
            return 1e-6 * one * size

        columns = [cost(c) if self.rng.random() < 0.97 or len(c.nodes) == 1 else math.inf for c in problem.columns]
        return Costs(columns, {v: 1e-6 * self.rng.randint(1, 4) for v in range(-1, self.count)})


def brute_force(problem: Problem, costs: Costs, limit: int = 400_000) -> float | None:
    """The cheapest solution's cost by trying every column for whatever is missing; None where that takes too long."""
    by_node: dict[int, list[int]] = {}
    by_value: dict[int, list[int]] = {}
    usable = [k for k in range(len(problem.columns)) if math.isfinite(costs.columns[k])]
    for k in sorted(usable, key=lambda k: costs.columns[k]):
        for n in problem.columns[k].nodes:
            by_node.setdefault(n, []).append(k)
        for v, _ in problem.columns[k].gives:
            by_value.setdefault(v, []).append(k)
    # A column costs at least the shares of the nodes that only it computes.
    share = dict.fromkeys(problem.once, math.inf)
    for k in usable:
        own = problem.once & set(problem.columns[k].nodes)
        for n in own:
            share[n] = min(share[n], costs.columns[k] / len(own))
    best, steps = math.inf, 0

    def go(chosen: list[int], made: frozenset[int], done: frozenset[int], cost: float) -> None:
        nonlocal best, steps
        steps += 1
        bare = [n for n in problem.once if n not in done]
        if cost + sum(share[n] for n in bare) >= best or steps > limit:
            return
        missing = [v for k in chosen for v, _ in problem.columns[k].reads if v not in made and v not in problem.inputs]
        missing += [v for v in problem.outputs if v not in made and v not in problem.inputs]
        if not missing and not bare:
            if fault_of(problem, chosen) is None:
                best = min(best, seconds_of(problem, costs, chosen))
            return
        candidates = by_value.get(max(missing), []) if missing else by_node.get(max(bare), [])
        for k in candidates:
            c = problem.columns[k]
            gives = {v for v, _ in c.gives}
            if gives & made or problem.once & set(c.nodes) & done:
                continue
            go([*chosen, k], made | gives, done | set(c.nodes), cost + costs.columns[k])

    go([], frozenset(), frozenset(), 0.0)
    return None if steps > limit else best


def compare(seed: int, views: bool = False) -> tuple[str, int]:
    """What is wrong with the solver on one random problem ("" for nothing), and the number of columns; `views`: one with many of them."""
    maker = Maker(seed, views=views)
    problem = maker.problem()
    costs = maker.costs(problem)
    wanted = brute_force(problem, costs)
    if wanted is None:
        return "too large", len(problem.columns)
    for name, solver in (("blocks", BlockSolver(problem, fewest=1)), ("whole", Program(problem))):
        found, lower = solver.solve(costs)
        if math.isinf(wanted):
            if found is not None:
                return f"{name}: a solution where there is none", len(problem.columns)
            continue
        if found is None:
            return f"{name}: no solution, {wanted} is possible", len(problem.columns)
        fault = fault_of(problem, found.columns)
        if fault is not None:
            return f"{name}: {fault}", len(problem.columns)
        if found.columns != needed(problem, found.columns):
            return f"{name}: columns that nothing needs", len(problem.columns)
        if abs(found.seconds - wanted) > 1e-9 * wanted or abs(lower - wanted) > 1e-6 * wanted:
            return f"{name}: {found.seconds} (bound {lower}), the optimum is {wanted}", len(problem.columns)
    return "", len(problem.columns)


def main() -> None:
    """Compare as many problems as the argument says."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    start = time.monotonic()
    wrong = skipped = columns = 0
    for seed in range(count):
        fault, size = compare(seed, views=seed % 4 == 3)
        columns += size
        skipped += fault == "too large"
        if fault and fault != "too large":
            wrong += 1
            print(f"seed {seed}: {fault}")
    print(
        f"{count} problems, {columns / count:.0f} columns on average: {wrong} wrong, {skipped} too large for trying all, "
        f"{time.monotonic() - start:.0f} s"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
