"""Scatters, sorts, running sums and determinants: every variant under several schedules, on both devices, against float64 numpy."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from cuda_case import Case
from cuda_run import TARGET, compare, program_of
from lockstep import run as lockstep

from autofuse.devices.base import Compiled, Device
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.errors import LaunchError
from autofuse.fusion import region as regions
from autofuse.fusion.legality import check
from autofuse.fusion.region import Region, RegionProgram
from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.expr import Expr, call, cast_to, const
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.stage import Alone, Combine, Determinant, Running, Scan, Sort, Stage
from autofuse.ir.target import Target
from autofuse.kernels import sort_cuda
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.determinant_cuda import DeterminantCuda
from autofuse.kernels.families import family as family_of
from autofuse.kernels.families import lower
from autofuse.kernels.families import variants as variants_of
from autofuse.kernels.space import load_spaces
from autofuse.loops.ir import Barrier, Kernel
from autofuse.measure.reference import evaluate_program
from autofuse.ops import evaluate as ev
from autofuse.ops.alone import evaluate_alone
from autofuse.ops.builder import Builder
from autofuse.ops.table import OPERATORS
from tests.kernels.test_cuda_emulated import broken

sys.path.append(str(Path(__file__).parent.parent / "ops"))
from op_calls import emitted

OPERATORS_ALONE = ("ScatterElements", "Scatter", "ScatterND", "MaxUnpool", "TopK", "CumSum", "CumProd", "Det")


def case_of(graph: Graph, arrays: dict[ValueId, np.ndarray]) -> Case | None:
    """The one computation of a graph that stands alone as a region of its own; None where there is none."""
    known = {**arrays, **graph.constants}
    for n in graph.nodes:
        inputs = [known[v] for v in n.inputs]
        if isinstance(n.compute, Stage):
            known[n.outputs[0]] = ev.evaluate(n.compute, inputs)
            continue
        assert isinstance(n.compute, Alone) and not isinstance(n.compute, Scan)
        region = Region.of(graph, [n.id], n.outputs)
        wide = evaluate_alone(n.compute, inputs, wide=True)
        return Case(regions.program_of(graph, region), tuple(known[v] for v in region.inputs), tuple(wide))
    return None


def sample_case(name: str, k: int) -> Case | None:
    return case_of(*emitted(("", name), OPERATORS["", name].samples[k]))


SAMPLES = [
    (n, k) for n in OPERATORS_ALONE for k in range(len(OPERATORS["", n].samples)) if sample_case(n, k) is not None
]
"""Those that are made of stages alone are left out."""


def known_case(name: str, k: int) -> Case:
    case = sample_case(name, k)
    assert case is not None
    return case


def one(compute: Alone, x: np.ndarray) -> Case:
    b = Builder()
    v = b.input("x", from_numpy(x.dtype), x.shape)
    made = b.alone([v], compute)
    found = case_of(b.graph([(f"y{k}", y) for k, y in enumerate(made)]), {v: x})
    assert found is not None
    return found


def scattered(
    data: np.ndarray, indices: np.ndarray, updates: np.ndarray, combine: Combine | None, columns: bool = False
) -> Case:
    """out[indices[u], columns] = updates[u, columns], or along the last axis."""
    b = Builder()
    ids = [b.input(f"x{k}", from_numpy(a.dtype), a.shape) for k, a in enumerate((data, indices, updates))]
    y = b.scatter(
        ids,
        data.shape,
        updates.shape,
        lambda i, read: read.raw(0, i),
        lambda u, read: (u[0], read(1, (u[1],))) if columns else (read(1, u[: indices.ndim]), *u[indices.ndim :]),
        lambda u, read: call("mul", read(2, u), const(2, DType.FLOAT32)),
        combine,
    )
    found = case_of(b.graph([("y", y)]), dict(zip(ids, (data, indices, updates), strict=True)))
    assert found is not None
    return found


def with_maps_before(combine: Combine | None, columns: bool) -> Case:
    """A scatter whose initial values, places and updates are all computed as they are read; a half type is kept wide in between."""
    b = Builder()
    shapes = {"x": (9, 33), "at": (20,), "u": (20, 33), "v": (33,)}
    x, at, u, v = (b.input(n, DType.INT32 if n == "at" else DType.FLOAT16, s) for n, s in shapes.items())
    begun = b.elementwise([x], lambda e: call("exp", e), DType.FLOAT16)
    place = b.elementwise([at], lambda e: call("sub", e, const(3, DType.INT32)))
    value = b.elementwise([u, v], lambda e, f: call("mul", e, f), DType.FLOAT16)
    shape, over = ((33, 9), (33, 20)) if columns else ((9, 33), (20, 33))

    def turned(i: Sequence[Expr]) -> Sequence[Expr]:
        return (i[1], i[0]) if columns else i

    y = b.scatter(
        [begun, place, value],
        shape,
        over,
        lambda i, read: read.raw(0, turned(i)),
        lambda i, read: turned((cast_to(read(1, (turned(i)[0],)), DType.INT64), turned(i)[1])),
        lambda i, read: read.raw(2, turned(i)),
        combine,
    )
    graph = b.graph([("y", y)])
    arrays = [
        numbers(*s, dtype="float16") if n != "at" else RNG.integers(3, 12, s).astype(np.int32)
        for n, s in shapes.items()
    ]
    known = dict(zip((x, at, u, v), arrays, strict=True))
    region = Region.of(graph, range(len(graph.nodes)))
    assert check(graph, region, TARGET)
    values = evaluate_program(regions.program_of(graph, region), [known[k] for k in region.inputs])
    program = regions.program_of(graph, region)
    return Case(program, tuple(known[k] for k in region.inputs), (values[program.outputs[0]],))


RNG = np.random.default_rng(5)


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape)).astype(dtype)


def few_values(*shape: int) -> np.ndarray:
    """Many ties, some NaN."""
    x = RNG.integers(0, 5, shape).astype(np.float32)
    x.reshape(-1)[:: x.shape[-1] // 3 + 1] = np.nan
    return x


F32 = DType.FLOAT32
LARGER: dict[str, Callable[[], Case]] = {
    "rows written over": lambda: scattered(numbers(50, 70), RNG.integers(0, 50, 200), numbers(200, 70), None),
    "rows added": lambda: scattered(numbers(50, 70), RNG.integers(0, 50, 200), numbers(200, 70), Combine.SUM),
    "one row of many": lambda: scattered(numbers(9), RNG.integers(0, 9, 1500), numbers(1500), Combine.MAX),
    "last one wins": lambda: scattered(numbers(9), RNG.integers(0, 9, 1500), numbers(1500), None),
    "indices of two axes": lambda: scattered(numbers(4, 5), RNG.integers(0, 4, (6, 7)), numbers(6, 7, 5), None),
    "columns": lambda: scattered(numbers(65, 9), RNG.integers(0, 9, 30), numbers(65, 30), Combine.PROD, True),
    "sorted by blocks": lambda: one(Sort((3, 1000), F32, 1, 700, True), few_values(3, 1000)),
    "sorted, rising": lambda: one(Sort((2, 300, 3), F32, 1, 300, False), few_values(2, 300, 3)),
    "a power of two": lambda: one(
        Sort((2, 256), DType.INT32, 1, 256, True), RNG.integers(-9, 9, (2, 256)).astype(np.int32)
    ),
    "best of a long row": lambda: one(Sort((3, 1500), F32, 1, 40, True), few_values(3, 1500)),
    "best of a rising row": lambda: one(Sort((1500,), DType.INT64, 0, 100, True), np.arange(1500) // 3),
    "best of a falling row": lambda: one(
        Sort((600, 2), DType.UINT8, 0, 20, False), RNG.integers(0, 9, (600, 2)).astype(np.uint8)
    ),
    "rows after maps": lambda: with_maps_before(Combine.SUM, False),
    "columns after maps": lambda: with_maps_before(None, True),
    "wide rows": lambda: scattered(numbers(7, 2500), RNG.integers(0, 7, 20), numbers(20, 2500), Combine.SUM),
    "a few of many rows": lambda: one(Sort((300, 70), F32, 1, 4, True), few_values(300, 70)),
    "positions of half": lambda: one(Sort((5, 37), DType.FLOAT16, 1, 20, True), numbers(5, 37, dtype="float16")),
    "brain floats sorted": lambda: one(Sort((3, 90), DType.BFLOAT16, 1, 50, False), numbers(3, 90, dtype="bfloat16")),
    "brain floats added": lambda: scattered(
        numbers(9, 6, dtype="bfloat16"), RNG.integers(0, 9, 12), numbers(12, 6, dtype="bfloat16"), Combine.SUM
    ),
    "half maxima": lambda: scattered(
        numbers(5, 70, dtype="float16"), RNG.integers(0, 5, 12), numbers(12, 70, dtype="float16"), Combine.MAX
    ),
    "a long running sum": lambda: one(Running((2, 5000), F32, 1, Combine.SUM), numbers(2, 5000)),
    "running columns": lambda: one(Running((3, 40, 77), F32, 1, Combine.SUM, True, True), numbers(3, 40, 77)),
    "half running": lambda: one(Running((600,), DType.FLOAT16, 0, Combine.SUM), numbers(600, dtype="float16") / 8),
    "a large matrix": lambda: one(Determinant((2, 40, 40), F32), numbers(2, 40, 40) / 4),
    "double matrices": lambda: one(Determinant((5, 3, 3), DType.FLOAT64), numbers(5, 3, 3, dtype="float64")),
}


def in_space(device: str, variant: Variant, schedule: Schedule, target: Target) -> bool:
    f = family_of(variant.family)
    space = load_spaces(device).of(f.name)
    names = {**f.facts(variant, target), **schedule.values}
    known = all(schedule.values[name] in values for name, values in space.choices)
    return known and all(c.holds(names) for c in space.constraints)


def tried(device: str, program: RegionProgram, target: Target, count: int) -> list[tuple[Variant, Schedule]]:
    """Every variant with its heuristic schedule and some others of the space."""
    found = []
    assert variants_of(program, target)
    for v in variants_of(program, target):
        f = family_of(v.family)
        first = f.heuristic(v, target)
        assert in_space(device, v, first, target), f"{v.family}/{v.algorithm}: {first.text()} is not in its space"
        others = [s for s in load_spaces(device).of(f.name).schedules(f.facts(v, target)) if s != first]
        found += [(v, s) for s in (first, *random.Random(1).sample(others, min(count, len(others))))]
    return found


def runs_on(device: Device, kind: str, case: Case, count: int) -> None:
    for v, s in tried(kind, case.program, device.target, count):
        lowered = lower(v, s, device.target)
        program, given = program_of(v, lowered, case.inputs)
        executable = device.load(program)
        compare(executable.run(given), case, f"{v.family}/{v.algorithm} {s.text()}")
        executable.close()


@pytest.mark.parametrize(("name", "k"), SAMPLES, ids=[f"{n}-{k}" for n, k in SAMPLES])
def test_samples_in_lockstep(name: str, k: int) -> None:
    case = known_case(name, k)
    for v, s in tried("cuda", case.program, TARGET, 3):
        compare(lockstep(v, lower(v, s, TARGET), case.inputs), case, f"{v.family}/{v.algorithm} {s.text()}")


@pytest.mark.parametrize("name", LARGER)
def test_larger_ones_in_lockstep(name: str) -> None:
    case = LARGER[name]()
    for v, s in tried("cuda", case.program, TARGET, 4):
        compare(lockstep(v, lower(v, s, TARGET), case.inputs), case, f"{v.family}/{v.algorithm} {s.text()}")


@pytest.mark.parametrize(("name", "k"), SAMPLES, ids=[f"{n}-{k}" for n, k in SAMPLES])
def test_samples_on_the_host(name: str, k: int, cpu: Device) -> None:
    case = known_case(name, k)
    runs_on(cpu, "cpu", case, 0)


@pytest.mark.parametrize("name", LARGER)
def test_larger_ones_on_the_host(name: str, cpu: Device) -> None:
    runs_on(cpu, "cpu", LARGER[name](), 2)


@pytest.mark.parametrize("combine", [None, Combine.SUM])
def test_owners_share_many_updates_of_few_places(combine: Combine | None, cpu: Device) -> None:
    case = scattered(numbers(9), RNG.integers(0, 9, 9000), numbers(9000), combine)
    (v,) = variants_of(case.program, cpu.target)
    assert family_of(v.family).heuristic(v, cpu.target).integer("owners") > 1
    runs_on(cpu, "cpu", case, 4)


@pytest.mark.parametrize("name", LARGER)
def test_text_gives_the_right_numbers_and_compiles_without_spills(name: str, emulated: EmulatedCudaDevice) -> None:
    case = LARGER[name]()
    runs_on(emulated, "cuda", case, 0)
    for v, s in tried("cuda", case.program, emulated.target, 0):
        kernels = [x.kernel for x in lower(v, s, emulated.target).launches]
        for arch, compiled in emulated.nvrtc_check(kernels).items():
            for k in compiled:
                assert isinstance(k, Compiled), f"{v.algorithm} {s.text()} {arch}: {k}"
                assert k.resources.spill_bytes == 0, f"{v.algorithm} {s.text()} {arch}"


def test_kernels_of_samples_compile(emulated: EmulatedCudaDevice) -> None:
    """One of each family, algorithm and element type."""
    kernels: dict[tuple[str, str, DType], Kernel] = {}
    for name, k in SAMPLES:
        case = known_case(name, k)
        for v, s in tried("cuda", case.program, emulated.target, 0):
            for launch in lower(v, s, emulated.target).launches[-1:]:
                kernels.setdefault((v.family, v.algorithm, v.program.inputs[0].dtype), launch.kernel)
    for arch, compiled in emulated.nvrtc_check(list(kernels.values())).items():
        for key, found in zip(kernels, compiled, strict=True):
            assert isinstance(found, Compiled), f"{arch} {key}: {found}"
            assert found.resources.spill_bytes == 0, f"{arch} {key}"


@pytest.mark.parametrize("name", ["sorted by blocks", "sorted, rising"])
def test_long_rows_are_sorted_in_global_memory(
    name: str, monkeypatch: pytest.MonkeyPatch, emulated: EmulatedCudaDevice
) -> None:
    """Fewer blocks than rows: each takes several, one after the other."""
    monkeypatch.setattr(sort_cuda, "SHARED_POSITIONS", 16)
    case = LARGER[name]()
    narrow = dataclasses.replace(emulated.target, cores=1)
    v = next(v for v in variants_of(case.program, narrow) if v.algorithm == "bitonic")
    family = sort_cuda.SortCuda()
    lowered = family.lower(v, family.heuristic(v, narrow), narrow)
    assert lowered.scratch and lowered.launches[0].kernel.grid == 2
    program, given = program_of(v, lowered, case.inputs)
    compare(emulated.load(program).run(given), case, name)


NEEDED = {
    "a long running sum": ("block", 0),
    "sorted by blocks": ("bitonic", 0),
    # the first column is copied by the thread that looks for the pivot in it
    "a large matrix": ("elimination", 1),
}
"""Cases, the algorithm, and how many of its first barriers could be left out."""


@pytest.mark.parametrize("name", NEEDED)
def test_every_barrier_is_needed(name: str, emulated: EmulatedCudaDevice) -> None:
    algorithm, spare = NEEDED[name]
    case = LARGER[name]()
    target = emulated.target
    v = next(v for v in variants_of(case.program, target) if v.algorithm == algorithm)
    found = list(broken(lower(v, family_of(v.family).heuristic(v, target), target), Barrier))
    assert len(found) >= spare + 2
    for b in found[spare:]:
        program, given = program_of(v, b, case.inputs)
        with pytest.raises(LaunchError):
            emulated.load(program).run(given)


def test_a_large_matrix_takes_global_memory() -> None:
    case = one(Determinant((2, 120, 120), F32), numbers(2, 120, 120) / 8)
    (v,) = DeterminantCuda().variants(case.program, TARGET)
    lowered = lower(v, DeterminantCuda().heuristic(v, TARGET), TARGET)
    assert lowered.scratch
    compare(lockstep(v, lowered, case.inputs), case, "global")


def test_nothing_else_shares_their_kernels() -> None:
    """The refusal names the computation and says why."""
    b = Builder()
    x = b.input("x", F32, (4, 40))
    best, _ = b.alone([x], Sort((4, 40), F32, 1, 8, True))
    y = b.elementwise([best], lambda e: call("exp", e))
    graph = b.graph([("y", y)])
    verdict = check(graph, Region.of(graph, [0, 1]), TARGET)
    assert not verdict and verdict.rule == "sort" and "whole rows" in verdict.reason


def test_empty_ones_have_no_launches() -> None:
    for compute, shape in (
        (Sort((0, 5), F32, 1, 3, True), (0, 5)),
        (Sort((3, 5), F32, 1, 0, True), (3, 5)),
        (Running((3, 0), F32, 1, Combine.SUM), (3, 0)),
        (Determinant((0, 2, 2), F32), (0, 2, 2)),
    ):
        case = one(compute, np.zeros(shape, np.float32))
        for target in (TARGET,):
            for v, s in tried("cuda", case.program, target, 0):
                assert not lower(v, s, target).launches


def test_updates_that_are_none_leave_the_initial_values() -> None:
    case = scattered(numbers(4, 3), np.zeros(0, np.int64), numbers(0, 3), None)
    for v, s in tried("cuda", case.program, TARGET, 0):
        compare(lockstep(v, lower(v, s, TARGET), case.inputs), case, "no updates")
