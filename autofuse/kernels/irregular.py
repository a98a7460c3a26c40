"""Irregular accesses: elements that a map or a reduction on the host reads or writes lane by lane, since no vector access fits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autofuse.fusion.form import Form, analyse
from autofuse.ir.expr import Expr, Var
from autofuse.ir.target import Target
from autofuse.kernels.base import Variant
from autofuse.kernels.map_host import map_points, turned
from autofuse.kernels.nest import nest_of
from autofuse.kernels.points import own_loads, stride_of
from autofuse.loops.ir import Buffer, Scope

SHORT = 8
"""Rows below so many elements leave vectors along them mostly empty."""


@dataclass(frozen=True)
class Irregular:
    """Elements accessed one by one in a launch: at a fixed distance between lanes, and where each address is worked out on its own."""

    strided: int = 0
    scattered: int = 0


def irregular(variant: Variant, target: Target) -> Irregular:
    """The irregular accesses of a host map or reduction; none for other families. What tiles turn around is none."""
    form = analyse(variant.program)
    if not isinstance(form, Form) or variant.family not in ("map_host", "reduce_host"):
        return Irregular()
    if variant.family == "map_host":
        points = map_points(variant)
        lane = points.axes[-1] if points.axes else None
        every = math.prod(a.extent or 0 for a in points.axes)
        found = turned(variant, target)
        staged = {ld.index[0] for ld in found[1]} if found is not None else set()
        addresses = [a for a in _addresses(points.values, points.offsets) if a not in staged]
        return _count(lane, [(every, addresses)])
    nest = nest_of(variant, form)
    rows = math.prod(a.extent or 0 for a in nest.rows)
    every = rows * form.reduced_points
    if variant.algorithm == "inner":
        lane = nest.reduced[-1] if nest.reduced else None
        addresses = _addresses(nest.bodies.values(), ())
        if lane is not None and (lane.extent or 0) < SHORT:
            return Irregular(every * len(addresses))
        return _count(lane, [(every, addresses)])
    row_lane = nest.rows[-1] if nest.rows else None
    groups = [(every, _addresses(nest.bodies.values(), ()))]
    groups += [
        (every if o.full else rows, _addresses((nest.values[k],), (nest.offsets[k],)))
        for k, o in enumerate(form.outputs)
    ]
    return _count(row_lane, groups)


def _addresses(values: Iterable[Expr], offsets: Iterable[Expr]) -> list[Expr]:
    found = {ld.index[0]: None for v in values for ld in own_loads(v) if _in_memory(ld.source)}
    return [*found, *offsets]


def _in_memory(source: object) -> bool:
    return isinstance(source, Buffer) and source.scope is Scope.GLOBAL


def _count(lane: Var | None, groups: Iterable[tuple[int, list[Expr]]]) -> Irregular:
    if lane is None:
        return Irregular()
    strided = scattered = 0
    for points, addresses in groups:
        for a in addresses:
            step = stride_of(a, lane)
            if step is None:
                scattered += points
            elif step not in (0, 1, 2):
                strided += points
    return Irregular(strided, scattered)
