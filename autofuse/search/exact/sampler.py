"""The exact solver behind the sampler's seam: it proposes the optimum by what is known, the session measures what is open in it, and so on.

Two optima take turns. The *likely* one, by guesses where nothing is measured, is worth having its kernels measured and being run end to
end. Once that has happened, the *optimistic* one, by lower bounds, tells what could still be faster: only kernels that are open in it are
measured. When none is left, the best plan of all that were enumerated is found; when the budget ends before, the gap says how far from it the
best known one may be.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Partition, verify_partition
from autofuse.fusion.region import Region
from autofuse.kernels.base import Variant
from autofuse.measure.calibrate import Reached
from autofuse.search.exact.blocks import BlockSolver
from autofuse.search.exact.bounds import Bounds
from autofuse.search.exact.certificate import Certificate
from autofuse.search.exact.costs import Closing, Pricing
from autofuse.search.exact.model import Model, Part, guess, lower, upper
from autofuse.search.exact.planning import Pick, Setting, guessed, measured, partition_of, plan_of
from autofuse.search.exact.problem import Costs, Solution
from autofuse.search.exact.program import Fixed
from autofuse.search.exact.reduced import hopeful_costs, least_with, spared_kernels
from autofuse.search.exact.regions import Enumerated, Limits, enumerate_regions
from autofuse.search.planner import Planner
from autofuse.search.progress import Kernels
from autofuse.search.samplers import Proposal
from autofuse.search.studies_file import StoredTrial

SOLVE_SECONDS = 60.0
"""How long one solution may take."""
_MOST_ASKED = 2
"""How often a kernel is asked for in vain before it is given up as one that can't be measured."""
_WORTH_A_RUN = 0.97
"""How much better by its kernels than all that was run a plan must be to be run before others are looked for."""
_SETTLED = 0.99
"""A plan that was run is run again with newer schedules only if they make it faster by this factor."""

_SPARE_SECONDS, _SPARE_SHARE = 2.0, 0.02
"""What telling how many kernels the bounds spare may take at a time, and of all the time."""

Shape = tuple[object, ...]


@dataclass(frozen=True)
class Asking:
    """What is asked for before the program is solved again: `at_once` kernels, `a_way` of one way to run a region. A plan with `together` kernels
    that were never timed is run as a whole before they are measured one by one. Fewer are thriftier where solving is quick beside measuring."""

    at_once: int = 6
    a_way: int = 2
    together: float = 3


THRIFTY = Asking(2, 1, math.inf)


@dataclass(frozen=True)
class _Token:
    shape: Shape
    seconds: float
    tried: tuple[int, ...] = ()
    """How many schedules of each lacking kernel were tried before."""


