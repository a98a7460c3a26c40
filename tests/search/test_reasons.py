"""Why edges are not fused: classes and prices, against trying all solutions."""

from __future__ import annotations

import dataclasses
import math
import random
import re

import pytest
import search_graphs
from exact_problems import Maker, brute_force
from replay import HOST, ReplayBench

from autofuse.engine.options import estimate
from autofuse.fusion.partition import Edge, Partition, Partitioner
from autofuse.fusion.region import Region
from autofuse.ir.graph import Graph
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.space import load_spaces
from autofuse.measure.result import Status
from autofuse.ops.builder import Builder
from autofuse.search.budget import Budget
from autofuse.search.exact.blocks import BlockSolver
from autofuse.search.exact.model import guess, upper
from autofuse.search.exact.problem import Costs, Problem, fault_of
from autofuse.search.exact.program import Fixed
from autofuse.search.exact.reasons import BOUNDED, FAILED, FUSED, ILLEGAL, LIMIT, OPEN, SLOWER, EdgeJudge, Reason
from autofuse.search.exact.sampler import ExactPlanSampler
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.outcome import TuneOutcome
from autofuse.search.planner import Planner
from autofuse.search.session import Session
from autofuse.search.tune import Task, tune_on

SPACES = load_spaces("cpu")


def with_columns(problem: Problem, kept: list[int], costs: Costs) -> tuple[Problem, Costs]:
    """The problem and its costs with some of its columns."""
    smaller = dataclasses.replace(problem, columns=tuple(problem.columns[k] for k in kept))
    return smaller, Costs([costs.columns[k] for k in kept], costs.reorders)


def tried_all(problem: Problem, costs: Costs, pair: frozenset[int], apart: bool) -> float | None:
    """The cheapest solution with the pair in one column (or not) by trying all; the reader is computed once, so one column decides."""
    both = {k for k, c in enumerate(problem.columns) if pair <= set(c.nodes)}
    reading = {k for k, c in enumerate(problem.columns) if max(pair) in c.nodes}
    kept = [k for k in range(len(problem.columns)) if (k not in both if apart else k in both or k not in reading)]
    return brute_force(*with_columns(problem, kept, costs))


def test_prices_on_random_problems_are_those_of_trying_all() -> None:
    compared = possible = 0
    for seed in range(30):
        maker = Maker(seed, nodes=random.Random(seed).randint(3, 8))
        problem = maker.problem()
        costs = maker.costs(problem)
        solver = BlockSolver(problem, fewest=1)
        solver.solve(costs)
        edges = [(v, n) for n in range(maker.count) for v in maker.reads[n] if v >= 0 and n in problem.once]
        for v, n in random.Random(seed).sample(edges, min(3, len(edges))):
            pair = frozenset({v, n})
            for apart in (False, True):
                wanted = tried_all(problem, costs, pair, apart)
                if wanted is None:
                    continue
                fixed = solver.fixed(Fixed(apart=(pair,)) if apart else Fixed(together=(pair,)))
                found = None if fixed is None else fixed.table(costs)[0]
                compared += 1
                if found is None:
                    assert math.isinf(wanted), (seed, v, n, apart)
                    continue
                possible += 1
                assert found.seconds == pytest.approx(wanted, rel=1e-6), (seed, v, n, apart)
                assert fault_of(problem, found.columns) is None
                assert any(pair <= set(problem.columns[k].nodes) for k in found.columns) is not apart
    assert compared > 100 and possible > 60


# ---- a tune, then its reasons


def fine(v: Variant, s: Schedule) -> float:
    return 1.3e9 * estimate(v, HOST, 2) + len(s.text())


def products(v: Variant) -> int:
    return sum(s.kind.value == "contract" for s in v.program.steps)


def judged(graph: Graph, bench: ReplayBench, budget: float = 10.0) -> TuneOutcome:
    task = Task("m", {}, {}, budget, "default", 0, "exact", None, None, None, None, None, "", explain_seconds=30.0)
    return tune_on(graph, bench, SPACES, task, Budget(budget, bench.clock))


