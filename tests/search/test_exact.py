"""The exact solver: against trying everything, on graphs, and behind the session."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from exact_problems import Maker, compare
from onnx import TensorProto, helper
from replay import HOST, ReplayBench
from search_graphs import chain, matmul, mlp, relu, softmax

from autofuse.devices.base import Device
from autofuse.engine.build import segments
from autofuse.engine.engine import Engine
from autofuse.engine.lowering import plainly
from autofuse.engine.options import Option, estimate
from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Partitioner, verify_partition
from autofuse.fusion.region import Region, program_of
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.dtype import DType
from autofuse.ir.expr import call
from autofuse.ir.graph import Graph
from autofuse.ir.stage import Combine, Kind
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import variants
from autofuse.kernels.space import load_spaces
from autofuse.measure.calibrate import Reached
from autofuse.ops.builder import Builder
from autofuse.search.exact import blocks
from autofuse.search.exact.blocks import BlockSolver
from autofuse.search.exact.bounds import Bounds
from autofuse.search.exact.certificate import Certificate
from autofuse.search.exact.costs import Pricing, way_of
from autofuse.search.exact.model import Model, guess, upper
from autofuse.search.exact.planning import Setting, partition_of, plan_of
from autofuse.search.exact.problem import Costs, fault_of
from autofuse.search.exact.program import Fixed
from autofuse.search.exact.reduced import hopeful_costs, least_with, spared_kernels
from autofuse.search.exact.regions import Limits, enumerate_regions
from autofuse.search.exact.sampler import ExactPlanSampler
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.planner import Planner
from tests.graphs import random_graph, random_model
from tests.random_models import reference

F32 = DType.FLOAT32
FAST = Reached(1e15, 1e18, 1e-12, True, 1e15)
"""A device so fast that its bounds say nothing."""


def cost(variant: Variant, schedule: Schedule) -> float:
    """Nanoseconds: a launch costs 1 us, a step 0.3 us, and layouts make a difference that depends on the kernel."""
    return 1000 + 300 * len(variant.program.steps) + 7 * (sum(map(ord, variant.key)) % 97)


class Setup:
    """A model of a graph with options from estimates, or from `cost` where asked."""

    def __init__(self, graph: Graph, target: Target = HOST, limits: Limits | None = None) -> None:
        self.graph = graph
        self.bench = ReplayBench(graph, cost)
        self.bench.target = target
        self.partitioner = Partitioner(graph, target)
        self.studies = KernelStudies(self.bench, load_spaces(target.kind))
        self.planner = Planner(graph, self.bench, self.partitioner, self.studies, "default")
        self.studies.constants = self.planner.constants
        landmarks = (self.partitioner.unfused(), self.partitioner.greedy())
        self.enumerated = enumerate_regions(self.partitioner, landmarks, limits)
        pricing = Pricing(self.studies, Bounds.of(FAST, target))
        self.model = Model(self.partitioner, self.enumerated, pricing, self.planner.program)

    def best(self, fixed: Fixed | None = None) -> tuple[Plan, float]:
        """The likely optimum."""
        solution, lower = BlockSolver(self.model.problem, fixed).solve(self.model.costs(guess))
        assert solution is not None and solution.seconds == pytest.approx(lower)
        assert fault_of(self.model.problem, solution.columns) is None
        verify_partition(self.graph, partition_of(self.model, solution), self.bench.target)
        plan = plan_of(self.model, solution, Setting(self.bench.target, 2, "default"), "exact")
        assert self.planner.seconds(plan) == pytest.approx(solution.seconds)
        return plan, solution.seconds


@pytest.mark.parametrize("first", range(0, 300, 20))
def test_the_optimum_is_the_one_of_trying_everything(first: int) -> None:
    faults = {seed: compare(seed, views=seed % 4 == 3)[0] for seed in range(first, first + 20)}
    assert sum(f == "too large" for f in faults.values()) <= 3
    assert {seed: f for seed, f in faults.items() if f not in ("", "too large")} == {}


@pytest.mark.parametrize("seed", range(8))
def test_a_quick_way_through_many_blocks_is_a_solution_within_its_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(seed, nodes=60)
    problem = maker.problem()
    costs = maker.costs(problem)
    solver = BlockSolver(problem, fewest=1)
    best, lower = solver.solve(costs)
    assert best is not None and best.seconds == pytest.approx(lower)
    quick, bound = solver.sweep(costs, math.inf)
    assert bound <= best.seconds * (1 + 1e-9)
    assert quick is not None and fault_of(problem, quick.columns) is None
    assert best.seconds * (1 - 1e-9) <= quick.seconds <= 1.2 * best.seconds
    late, weak = solver.sweep(costs, -math.inf)
    assert late is not None and fault_of(problem, late.columns) is None
    assert weak <= best.seconds * (1 + 1e-9) and late.seconds >= quick.seconds
    monkeypatch.setattr(blocks, "MANY", 1)
    limited, again = BlockSolver(problem, fewest=1).solve(costs, 100.0)
    assert limited is not None and limited.seconds == pytest.approx(best.seconds) == pytest.approx(again)


@pytest.mark.parametrize("seed", range(40))
def test_every_optimum_is_a_legal_partition_and_a_plan_that_can_be_built(seed: int) -> None:
    graph = random_graph(seed)
    setup = Setup(graph)
    plan, seconds = setup.best()
    segments(graph, plan, plainly(HOST))
    for partition in (setup.partitioner.unfused(), setup.partitioner.greedy()):
        other = setup.planner.plan(partition, "")
        assert other is None or seconds <= setup.planner.seconds(other) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_an_optimum_computes_what_the_graph_says(seed: int, cpu: Device) -> None:
    drawn = random_model(seed)
    graph = import_model(drawn.model)
    plan, _ = Setup(graph, cpu.target).best()
    names = {graph.values[v].name for v in graph.inputs}
    with Engine.build(graph, plan, cpu) as engine:
        outputs = engine.run({k: a for k, a in drawn.inputs.items() if k in names})
    expected = reference(graph, drawn.inputs, seed)
    assert not expected.difference(list(outputs.values()), [graph.values[v].dtype for v in graph.outputs])


@pytest.mark.parametrize("name", ["gelu", "layernorm", "rmsnorm", "softmax", "swiglu", "rotary", "groupnorm"])
def test_memory_bound_chains_are_fused_whole(name: str) -> None:
    plan, _ = Setup(import_model(load_model(f"sample:chain_{name}"))).best()
    assert len(plan.regions) == 1


def shared_producer() -> Graph:
    """x -> Relu -> sum of rows; the same Relu -> sum of columns: recomputing it saves its trip to memory."""
    b = Builder()
    x = b.input("x", F32, (2048, 2048))
    b.origin += 1
    r = b.elementwise([x], relu)
    b.origin += 1
    rows = b.reduce([r], (2048, 1), (2048,), Combine.SUM, lambda i, k, read: read(0, (i[0], k[0])))
    b.origin += 1
    columns = b.reduce([r], (1, 2048), (2048,), Combine.SUM, lambda i, k, read: read(0, (k[0], i[1])))
    return b.graph([("rows", rows), ("columns", columns)])


def test_a_cheap_producer_is_computed_again_where_that_pays() -> None:
    plan, _ = Setup(shared_producer()).best()
    assert sorted(r.region.nodes for r in plan.regions) == [(0, 1), (0, 2)]
    assert all(len(r.region.outputs) == 1 for r in plan.regions)


def test_a_dear_node_is_never_computed_twice() -> None:
    setup = Setup(mlp())
    contractions = {n.id for n in setup.graph.nodes if n.kind is Kind.CONTRACT}
    assert contractions <= setup.model.problem.once


def test_what_is_fixed_is_kept_and_costs_at_least_as_much() -> None:
    setup = Setup(mlp())
    plan, best = setup.best()
    fused = next(r.region.nodes for r in plan.regions if len(r.region.nodes) > 1)
    pair = frozenset(fused[:2])
    apart, dearer = setup.best(Fixed(apart=(pair,)))
    assert dearer >= best and not any(pair <= set(r.region.nodes) for r in apart.regions)
    together, same = setup.best(Fixed(together=(pair,)))
    assert same == pytest.approx(best) and any(pair <= set(r.region.nodes) for r in together.regions)
    impossible = Fixed(together=(frozenset(n.id for n in setup.graph.nodes if n.kind is Kind.CONTRACT),))
    assert BlockSolver(setup.model.problem, impossible).solve(setup.model.costs(guess))[0] is None


def test_host_steps_split_levels() -> None:
    """Relu -> NonZero (whose shape depends on data: the host's) -> ... -> Mul with the Relu: only plain values pass the host steps."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 8, 8])
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["d"]),
        helper.make_node("Cast", ["d"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["f"], ["m"], keepdims=0),
        helper.make_node("Mul", ["r", "m"], ["y"]),
    ]
    graph = import_model(helper.make_model(helper.make_graph(nodes, "g", [x], [y])))
    assert any(n.kind is Kind.HOST for n in graph.nodes)
    plan, _ = Setup(graph).best()
    assert [r.has_kernels for r in plan.regions] == [True, False, False]
    segments(graph, plan, plainly(HOST))