class ExactPlanSampler:
    """Proposes optima of the integer program. `enough` tells, while regions are enumerated and priced, that time is up; the regions of
    `known` partitions are among them in any case."""

    def __init__(
        self,
        planner: Planner,
        reached: Reached,
        limits: Limits | None = None,
        enough: Callable[[], bool] = lambda: False,
        solve_seconds: float = SOLVE_SECONDS,
        closing: Closing | None = None,
        asking: Asking | None = None,
        known: Iterable[Partition] = (),
    ) -> None:
        self.planner = planner
        self._asking = asking or Asking()
        self._studies = planner.studies
        partitioner = planner.partitioner
        landmarks = (partitioner.unfused(), partitioner.greedy(), *known)
        self.limits = limits or Limits()
        self.enumerated: Enumerated = enumerate_regions(partitioner, landmarks, limits, enough)
        self.pricing = Pricing(planner.studies, Bounds.of(reached, planner.bench.target), closing)
        kept = frozenset(r for p in landmarks for r in p.regions)
        self.model = Model(partitioner, self.enumerated, self.pricing, planner.program, kept, enough)
        self._solver = BlockSolver(self.model.problem)
        self._solve_seconds = solve_seconds
        self._setting = Setting(planner.bench.target, planner.bench.threads, planner.accuracy)
        self.formed: frozenset[Region] = frozenset()
        """Regions that were not enumerated, and taken in for questions."""
        self._settled: dict[Shape, float] = {}
        self._run_at: dict[Shape, float] = {}
        """What the solutions said that these plans would cost: a plan costs more where a reorder of its own does than the one that stands for it."""
        self._run_whole: set[Shape] = set()
        self._vain: Counter[str] = Counter()
        self._trials: dict[str, StoredTrial] = {}
        self._lower = 0.0
        self._upper = math.inf
        self._open = 0
        self._count = 0
        self._spared: set[str] = set()
        self._spare_next = -math.inf

    @property
    def name(self) -> str:
        return "exact"

    @property
    def gap(self) -> float:
        """How much faster, relative to the best plan by measured kernels, any plan in scope may be; NaN before both sides are known."""
        if not (self._lower > 0 and math.isfinite(self._upper)):
            return math.nan
        return max(0.0, 1.0 - self._lower / self._upper)

    # ---- the protocol

    def propose(self) -> Proposal | None:
        """See PlanSampler. None means that by what is known now nothing is left to be measured or run; measurements may change that."""
        self.check_bounds()
        return self._known() or self._likely() or self._optimistic()

    def observe(self, proposal: Proposal, seconds: float) -> None:
        """See PlanSampler."""
        token = proposal.token
        if not isinstance(token, _Token) or proposal.plan is None:
            return
        for v, tried in zip(proposal.lacking, token.tried, strict=True):
            self._vain[v.key] += self._studies.effort(v)[0] <= tried
        if not proposal.lacking:
            self._settled[token.shape] = min(seconds, self._settled.get(token.shape, math.inf))
            self._run_at[token.shape] = min(token.seconds, self._run_at.get(token.shape, math.inf))
            self._remember(proposal, seconds)

    def reopen(self) -> None:
        """See PlanSampler."""
        self._vain.clear()

    def trials(self) -> list[StoredTrial]:
        """See PlanSampler."""
        return list(self._trials.values())

    def certificate(self) -> str:
        """What is proven, in words."""
        self.check_bounds()
        self._bracket()
        self._count_spared(last=True)
        return Certificate(
            enumerated=self.enumerated,
            left_out=self.model.left_out,
            kernels=self._measured(),
            signatures=self.model.signatures,
            lower=self._lower,
            upper=self._upper,
            open=self._open,
            given_up=self._given_up(),
            corrected=self.pricing.bounds.words(),
            measured=sum(1 for s in self._studies.studies.values() if s.tried or s.in_place),
            closed=sum(s.closed for s in self._studies.studies.values() if s.tried),
            closing=self.pricing.closing,
        ).text()

    @property
    def kernels(self) -> Kernels:
        """See PlanSampler. What the bounds spare is as of the last time that the optimum by them was asked for."""
        studies = self._studies.studies.values()
        known = {key for s in studies for key in s.best.keys() | s.in_place.keys()}
        return Kernels(len(known), len(self._spared - known), sum(len(s.variants) for s in studies))

    def _count_spared(self, last: bool = False) -> None:
        """Find out which kernels the bounds spare, unless too much of the time went into that; for the `last` time as well as can be."""
        start = time.monotonic()
        if not math.isfinite(self._upper) or (start < self._spare_next and not last):
            return
        costs = hopeful_costs(self.model)
        least = least_with(self._solver, costs, _SPARE_SECONDS, tight=last)
        if least is not None:
            self._spared = spared_kernels(self.model, least, costs, self._upper)
        now = time.monotonic()
        self._spare_next = now + (now - start) / _SPARE_SHARE

    # ---- solutions

    def solve(self, part: Part, fixed: Fixed | None = None) -> tuple[Solution | None, float]:
        """The optimum by one end of the intervals, perhaps with nodes that must or must not share a region."""
        if fixed is None:
            return self._solver.solve(self.model.costs(part), self._solve_seconds)
        return self.solve_fixed(self.model.costs(part), fixed, self._solve_seconds)

    def solve_fixed(self, costs: Costs, fixed: Fixed, seconds: float) -> tuple[Solution | None, float]:
        """The optimum by some costs with nodes that must or must not share a region; blocks without them are not solved again."""
        solver = self._solver.fixed(fixed)
        return (None, math.inf) if solver is None else solver.table(costs, seconds)

    def plan(self, solution: Solution, origin: str, pick: Pick) -> Plan:
        """The plan of a solution."""
        return plan_of(self.model, solution, self._setting, origin, pick)

    def include(self, region: Region) -> bool:
        """Take in a region that was not enumerated; False where nothing implements it. For questions about a tune that is over."""
        if not self.model.include(region):
            return False
        self.formed |= {region}
        self._studies.recall(self.planner.program(region))
        self._solver = BlockSolver(self.model.problem)
        return True

    def recall(self) -> None:
        """Take what the bench knows of all regions for measured: for questions about a tune that is over."""
        programs = {c.program.signature: c.program for c in self.model.choices if c.program is not None}
        copies = (self.model.reorder_of(v) for v in range(len(self.model.graph.values)))
        programs |= {c[0].signature: c[0] for c in copies if c is not None}
        for program in programs.values():
            self._studies.recall(program)

    def _solve(self, part: Part) -> Solution | None:
        found, _ = self.solve(part)
        return found if found is not None and math.isfinite(found.seconds) else None

    def _bracket(self) -> tuple[Solution | None, Solution | None]:
        """Both sides of the gap: the optimistic solution, and the best one by what was measured."""
        best, below = self.solve(lower)
        self._lower = below
        known = self._solve(upper)
        self._upper = known.seconds if known is not None else math.inf
        return best, known

    def _known(self) -> Proposal | None:
        """The optimum of what is measured, where it is clearly better than what was run: it is compiled already."""
        solution = self._solve(upper)
        self._upper = solution.seconds if solution is not None else math.inf
        best = min(self._settled.values(), default=math.inf)
        if solution is None or solution.seconds > _WORTH_A_RUN * best:
            return None
        plan = self.plan(solution, self._label("measured"), measured)
        token = _Token(_shape(plan), solution.seconds)
        # A plan that was run at this price already costs more than the program says: its own reorder is dearer than what stands for it.
        if solution.seconds >= _SETTLED * self._run_at.get(token.shape, math.inf):
            return None
        return self._proposal(solution, plan, (), token)

    def _likely(self) -> Proposal | None:
        """The likely optimum, unless it was run already."""
        solution = self._solve(guess)
        if solution is None:
            return None
        plan = self.plan(solution, self._label("likely"), guessed)
        token = _Token(_shape(plan), solution.seconds)
        if self._is_new(plan, token):
            return self._proposal(solution, plan, (), token)
        lacking = self._askable([*(v for v, _ in self.planner.open_kernels(plan)), *self._copies(solution)])
        known = min(self._settled.get(token.shape, math.inf), self._run_at.get(token.shape, math.inf))
        if not lacking and solution.seconds >= _SETTLED * known:
            return None
        return self._proposal(solution, plan, lacking, token)

    def _optimistic(self) -> Proposal | None:
        """The optimum by lower bounds, with the kernels that are open in it; the best by measured costs where none is."""
        best, known = self._bracket()
        if best is None:
            return None
        self._count_spared()
        # The best plan that is known may hold a reorder that was not timed: then nothing is proven yet.
        open_kernels = self._open_in(best) or (self._copies(known) if known is not None else [])
        self._open = len(open_kernels)
        lacking = self._askable(open_kernels)
        if not lacking:
            return None
        plan = self.plan(best, self._label("optimistic"), measured)
        token = _Token(_shape(plan), best.seconds)
        return self._proposal(best, plan, () if self._is_new(plan, token) else lacking, token)

    def _is_new(self, plan: Plan, token: _Token) -> bool:
        """Whether a plan is best run at once: one run times all its kernels in place, which is sooner done than measuring many one by one."""
        if len(self.planner.open_kernels(plan)) < self._asking.together or token.shape in self._run_whole:
            return False
        self._run_whole.add(token.shape)
        return True

    def _proposal(self, solution: Solution, plan: Plan, lacking: tuple[Variant, ...], token: _Token) -> Proposal:
        partition = verify_partition(self.model.graph, partition_of(self.model, solution), self._setting.target)
        token = replace(token, tried=tuple(self._studies.effort(v)[0] for v in lacking))
        return Proposal(partition, plan.origin, token, {"plan": plan.key}, plan, lacking)

    def _askable(self, kernels: list[Variant]) -> tuple[Variant, ...]:
        """The next kernels to ask for; those that were asked for in vain are given up."""
        return tuple(v for v in kernels if self._vain[v.key] < _MOST_ASKED)[: self._asking.at_once]

    def _copies(self, solution: Solution) -> list[Variant]:
        """The kernels that stand for a solution's reorders and were not measured."""
        found: dict[str, Variant] = {}
        for value, _, _ in solution.reorders:
            copy = self.model.reorder_of(value)
            price = None if copy is None else self.pricing.price(*copy)
            if price is not None and price.measured is None:
                found.update((v.key, v) for v in price.open[:1])
        return list(found.values())

    def _open_in(self, solution: Solution) -> list[Variant]:
        """The variants whose measurement could change a solution's cost, those first that are likely to raise it most for each schedule."""
        weight: dict[str, float] = {}
        found: dict[str, Variant] = {}
        prices = [self.model.price(k) for k in solution.columns]
        for value, _, _ in solution.reorders:
            copy = self.model.reorder_of(value)
            prices.append(None if copy is None else self.pricing.price(*copy))
        for price in prices:
            if price is None or not price.interval.open:
                continue
            each = (price.interval.guess - price.interval.lower) / sum(map(self._schedules_left, price.open))
            for v in price.open[: self._asking.a_way]:
                found[v.key] = v
                weight[v.key] = weight.get(v.key, 0.0) + each
        return sorted(found.values(), key=lambda v: -weight[v.key])

    def _schedules_left(self, v: Variant) -> float:
        """Schedules that must be tried before a variant counts as searched, at most."""
        tried, left = self._studies.effort(v)
        return max(1.0, min(left, self.pricing.closing.quiet - tried))

    # ---- book-keeping

    def _label(self, kind: str) -> str:
        self._count += 1
        return f"{kind} optimum {self._count}"

    def check_bounds(self) -> None:
        """Correct the bounds by what was measured; what was proven with the old ones is void."""
        before = self.pricing.bounds
        for study in list(self._studies.studies.values()):
            if study.best or study.in_place:
                self.pricing.check(study.program)
        if self.pricing.bounds is not before:
            self._lower = 0.0  # what was proven with the old rates is void

    def _measured(self) -> int:
        """Kernels and schedules that were timed, alone or in place."""
        return sum(len(s.tried) + len(s.in_place.keys() - s.best.keys()) for s in self._studies.studies.values())

    def _given_up(self) -> int:
        """Kernels that were asked for in vain and whose time is not known."""
        timed = {key for study in self._studies.studies.values() for key in study.best}
        return sum(1 for key, n in self._vain.items() if n >= _MOST_ASKED and key not in timed)

    def _remember(self, proposal: Proposal, seconds: float) -> None:
        assert proposal.plan is not None
        status = "ok" if math.isfinite(seconds) else "not runnable"
        attributes: dict[str, str | float | int] = {"label": proposal.label, "plan": proposal.plan.key}
        if self._lower > 0:
            attributes["lower_seconds"] = self._lower
        self._trials[proposal.plan.key] = StoredTrial(proposal.plan.key, {}, {}, seconds, status, attributes)


def _shape(plan: Plan) -> Shape:
    """What a plan decides besides its schedules."""
    return tuple((r.region, r.family, r.algorithm, r.input_layouts, r.output_layouts) for r in plan.regions)
