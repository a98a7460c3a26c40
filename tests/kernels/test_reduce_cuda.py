"""Reductions on a GPU: every schedule's numbers, and what is kept, hoisted and split."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cuda_case import F32, Case, case
from cuda_contractions import CONTRACTIONS
from cuda_reductions import REDUCTIONS, ties
from cuda_run import TARGET, check_schedules, schedules

from autofuse.fusion.form import Form, analyse
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.passes_cuda import kept_values, passes_of
from autofuse.kernels.reduce_cuda import ReduceCuda, _points
from autofuse.loops.ir import Alloc, Scope, ThreadReduce, statements
from autofuse.ops.builder import Builder

FAMILY = ReduceCuda()


def variants(c: Case) -> dict[str, Variant]:
    return {v.algorithm: v for v in FAMILY.variants(c.program, TARGET)}


def get(name: str) -> Case:
    return case(REDUCTIONS[name], ties if name == "positions" else None)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_schedule_gives_the_right_numbers(name: str) -> None:
    check_schedules(FAMILY, get(name), 12 if name in ("softmax_long", "product", "whole") else 60)


@pytest.mark.parametrize("name", ["matmul", "batched", "conv_strided", "vector_product", "matmul_bytes"])
def test_sums_of_products_are_reductions_where_nothing_better_applies(name: str) -> None:
    check_schedules(FAMILY, case(CONTRACTIONS[name]), 4)


def kept(name: str) -> list[tuple[str, int, int]]:
    v = variants(get(name))["block"]
    form, _, points = _points(v)
    return [
        (k.value.fn if hasattr(k.value, "fn") else "load", k.first, k.last)
        for k in kept_values(passes_of(form, points), points)
    ]


def test_softmax_keeps_its_input_for_one_pass_and_its_exponentials_for_the_next() -> None:
    assert kept("softmax") == [("load", 0, 1), ("exp", 1, 2)]


def test_what_follows_cheaply_from_a_kept_input_is_computed_again() -> None:
    assert kept("layernorm") == [("load", 0, 2)]


def test_a_shared_sum_of_inputs_is_kept_as_one_value() -> None:
    """The sum as its half type holds it."""
    assert kept("rmsnorm") == [("cast", 0, 1)]


def test_outputs_are_stored_as_soon_as_they_are_known() -> None:
    v = variants(get("rmsnorm"))["block"]
    form, _, points = _points(v)
    assert [(p.anchors, len(p.outputs)) for p in passes_of(form, points)] == [((0,), 1), ((), 1)]


def test_reductions_that_do_not_need_each_other_share_a_pass() -> None:
    v = variants(get("both_ways"))["block"]
    form, _, points = _points(v)
    assert [p.anchors for p in passes_of(form, points)] == [(0, 1, 2)]


def test_buffers_of_values_no_longer_needed_are_used_again() -> None:
    v = variants(get("softmax"))["block"]
    s = next(s for s in schedules(FAMILY, v) if s.values["cache"] == "shared")
    body = FAMILY.lower(v, s, TARGET).launches[0].kernel.body
    buffers = [x.buffer for x in statements(body) if isinstance(x, Alloc) and x.buffer.name.startswith("kept")]
    assert len(buffers) == 1 and buffers[0].scope is Scope.SHARED


def test_the_largest_shared_memory_of_a_space_fits_a_block() -> None:
    v = variants(get("softmax_long"))["block"]
    sizes = [FAMILY.lower(v, s, TARGET).launches[0].kernel.shared_bytes for s in schedules(FAMILY, v)]
    assert 16 * 1024 < max(sizes) <= TARGET.shared_memory


def launches(emit: object, algorithm: str = "split") -> int:
    c = get(emit) if isinstance(emit, str) else emit
    assert isinstance(c, Case)
    v = variants(c)[algorithm]
    return len(FAMILY.lower(v, FAMILY.heuristic(v, TARGET), TARGET).launches)


def test_a_split_reduction_has_a_launch_a_pass_and_one_for_the_row() -> None:
    assert launches("whole") == 2
    assert launches("softmax_long") == 3


def test_short_rows_are_not_split() -> None:
    assert "split" not in variants(get("softmax"))


def test_positions_are_not_split() -> None:
    def emit(b: Builder) -> Sequence[ValueId]:
        x = b.input("x", F32, (2, 8192))
        return [b.reduce([x], (2,), (8192,), Combine.ARGMAX, lambda i, r, read: read(0, (*i, *r)))]

    assert "split" not in variants(case(emit))


def test_short_rows_share_a_block_a_warp_each() -> None:
    def emit(b: Builder) -> Sequence[ValueId]:
        x = b.input("x", F32, (4096, 64))
        return [b.reduce([x], (4096,), (64,), Combine.SUM, lambda i, r, read: read(0, (*i, *r)))]

    v = variants(case(emit))["block"]
    s = FAMILY.heuristic(v, TARGET)
    assert (s.integer("rows"), s.integer("threads")) == (4, 128)
    reduces = [x for x in statements(FAMILY.lower(v, s, TARGET).launches[0].kernel.body) if isinstance(x, ThreadReduce)]
    assert [x.threads for x in reduces] == [32]


def test_neighbouring_threads_of_outer_run_along_the_contiguous_axis() -> None:
    """The output's innermost axis is not the input's: the input decides."""

    def emit(b: Builder) -> Sequence[ValueId]:
        x = b.input("x", F32, (30, 6, 40))
        return [b.reduce([x], (40, 6), (30,), Combine.SUM, lambda i, r, read: read(0, (r[0], i[1], i[0])))]

    v = variants(case(emit))["outer"]
    _, _, points = _points(v)
    assert points.rows[-1].extent == 40
    check_schedules(FAMILY, case(emit), 10)


def test_nothing_is_computed_for_no_rows() -> None:
    def emit(b: Builder) -> Sequence[ValueId]:
        x = b.input("x", F32, (0, 5))
        return [b.reduce([x], (0,), (5,), Combine.SUM, lambda i, r, read: read(0, (*i, *r)))]

    v = variants(case(emit))["block"]
    assert FAMILY.lower(v, Schedule.of({**FAMILY.heuristic(v, TARGET).values}), TARGET).launches == ()


def test_row_invariant_divisions_are_hoisted_out_of_the_loop() -> None:
    form = analyse(get("layernorm").program)
    assert isinstance(form, Form)
    v = variants(get("layernorm"))["block"]
    body = FAMILY.lower(v, FAMILY.heuristic(v, TARGET), TARGET).launches[0].kernel.body
    names = [s.var.name for s in statements(body) if type(s).__name__ == "Let" and s.var.name.startswith("h2_")]
    assert names