# ---- enumeration


def test_a_region_that_would_wait_for_itself_takes_in_what_lies_between() -> None:
    graph = chain(3)
    enumerated = enumerate_regions(Partitioner(graph, HOST))
    nodes = {r.nodes for r in enumerated.regions}
    assert (0, 1, 2, 3) in nodes and (1, 2) in nodes
    assert not {(0, 2), (0, 3), (1, 3)} & nodes


def test_caps_are_counted_and_landmarks_are_kept() -> None:
    graph = chain(6)
    partitioner = Partitioner(graph, HOST)
    small = enumerate_regions(partitioner, [partitioner.greedy()], Limits(size=2, count=2))
    assert small.large > 0 and small.full > 0
    assert set(partitioner.greedy().regions) <= set(small.regions)
    assert "cap" in small.scope() and "larger" in small.scope()
    ended = enumerate_regions(partitioner, [], None, lambda: True)
    assert ended.unfinished == len(graph.nodes) == len(ended.regions)
    assert "lack of time" in ended.scope()


def test_equal_layers_are_checked_once() -> None:
    graph = import_model(load_model("sample:resnet50"))
    partitioner = Partitioner(graph, HOST)
    enumerated = enumerate_regions(partitioner, [partitioner.greedy()])
    keys = {partitioner.structures.key(r) for r in enumerated.regions}
    signatures = {program_of(graph, r).signature for r in enumerated.regions}
    assert len(keys) == len(signatures) < len(enumerated.regions) / 2
    for r in enumerated.regions[::17]:
        fresh = Partitioner(graph, HOST).allowed(r)
        assert fresh == partitioner.allowed(r)


