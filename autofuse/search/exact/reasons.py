"""Why the best plan does not fuse an edge, and what the other choice would cost: by the rules, the solver's bounds, and what was measured.

The program is solved again with the edge's two nodes in one region (or, where the plan fuses them, apart): by what was measured, by bounds and
by guesses. Only the block that holds the nodes is solved anew.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Edge
from autofuse.fusion.region import Region, Verdict
from autofuse.ir.graph import NodeId
from autofuse.measure.result import Status
from autofuse.search.exact.model import guess, lower, upper
from autofuse.search.exact.problem import Costs
from autofuse.search.exact.program import Fixed
from autofuse.search.exact.sampler import ExactPlanSampler

FUSED = "fused"
ILLEGAL = "illegal"
LIMIT = "over a limit"
FAILED = "failed"
BOUNDED = "bounded out"
SLOWER = "measured slower"
OPEN = "undecided"
CLASSES = (FUSED, ILLEGAL, LIMIT, FAILED, BOUNDED, SLOWER, OPEN)
"""All classes of reasons. OPEN is what the budget left open: the bounds allow a gain, and no measurement denies it."""

SAME = 1e-3
"""A price below this share of the plan's time is none: sums of medians are not known better."""


@dataclass(frozen=True)
class Reason:
    """`price` is what the other choice costs in seconds by the likely costs, `measured` by measured kernels alone, `least` with the
    kernels concerned at their bounds and all others as measured: at least so much. Infinity: it can't be had (by measured kernels: some were
    not measured); NaN: not known. A negative `least` is what it may gain at most. `studies` says of the kernels that the best measured plan with
    the other choice has for it how far each was searched: by which rule its study is closed, or that it is open."""

    state: str
    rule: str = ""
    text: str = ""
    nodes: tuple[NodeId, ...] = ()
    price: float = math.nan
    measured: float = math.nan
    least: float = math.nan
    studies: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Prices:
    """`columns` are those with the wish in the best measured plan that has it."""

    price: float
    measured: float
    least: float
    columns: tuple[int, ...] = ()

    def of(self, state: str, rule: str = "", text: str = "", nodes: tuple[NodeId, ...] = ()) -> Reason:
        return Reason(state, rule, text, nodes, self.price, self.measured, self.least)


def limit_text(verdict: Verdict) -> str:
    """A verdict about a quantity in words, with how much too much it is."""
    over = verdict.found - verdict.allowed
    return f"{verdict.reason} ({over:,.0f} too many)" if verdict.allowed else verdict.reason


def refused(verdict: Verdict) -> Reason:
    """A refusal by the rules of fusion."""
    state = LIMIT if verdict.allowed else ILLEGAL
    return Reason(state, verdict.rule, limit_text(verdict), verdict.nodes, math.inf, math.inf, math.inf)


def together(plan: Plan) -> Mapping[NodeId, frozenset[int]]:
    """The positions of the regions that compute each node (several where it is computed again)."""
    found: dict[NodeId, set[int]] = {}
    for k, r in enumerate(plan.regions):
        for n in r.region.nodes:
            found.setdefault(n, set()).add(k)
    return {n: frozenset(s) for n, s in found.items()}


def fuses(regions: Mapping[NodeId, frozenset[int]], e: Edge) -> bool:
    """Whether every region that computes the edge's reader computes its value too, so that it is never loaded for it."""
    readers = regions.get(e.consumer, frozenset())
    return bool(readers) and readers <= regions.get(e.producer, frozenset())