def reason(outcome: TuneOutcome, producer: int, consumer: int) -> Reason:
    return next(r for e, r in outcome.reasons.items() if (e.producer, e.consumer) == (producer, consumer))


def test_every_edge_has_a_reason_and_fused_ones_a_price() -> None:
    graph = search_graphs.mlp()
    outcome = judged(graph, ReplayBench(graph, fine))
    assert {(e.producer, e.consumer) for e in outcome.reasons} == {(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)}
    assert all(reason(outcome, n, n + 1).state == FUSED and reason(outcome, n, n + 1).price > 0 for n in (0, 1, 3, 4))
    limit = reason(outcome, 2, 3)
    assert (limit.state, limit.rule, limit.nodes) == (LIMIT, "recomputation", (2,))
    assert "too many" in limit.text and math.isinf(limit.price)


def test_a_fusion_that_is_slower_says_by_how_much() -> None:
    """A product with anything behind it takes a millisecond longer, a launch 0.1: bias and Relu are one kernel behind it. All three in one
    would take 1.1 ms instead of 0.2."""

    def cost(v: Variant, s: Schedule) -> float:
        return 1e5 + (1e6 if products(v) and len(v.program.steps) > 1 else 0.0)

    graph = search_graphs.mlp()
    outcome = judged(graph, ReplayBench(graph, cost), 40.0)
    for product in (0, 3):
        found = reason(outcome, product, product + 1)
        assert found.state == SLOWER and "slower by 900 us (225.0 %) by measured kernels" in found.text
        assert found.measured == pytest.approx(9e-4) and found.price == pytest.approx(9e-4)
        assert len(found.studies) == 1 and re.fullmatch(
            r"[0-9a-f]{8} (closed: .+|open: \d+ candidates tried)", found.studies[0]
        )
        apart = reason(outcome, product + 1, product + 2)
        assert apart.state == FUSED and apart.price == pytest.approx(1e-4)


def test_prices_of_a_tune_are_those_of_trying_all() -> None:
    """Each price of a small model, measured and likely, by brute force over the same columns."""
    graph = search_graphs.softmax()
    kept: list[ExactPlanSampler] = []
    bench = ReplayBench(graph, fine)
    original = Session.run_plans

    def run_plans(self: Session, share: float = 0.85) -> None:
        original(self, share)
        assert isinstance(self.sampler, ExactPlanSampler)
        kept.append(self.sampler)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "run_plans", run_plans)
        outcome = judged(graph, bench, 60.0)
    (sampler,) = kept
    problem = sampler.model.problem
    judge = EdgeJudge(sampler, outcome.best)
    for part, of in ((upper, "measured"), (guess, "price")):
        costs = sampler.model.costs(part)
        best = brute_force(problem, costs)
        assert best is not None
        for e in outcome.reasons:
            found = judge.judge(e)
            wanted = tried_all_nodes(problem, costs, frozenset({e.producer, e.consumer}), found.state == FUSED)
            assert getattr(found, of) == pytest.approx(wanted - best, rel=1e-6, abs=1e-12)
    for e, r in outcome.reasons.items():
        assert not math.isfinite(r.least) or not math.isfinite(r.measured) or r.least <= r.measured + 1e-12, e


def tried_all_nodes(problem: Problem, costs: Costs, pair: frozenset[int], apart: bool) -> float:
    """As `tried_all`, also where both nodes may be computed again: every column with both is forced in turn."""
    both = [k for k, c in enumerate(problem.columns) if pair <= set(c.nodes)]
    if apart:
        rest = [k for k in range(len(problem.columns)) if k not in both]
        found = brute_force(*with_columns(problem, rest, costs))
        return math.inf if found is None else found
    best = math.inf
    for k in both:
        mine = set(problem.columns[k].nodes)
        rest = [j for j, c in enumerate(problem.columns) if j == k or not mine & set(c.nodes)]
        found = brute_force(*with_columns(problem, rest, costs))
        best = min(best, math.inf if found is None else found)
    return best