def test_a_refusal_that_is_remembered_blames_the_nodes_of_its_own_region() -> None:
    graph = import_model(load_model("sample:squeezenet"))
    partitioner = Partitioner(graph, HOST)
    contractions = [n.id for n in graph.nodes if n.kind is Kind.CONTRACT]
    for first, second in itertools.pairwise(contractions):
        nodes = range(first, second + 1)
        remembered = partitioner.allowed(Region.of(graph, nodes))
        assert remembered == Partitioner(graph, HOST).allowed(Region.of(graph, nodes))


# ---- bounds


def test_a_bound_is_below_the_estimate_at_the_same_rates() -> None:
    graph = import_model(load_model("sample:squeezenet"))
    bounds = Bounds.of(Reached(3.2e10, 1.8e11, 1e-6, True, 1.3e11), HOST)
    for region in Partitioner(graph, HOST).greedy().regions:
        for v in variants(program_of(graph, region), HOST):
            assert bounds.lower(v) <= estimate(v, HOST, 2)


def test_a_kernel_that_beats_its_bound_corrects_it() -> None:
    b = Builder()
    x = b.input("x", F32, (64, 256))
    w = b.constant(np.ones((256, 64), np.float32))
    graph = b.graph([("y", matmul(b, x, w))])
    program = program_of(graph, Region.of(graph, [0]))
    v = next(v for v in variants(program, HOST) if v.family == "contract_host")
    bounds = Bounds.of(Reached(1e10, 1e11, 1e-7, True), HOST)
    seconds = bounds.lower(v) / 3
    better = bounds.corrected(v, seconds)
    assert better.lower(v) <= seconds and better.corrections == 1
    assert better.corrected(v, seconds) is better