class EdgeJudge:
    """Judges the edges of one graph against its best plan; the program is solved once before the first of them."""

    def __init__(self, sampler: ExactPlanSampler, best: Plan, seconds: float = math.inf) -> None:
        self.sampler = sampler
        sampler.check_bounds()
        self.model = sampler.model
        self.partitioner = sampler.planner.partitioner
        self.regions = together(best)
        deadline = time.monotonic() + seconds
        self.costs: dict[str, Costs] = {}
        self.optimum: dict[str, float] = {}
        for name, part in (("measured", upper), ("likely", guess)):
            self.costs[name] = self.model.costs(part)
            self.optimum[name] = self._seconds(self.costs[name], Fixed(), deadline - time.monotonic())
        self._lower = self.model.costs(lower)
        if math.isnan(self.optimum["measured"]) or math.isinf(self.optimum["measured"]):
            planner = sampler.planner
            if not planner.open_kernels(best):
                self.optimum["measured"] = planner.seconds(best)
        self._holding: dict[NodeId, set[int]] = {}
        for k, c in enumerate(self.model.problem.columns):
            for n in c.nodes:
                self._holding.setdefault(n, set()).add(k)

    def judge(self, e: Edge, seconds: float = math.inf) -> Reason:
        """The class of an edge and its price."""
        deadline = time.monotonic() + seconds
        pair = frozenset({e.producer, e.consumer})
        if fuses(self.regions, e):
            apart = self._holding.get(e.producer, set()) ^ self._holding.get(e.consumer, set())
            return self._prices(Fixed(apart=(pair,)), apart, deadline).of(FUSED)
        columns = self._holding.get(e.producer, set()) & self._holding.get(e.consumer, set())
        if not columns:
            return self._without_columns(pair)
        found = self._prices(Fixed(together=(pair,)), columns, deadline)
        if math.isinf(found.least):
            failures = self._failures(columns)
            if failures:
                return found.of(FAILED, "", failures)
            reason = "no plan holds a region with both: what the others would need can't be supplied"
            return found.of(ILLEGAL, "supply", reason, tuple(sorted(pair)))
        return replace(self._by_costs(columns, found), studies=self._studies(found.columns))

    # ---- by costs

    def _by_costs(self, columns: Collection[int], found: _Prices) -> Reason:
        best = self.optimum["measured"]
        failures = self._failures(columns)
        also = f"; of what was tried so far: {failures}" if failures else ""
        if not math.isfinite(best):
            return found.of(OPEN, "", f"no plan has all its kernels measured, so nothing is proven{also}")
        if math.isfinite(found.measured):
            share = found.measured / best
            if share < SAME:
                text = f"no faster: with it the plan's kernels take as long ({_ms(best)}), so the finals, end to end, decided"
            else:
                much = f"{_us(found.measured)} ({100 * share:.1f} %)"
                text = f"slower by {much} by measured kernels: {_ms(best + found.measured)} instead of {_ms(best)}"
            return found.of(SLOWER, "", text)
        if found.least >= -SAME * best:
            text = (
                f"with kernels that fuse it at their bounds, and all others as measured, a plan takes {_ms(best + found.least)} at least, "
                f"the best one {_ms(best)}"
            )
            return found.of(BOUNDED, "", text + also)
        if math.isnan(found.least):
            return found.of(OPEN, "", f"there was no time to solve with it fixed{also}")
        likely = "costs" if found.price > 0 else "saves"
        text = (
            f"its kernels were not measured before the budget ended: it likely {likely} {_us(abs(found.price))}, "
            f"the bounds of kernels that fuse it allow a gain of {_us(-found.least)}"
        )
        return found.of(OPEN, "", text + also)

    def _prices(self, fixed: Fixed, columns: Collection[int], deadline: float) -> _Prices:
        """What a wish costs. At least: its own columns cost their bounds, and all others what was measured of them."""

        def solved(costs: Costs) -> float:
            return self._seconds(costs, fixed, deadline - time.monotonic())

        measured = self.optimum["measured"]
        known, chosen = self._solved(self.costs["measured"], fixed, deadline - time.monotonic())
        likely = solved(self.costs["likely"])
        own = list(self.costs["measured"].columns)
        for k in columns:
            own[k] = self._lower.columns[k]
        least = solved(Costs(own, self.costs["measured"].reorders))
        if math.isinf(least):  # what stands beside them was not measured either
            mixed = [c if math.isfinite(c) else self._lower.columns[k] for k, c in enumerate(own)]
            least = solved(Costs(mixed, self._lower.reorders))
        price, more = _above(likely, self.optimum["likely"]), _above(known, measured)
        return _Prices(price, more, _above(least, measured), tuple(k for k in chosen if k in columns))

    def _seconds(self, costs: Costs, fixed: Fixed, seconds: float) -> float:
        """What the best solution takes; infinity where there is none, NaN where none was found in time."""
        return self._solved(costs, fixed, seconds)[0]

    def _solved(self, costs: Costs, fixed: Fixed, seconds: float) -> tuple[float, tuple[int, ...]]:
        """The same with its columns."""
        if seconds <= 0:
            return math.nan, ()
        solution, bound = self.sampler.solve_fixed(costs, fixed, seconds)
        if solution is None:
            return (math.inf if math.isinf(bound) else math.nan), ()
        return solution.seconds, solution.columns if math.isfinite(solution.seconds) else ()

    def _studies(self, columns: Iterable[int]) -> tuple[str, ...]:
        """How far the kernels of columns were searched, in words, each signature once."""
        choices = [self.model.choices[k] for k in columns]
        kernels = dict.fromkeys(c.program.signature for c in choices if c.program is not None)
        known = self.sampler.pricing.studies.studies
        return tuple(f"{s[:8]} {known[s].state}" for s in kernels if s in known and known[s].tried)

    def _failures(self, columns: Collection[int]) -> str:
        """How the kernels of columns failed, those that did, in words."""
        counts: Counter[str] = Counter()
        programs = {c.program.signature: c.program for c in (self.model.choices[k] for k in columns) if c.program}
        for program in programs.values():
            study = self.sampler.pricing.studies.studies.get(program.signature)
            for tried in study.tried.values() if study is not None else ():
                m = tried.measurement
                if m.status not in (Status.OK, Status.SKIPPED):
                    counts[f"{m.status.value}: {m.reason.partition(chr(10))[0]}".rstrip(": ")] += 1
        return "; ".join(f"{text} ({n} kernels)" if n > 1 else text for text, n in counts.most_common(3))

    # ---- by rules

    def _without_columns(self, pair: frozenset[NodeId]) -> Reason:
        """No region that was enumerated holds both: what forbids the smallest one that might."""
        nodes = self.partitioner.closed(pair)
        graph = self.model.graph
        hosts = tuple(sorted(n for n in nodes if not graph.nodes[n].kind.has_kernel))
        if hosts:
            reason = "a path between the two leads over the host, and a kernel can't wait for that"
            return refused(Verdict(False, "host", reason, hosts))
        verdict = self.partitioner.allowed(Region.of(graph, nodes))
        if not verdict:
            found = refused(replace(verdict, nodes=verdict.nodes or tuple(sorted(pair))))
            if len(nodes) > 2:
                between = f"; {len(nodes) - 2} nodes lie between the two and would be part of it"
                return Reason(found.state, found.rule, found.text + between, found.nodes, math.inf, math.inf, math.inf)
            return found
        if not self.sampler.pricing.ways(self.sampler.planner.program(Region.of(graph, nodes))):
            return refused(Verdict(False, "kernels", "no kernel family implements it", tuple(sorted(nodes))))
        limits = self.sampler.limits
        if len(nodes) > limits.size:
            reason = f"with what lies between them it would have {len(nodes)} nodes, {limits.size} are searched"
            return refused(Verdict(False, "size", reason, tuple(sorted(nodes)), len(nodes), limits.size))
        if self.model.levels_differ(nodes):
            reason = "a step on the host runs between the two"
            return refused(Verdict(False, "host", reason, tuple(sorted(pair))))
        enumerated = self.sampler.enumerated
        late = enumerated.unfinished or self.model.left_out
        ended = (
            "there was no more time"
            if late
            else f"{limits.count} regions, the most that may start at one node, were found"
        )
        reason = f"the rules allow it, but {ended} before the search came to a region with both"
        return Reason(LIMIT, "search", reason, tuple(sorted(pair)), math.inf, math.inf, math.nan)


def judged(sampler: ExactPlanSampler, best: Plan, edges: Iterable[Edge], seconds: float) -> dict[Edge, Reason]:
    """Reasons for all edges that time allows: those that the plan does not fuse come first, the largest before others."""
    deadline = time.monotonic() + seconds
    judge = EdgeJudge(sampler, best, seconds / 2)
    values = sampler.model.graph.values
    order = sorted(edges, key=lambda e: (fuses(judge.regions, e), -values[e.value].nbytes))
    found: dict[Edge, Reason] = {}
    for e in order:
        left = deadline - time.monotonic()
        if left <= (0 if fuses(judge.regions, e) else -seconds):  # what the rules say takes no solving, but some time
            break
        found[e] = judge.judge(e, max(left, 0.0))
    return found


def _above(seconds: float, base: float) -> float:
    """A difference; infinity for what can't be had, NaN where there is nothing to compare it with."""
    if math.isfinite(base):
        return seconds - base
    return math.inf if seconds == math.inf else math.nan


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} us"