def test_what_fails_says_how() -> None:
    graph = search_graphs.mlp()

    def fault(v: Variant, s: Schedule) -> Status:
        return Status.CRASHED if products(v) and len(v.program.steps) > 1 else Status.OK

    outcome = judged(graph, ReplayBench(graph, fine, fault), 60.0)
    found = reason(outcome, 0, 1)
    assert found.state == FAILED and "crashed: as told" in found.text and math.isinf(found.least)
    assert reason(outcome, 1, 2).state == FUSED


def test_two_products_are_illegal_and_name_the_nodes() -> None:
    b = Builder()
    x = b.input("x", search_graphs.F32, (8, 32))
    first = search_graphs.matmul(b, x, b.input("w", search_graphs.F32, (32, 16)))
    b.origin = 1
    graph = b.graph([("y", search_graphs.matmul(b, first, b.input("v", search_graphs.F32, (16, 8))))])
    found = reason(judged(graph, ReplayBench(graph, fine)), 0, 1)
    assert (found.state, found.rule, found.nodes) == (ILLEGAL, "contractions", (0, 1))


def test_bounds_tell_what_need_not_be_measured() -> None:
    """A product with its bias was never timed. Relu alone takes a millisecond, so bias and Relu are one kernel, and all three crash in one:
    then even a product that adds the bias for nothing can't pay. Where Relu alone is cheap, too, that is undecided."""
    graph = search_graphs.mlp()
    edge = Edge(0, 1, graph.nodes[0].outputs[0])
    for relu, state in ((1e6, BOUNDED), (0.0, OPEN)):

        def cost(v: Variant, s: Schedule, relu: float = relu) -> float:
            return fine(v, s) + (relu if len(v.program.steps) == 1 and len(v.program.inputs) == 1 else 0.0)

        def fault(v: Variant, s: Schedule) -> Status:
            return Status.CRASHED if len(v.program.steps) == 3 else Status.OK

        bench = ReplayBench(graph, cost, fault)
        studies = KernelStudies(bench, SPACES)
        planner = Planner(graph, bench, Partitioner(graph, HOST), studies, "default")
        apart = Partition(tuple(Region.of(graph, ns) for ns in ([0], [1, 2], [3], [4, 5])))
        first = planner.plan(apart, "first")
        assert first is not None
        unknown = EdgeJudge(ExactPlanSampler(planner, bench.reached(0.0)), first)
        nothing = unknown.judge(edge)
        assert nothing.state == OPEN and "nothing is proven" in nothing.text and math.isfinite(nothing.price)
        for nodes in ([0], [1], [2], [3], [4], [5], [1, 2], [4, 5], [0, 1, 2], [3, 4, 5]):
            program = planner.program(Region.of(graph, nodes))
            for _ in range(8):
                studies.step(program, math.inf)
        plan = planner.plan(apart, "best")
        assert plan is not None
        found = EdgeJudge(ExactPlanSampler(planner, bench.reached(0.0)), plan).judge(edge)
        assert found.state == state and math.isinf(found.measured)
        assert (found.least > 0) is (state == BOUNDED)
        assert ("at their bounds" if state == BOUNDED else "allow a gain") in found.text
        assert "crashed: as told" in found.text


def test_an_interrupted_tune_asks_nothing() -> None:
    graph = search_graphs.mlp()
    outcome = judged(graph, ReplayBench(graph, fine, interrupt_after=1.0))
    assert outcome.interrupted and not outcome.reasons


def test_another_sampler_is_explained_by_the_solver() -> None:
    graph = search_graphs.mlp()
    bench = ReplayBench(graph, fine)
    task = Task("m", {}, {}, 20.0, "default", 0, "random", None, None, None, None, None, "", explain_seconds=30.0)
    outcome = tune_on(graph, bench, SPACES, task, Budget(20.0, bench.clock))
    assert set(outcome.reasons) == {Edge(n, n + 1, graph.nodes[n].outputs[0]) for n in range(5)}
