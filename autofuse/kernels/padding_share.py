"""Which part of a contraction's products is not known to be zero: kernels skip those that read padding.

A convolution of 3 taps over a row of one element, padded to three, multiplies once and not three times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from autofuse.fusion.region import RegionProgram, Step
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Var, loads, variables
from autofuse.ir.stage import Stage
from autofuse.kernels.contract_roles import conjuncts, contraction, vanishing
from autofuse.ops.interpret import evaluate_expr

_MOST_POINTS = 1 << 20
"""Beyond so many combinations of axis values, conditions are taken to hold nowhere: a bound stays one."""


@lru_cache(maxsize=1 << 12)
def share_of_products(program: RegionProgram, step: Step) -> float:
    """The part of the points of a contraction at which no factor is known to be zero, from 0 to 1; at most that where it is too much to count."""
    found = contraction(program)
    if found is not None:
        conditions = frozenset().union(*map(vanishing, found.factors))
    else:
        assert isinstance(step.stage, Stage)
        inside: Expr = ix.TRUE
        for ld in loads(step.stage.body):
            if ld.fill == 0 and isinstance(ld.source, int):
                inside = ix.both(inside, ix.in_range(ld.index, program.tensor(step.operands[ld.source]).shape))
        conditions = frozenset(conjuncts(inside))
    return math.prod(_part(group) for group in _independent(conditions))


def _independent(conditions: Iterable[Expr]) -> list[list[Expr]]:
    """Conditions in groups that share no axis."""
    groups: list[tuple[set[Var], list[Expr]]] = []
    for c in conditions:
        axes, members = set(variables(c)), [c]
        for other in [g for g in groups if g[0] & axes]:
            groups.remove(other)
            axes |= other[0]
            members += other[1]
        groups.append((axes, members))
    return [members for _, members in groups]


def _part(conditions: list[Expr]) -> float:
    """The part of all values of their axes for which conditions hold together."""
    axes = sorted({v for c in conditions for v in variables(c)}, key=lambda v: v.name)
    extents = [a.extent or 0 for a in axes]
    if any(loads(c) for c in conditions) or math.prod(extents) > _MOST_POINTS:
        return 0.0
    at: dict[Expr, Any] = dict(zip(axes, np.indices(extents, sparse=True), strict=True))
    held = np.ones(extents, bool)
    for c in conditions:
        held &= np.asarray(evaluate_expr(c, at, (), wide=False), bool)
    return float(held.mean())
