"""Maps on a GPU: every schedule's numbers, vectors where they are due, and transposes through shared memory."""

from __future__ import annotations

import dataclasses

import pytest
from cuda_case import F32, Case, case
from cuda_maps import MAPS
from cuda_reductions import REDUCTIONS
from cuda_run import TARGET, check_schedules

from autofuse.ir.expr import call
from autofuse.kernels.base import Variant
from autofuse.kernels.map_cuda import MapCuda
from autofuse.loops.ir import For, LoopKind, statements
from autofuse.ops.builder import Builder

FAMILY = MapCuda()


def variants(c: Case) -> dict[str, Variant]:
    return {v.algorithm: v for v in FAMILY.variants(c.program, TARGET)}


@pytest.mark.parametrize("name", MAPS)
def test_every_schedule_gives_the_right_numbers(name: str) -> None:
    check_schedules(FAMILY, case(MAPS[name]))


def test_a_long_half_typed_map_takes_eight_elements_a_thread() -> None:
    flat = variants(case(MAPS["large"]))["flat"]
    assert FAMILY.facts(flat, TARGET)["vector_max"] == 8


def test_an_input_that_is_read_across_is_not_vectorised() -> None:
    flat = variants(case(MAPS["transposed"]))["flat"]
    assert FAMILY.facts(flat, TARGET)["vector_max"] == 1


def test_an_odd_row_length_allows_no_vectors() -> None:
    def emit(b: Builder) -> list[int]:
        x = b.input("x", F32, (8, 21))
        y = b.input("y", F32, (8, 1))
        return [b.elementwise([x, y], lambda p, q: call("add", p, q))]

    assert FAMILY.facts(variants(case(emit))["flat"], TARGET)["vector_max"] == 1


def test_axes_that_nothing_needs_apart_are_merged_and_an_odd_length_vectorised() -> None:
    def emit(b: Builder) -> list[int]:
        return [b.elementwise([b.input("x", F32, (4, 7, 3))], lambda p: call("exp", p))]

    assert FAMILY.facts(variants(case(emit))["flat"], TARGET)["vector_max"] == 4


def test_transposes_are_offered_only_where_an_input_runs_across() -> None:
    assert "tile" in variants(case(MAPS["transposed"]))
    assert "tile" not in variants(case(MAPS["broadcast"]))


def test_a_large_map_is_vectorised_by_default() -> None:
    def emit(b: Builder) -> list[int]:
        return [b.elementwise([b.input("x", F32, (1024, 1024))], lambda p: call("neg", p))]

    flat = variants(case(emit))["flat"]
    lowered = FAMILY.lower(flat, FAMILY.heuristic(flat, TARGET), TARGET)
    loops = [s for s in statements(lowered.launches[0].kernel.body) if isinstance(s, For)]
    assert [s.var.extent for s in loops if s.kind is LoopKind.VECTOR] == [4]


def test_an_empty_output_needs_no_kernel() -> None:
    def emit(b: Builder) -> list[int]:
        return [b.elementwise([b.input("x", F32, (0, 4))], lambda p: call("exp", p))]

    flat = variants(case(emit))["flat"]
    assert FAMILY.lower(flat, FAMILY.heuristic(flat, TARGET), TARGET).launches == ()


def test_reductions_and_other_devices_are_left_to_others() -> None:
    assert not variants(case(REDUCTIONS["softmax"]))
    cpu = dataclasses.replace(TARGET, dialect="cpp")
    assert not list(FAMILY.variants(case(MAPS["broadcast"]).program, cpu))
