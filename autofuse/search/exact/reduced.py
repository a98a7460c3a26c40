"""Which columns no plan can use that is better than the best known one: by reduced costs of the linear relaxation.

A block's program without whole numbers has an optimum below all that the block can cost; the reduced cost of a column (the price of its lower
bound, from the dual) is what a solution with it costs more at least, since the optimum is convex in that bound. Where the blocks together with that
price take as long as the best known plan, no better one has the column (variable fixing by reduced costs: Dantzig, Fulkerson, Johnson 1954).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import vstack

from autofuse.fusion.region import RegionProgram
from autofuse.kernels.base import Variant
from autofuse.search.exact.blocks import MANY, BlockSolver, local_costs
from autofuse.search.exact.costs import Price, Way, way_of
from autofuse.search.exact.model import Model
from autofuse.search.exact.problem import Costs
from autofuse.search.exact.program import ANY, Program, State

_SURE = 1e-6
"""Sums are not known better than this."""
_INFEASIBLE = 2

Ends = tuple[State | None, State | None]
"""How the values at the two ends of a block are given."""


def reduced_costs(
    program: Program, costs: Costs, left: State | None, right: State | None, seconds: float
) -> tuple[float, np.ndarray] | None:
    """The relaxation's optimum and the reduced cost of each column (infinity for one that may not be used), with the values at the block's ends
    given as said; None where it was not solved."""
    count = len(program.problem.columns)
    prices, usable = program.prices(costs, left)
    if not len(prices):
        return 0.0, np.zeros(0)
    matrix, low, high = program.rows(left, right)
    unit = 1.0 / max(float(prices.max(initial=0.0)), 1e-30)
    fixed = low == high
    above, below = np.isfinite(high) & ~fixed, np.isfinite(low) & ~fixed
    solve: Any = linprog  # the declared types know nothing of sparse matrices
    found = solve(
        prices * unit,
        A_ub=vstack([matrix[above], -matrix[below]], format="csr"),
        b_ub=np.concatenate([high[above], -low[below]]),
        A_eq=matrix[fixed],
        b_eq=low[fixed],
        bounds=np.stack([np.zeros(len(prices)), usable.astype(float)], axis=1),
        method="highs",
        options={"time_limit": max(seconds, 0.01)},
    )
    if found.status == _INFEASIBLE:
        return math.inf, np.zeros(count)
    if found.status != 0:
        return None
    more = np.maximum(found.lower.marginals[:count], 0.0) / unit
    more[~usable[:count]] = np.inf
    return float(found.fun) / unit, more


def least_with(solver: BlockSolver, costs: Costs, seconds: float, tight: bool = True) -> np.ndarray | None:
    """What a solution with each column of the whole problem costs at least; None where time ended before all blocks were solved.

    Unless it is to be `tight`, and where blocks are many, they are taken one by one, with what comes from the left at hand in every layout: that
    is quick, and less is proven.
    """
    deadline = time.monotonic() + seconds
    loose = not tight or len(solver.parts) >= MANY
    ways: list[dict[Ends, float]] = _loose(solver) if loose else solver.transitions(costs, seconds)
    linear: list[dict[Ends, np.ndarray]] = []
    known: dict[tuple[object, ...], tuple[float, np.ndarray] | None] = {}
    for part, whole in zip(solver.parts, ways, strict=True):
        local = local_costs(part.block, costs)
        linear.append({})
        for ends in whole:
            key = (part.number, ends, tuple(local.columns), tuple(sorted(local.reorders.items())))
            if key not in known:
                left = deadline - time.monotonic()
                known[key] = reduced_costs(part.program, local, *ends, left) if left > 0 else None
            found = known[key]
            if found is None:
                return None
            bound, more = found
            whole[ends] = max(whole[ends], bound)
            linear[-1][ends] = np.maximum(whole[ends], bound + more)
    before, after = _before(ways), _after(ways)
    least = np.full(len(solver.problem.columns), math.inf)
    for k, part in enumerate(solver.parts):
        for (a, b), with_each in linear[k].items():
            mine = list(part.block.columns)
            least[mine] = np.minimum(least[mine], before[k][a] + with_each + after[k][b])
    return least


def _loose(solver: BlockSolver) -> list[dict[Ends, float]]:
    """One way through each block, of which nothing is known yet."""
    ends = [
        (ANY if p.block.left is not None else None, ANY if p.block.right is not None else None) for p in solver.parts
    ]
    return [{e: 0.0} for e in ends]


def _before(ways: Sequence[Mapping[Ends, float]]) -> list[dict[State | None, float]]:
    """What all blocks before each one cost at least, by how they give the value between."""
    out: list[dict[State | None, float]] = [dict.fromkeys({a for a, _ in ways[0]}, 0.0)] if ways else []
    for way in ways[:-1]:
        here: dict[State | None, float] = {}
        for (a, b), seconds in way.items():
            here[b] = min(here.get(b, math.inf), out[-1][a] + seconds)
        out.append(here)
    return out


def _after(ways: Sequence[Mapping[Ends, float]]) -> list[dict[State | None, float]]:
    """What all blocks behind each one cost at least."""
    turned = [{(b, a): seconds for (a, b), seconds in way.items()} for way in reversed(ways)]
    return _before(turned)[::-1]


def hopeful_costs(model: Model) -> Costs:
    """Measured kernels as they were measured, all others at their bounds: that measured ones may gain by more schedules is left out, since it
    tells nothing of those that were not measured."""
    columns: list[float] = []
    for k in range(len(model.choices)):
        price = model.price(k)
        columns.append(0.0 if price is None else _hopeful(model, price))
    reorders: dict[int, float] = {}
    for v in {v for c in model.problem.columns for v, _ in (*c.reads, *c.gives)}:
        copy = model.reorder_of(v)
        if copy is not None:
            reorders[v] = _hopeful(model, model.pricing.price(*copy))
    return Costs(columns, reorders)


def _hopeful(model: Model, price: Price) -> float:
    fresh = [model.pricing.bounds.lower(v) for v in price.open if not _is_timed(model, v)]
    return min([price.interval.upper, *fresh])


def _is_timed(model: Model, v: Variant) -> bool:
    study = model.pricing.studies.of(v.program)
    return study.key(v) in study.best or study.key(v) in study.in_place


def spared_kernels(model: Model, least: np.ndarray, costs: Costs, best: float) -> set[str]:
    """The keys of kernels that need no measurement: with one of them at its bound no plan takes less than `best` seconds, or what does the same
    in the same layouts was measured to be faster than its bound. `least` is what `least_with` says by `costs`, which are `hopeful_costs`."""
    room: dict[tuple[str, Way], float] = {}
    programs: dict[str, RegionProgram] = {}
    for k, choice in enumerate(model.choices):
        if choice.program is None or choice.way is None or not math.isfinite(costs.columns[k]):
            continue
        place = (choice.program.signature, choice.way)
        programs[choice.program.signature] = choice.program
        room[place] = max(room.get(place, -math.inf), costs.columns[k] + best - least[k])
    found: set[str] = set()
    for program in programs.values():
        for v in model.pricing.studies.of(program).variants:
            way = way_of(v)
            measured = model.pricing.price(program, way).interval.upper
            most = min(measured, room.get((program.signature, way), math.inf))
            if model.pricing.bounds.lower(v) >= most * (1 - _SURE) and not _is_timed(model, v):
                found.add(v.key)
    return found
