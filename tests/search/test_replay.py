"""Recordings and their replay: costs looked up, misses told, the search repeated without a device or a clock."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from replay import HOST
from replay import ReplayBench as MadeBench
from search_graphs import chain, mlp, softmax

from autofuse.errors import LaunchError, StorageError
from autofuse.fusion.partition import Partitioner
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import family, schedules, variants
from autofuse.kernels.space import load_spaces
from autofuse.measure.bench import layouts_text
from autofuse.measure.calibrate import Reached
from autofuse.measure.recording import Recording, distinct, load_recording
from autofuse.measure.replay import MISSING, ReplayBench
from autofuse.measure.result import Measurement, Status
from autofuse.search.budget import Budget
from autofuse.search.exact.bounds import Bounds
from autofuse.search.exact.costs import EXHAUSTIVE, Pricing
from autofuse.search.exact.model import Model, upper
from autofuse.search.exact.regions import enumerate_regions
from autofuse.search.exact.sampler import THRIFTY, ExactPlanSampler
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.outcome import TuneOutcome
from autofuse.search.planner import Planner
from autofuse.search.tune import Task, tune_on

SPACES = load_spaces("cpu")
RATES = Reached(4e9, 1e11, 5e-7, True, 8e9)
GRAPHS = (mlp, softmax, chain)


def made_cost(v: Variant, s: Schedule) -> float:
    """Seconds above the bound by a factor that depends on the kernel, as measured ones are."""
    drawn = sum(map(ord, v.key + s.text())) % 101
    return (1.05 + drawn / 80) * Bounds.of(RATES, HOST).lower(v)


def made_recording(graph: Graph, each: int = 3, target: Target = HOST) -> Recording:
    """A table of made costs for all that the exact search enumerates."""
    bench = MadeBench(graph, lambda v, s: 1.0)
    bench.target = target
    partitioner = Partitioner(graph, target)
    studies = KernelStudies(bench, SPACES)
    planner = Planner(graph, bench, partitioner, studies, "default")
    enumerated = enumerate_regions(partitioner, (partitioner.unfused(), partitioner.greedy()))
    model = Model(partitioner, enumerated, Pricing(studies, Bounds.of(RATES, target)), planner.program)
    programs = {c.program.signature: c.program for c in model.choices if c.program is not None}
    copies = (model.reorder_of(v) for v in range(len(graph.values)))
    programs.update({c[0].signature: c[0] for c in copies if c is not None})
    rows = []
    for program in programs.values():
        for v in (v for v in variants(program, target) if v.family != "view"):
            chosen = [family(v.family).heuristic(v, target), *list(schedules(v, target, SPACES))[1::7]][:each]
            for s in chosen:
                ns = round(1e9 * made_cost(v, s))
                names = (program.signature, v.family, v.algorithm, layouts_text(v), s.text())
                rows.append(Measurement(f"{v.key} {s.text()}", *names, Status.OK, samples_ns=(ns,), cached=True))
    return Recording("made", "made", graph.structural_hash, {}, target, 2, "default", RATES, distinct(rows))


def searched(
    graph: Graph, recording: Recording, sampler: str = "exact", budget: float = 30.0
) -> tuple[TuneOutcome, ReplayBench]:
    bench = ReplayBench(graph, recording)
    task = Task("made", {}, {}, budget, "default", 0, sampler, None, None, None, None, None, "")
    found = tune_on(graph, bench, SPACES, task, Budget(budget, bench.clock), recorded=bench.schedules)
    return found, bench


def exact_search(graph: Graph, recording: Recording, remembered: bool = False) -> tuple[ExactPlanSampler, ReplayBench]:
    """The exact sampler that assumes nothing of schedules that were not tried."""
    bench = ReplayBench(graph, recording, sizes=False, remembered=remembered)
    partitioner = Partitioner(graph, recording.target)
    studies = KernelStudies(bench, SPACES, clock=bench.clock, recorded=bench.schedules)
    planner = Planner(graph, bench, partitioner, studies, "default")
    return ExactPlanSampler(planner, recording.reached, closing=EXHAUSTIVE, asking=THRIFTY), bench


@pytest.mark.parametrize("make", GRAPHS)
def test_the_exact_search_finds_the_optimum_of_trying_everything_with_half_of_the_kernels(make: object) -> None:
    graph: Graph = make()  # type: ignore[operator]
    recording = made_recording(graph)
    everything, _ = exact_search(graph, recording, remembered=True)
    everything.recall()
    best, _ = everything.solve(upper)
    assert best is not None
    sampler, bench = exact_search(graph, recording)
    for _ in range(2000):
        proposal = sampler.propose()
        if proposal is None:
            break
        for v in proposal.lacking:
            sampler.planner.studies.step(v.program, math.inf, batch=1, only=[v])
        if not proposal.lacking and proposal.plan is not None:
            bench.open(proposal.plan)
        sampler.observe(proposal, sampler.planner.seconds(proposal.plan) if proposal.plan else math.inf)
    assert proposal is None and sampler.gap == pytest.approx(0.0, abs=1e-9)
    found, _ = sampler.solve(upper)
    assert found is not None and found.seconds == pytest.approx(best.seconds, rel=1e-9)
    assert len(bench.seen) <= recording.kernels / 2
    assert "when all its schedules were tried" in sampler.certificate()


def test_a_replay_is_the_same_each_time_and_costs_what_was_recorded() -> None:
    graph = mlp()
    recording = made_recording(graph)
    (one, bench), (two, _) = searched(graph, recording), searched(graph, recording)
    assert one.best.key == two.best.key and len(one.kernels) == len(two.kernels) > 0
    priced = bench.price(one.best)
    assert isinstance(priced, tuple)
    total = sum(m.seconds for _, _, m in priced)
    best = next(p for p in one.plans if p.plan.key == one.best.key)
    assert set(best.samples_ns) == {round(1e9 * total)} and best.launches >= len(priced) and best.peak_bytes > 0
    assert all(math.isnan(p.error) for p in one.plans), "nothing was compared, so nothing is said of errors"
    recorded = {(m.signature, m.schedule) for m in recording.rows}
    assert {(k.signature, k.schedule) for k in one.kernels} <= recorded


@pytest.mark.parametrize("sampler", ["exact", "tpe", "random"])
def test_every_sampler_can_be_replayed(sampler: str) -> None:
    graph = softmax()
    outcome, bench = searched(graph, made_recording(graph), sampler)
    best = min(p.samples_ns[0] for p in outcome.plans if p.samples_ns)
    assert best < next(p.samples_ns[0] for p in outcome.plans if p.step == "unfused")
    assert outcome.best.regions and bench.seen


def test_what_is_not_recorded_is_a_reason_and_never_a_number() -> None:
    graph = mlp()
    whole = made_recording(graph)
    unfused = Partitioner(graph, HOST).unfused()
    planner = exact_search(graph, whole)[0].planner
    singles = {planner.program(r).signature for r in unfused.regions}
    part = dataclasses.replace(whole, rows=tuple(m for m in whole.rows if m.signature in singles))
    outcome, bench = searched(graph, part)
    assert sorted(len(r.region.nodes) for r in outcome.best.regions if r.region.nodes) == [1] * len(
        outcome.best.regions
    )
    greedy = next(p for p in searched(graph, whole)[0].plans if p.step == "fused").plan
    handle, opened = bench.open(greedy)
    assert handle == -1 and opened.status is Status.SKIPPED and MISSING in opened.reason
    with pytest.raises(LaunchError, match="no working kernel"):
        searched(graph, dataclasses.replace(whole, rows=()))
    v = variants(planner.program(unfused.regions[0]), HOST)[0]
    (row,) = bench.kernels(v.program, {}, [(v, Schedule.of({"unroll": 77}))], math.inf)
    assert row.status is Status.SKIPPED and row.reason == MISSING and row.samples_ns == ()


def test_recorded_failures_fail_again() -> None:
    graph = mlp()
    whole = made_recording(graph)
    usual = {m.layouts + m.signature: m.key for m in reversed(whole.rows) if m.family == "contract_host"}

    def failed(m: Measurement) -> Measurement:
        crashes = m.key in usual.values()
        return dataclasses.replace(m, status=Status.CRASHED, reason="signal 11", samples_ns=()) if crashes else m

    outcome, _ = searched(graph, dataclasses.replace(whole, rows=tuple(map(failed, whole.rows))))
    assert {r.family for r in outcome.best.regions} & {"contract_host"}
    assert not {f"{k.signature} {k.schedule}" for k in outcome.kernels if k.status == "ok" and k.key in usual.values()}
    assert any(k.status == "crashed" and k.reason == "signal 11" for k in outcome.kernels)


def test_a_recording_is_written_and_read(tmp_path: Path) -> None:
    recording = made_recording(softmax())
    path = tmp_path / "deep" / "softmax.parquet"
    failed = dataclasses.replace(recording.rows[0], status=Status.WRONG, reason="output 0 is off", samples_ns=())
    recording = dataclasses.replace(recording, rows=(failed, *recording.rows[1:]), shapes={"x": (16, 64)})
    recording.save(path)
    again = load_recording(path)
    assert again.target == recording.target and again.reached == recording.reached and again.shapes == recording.shapes
    assert [(m.signature, m.schedule, m.status, m.reason, m.samples_ns) for m in again.rows] == [
        (m.signature, m.schedule, m.status, m.reason, m.samples_ns) for m in recording.rows
    ]
    assert path.stat().st_size < 40 * len(recording.rows) + 8000


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(StorageError, match="is no recording"):
        load_recording(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(StorageError, match="is no recording"):
        load_recording(path)
    made_recording(softmax()).save(path)
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index("ns"), "ns", pa.array([0] * len(table))), path)
    with pytest.raises(StorageError, match="with 0 ns"):
        load_recording(path)
    pq.write_table(table.replace_schema_metadata({b"autofuse": b'{"format": 99}'}), path)
    with pytest.raises(StorageError, match="format 99"):
        load_recording(path)


def test_the_last_timing_of_a_kernel_counts_and_no_failure_after_it() -> None:
    row = made_recording(softmax()).rows[0]
    later = dataclasses.replace(row, samples_ns=(7,))
    failed = dataclasses.replace(row, status=Status.TIMEOUT, samples_ns=())
    assert distinct([failed, row, later, failed]) == (later,)
    s = Schedule.of({"unroll": 4, "order": "row", "shift": -1})
    assert Schedule.parse(s.text()) == s
