"""Writes at computed indices on the host: a map for the initial values, then the updates, dealt out so that no two tasks meet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.fusion.scatter import scatter_of
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Var, const, loads, var, variables
from autofuse.ir.target import Target
from autofuse.kernels.alone import variant_for
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.launches import region_launch
from autofuse.kernels.map_host import MapHost
from autofuse.kernels.points import up
from autofuse.kernels.scatter import Updates, initial_variant, moves_with, points, updates_of
from autofuse.kernels.spans import lanewise, span
from autofuse.loops.ir import For, If, LoopKind, Stmt, loop

SMALL = 4096
"""Updates below so many are not worth the reading again that several owners cost."""


class ScatterHost:
    """Two launches: initial values, updates. Each task goes over the ordered updates of its share of the independent ones."""

    name = "scatter_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """One variant."""
        if not target.is_cuda and scatter_of(program) is not None:
            yield variant_for(self.name, "ordered", program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`apart` updates side by side; `steps` one after the other; `places` among which owners divide; `least` of a task; `cores`."""
        u = updates_of(variant)
        facts: dict[str, Choice] = {"apart": u.apart, "steps": u.steps, "places": u.places, "cores": target.cores}
        return {**facts, "least": 1024 if in_rows(u) else 16}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Tasks of about 16 Ki updates; several owners where too few updates are independent."""
        u = updates_of(variant)
        task = 16384
        least = 1024 if in_rows(u) else 16  # whole rows of the output are written faster than columns of it
        while task > least and (task * u.steps > 1 << 16 or u.apart // task < 2 * target.cores):
            task //= 4
        owners = 1
        many = u.steps * min(u.apart, task) >= SMALL
        while owners < min(target.cores, u.places) and up(u.apart, task) * owners < target.cores and many:
            owners *= 2
        return Schedule.of({"task": task, "owners": owners})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """The map, then the updates where there are any; nothing where the output is empty."""
        u = updates_of(variant)
        maps = MapHost()
        first = initial_variant(variant, maps.name, "vector")
        if not points(u.scatter.axes):
            return Lowered(())
        begun = maps.lower(first, maps.heuristic(first, target), target)
        if not u.apart or not u.steps:
            return begun
        body = _updates(u, schedule.integer("task"), schedule.integer("owners"), target)
        launch = region_launch("scatter", body, 1, u.scatter.flops, u.binding)
        return Lowered((*begun.launches, launch), begun.scratch)


def _updates(u: Updates, task: int, owners: int, target: Target) -> For:
    """The grid over owners, outer points and chunks of inner ones."""
    inner = points(u.inner)
    chunks = up(inner, task)
    if in_rows(u) and inner % chunks:
        chunks = 1  # pieces of rows are of one length
    chunk = up(inner, chunks)
    outer = points(u.outer)
    each = max(1, min(outer, task // max(chunk, 1))) if chunks == 1 else 1
    blocks = up(outer, each)
    g = var("g", owners * blocks * chunks)
    owner = ix.floor_div(g, blocks * chunks)
    piece = ix.floor_mod(ix.floor_div(g, chunks), blocks)
    begin = ix.mul(ix.floor_mod(g, chunks), chunk)
    o = var("o", each)
    flat = ix.add(ix.mul(piece, each), o)
    at: dict[Expr, Expr] = dict(zip(u.outer, ix.unflatten(flat, _shape(u.outer)), strict=True))
    body = _inner(u, at, begin, chunk, inner, owners, owner, target)
    for a in reversed(u.ordered):
        body = (loop(a, LoopKind.SERIAL, *body),)
    if outer % each:
        body = (If(ix.less(flat, const(outer)), body),)
    return loop(g, LoopKind.GRID, loop(o, LoopKind.SERIAL, *body))


def _inner(
    u: Updates, at: dict[Expr, Expr], begin: Expr, chunk: int, inner: int, owners: int, owner: Expr, target: Target
) -> tuple[Stmt, ...]:
    """One ordered update for a chunk of inner points; in vectors where those write a row of the output."""

    def one(point: Expr) -> tuple[Stmt, ...]:
        where: dict[Expr, Expr] = dict(zip(u.inner, ix.unflatten(point, _shape(u.inner)), strict=True))
        return u.owned(u.write({**at, **where}), {**at, **where}, owners, owner)

    if not u.inner:
        return one(const(0))
    if inner % chunk == 0 and in_rows(u):
        last = u.inner[-1]
        lanes = target.lanes(max(u.scatter.dtype.compute.itemsize, u.scatter.dtype.itemsize))

        def block(start: Expr, width: int, unroll: int) -> tuple[Stmt, ...]:
            where: dict[Expr, Expr] = {**at}
            return (lanewise(start, width, unroll, lambda p, _: u.write({**where, last: ix.add(begin, p)}), "w"),)

        return u.owned(span(chunk, lanes, 1, block, "x"), at, owners, owner)
    p = var("p", chunk)
    point = ix.add(begin, p)
    body = one(point)
    if inner % chunk:
        body = (If(ix.less(point, const(inner)), body),)
    return (loop(p, LoopKind.SERIAL, *body),)


def in_rows(u: Updates) -> bool:
    """Whether the one inner axis runs along rows of the output and of what is read, whose places do not depend on it."""
    if len(u.inner) != 1 or not moves_with(u, u.inner[0]):
        return False
    axis: Var = u.inner[0]
    for ld in loads(u.value):
        parts, _ = ix.terms(ld.index[0])
        if ld.guard is not None or any(axis in variables(a) and not (a is axis and c == 1) for a, c in parts):
            return False
    return True


def _shape(axes: tuple[Var, ...]) -> tuple[int, ...]:
    return tuple(a.extent or 0 for a in axes)
