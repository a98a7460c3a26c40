"""The bench on the host: kernels are checked, timed, remembered; a candidate's faults harm nobody but itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from faulty import FaultyDevice, FaultyFactory
from measure_regions import mlp, program, softmax, unary

from autofuse.engine.assign import assign
from autofuse.engine.options import heuristic_options
from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import RegionProgram
from autofuse.ir.graph import Graph
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import lower, variants
from autofuse.measure.bench import Choice
from autofuse.measure.device_bench import DeviceBench, Limits
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.records import Records
from autofuse.measure.result import Status

LIMITS = Limits(prepare=60, open=4, shoot=4, model=60)
TANH = unary("tanh", (64, 64))


@pytest.fixture
def kernel_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One cache of compiled kernels for the tests of this file."""
    monkeypatch.setenv("AUTOFUSE_CACHE", str(tmp_path_factory.getbasetemp().parent / "autofuse-kernels"))


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Records("here", 1, tmp_path / "records.sqlite") as r:
        yield r


def bench_of(graph: Graph, records: Records | None, faults: dict[int, str] | None = None) -> DeviceBench:
    device = FaultyDevice(1, faults)
    return DeviceBench(device, FaultyFactory(faults or {}), graph, graph_inputs(graph), records, limits=LIMITS)


def soon() -> float:
    return time.monotonic() + 60


def choices_of(p: RegionProgram, bench: DeviceBench) -> list[Choice]:
    """Three schedules of a map whose grids differ."""
    v: Variant = next(v for v in variants(p, bench.target) if v.family == "map_host")
    every = [(v, Schedule.of({"task": 64 << k, "unroll": 1})) for k in range(8)]
    by_grid = dict(zip(grids(every, bench), every, strict=True))
    return list(by_grid.values())[:3]


def grids(choices: list[Choice], bench: DeviceBench) -> list[int]:
    return [lower(v, s, bench.target).launches[0].kernel.grid for v, s in choices]


@pytest.mark.usefixtures("kernel_cache")
def test_kernels_are_measured_once_and_then_remembered(records: Records) -> None:
    p = program(TANH)
    bench = bench_of(TANH, records)
    choices = choices_of(p, bench)
    try:
        first = bench.kernels(p, {}, choices, soon())
        assert [m.status for m in first] == [Status.OK] * 3
        assert all(m.samples_ns and m.error < 1e-4 and not m.cached for m in first)
        assert all(len(m.samples_ns) % m.repeats == 0 and m.repeats == 2 for m in first)
        assert all(0 <= n < len(m.samples_ns) for m in first for n in m.noisy)
        assert len({m.key for m in first}) == 3
        again = bench.kernels(p, {}, choices, soon())
        assert all(m.cached for m in again) and [m.samples_ns for m in again] == [m.samples_ns for m in first]
        fresh = bench.kernels(p, {}, choices, soon(), again=1)
        assert [m.cached for m in fresh] == [False, True, True]
        assert {m.key for m in bench.known(p.signature)} == {m.key for m in first}
    finally:
        bench.close()


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize(("device", "environment"), [("cpu|here", "g++ 14"), ("cpu|there", "g++ 13")])
def test_another_compiler_or_device_makes_records_seeds_and_measures_again(
    tmp_path: Path, device: str, environment: str
) -> None:
    p = program(TANH)
    for where, made_with in (("cpu|here", "g++ 13"), (device, environment)):
        with Records(where, 1, tmp_path / "records.sqlite", made_with) as kept:
            bench = bench_of(TANH, kept)
            try:
                choices = choices_of(p, bench)[:2]
                seeds = bench.seeds(p)
                rows = bench.kernels(p, {}, choices, soon())
                assert not any(m.cached for m in rows) and len(kept.of_signature(p.signature)) == 2
                notes = bench.seeding_notes
            finally:
                bench.close()
    assert {m.schedule for m in seeds} <= {s.text() for _, s in choices} and seeds
    assert len(notes) == 1 and "served as seeds and were measured again" in notes[0]


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("crash", Status.CRASHED, "SIGABRT"),
        ("kill", Status.CRASHED, "SIGKILL"),
        ("hang", Status.TIMEOUT, "no answer within"),
        ("wrong", Status.WRONG, "off by more than"),
        ("poison", Status.WRONG, "nan"),
        ("special", Status.WRONG, "with NaN and infinities"),
        ("memory", Status.OUT_OF_MEMORY, "memory"),
        ("compile", Status.COMPILE_FAILED, "refused"),
        ("late", Status.CRASHED, "SIGABRT"),
    ],
)
def test_a_fault_harms_only_its_own_candidate(records: Records, fault: str, status: Status, reason: str) -> None:
    p = program(TANH)
    bench = bench_of(TANH, records)
    choices = choices_of(p, bench)
    sizes = grids(choices, bench)
    bench.close()
    assert len(set(sizes)) == 3
    bench = bench_of(TANH, records, {sizes[1]: fault})
    try:
        rows = bench.kernels(p, {}, choices, soon())
        assert [m.status for m in rows] == [Status.OK, status, Status.OK]
        assert reason in rows[1].reason and rows[1].samples_ns == ()
        assert not rows[1].ok and rows[1].seconds == float("inf")
        again = bench.kernels(p, {}, choices, soon())
        assert again[1].status is status  # it is not tried again
    finally:
        bench.close()


@pytest.mark.usefixtures("kernel_cache")
def test_schedules_with_the_same_text_are_one_kernel(records: Records) -> None:
    p = program(TANH)
    bench = bench_of(TANH, records)
    v = choices_of(p, bench)[0][0]
    try:
        rows = bench.kernels(p, {}, [(v, Schedule.of({"task": 1 << t, "unroll": 1})) for t in (20, 21)], soon())
        assert rows[0].key == rows[1].key and rows[0].samples_ns == rows[1].samples_ns and rows[1].ok
        assert records.count() == 1
    finally:
        bench.close()


