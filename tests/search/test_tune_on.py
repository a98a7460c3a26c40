"""The search on a replayed bench: deterministic, no device, no clock."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import optuna
import pytest
from replay import HOST, Clock, Cost, ReplayBench
from search_graphs import chain, mlp, softmax

from autofuse.errors import LaunchError, MismatchError
from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import program_of
from autofuse.ir.graph import Graph
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import schedules, variants
from autofuse.kernels.space import load_spaces
from autofuse.measure.result import Status
from autofuse.search.budget import Budget
from autofuse.search.outcome import TuneOutcome
from autofuse.search.progress import Event, Phase
from autofuse.search.tune import Task, tune_on

SPACES = load_spaces("cpu")


def task(**changes: object) -> Task:
    values: dict[str, object] = {
        "model": "test",
        "shapes": {},
        "inputs": {},
        "budget_seconds": 60.0,
        "accuracy": "default",
        "seed": 0,
        "sampler": "exact",
        "trials": None,
        "baseline": None,
        "onnx_model": None,
        "storage": None,
        "previous": None,
        "command": "",
    }
    return Task(**{**values, **changes})  # type: ignore[arg-type]


def run(graph: Graph, bench: ReplayBench, seconds: float = 20.0, **changes: object) -> TuneOutcome:
    events: list[Event] = changes.pop("events", [])  # type: ignore[assignment]
    budget = Budget(seconds, bench.clock)
    return tune_on(graph, bench, SPACES, task(budget_seconds=seconds, **changes), budget, events.append)


def simple(variant: Variant, schedule: Schedule) -> float:
    """A launch costs 1 us, each step 0.3 us; tasks of 16384 are best; blocked layouts cost more."""
    layouts = sum(not l.is_plain for l in (*variant.input_layouts, *variant.output_layouts))
    task_size = schedule.values.get("task", 16384)
    off = abs(math.log2(int(task_size) / 16384))
    return 1000 + 300 * len(variant.program.steps) + 50 * off + 100 * layouts


def fusion_is_wrong(variant: Variant, schedule: Schedule) -> float:
    """A fused kernel falls out of the cache: every step beyond the first costs more than a launch."""
    return simple(variant, schedule) + 3000 * (len(variant.program.steps) - 1)


def cheapest(graph: Graph, cost: Cost, limit: int = 300) -> float:
    """The best sum over the partitions that enumeration finds, each region with its best variant and schedule."""
    best = math.inf
    memo: dict[str, float] = {}
    for p in itertools.islice(Partitioner(graph, HOST).enumerate(), limit):
        total = 0.0
        for r in p.regions:
            program = program_of(graph, r)
            if program.signature not in memo:
                memo[program.signature] = min(
                    cost(v, s)
                    for v in variants(program, HOST)
                    if v.family != "view"
                    for s in schedules(v, HOST, SPACES)
                )
            total += memo[program.signature]
        best = min(best, total)
    return best


def best_ns(outcome: TuneOutcome) -> float:
    row = next(p for p in outcome.plans if p.plan.key == outcome.best.key)
    return sorted(row.samples_ns)[len(row.samples_ns) // 2]


@pytest.mark.parametrize("cost", [simple, fusion_is_wrong])
@pytest.mark.parametrize("make", [mlp, softmax, chain])
@pytest.mark.parametrize("sampler", ["exact", "tpe", "random", "nsga2", "brute-force"])
def test_the_best_partition_is_found_whether_fusion_pays_or_not(make: object, cost: Cost, sampler: str) -> None:
    graph: Graph = make()  # type: ignore[operator]
    outcome = run(graph, ReplayBench(graph, cost, seconds=0.25), 60, sampler=sampler)
    assert best_ns(outcome) <= 1.02 * cheapest(graph, cost)
    assert not outcome.interrupted and outcome.seconds <= 1.1 * 60


def test_steps_tell_gains_apart() -> None:
    graph = softmax()
    outcome = run(graph, ReplayBench(graph, simple))
    steps = [p.step for p in outcome.plans]
    assert steps[0] == "unfused" and outcome.plans[0].plan.origin == "unfused"
    assert "fused" in steps
    assert {p.status for p in outcome.plans} == {"ok"}
    by_step = {p.step: min(p.samples_ns) for p in outcome.plans}
    assert by_step["fused"] < by_step["unfused"]
    assert all(p.samples_ns and p.floor_ns > 0 and p.bound in ("memory", "compute", "launch") for p in outcome.plans)


def test_a_valid_best_plan_stands_before_any_kernel_is_studied() -> None:
    graph = mlp()
    events: list[Event] = []
    run(graph, ReplayBench(graph, simple), events=events)
    first = next(e for e in events if e.phase is Phase.KERNELS)
    assert first.best_ns > 0 and first.seconds < 5
    order = [e.phase for e in events]
    assert sorted(set(order), key=order.index) == [
        Phase.PREPARE,
        Phase.BASELINES,
        Phase.KERNELS,
        Phase.PLANS,
        Phase.FINALS,
        Phase.DONE,
    ]
    assert all(e.budget == 20 for e in events)


def test_equal_plans_are_a_tie_and_the_fewest_bytes_win() -> None:
    graph = softmax()
    bench = ReplayBench(graph, lambda v, s: 1000.0 * len(v.program.steps), noise=0.1)
    outcome = run(graph, bench)
    finals = [p for p in outcome.plans if p.samples_ns]
    best = next(p for p in finals if p.plan.key == outcome.best.key)
    assert best.bytes_model == min(p.bytes_model for p in finals)


@pytest.mark.parametrize(
    "status", [Status.WRONG, Status.CRASHED, Status.TIMEOUT, Status.COMPILE_FAILED, Status.OUT_OF_MEMORY]
)
def test_faults_are_recorded_and_a_valid_plan_remains(status: Status) -> None:
    graph = mlp()

    def fault(variant: Variant, schedule: Schedule) -> Status:
        return status if variant.family == "contract_host" and schedule.values["unroll"] in (2, 4) else Status.OK

    outcome = run(graph, ReplayBench(graph, simple, fault))
    contractions = [r for r in outcome.best.regions if r.family == "contract_host"]
    assert contractions and all(r.schedule.values["unroll"] not in (2, 4) for r in contractions)
    failed = [p for p in outcome.plans if p.status != "ok"]
    assert failed and all(p.status == status.value and p.reason and p.samples_ns == () for p in failed)
    assert any(k.status == status.value and k.reason == "as told" for k in outcome.kernels)


def test_kernels_that_work_alone_may_fail_together() -> None:
    graph = mlp()
    bench = ReplayBench(graph, simple, plan_fault=lambda plan: Status.WRONG if len(plan.regions) < 4 else Status.OK)
    outcome = run(graph, bench)
    assert len(outcome.best.regions) >= 4
    assert any(p.status == "wrong" for p in outcome.plans)


def test_nothing_that_works_is_an_error_with_reasons() -> None:
    graph = mlp()
    with pytest.raises(MismatchError, match="as told"):
        run(graph, ReplayBench(graph, simple, plan_fault=lambda plan: Status.WRONG))
    with pytest.raises(LaunchError, match="crashed"):
        run(graph, ReplayBench(graph, simple, plan_fault=lambda plan: Status.CRASHED))
    with pytest.raises(LaunchError):
        run(graph, ReplayBench(graph, simple, lambda v, s: Status.CRASHED))


@pytest.mark.parametrize("make", [mlp, softmax])
def test_where_kernels_take_another_time_in_an_engine_the_plan_is_solved_again(make: object) -> None:
    """Alone, fused kernels are cheaper; inside an engine they take three times as long."""
    graph: Graph = make()  # type: ignore[operator]

    def in_engine(variant: Variant, schedule: Schedule) -> float:
        return simple(variant, schedule) * (1 if len(variant.program.steps) == 1 else 3)

    outcome = run(graph, ReplayBench(graph, simple, seconds=0.25, in_engine=in_engine), 60)
    assert best_ns(outcome) <= 1.02 * cheapest(graph, in_engine)
    again = [p for p in outcome.plans if p.again]
    assert all(abs(p.off) > 0.1 and p.whole_ns > 0 for p in again)
    assert all(sum(p.region_ns) == pytest.approx(p.whole_ns, rel=0.05) for p in outcome.plans)
    if make is mlp:  # of the softmax every plan that is run has a kernel that was never timed before
        assert again and any("measured again in place" in n for n in outcome.notes)
    even = run(graph, ReplayBench(graph, simple, seconds=0.25, in_engine=simple), 60)
    assert not any(p.again for p in even.plans) and any("no kernel had to be" in n for n in even.notes)


def test_progress_tells_what_is_left_and_what_the_bounds_spared() -> None:
    graph = mlp()
    events: list[Event] = []
    run(graph, ReplayBench(graph, simple), events=events)
    last = [e for e in events if e.phase is Phase.PLANS][-1]
    kernels = last.kernels
    assert 0 < kernels.measured <= kernels.every and last.left == pytest.approx(20 - last.seconds)
    assert 0 <= kernels.spared <= kernels.every - kernels.measured


@pytest.mark.parametrize("after", [0.3, 2.0, 6.0, 12.0])
def test_an_interruption_keeps_the_best_so_far(after: float) -> None:
    graph = mlp()
    outcome = run(graph, ReplayBench(graph, simple, interrupt_after=after))
    assert outcome.interrupted and outcome.seconds <= after + 1
    assert outcome.best.regions and any(p.samples_ns for p in outcome.plans)


def test_an_interruption_before_any_plan_passes_on() -> None:
    graph = mlp()
    with pytest.raises(KeyboardInterrupt):
        run(graph, ReplayBench(graph, simple, interrupt_after=0.05))


def test_a_second_tune_carries_on_from_what_is_known() -> None:
    graph = mlp()
    first = ReplayBench(graph, simple)
    one = run(graph, first, 20)
    second = ReplayBench(graph, simple)
    second.past = first.past
    two = run(graph, second, 20, previous=one.best)
    assert two.plans[0].plan.key == one.best.key
    assert any(k.cached for k in two.kernels)
    assert best_ns(two) <= best_ns(one)


def test_a_previous_plan_of_another_model_is_passed_over() -> None:
    one = run(mlp(), ReplayBench(mlp(), simple), 10)
    graph = softmax()
    two = run(graph, ReplayBench(graph, simple), 10, previous=one.best)
    assert any("previous best plan was not used" in n for n in two.notes)


def test_a_model_that_is_too_large_for_numpy_has_the_kernels_of_its_first_plan_checked() -> None:
    graph = mlp()
    bench = ReplayBench(graph, simple)
    bench.checks_first_plan = True
    previous = run(graph, ReplayBench(graph, simple), 5).best
    outcome = run(graph, bench, 10, previous=previous)
    first = outcome.plans[0].plan
    assert first.origin == "unfused" and any(p.plan.key == previous.key for p in outcome.plans)
    asked = {(v.program.signature, s) for v, s in bench.asked[: len(first.regions)]}
    assert all(r.schedule in {s for _, s in asked} for r in first.regions)


def test_a_tune_is_the_same_for_the_same_seed() -> None:
    graph = softmax()
    keys = {run(graph, ReplayBench(graph, simple, noise=0.05), seed=3).best.key for _ in range(2)}
    assert len(keys) == 1


def test_few_engines_are_open_at_once_and_all_are_closed() -> None:
    graph = chain()
    bench = ReplayBench(graph, simple)
    run(graph, bench)
    assert bench.most_open <= 8
    assert not bench.open_handles


def test_a_tiny_budget_gives_the_baselines() -> None:
    graph = mlp()
    outcome = run(graph, ReplayBench(graph, simple), 0.0)
    assert outcome.plans[0].step == "unfused" and outcome.best.regions


def test_peers_are_measured_in_the_finals() -> None:
    graph = mlp()
    outcome = run(graph, ReplayBench(graph, simple), 20, baseline="onnxruntime", onnx_model=b"model")
    assert set(outcome.baselines) == {"onnxruntime"} and set(outcome.baselines["onnxruntime"]) == {5000}


def test_trials_limit_the_partitions() -> None:
    graph = chain()
    events: list[Event] = []
    run(graph, ReplayBench(graph, simple), trials=4, events=events)
    assert max(e.done for e in events if e.phase is Phase.PLANS and e.total == 4) == 4


def test_exact_accuracy_leaves_tolerant_variants_out() -> None:
    graph = mlp()
    bench = ReplayBench(graph, simple)
    run(graph, bench, 20, accuracy="exact")
    assert not any(v.tolerant for v, _ in bench.asked)


def test_studies_are_written_and_not_twice(tmp_path: Path) -> None:
    graph = softmax()
    url = f"sqlite:///{tmp_path}/studies.db"
    bench = ReplayBench(graph, simple)
    run(graph, bench, 3, storage=url, trials=3)
    summaries = optuna.get_all_study_summaries(url)
    names = {s.study_name for s in summaries}
    assert any(n.startswith("plan-") for n in names) and any(n.startswith("kernel-") for n in names)
    assert all(SPACES.version in n for n in names if n.startswith("kernel-"))
    counts = {s.study_name: s.n_trials for s in summaries}
    assert sum(counts.values()) > 0
    again = ReplayBench(graph, simple)
    again.past = bench.past
    run(graph, again, 3, storage=url, trials=3)
    after = {s.study_name: s.n_trials for s in optuna.get_all_study_summaries(url)}
    assert all(after[n] >= counts[n] for n in counts)


def test_a_storage_that_cannot_be_written_is_a_note() -> None:
    graph = softmax()
    outcome = run(graph, ReplayBench(graph, simple), 3, storage="sqlite:////nowhere/at/all.db", trials=2)
    assert any("--storage" in n for n in outcome.notes)


def test_the_clock_of_a_budget() -> None:
    clock = Clock()
    budget = Budget(10, clock)
    clock.now += 4
    assert budget.spent == 4 and budget.left == 6 and budget.within(0.5) and not budget.within(0.4)
    clock.now += 100
    assert budget.left == 0
