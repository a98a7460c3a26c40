"""Writes at computed indices on a GPU: a map for the initial values, then the updates, in an order that never depends on timing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.fusion.scatter import scatter_of
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, var
from autofuse.ir.target import Target
from autofuse.kernels.alone import variant_for
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.launches import region_launch
from autofuse.kernels.map_cuda import MapCuda
from autofuse.kernels.points import below, up
from autofuse.kernels.scatter import Updates, initial_variant, points, updates_of
from autofuse.loops.ir import For, If, LoopKind, loop

FILL = 16384
"""Threads that keep a device reasonably busy."""


class ScatterCuda:
    """Two launches. A thread takes the ordered updates at one point of the independent axes, or those of them that fall into its part."""

    name = "scatter_cuda"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """One variant."""
        if target.is_cuda and scatter_of(program) is not None:
            yield variant_for(self.name, "ordered", program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`apart` updates side by side; `steps` one after the other; `places` among which owners divide; `max_threads`."""
        u = updates_of(variant)
        return {"apart": u.apart, "steps": u.steps, "places": u.places, "max_threads": target.max_threads_per_block}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Owners until the device is filled, but no more than there are updates or places for them."""
        del target
        u = updates_of(variant)
        owners = 1
        while owners < min(1024, u.places, u.steps) and u.apart * owners < FILL:
            owners *= 4
        return Schedule.of({"threads": 128 if u.apart * owners >= FILL else 64, "owners": owners})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """The map, then the updates where there are any; nothing where the output is empty."""
        u = updates_of(variant)
        maps = MapCuda()
        first = initial_variant(variant, maps.name, "flat")
        if not points(u.scatter.axes):
            return Lowered(())
        begun = maps.lower(first, maps.heuristic(first, target), target)
        if not u.apart or not u.steps:
            return begun
        threads = schedule.integer("threads")
        body = _updates(u, threads, schedule.integer("owners"))
        launch = region_launch("scatter", body, threads, u.scatter.flops, u.binding)
        return Lowered((*begun.launches, launch), begun.scratch)


def _updates(u: Updates, threads: int, owners: int) -> For:
    """Neighbouring threads take neighbouring independent updates, then the next owner's."""
    total = u.apart * owners
    g, t = var("g", up(total, threads)), var("t", threads)
    number = ix.add(ix.mul(g, threads), t)
    axes = (*u.outer, *u.inner)
    shape = tuple(a.extent or 0 for a in axes)
    point = ix.floor_mod(number, u.apart)
    owner = ix.floor_div(number, u.apart)
    at: dict[Expr, Expr] = dict(zip(axes, ix.unflatten(point, shape), strict=True))
    body = u.owned(u.write(at), at, owners, owner)
    for a in reversed(u.ordered):
        body = (loop(a, LoopKind.SERIAL, *body),)
    if total % threads:
        body = (If(below(number, total), body),)
    return loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, *body))