@pytest.mark.usefixtures("kernel_cache")
def test_what_the_budget_does_not_allow_stays_open(records: Records) -> None:
    p = program(TANH)
    bench = bench_of(TANH, records)
    try:
        rows = bench.kernels(p, {}, choices_of(p, bench), time.monotonic() - 1)
        assert all(m.status in (Status.SKIPPED, Status.OK) for m in rows)
        assert records.count() == sum(m.status is Status.OK for m in rows)
    finally:
        bench.close()


def plan_of(graph: Graph, bench: DeviceBench, greedy: bool) -> Plan:
    partitioner = Partitioner(graph, bench.target)
    partition = partitioner.greedy() if greedy else partitioner.unfused()
    options = heuristic_options(bench.target, bench.threads)
    return assign(graph, partition, bench.target, bench.threads, "default", options, "test")


@pytest.mark.usefixtures("kernel_cache")
@pytest.mark.parametrize("make", [mlp, softmax])
def test_plans_are_checked_timed_and_stamped(make: object) -> None:
    graph: Graph = make()  # type: ignore[operator]
    bench = bench_of(graph, None)
    try:
        handles = []
        for greedy in (False, True):
            handle, opened = bench.open(plan_of(graph, bench, greedy))
            assert opened.ok, opened.reason
            assert opened.error < 1e-4 and opened.launches >= 1 and opened.bytes_model > 0
            handles.append(handle)
        assert bench.oracle == "the whole model in float64 numpy"
        got = bench.shoot(handles, 3, 2)
        assert [len(got[h]) for h in handles] == [6, 6] and min(map(min, got.values())) > 0
        stamps = bench.stamps(handles[0], 4)
        assert stamps is not None and stamps.shape[0] == 4
    finally:
        bench.close()


@pytest.mark.usefixtures("kernel_cache")
def test_the_first_plan_stands_in_for_a_model_too_large_for_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofuse.measure.device_bench.WHOLE_FLOPS", 0)
    graph = mlp()
    bench = bench_of(graph, None)
    try:
        bench.prepare()
        assert bench.checks_first_plan and "first plan" in bench.oracle
        _, first = bench.open(plan_of(graph, bench, False))
        _, second = bench.open(plan_of(graph, bench, True))
        assert first.ok and np.isnan(first.error) and second.ok and second.error < 1e-4
    finally:
        bench.close()


@pytest.mark.usefixtures("kernel_cache")
def test_engines_outlive_a_worker_that_another_one_killed() -> None:
    graph = mlp()
    bench = bench_of(graph, None)
    try:
        handle, opened = bench.open(plan_of(graph, bench, False))
        assert opened.ok
        bench._client._kill()
        assert len(bench.shoot([handle], 2, 1)[handle]) == 2
        bench.release(handle)
        assert bench.shoot([handle], 1, 1) == {}
    finally:
        bench.close()


@pytest.mark.usefixtures("kernel_cache")
def test_a_plan_with_wrong_numbers_is_not_timed() -> None:
    graph = TANH
    bench = bench_of(graph, None)
    plan = plan_of(graph, bench, False)
    size = grids([(v, plan.regions[0].schedule) for v in variants(program(graph), bench.target)][-1:], bench)[0]
    bench.close()
    bench = bench_of(graph, None, {size: "wrong"})
    try:
        handle, opened = bench.open(plan)
        assert opened.status is Status.WRONG and "'y0'" in opened.reason
        assert bench.shoot([handle], 1, 1) == {}
    finally:
        bench.close()


@pytest.mark.usefixtures("kernel_cache")
def test_calibration_is_remembered(records: Records) -> None:
    bench = bench_of(TANH, records)
    try:
        assumed = bench.reached(time.monotonic() - 1)
        assert not assumed.measured
        found = bench.reached(soon())
        assert found.measured and found.bandwidth > 1e8 and found.flops > 1e8 and 0 < found.launch < 1e-3
        assert bench.reached(time.monotonic() - 1) == found
    finally:
        bench.close()


@pytest.mark.usefixtures("kernel_cache")
def test_onnxruntime_is_measured_beside_plans() -> None:
    pytest.importorskip("onnxruntime")
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 64]) for n in ("x", "y0"))
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y0"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    bench = bench_of(TANH, None)
    try:
        plan, opened = bench.open(plan_of(TANH, bench, False))
        peer, loaded = bench.open_peer("onnxruntime", model.SerializeToString())
        assert opened.ok and loaded.ok, loaded.reason
        got = bench.shoot([plan, peer], 2, 2)
        assert len(got[plan]) == len(got[peer]) == 4
        _, refused = bench.open_peer("onnxruntime", b"no model")
        assert not refused.ok and refused.reason
    finally:
        bench.close()


def test_poison_covers_every_byte() -> None:
    from autofuse.measure.programs import poison

    target = FaultyDevice(1).target
    for size in (1, 63, 64, 65, 1 << 10, (1 << 16) + 130, (1 << 22) + 7):
        launches = poison("output", 0, 0, size, target)
        spans = [(x.arguments[0].offset, x.kernel.params[0].size * x.kernel.params[0].dtype.itemsize) for x in launches]
        assert sum(n for _, n in spans) == size
        assert all(a + n == b for (a, n), (b, _) in itertools.pairwise(spans))
        assert len(launches) < 64 + 64 + 64


def test_special_inputs_need_room() -> None:
    from autofuse.measure.reference import special_inputs

    p = program(unary("neg", (3,)))
    assert special_inputs(p, [np.zeros(3, np.float32)]) is None
