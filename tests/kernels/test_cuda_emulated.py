"""The CUDA families' kernels as text: run under emulation, compiled for real, and with a barrier taken away."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from cuda_case import F16, F32, F64, Case, Emit, case
from cuda_contractions import CONTRACTIONS, convolution, product_of
from cuda_maps import MAPS
from cuda_reductions import REDUCTIONS, layernorm_of, softmax_of, ties
from cuda_run import TARGET, allows, compare, emulate, sample, schedules

from autofuse.devices.base import Compiled
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.errors import LaunchError
from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.ir.dtype import DType
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.kernels.base import Family, Lowered, Schedule, Variant
from autofuse.kernels.contract_cuda import ContractCuda
from autofuse.kernels.map_cuda import MapCuda
from autofuse.kernels.reduce_cuda import ReduceCuda
from autofuse.loops.ir import AsyncWait, Barrier, For, If, Stmt
from autofuse.ops.builder import Builder

FAMILIES: tuple[tuple[Family, dict[str, Emit]], ...] = (
    (MapCuda(), MAPS),
    (ReduceCuda(), REDUCTIONS),
    (ContractCuda(), CONTRACTIONS),
)
CASES = [(family, name) for family, cases in FAMILIES for name in cases]


@pytest.fixture(scope="module")
def gpu() -> EmulatedCudaDevice:
    return EmulatedCudaDevice("sm_90")


def get(family: Family, name: str) -> Case:
    emit = next(cases for f, cases in FAMILIES if f is family)[name]
    return case(emit, ties if name == "positions" else None)


@pytest.mark.parametrize(("family", "name"), CASES, ids=[f"{f.name}-{n}" for f, n in CASES])
def test_text_gives_the_right_numbers_and_compiles_without_spills(
    family: Family, name: str, gpu: EmulatedCudaDevice
) -> None:
    c = get(family, name)
    for v in family.variants(c.program, TARGET):
        first = family.heuristic(v, TARGET)
        for s in dict.fromkeys([first, *sample(schedules(family, v), 1)]):
            lowered = family.lower(v, s, TARGET)
            compare(emulate(gpu, v, lowered, c), c, f"{v.algorithm} {s.text()}")
            for arch, compiled in gpu.nvrtc_check([x.kernel for x in lowered.launches]).items():
                for k in compiled:
                    assert isinstance(k, Compiled), f"{v.algorithm} {s.text()} {arch}: {k}"
                    assert s != first or k.resources.spill_bytes == 0, f"{v.algorithm} {s.text()} {arch}"


def program(emit: Emit) -> RegionProgram:
    """All that `emit` adds as one region, without numbers: for shapes too large to run here."""
    b = Builder()
    outputs = emit(b)
    graph = b.graph([(f"y{k}", v) for k, v in enumerate(outputs)])
    return program_of(graph, Region.of(graph, range(len(graph.nodes)), outputs))


def product(m: int, n: int, k: int, dtype: DType = F32) -> Emit:
    return lambda b: [product_of(b, b.input("x", dtype, (m, k)), b.input("y", dtype, (k, n)), dtype)]


def conv(c: int, size: int, out: int, kernel: int, stride: int, groups: int = 1) -> Emit:
    def emit(b: Builder) -> Sequence[ValueId]:
        w = b.constant(np.zeros((out, c // groups, kernel, kernel), np.float32))
        return [convolution(b, b.input("x", F32, (1, c, size, size)), w, stride, kernel // 2, groups)]

    return emit


def column_sum(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (4096, 1024))
    return [b.reduce([x], (1024,), (4096,), Combine.SUM, lambda i, r, read: read(0, (r[0], i[0])))]


def turned(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (16, 512, 1024))
    return [b.map([x], (16, 1024, 512), lambda i, read: read(0, (i[0], i[2], i[1])))]


LARGE: dict[str, Emit] = {
    "square": product(4096, 4096, 1024),
    "tails": product(513, 1000, 257),
    "half": product(2048, 2048, 1024, F16),
    "double": product(2048, 2048, 1024, F64),
    "one row": product(1, 4096, 4096),
    "long sum": product(64, 64, 8192),
    "conv 3x3": conv(64, 56, 64, 3, 1),
    "conv 7x7": conv(3, 224, 64, 7, 2),
    "conv 1x1": conv(256, 28, 512, 1, 1),
    "depthwise": conv(96, 56, 96, 3, 1, 96),
    "softmax": lambda b: [softmax_of(b, b.input("x", F32, (16 * 512, 512)))],
    "softmax of a vocabulary": lambda b: [softmax_of(b, b.input("x", F32, (128, 32000)))],
    "softmax of a long row": lambda b: [softmax_of(b, b.input("x", F32, (16, 65536)))],
    "layernorm": lambda b: layernorm_of(b, 4096, 1024),
    "columns": column_sum,
    "transpose": turned,
}


@pytest.mark.parametrize("name", LARGE)
def test_kernels_of_real_sizes_compile_without_spills(name: str, gpu: EmulatedCudaDevice) -> None:
    p = program(LARGE[name])
    found = 0
    for family, _ in FAMILIES:
        for v in family.variants(p, TARGET):
            s = family.heuristic(v, TARGET)
            assert allows(family, v, s), s.text()
            kernels = [x.kernel for x in family.lower(v, s, TARGET).launches]
            for arch, compiled in gpu.nvrtc_check(kernels).items():
                for k in compiled:
                    assert isinstance(k, Compiled), f"{v.algorithm} {s.text()} {arch}: {k}"
                    assert k.resources.spill_bytes == 0, f"{v.algorithm} {s.text()} {arch}"
                    assert k.resources.shared_bytes <= TARGET.shared_memory
                    found += 1
    assert found


# ---- what waits for what


def without(body: tuple[Stmt, ...], kind: type[Stmt], number: int) -> tuple[tuple[Stmt, ...], int]:
    """The statements with the number-th of a kind left out, and how many of the kind there are."""
    out: list[Stmt] = []
    seen = 0
    for s in body:
        if isinstance(s, kind):
            seen += 1
            if seen - 1 == number:
                continue
        match s:
            case For():
                inner, count = without(s.body, kind, number - seen)
                out.append(dataclasses.replace(s, body=inner))
                seen += count
            case If():
                then, count = without(s.then, kind, number - seen)
                out.append(dataclasses.replace(s, then=then))
                seen += count
            case _:
                out.append(s)
    return tuple(out), seen


def broken(lowered: Lowered, kind: type[Stmt]) -> Iterator[Lowered]:
    """The first launch with each statement of a kind left out in turn."""
    first, *rest = lowered.launches
    _, count = without(first.kernel.body.body, kind, -1)
    for number in range(count):
        body, _ = without(first.kernel.body.body, kind, number)
        kernel = dataclasses.replace(first.kernel, body=dataclasses.replace(first.kernel.body, body=body))
        yield dataclasses.replace(lowered, launches=(dataclasses.replace(first, kernel=kernel), *rest))


def scheduled(family: Family, name: str, algorithm: str, **choices: int | str) -> tuple[Variant, Lowered, Case]:
    c = get(family, name)
    v = next(v for v in family.variants(c.program, TARGET) if v.algorithm == algorithm)
    found = next(s for s in schedules(family, v) if choices.items() <= s.values.items())
    return v, family.lower(v, Schedule.of(found.values), TARGET), c


NEEDED = {
    "softmax": (ReduceCuda(), "softmax", "outer", {"lanes": 4, "threads": 128, "cache": "recompute"}, 2),
    "transpose": (MapCuda(), "transposed", "tile", {"threads": 256}, 1),
    "matmul": (
        ContractCuda(),
        "matmul",
        "tiled",
        {"block_m": 16, "block_n": 32, "block_k": 8, "thread_m": 2, "thread_n": 2, "stages": 1, "split": 1},
        2,
    ),
    "matmul with copies": (
        ContractCuda(),
        "matmul_even",
        "tiled",
        {"block_m": 16, "block_n": 32, "block_k": 32, "thread_m": 2, "thread_n": 2, "stages": 2, "split": 1},
        2,
    ),
}


@pytest.mark.parametrize("name", NEEDED)
def test_every_barrier_is_needed(name: str, gpu: EmulatedCudaDevice) -> None:
    family, which, algorithm, choices, count = NEEDED[name]
    family = next(f for f, _ in FAMILIES if f.name == family.name)
    v, lowered, c = scheduled(family, which, algorithm, **choices)
    compare(emulate(gpu, v, lowered, c), c, name)
    found = list(broken(lowered, Barrier))
    assert len(found) == count
    for b in found:
        with pytest.raises(LaunchError):
            emulate(gpu, v, b, c)


def test_the_wait_for_a_copy_is_needed(gpu: EmulatedCudaDevice) -> None:
    _, which, algorithm, choices, _ = NEEDED["matmul with copies"]
    v, lowered, c = scheduled(FAMILIES[2][0], which, algorithm, **choices)
    (b,) = broken(lowered, AsyncWait)
    try:
        outputs = emulate(gpu, v, b, c)
    except LaunchError:
        return
    assert not np.allclose(outputs[0], c.expected[0], 1e-3, 1e-3)