def test_a_gather_need_not_read_all_of_its_table() -> None:
    b = Builder()
    table = b.input("table", F32, (30000, 64))
    row = b.map([table], (4, 64), lambda i, read: read(0, (call("mul", i[0], i[0]), i[1])))
    program = program_of(b.graph([("y", row)]), Region((0,), (0,), (1,)))
    v = next(v for v in variants(program, HOST) if v.family == "map_host")
    bounds = Bounds.of(Reached(1e9, 1e11, 0.0, True, 1e9), HOST)
    assert bounds.lower(v) * bounds.levels[0].rate == pytest.approx(2 * 4 * 64 * 4)


# ---- behind the session


@pytest.mark.parametrize("make", [mlp, softmax, chain])
def test_the_sampler_closes_the_gap_and_then_has_nothing_left(make: object) -> None:
    setup = Setup(make())  # type: ignore[operator]
    sampler = ExactPlanSampler(setup.planner, FAST)
    run: list[float] = []
    for _ in range(2000):
        proposal = sampler.propose()
        if proposal is None:
            break
        verify_partition(setup.graph, proposal.partition, HOST)
        assert proposal.plan is not None and proposal.attributes["plan"] == proposal.plan.key
        for v in proposal.lacking:
            setup.studies.step(v.program, math.inf, batch=2, only=[v])
        if not proposal.lacking and not setup.planner.open_kernels(proposal.plan):
            run.append(setup.planner.seconds(proposal.plan))
        sampler.observe(proposal, setup.planner.seconds(proposal.plan))
    assert proposal is None and sampler.gap == pytest.approx(0.0, abs=1e-9)
    assert "is faster under measured costs" in sampler.certificate()
    trials = sampler.trials()
    assert trials and all(t.attributes["plan"] == t.identity for t in trials)
    # The optimum over all kernels, each with its own best schedule, is what was run.
    every = {k: cost(v, Schedule(())) * 1e-9 for k, v in _all_variants(setup).items()}
    setup.studies.options = lambda program: [  # type: ignore[method-assign]
        Option(v, Schedule(()), 0.0 if v.family == "view" else every[v.key], True) for v in variants(program, HOST)
    ]
    _, best = setup.best()
    assert min(run) == pytest.approx(best)


def test_a_plan_that_runs_slower_than_the_program_says_is_not_run_for_ever() -> None:
    setup = Setup(mlp())
    sampler = ExactPlanSampler(setup.planner, FAST)
    runs: Counter[str] = Counter()
    for _ in range(2000):
        proposal = sampler.propose()
        if proposal is None:
            break
        assert proposal.plan is not None
        for v in proposal.lacking:
            setup.studies.step(v.program, math.inf, batch=2, only=[v])
        if not proposal.lacking:
            runs[proposal.plan.key] += 1
        # A reorder of its own may be dearer than the copy that stands for it, so that a whole plan is, time and again.
        sampler.observe(proposal, 1.2 * setup.planner.seconds(proposal.plan))
    assert proposal is None
    assert max(runs.values()) <= 2


def _all_variants(setup: Setup) -> dict[str, Variant]:
    found = {}
    for choice in setup.model.choices:
        if choice.program is not None:
            found.update({v.key: v for v in variants(choice.program, HOST)})
    for v in setup.model.problem.producer:
        copy = setup.model.reorder_of(v)
        if copy is not None:
            found.update({x.key: x for x in variants(copy[0], HOST)})
    return found


def test_without_time_the_landmarks_can_still_be_solved() -> None:
    setup = Setup(import_model(load_model("sample:squeezenet")))
    sampler = ExactPlanSampler(setup.planner, FAST, enough=lambda: True)
    landmarks = (setup.partitioner.unfused(), setup.partitioner.greedy())
    fused = {r for p in landmarks for r in p.regions}
    assert {c.region for c in sampler.model.choices if len(c.region.nodes) > 1} == {
        r for r in fused if len(r.nodes) > 1
    }
    solution, _ = sampler.solve(guess)
    assert solution is not None
    assert (
        solution.seconds
        <= min(setup.planner.seconds(setup.planner.plan(p, "") or pytest.fail()) for p in landmarks) * 1.0001
    )


