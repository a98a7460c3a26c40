"""Contractions on a GPU: every schedule's numbers, tails, layouts of weights, asynchronous copies and split sums."""

from __future__ import annotations

import dataclasses

import pytest
from cuda_case import F32, Case, case
from cuda_contractions import CONTRACTIONS, product_of
from cuda_reductions import REDUCTIONS
from cuda_run import TARGET, check_schedules, schedules

from autofuse.kernels.base import Variant
from autofuse.kernels.contract_cuda import ContractCuda
from autofuse.kernels.gemm import gemm
from autofuse.loops.ir import AsyncCopy, statements
from autofuse.ops.builder import Builder

FAMILY = ContractCuda()


def variant(c: Case) -> Variant:
    (found,) = FAMILY.variants(c.program, TARGET)
    return found


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_schedules_give_the_right_numbers(name: str) -> None:
    check_schedules(FAMILY, case(CONTRACTIONS[name]), 14)


def large(m: int, n: int, k: int) -> Variant:
    def emit(b: Builder) -> list[int]:
        return [product_of(b, b.input("x", F32, (m, k)), b.input("y", F32, (k, n)))]

    b = Builder()
    emit(b)
    from autofuse.fusion.region import Region, program_of

    graph = b.graph([("y", len(b.values) - 1)])
    (found,) = FAMILY.variants(program_of(graph, Region.of(graph, [0])), TARGET)
    return found


def test_a_large_product_takes_the_largest_tile() -> None:
    s = FAMILY.heuristic(large(4096, 4096, 1024), TARGET)
    assert (s.integer("block_m"), s.integer("block_n"), s.integer("split")) == (128, 128, 1)


def test_few_tiles_with_a_long_sum_are_split() -> None:
    assert FAMILY.heuristic(large(64, 64, 8192), TARGET).integer("split") == 16


@pytest.mark.parametrize("size", [(513, 1000, 257), (1, 1000, 4096), (4096, 4096, 64), (17, 33, 5), (64, 64, 8192)])
def test_heuristic_schedules_are_in_the_space_and_fit_a_block(size: tuple[int, int, int]) -> None:
    v = large(*size)
    s = FAMILY.heuristic(v, TARGET)
    assert s in schedules(FAMILY, v)
    for launch in FAMILY.lower(v, s, TARGET).launches:
        assert launch.kernel.shared_bytes <= TARGET.shared_memory


def test_all_schedules_of_a_large_product_fit_a_block() -> None:
    v = large(512, 512, 512)
    found = schedules(FAMILY, v)
    assert len(found) > 100
    for s in found[::7]:
        for launch in FAMILY.lower(v, s, TARGET).launches:
            assert launch.kernel.shared_bytes <= TARGET.shared_memory and launch.kernel.threads <= 1024


def test_weights_are_laid_out_with_their_own_axis_innermost() -> None:
    c = case(CONTRACTIONS["conv"])
    v = variant(c)
    assert "bcda" in [x.text() for x in v.input_layouts]
    assert not gemm(v).rows.along_depth


def test_the_outputs_contiguous_axis_makes_the_columns() -> None:
    """In a convolution these are the pixels, in a product of matrices the second factor's columns."""
    assert gemm(variant(case(CONTRACTIONS["conv"]))).columns.points == 2 * 9 * 8
    assert gemm(variant(case(CONTRACTIONS["matmul"]))).columns.points == 45


def test_groups_are_batches() -> None:
    p = gemm(variant(case(CONTRACTIONS["conv_grouped"])))
    assert (p.batches, p.rows.points, p.terms) == (2, 3, 18)


def test_copies_are_asynchronous_only_where_factors_are_plain_and_the_device_can() -> None:
    v = variant(case(CONTRACTIONS["matmul_even"]))
    s = FAMILY.heuristic(v, TARGET)
    assert s.integer("stages") == 2
    body = FAMILY.lower(v, s, TARGET).launches[0].kernel.body
    assert {x.count for x in statements(body) if isinstance(x, AsyncCopy)} == {4}
    old = dataclasses.replace(TARGET, arch="sm_75")
    assert FAMILY.heuristic(v, old).integer("stages") == 1
    assert FAMILY.facts(variant(case(CONTRACTIONS["prologue"])), TARGET)["copies"] == 0


def test_reductions_and_other_devices_are_left_to_others() -> None:
    assert not list(FAMILY.variants(case(REDUCTIONS["softmax"]).program, TARGET))
    cpu = dataclasses.replace(TARGET, dialect="cpp")
    assert not list(FAMILY.variants(case(CONTRACTIONS["matmul"]).program, cpu))
