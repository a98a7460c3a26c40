"""Kernel studies: where they start, how they end, what an added choice costs, and what times in place do to prices."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from replay import HOST, ReplayBench
from search_graphs import chain, mlp

from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import allows, family, schedules
from autofuse.kernels.space import load_spaces
from autofuse.measure.bench import layouts_text
from autofuse.measure.result import Measurement, Status
from autofuse.search.book import Entry
from autofuse.search.gains import HEADROOM, Gains
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.session import Session
from autofuse.search.study import QUIET, QUIET_VARIANT, KernelStudy, Tried

SPACES = load_spaces("cpu")
GRAPH = mlp()


def contraction() -> RegionProgram:
    return program_of(GRAPH, Partitioner(GRAPH, HOST).unfused().regions[0])


def one_map() -> RegionProgram:
    graph = chain(1)
    return program_of(graph, Region.of(graph, [0]))


def flat(variant: Variant, schedule: Schedule) -> float:
    return 50_000.0


def row(v: Variant, schedule: Schedule, *ns: int, status: Status = Status.OK) -> Tried:
    m = Measurement("k", v.program.signature, v.family, v.algorithm, layouts_text(v), schedule.text(), status)
    return Tried((v, schedule), replace(m, samples_ns=ns))


def run(studies: KernelStudies, program: RegionProgram, most: int = 100) -> KernelStudy:
    for _ in range(most):
        if not studies.step(program, math.inf):
            break
    return studies.of(program)


def test_a_small_space_is_tried_whole_and_then_closed() -> None:
    program = one_map()
    bench = ReplayBench(chain(1), flat)
    study = run(KernelStudies(bench, SPACES), program)
    assert study.closed and "all candidates" in study.verdict and study.state.startswith("closed: ")
    assert {(v.key, s) for v, s in bench.asked} >= {
        (v.key, s) for v in study.variants for s in schedules(v, HOST, SPACES)
    }


def test_a_large_space_is_closed_after_many_trials_without_a_gain() -> None:
    bench = ReplayBench(GRAPH, flat, noise=0.005)
    study = run(KernelStudies(bench, SPACES), contraction())
    assert "trials in a row gained less than the noise" in study.verdict
    assert QUIET <= len(study.tried) < 2 * QUIET


def test_a_study_ends_where_its_bound_is_reached() -> None:
    studies = KernelStudies(ReplayBench(GRAPH, flat), SPACES)
    studies.bound = lambda v: 49.8e-6
    study = run(studies, contraction())
    assert "bound" in study.verdict and len(study.tried) <= 6
    assert studies.gap(study.program) == pytest.approx(0.004, abs=1e-3)
    assert studies.gap(one_map()) == 1.0


def test_trials_without_a_gain_are_counted_by_variant_and_given_the_noise() -> None:
    program = contraction()
    study = KernelStudies(ReplayBench(GRAPH, flat), SPACES).of(program)
    v, other = study.variants[:2]
    every = list(schedules(v, HOST, SPACES))
    for k, ns in enumerate([1000, 900, 895, 950, 960]):
        study.keep(row(v, every[k], ns))
    assert study.quiet(v) == 3  # 895 is no gain over 900
    study.keep(row(v, every[5], status=Status.CRASHED))
    assert study.quiet(v) == 4 and study.quiet(other) == 0
    study.keep(row(v, every[6], 899))
    assert study.quiet(v) == QUIET_VARIANT
    study.leader = row(v, every[1], 700, 800, 1000, 1100)
    assert study.noise > 0.1 and study.quiet(v) == 6  # what is gained must show through the leader's noise


def test_the_nearest_kernels_are_tried_right_after_the_heuristic_one() -> None:
    program = contraction()
    bench = ReplayBench(GRAPH, flat)
    studies = KernelStudies(bench, SPACES)
    v = next(v for v in studies.of(program).variants if v.family == "contract_host")
    legal = list(schedules(v, HOST, SPACES))
    impossible = Schedule.of({**legal[-1].values, "rows": 15})
    assert allows(v, legal[40], HOST, SPACES) and not allows(v, impossible, HOST, SPACES)
    bench.kin = [row(v, s, 10).measurement for s in (legal[40], impossible)]
    bench.kin.append(replace(bench.kin[0], family="other"))
    studies.step(program, math.inf)
    (likeliest, first), second, third = bench.asked[:3]
    assert first == family(likeliest.family).heuristic(likeliest, HOST) and second == (v, legal[40])
    assert third[0] == v and third[1] in legal  # the nearest legal one stands in for what is impossible
    assert not any(t.measurement.status is not Status.OK for t in studies.of(program).tried.values())


def test_an_added_choice_keeps_all_the_rest(tmp_path: Path) -> None:
    program = one_map()
    (tmp_path / "cpu").mkdir()
    space = SPACES.of("map_host")
    name, values = next((n, v) for n, v in space.choices if n == "unroll")
    text = f"version = {space.version + 1}\n[choices]\n{name} = [{', '.join(map(str, (*values, 16)))}]\n"
    (tmp_path / "cpu" / "map_host.toml").write_text(text)
    first = ReplayBench(chain(1), flat)
    run(KernelStudies(first, SPACES), program)
    second = ReplayBench(chain(1), flat)
    second.past = {s: list(rows) for s, rows in first.past.items()}
    known = len(second.past[program.signature])
    study = run(KernelStudies(second, load_spaces("cpu", str(tmp_path))), program)
    fresh = second.past[program.signature][known:]
    old = {(m.layouts, m.schedule) for m in first.past[program.signature]}
    added = [m for m in fresh if (m.layouts, m.schedule) not in old]
    assert added and all("unroll=16" in m.schedule for m in added)
    # What was known is taken from the records, but for the few that lead.
    assert len(fresh) - len(added) <= 3 + study.batches


def test_times_in_place_instead_of_times_alone() -> None:
    program = contraction()
    bench = ReplayBench(GRAPH, lambda v, s: 50_000.0 if s == family(v.family).heuristic(v, HOST) else 60_000.0)
    studies = KernelStudies(bench, SPACES)
    v = studies.of(program).variants[0]
    studies.step(program, math.inf, only=[v])

    def price() -> float:
        return next(o.seconds for o in studies.options(program) if o.variant == v)

    heuristic = family(v.family).heuristic(v, HOST)
    studies.observe_in_place([(v, heuristic, 80e-6)])
    assert price() == pytest.approx(50e-6)  # a machine that is slower as a whole tells nothing of one kernel
    studies.observe_in_place([(v, heuristic, 80e-6)], instead=True)
    assert price() == pytest.approx(80e-6)
    # A better schedule is taken to be as much slower in place as the one that was timed there.
    better = next(s for s in schedules(v, HOST, SPACES) if s != heuristic)
    studies.of(program).keep(row(v, better, 25_000))
    studies.observe_in_place([])
    studies.step(program, math.inf, only=[v])
    assert price() == pytest.approx(40e-6)


def test_a_sum_is_off_only_where_all_kernels_were_measured() -> None:
    fields = {"plan": None, "step": "", "trial": 0, "estimate_ns": 120.0, "opened": None, "elapsed": 0.0}
    assert math.isnan(Entry(**fields, whole_ns=100.0).off)  # type: ignore[arg-type]
    assert Entry(**fields, whole_ns=100.0, known=True).off == pytest.approx(0.2)  # type: ignore[arg-type]
    assert math.isnan(Entry(**fields, known=True).off)  # type: ignore[arg-type]


def test_what_may_still_be_gained_is_learnt_from_trials() -> None:
    program = contraction()
    studies = KernelStudies(ReplayBench(GRAPH, flat), SPACES)
    study = studies.of(program)
    assert Gains.of([study]).left("contract_host", 3) == HEADROOM  # nothing tells yet
    mine = [v for v in study.variants if v.family == "contract_host"]
    every = list(schedules(mine[0], HOST, SPACES))[:12]
    copies = [KernelStudy(program, {}, study.variants) for _ in range(12)]
    for k, copy in enumerate(copies):
        for n, s in enumerate(every):
            # Ten of twelve gain 10 % at the fourth trial and nothing later; two never gain.
            copy.keep(row(mine[0], s, 1000 if n < 3 or k >= 10 else 900))
    gains = Gains.of(copies)
    assert gains.left("contract_host", 1) == pytest.approx(0.1)
    assert gains.left("contract_host", 4) == 0.0 == gains.left("contract_host", 50)
    assert gains.left("map_host", 4) == HEADROOM


def test_trials_go_to_the_larger_share_and_the_larger_gap() -> None:
    program = contraction()
    studies = KernelStudies(ReplayBench(GRAPH, flat), SPACES)
    session = Session.__new__(Session)
    session.studies = studies
    untried = session._promise(program, 1e-3)
    assert session._promise(program, 2e-3) == pytest.approx(2 * untried)
    studies.step(program, math.inf)
    studies.bound = lambda v: 25e-6
    half_open = session._promise(program, 1e-3)
    studies.bound = lambda v: 45e-6
    assert session._promise(program, 1e-3) == pytest.approx(half_open / 5)
    studies.bound = lambda v: 49.9e-6
    assert session._promise(program, 1e-3) == pytest.approx(half_open / 10)  # a bound may be wrong
