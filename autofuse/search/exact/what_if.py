"""What forcing or forbidding a fusion would cost: the program is solved again with it fixed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autofuse.engine.lowering import variant_of
from autofuse.engine.plan import Plan, PlannedRegion
from autofuse.fusion.region import YES, Region, Verdict
from autofuse.ir.graph import NodeId
from autofuse.kernels.base import Lowered
from autofuse.kernels.families import lower
from autofuse.search.exact.model import guess, upper
from autofuse.search.exact.planning import measured
from autofuse.search.exact.program import Fixed
from autofuse.search.exact.sampler import ExactPlanSampler


@dataclass(frozen=True)
class WhatIf:
    """`seconds` is the sum of kernel times of the best plan with the wish (infinity where there is none), `best` that without it.

    `measured` is what the best plan with the wish takes by measured kernels alone, `best_measured` that without it (infinity where some of
    its kernels were not measured). `open` and `best_open` count kernels of the two plans whose times are estimates. `verdict` is what the
    rules say of the nodes in one region with what lies between them: the reason where they can't be one. `formed`: the search had not come to
    such a region, so that it was formed for the question.
    """

    wish: str
    nodes: tuple[NodeId, ...]
    verdict: Verdict
    best: float
    seconds: float
    best_open: int
    open: int
    best_plan: Plan | None
    plan: Plan | None
    measured: float = math.inf
    best_measured: float = math.inf
    formed: bool = False

    @property
    def measured_price(self) -> float:
        """Seconds that the wish costs by measured kernels alone; NaN where that is not known."""
        known = math.isfinite(self.measured) and math.isfinite(self.best_measured)
        return self.measured - self.best_measured if known else math.nan

    @property
    def price(self) -> float:
        """Seconds that the wish costs; infinity where it can't be had."""
        return self.seconds - self.best

    def regions(self, plan: Plan | None) -> tuple[PlannedRegion, ...]:
        """The regions of a plan that compute the nodes."""
        if plan is None:
            return ()
        return tuple(r for r in plan.regions if set(r.region.nodes) & set(self.nodes))

    def text(self) -> str:
        """In words."""
        if not math.isfinite(self.seconds):
            why = self.verdict.reason if not self.verdict else "what the other nodes would need of it can't be supplied"
            rule = f" [{self.verdict.rule}]" if not self.verdict else ""
            return f"{self.wish}: impossible{rule}: {why}"
        known, best = _basis(self.open), _basis(self.best_open)
        if abs(self.price) <= 1e-9 * self.best or (self.price < 0 and not self.formed):
            return f"{self.wish}: the best plan does so already ({1e3 * self.best:.4g} ms, {best})"
        percent = 100 * self.price / self.best
        text = f"{self.wish}: {1e3 * self.seconds:.4g} ms ({known}) instead of {1e3 * self.best:.4g} ms ({best}), {abs(percent):.1f} % "
        text += "slower" if percent >= 0 else "faster"
        if self.open and math.isfinite(self.measured_price):
            text += f"; by measured kernels alone {1e6 * self.measured_price:.3g} us slower"
        return f"{text}; the search had not come to such a region" if self.formed else text


def _basis(estimated: int) -> str:
    if not estimated:
        return "by measured kernels"
    return "1 kernel by estimate" if estimated == 1 else f"{estimated} kernels by estimate"


def what_if(
    sampler: ExactPlanSampler, nodes: Iterable[NodeId], apart: bool = False, names: tuple[str, ...] = ()
) -> WhatIf:
    """Solve with some nodes in one region, or (`apart`) not all of them in one. A region that the search did not come to is formed."""
    wanted = frozenset(nodes)
    fixed = Fixed(together=(wanted,))
    verdict, formed = _formed(sampler, wanted, apart)
    now = Fixed(apart=tuple(frozenset(r.nodes) for r in sampler.formed))  # the best plan is one of what was enumerated
    if apart:
        fixed = Fixed(apart=(wanted, *now.apart))
    best, best_seconds, best_open = _solved(sampler, now if now.apart else None)
    plan, seconds, still_open = _solved(sampler, fixed)
    shown = " and ".join(map(repr, names)) or f"nodes {sorted(wanted)}"
    wish = f"{shown} {'apart' if apart else 'in one kernel'}"
    known, best_known = _measured(sampler, fixed), _measured(sampler, now if now.apart else None)
    return WhatIf(
        wish,
        tuple(sorted(wanted)),
        verdict,
        best_seconds,
        seconds,
        best_open,
        still_open,
        best,
        plan,
        known,
        best_known,
        formed,
    )


def _formed(sampler: ExactPlanSampler, wanted: frozenset[NodeId], apart: bool) -> tuple[Verdict, bool]:
    """What the rules say of the smallest region with some nodes, and whether it was taken in for the question: where no region that was
    enumerated has them, and it is legal."""
    model, partitioner = sampler.model, sampler.planner.partitioner
    holding = {c.region for c in model.choices if wanted <= set(c.region.nodes)}
    if holding:
        return YES, holding <= sampler.formed
    nodes = partitioner.closed(wanted)
    hosts = tuple(sorted(n for n in nodes if not model.graph.nodes[n].kind.has_kernel))
    if hosts:
        return Verdict(
            False, "host", "a path between them leads over the host, and a kernel can't wait for that", hosts
        ), False
    region = Region.of(model.graph, nodes)
    verdict = partitioner.allowed(region)
    if not verdict or apart:
        return verdict, False
    if model.levels_differ(nodes):
        return Verdict(False, "host", "a step on the host runs between them", tuple(sorted(wanted))), False
    if not sampler.include(region):
        return Verdict(False, "kernels", "no kernel family implements it", region.nodes), False
    return verdict, True


def _measured(sampler: ExactPlanSampler, fixed: Fixed | None) -> float:
    """What the best plan takes of those whose kernels were all measured."""
    found, _ = sampler.solve(upper, fixed)
    return math.inf if found is None else found.seconds


def _solved(sampler: ExactPlanSampler, fixed: Fixed | None) -> tuple[Plan | None, float, int]:
    found, _ = sampler.solve(guess, fixed)
    if found is None or not math.isfinite(found.seconds):
        return None, math.inf, 0
    plan = sampler.plan(found, "what if", measured)
    return plan, found.seconds, len(sampler.planner.open_kernels(plan))


def kernels_of(sampler: ExactPlanSampler, region: PlannedRegion) -> Lowered:
    """The launches of a planned region, to be shown as text."""
    target = sampler.planner.bench.target
    return lower(variant_of(sampler.model.graph, region, target), region.schedule, target)