def test_a_certificate_says_what_it_covers() -> None:
    enumerated = enumerate_regions(Partitioner(mlp(), HOST))
    some = Certificate(enumerated, 20, 9, 0.98e-3, 1e-3, 4, 1, "2 kernels were faster than the bound", 0, 7, 3)
    text = some.text()
    count = len(enumerated.regions)
    assert text.startswith(
        f"No partition of the {count} enumerated regions can be more than 2.0 % faster under measured costs; "
        "20 kernels measured, of 7 distinct regions (3 with their studies closed)"
    )
    assert "4 kernels that could lower the optimum are open" in text and "1 kernel could not be measured" in text
    assert "faster than the bound" in text and "a study is closed when" in text
    nothing = Certificate(enumerated, 20, 9, 0.0, math.inf, 4, 0)
    assert math.isnan(nothing.gap) and nothing.text().startswith("Nothing is proven")


@pytest.mark.parametrize("seed", range(16))
def test_reduced_costs_are_what_a_column_costs_more_at_least(seed: int) -> None:
    """Against every other column that computes a node of it being forbidden: so that it must be used."""
    maker = Maker(seed, nodes=9, views=seed % 4 == 3)
    problem = maker.problem()
    costs = maker.costs(problem)
    solver = BlockSolver(problem, fewest=1)
    best, _ = solver.solve(costs)
    least = least_with(solver, costs, 10.0)
    assert best is not None and least is not None and least.min() <= best.seconds * (1 + 1e-6)
    assert all(least[k] <= best.seconds * (1 + 1e-6) for k in best.columns)
    for k, column in enumerate(problem.columns):
        node = next((n for n in column.nodes if n in problem.once), None)
        if node is None or not math.isfinite(costs.columns[k]):
            continue
        others = [j for j, c in enumerate(problem.columns) if node in c.nodes and j != k]
        forced = [math.inf if j in others else s for j, s in enumerate(costs.columns)]
        with_it, _ = BlockSolver(problem, fewest=1).solve(Costs(forced, costs.reorders))
        if with_it is not None:
            assert least[k] <= with_it.seconds * (1 + 1e-6), (k, column)


@pytest.mark.parametrize("make", [mlp, softmax, chain])
def test_spared_kernels_are_in_no_better_plan(make: Callable[[], Graph]) -> None:
    """With the kernels of single operators measured: plans that must have a spared one are no better, whatever all that is open costs."""
    setup = Setup(make())
    for region in setup.partitioner.unfused().regions:
        while setup.studies.step(setup.planner.program(region), math.inf):
            pass
    model = setup.model
    solver = BlockSolver(model.problem)
    known, _ = solver.solve(model.costs(upper))
    costs = hopeful_costs(model)
    assert known is not None and math.isfinite(known.seconds)
    everything = spared_kernels(model, np.zeros(len(model.choices)), costs, math.inf)
    for best in (known.seconds, 0.5 * known.seconds, 0.1 * known.seconds):
        least = least_with(solver, costs, 10.0)
        assert least is not None
        spared = spared_kernels(model, least, costs, best)
        assert everything <= spared  # those that another kernel beats already
        for k, choice in enumerate(model.choices):
            if choice.program is None or choice.way is None:
                continue
            mine = [v for v in setup.studies.of(choice.program).variants if way_of(v) == choice.way]
            if not mine or not all(v.key in spared - everything for v in mine):
                continue
            nodes = set(model.problem.columns[k].nodes) & model.problem.once
            others = [j for j, c in enumerate(model.problem.columns) if nodes & set(c.nodes) and j != k]
            forced = [math.inf if j in others else s for j, s in enumerate(costs.columns)]
            found, _ = BlockSolver(model.problem).solve(Costs(forced, costs.reorders))
            assert not nodes or found is None or found.seconds >= best * (1 - 1e-6)
