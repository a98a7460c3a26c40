"""Host reductions against float64 arithmetic: windows at borders, depthwise convolutions, columns, rows with tails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from host_contract import Case, Maker, check, in_space, run, schedules, target

from autofuse.ir.expr import Apply, Load, walk
from autofuse.kernels.base import Schedule
from autofuse.kernels.irregular import Irregular, irregular
from autofuse.kernels.reduce_host import ReduceHost
from autofuse.loops.ir import For, If, LoopKind, Prefetch, expressions, statements

FAMILY = ReduceHost()


def depthwise(x: tuple[int, ...], kernel: tuple[int, ...], dtype: type = np.float32, **attributes: object) -> Case:
    """A depthwise convolution, bias and Relu."""
    g = Maker(dtype)
    y = g.op("Conv", g.input(*x), g.weights(x[1], 1, *kernel), g.weights(x[1]), group=x[1], **attributes)
    return g.case(g.op("Relu", y))


def pool(op: str, x: tuple[int, ...], dtype: type = np.float32, **attributes: object) -> Case:
    """A pooling window after an addition, which the kernel computes as it reads."""
    g = Maker(dtype)
    a = g.input(*x)
    return g.case(g.op(op, a, **attributes))


def reduced(op: str, x: tuple[int, ...], axes: tuple[int, ...], dtype: type = np.float32) -> Case:
    """A reduction over whole axes, of products."""
    g = Maker(dtype)
    a = g.input(*x)
    product = g.op("Mul", a, g.input(*x))
    return g.case(g.op(op, product, g.b.constant(np.array(axes, np.int64)), keepdims=0))


def softmax(x: tuple[int, ...], dtype: type = np.float32) -> Case:
    """Softmax of a sum, over the last axis."""
    g = Maker(dtype)
    return g.case(g.op("Softmax", g.op("Add", g.input(*x), g.input(*x)), axis=-1))


def normalised(x: tuple[int, ...], by: str = "ReduceSum") -> Case:
    """x divided by what an operator reduces its rows' magnitudes to."""
    g = Maker()
    a = g.input(*x)
    return g.case(g.op("Div", a, g.op(by, g.op("Abs", a), g.b.constant(np.array([-1], np.int64)), keepdims=1)))


CASES: dict[str, Callable[[], Case]] = {
    "depthwise 3x3": lambda: depthwise((1, 32, 14, 19), (3, 3), pads=[1, 1, 1, 1]),
    "depthwise stride 2": lambda: depthwise((1, 24, 17, 35), (3, 3), pads=[1, 1, 1, 1], strides=[2, 2]),
    "depthwise 5x5, few pixels": lambda: depthwise((2, 48, 5, 3), (5, 5), pads=[2, 2, 2, 2]),
    "depthwise dilated, uneven": lambda: depthwise((1, 20, 21, 40), (3, 2), pads=[2, 0, 1, 1], dilations=[2, 1]),
    "depthwise 1-D": lambda: depthwise((1, 16, 300), (7,), pads=[3, 3]),
    "depthwise double": lambda: depthwise((1, 16, 9, 20), (3, 3), np.float64, pads=[1, 1, 1, 1]),
    "max pool": lambda: pool("MaxPool", (1, 24, 20, 37), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max pool, narrow": lambda: pool("MaxPool", (1, 3, 9, 7), kernel_shape=[2, 2], pads=[0, 1, 1, 0]),
    "max pool half": lambda: pool("MaxPool", (1, 16, 9, 40), np.float16, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "max pool bytes": lambda: pool("MaxPool", (1, 16, 9, 40), np.int8, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "average pool": lambda: pool(
        "AveragePool", (1, 33, 12, 18), kernel_shape=[3, 3], strides=[1, 2], pads=[1, 1, 1, 1]
    ),
    "average pool with padding": lambda: pool(
        "AveragePool", (1, 16, 12, 18), kernel_shape=[2, 4], pads=[1, 1, 0, 2], count_include_pad=1
    ),
    "global pool": lambda: pool("GlobalAveragePool", (2, 40, 7, 7)),
    "columns": lambda: reduced("ReduceSum", (50, 77), (0,)),
    "columns of a batch": lambda: reduced("ReduceMax", (3, 21, 130), (1,)),
    "one column": lambda: reduced("ReduceProd", (9, 1), (0,)),
    "rows with a tail": lambda: reduced("ReduceSum", (5, 3, 77), (2,)),
    "short rows": lambda: reduced("ReduceMin", (70, 7), (1,)),
    "softmax": lambda: softmax((9, 3, 200)),
    "softmax half": lambda: softmax((21, 64), np.float16),
    "everything": lambda: reduced("ReduceSum", (6, 45), (0, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_every_variant_under_several_schedules(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    t = target()
    found = list(FAMILY.variants(case.program, t))
    assert found
    for k, variant in enumerate(found):
        for schedule in schedules(FAMILY, variant, t, 2, seed=k):
            check(case, FAMILY, variant, schedule, t, tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_heuristic_schedules_lie_in_the_space(name: str) -> None:
    case = CASES[name]()
    for variant in FAMILY.variants(case.program, target()):
        assert not in_space(FAMILY, variant, FAMILY.heuristic(variant, target()), target())


def test_lanes_of_a_depthwise_convolution_read_neighbouring_weights() -> None:
    """Weights are laid out by channel last where channels are the lanes."""
    case = depthwise((1, 32, 14, 19), (3, 3), pads=[1, 1, 1, 1])
    found = FAMILY.variants(case.program, target())
    blocked = [v for v in found if not v.input_layouts[0].is_plain and not v.output_layouts[0].is_plain]
    assert {v.algorithm for v in blocked} == {"window"}
    assert {v.input_layouts[1].text() for v in blocked} == {"bcda"}


def test_windows_carry_no_guards_away_from_the_border() -> None:
    """Inside a row of pixels no load is guarded along the row."""
    case = pool("MaxPool", (1, 16, 64, 64), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    variant = next(v for v in FAMILY.variants(case.program, target()) if not v.output_layouts[0].is_plain)
    (launch,) = FAMILY.lower(variant, FAMILY.heuristic(variant, target()), target()).launches
    inner = [
        s
        for s in statements(launch.kernel.body)
        if isinstance(s, For) and s.kind is LoopKind.SERIAL and (s.var.extent or 0) > 4
    ]
    assert inner
    loads = [x for s in statements(inner[-1]) for e in expressions(s) for x in walk(e) if isinstance(x, Load)]
    assert loads
    assert all(x.guard is None for x in loads)


def test_accesses_lane_by_lane_are_counted() -> None:
    """Windows in one layout have none; between layouts lanes gather or scatter."""
    case = pool("MaxPool", (1, 32, 16, 64), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    found = [v for v in FAMILY.variants(case.program, target()) if v.algorithm == "window"]
    same = [irregular(v, target()) for v in found if v.input_layouts[0] == v.output_layouts[0]]
    mixed = [irregular(v, target()) for v in found if v.input_layouts[0] != v.output_layouts[0]]
    assert len(same) == len(mixed) == 2
    assert all(i == Irregular() for i in same)
    assert all(i.strided + i.scattered > 0 for i in mixed)


@pytest.mark.parametrize("ahead", (0, 1))
@pytest.mark.parametrize("together", (1, 2, 4))
@pytest.mark.parametrize("x", ((37, 100), (3, 7, 64), (2, 16), (1, 5)))
def test_rows_together(x: tuple[int, ...], together: int, ahead: int, tmp_path: Path) -> None:
    """Any number of rows, also fewer than are reduced together, with tails and without."""
    for case in (softmax(x), normalised(x)):
        variant = next(v for v in FAMILY.variants(case.program, target()) if v.algorithm == "inner")
        choices = {**FAMILY.heuristic(variant, target()).values, "together": together, "ahead": ahead, "task": 512}
        check(case, FAMILY, variant, Schedule.of(choices), target(), tmp_path)


def test_the_next_row_is_fetched_once_in_the_last_sweep_that_reads_it() -> None:
    """A softmax reads its input in two sweeps and what it kept in the third; each line of the row after the next pair is asked for once."""
    case = softmax((4096, 256))
    variant = next(v for v in FAMILY.variants(case.program, target()) if v.algorithm == "inner")
    schedule = FAMILY.heuristic(variant, target())
    assert schedule.flag("ahead") and schedule.integer("together") == 2
    (launch,) = FAMILY.lower(variant, schedule, target()).launches
    found = [s for s in statements(launch.kernel.body) if isinstance(s, Prefetch)]
    # two inputs, two rows, four vectors a round
    assert len(found) == 16 and not any(s.far for s in found)
    assert {s.buffer.name for s in found} == {"x0", "x1"}
    small = FAMILY.heuristic(
        next(v for v in FAMILY.variants(softmax((64, 256)).program, target()) if v.algorithm == "inner"), target()
    )
    assert not small.flag("ahead"), "what lies in the second cache needs no hints"


def test_quotients_by_sums_of_any_size(tmp_path: Path) -> None:
    """A reciprocal stands for a sum only where it is an ordinary number: else the quotients are those of a division."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((12, 48)).astype(np.float32)
    x *= np.array([1, 1e-42, 1e-38, 1e-30, 1e30, 4e36, 0, 1, 1, 1, 1e-39, 2e-45], np.float32)[:, None]
    x[7, 5], x[8, 5], x[9, 5] = np.inf, -np.inf, np.nan
    case = normalised(x.shape)
    variant = next(v for v in FAMILY.variants(case.program, target()) if v.algorithm == "inner")
    (got,) = run(variant, FAMILY.heuristic(variant, target()), FAMILY, [x], target(), tmp_path)
    with np.errstate(all="ignore"):
        expected = x / np.abs(x).sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    assert np.isfinite(expected[[0, 1, 2, 3, 4, 5, 10, 11]]).all() and np.isnan(expected[[6, 9]]).all()
    np.testing.assert_allclose(got.reshape(x.shape), expected, rtol=1e-6, atol=1e-45)


def test_quotients_by_exact_values_stay_quotients() -> None:
    """A greatest value is no sum: what it divides may be rounded to integers next, where the last bit decides."""
    for by, products in (("ReduceSum", True), ("ReduceMax", False)):
        case = normalised((64, 48), by)
        variant = next(v for v in FAMILY.variants(case.program, target()) if v.algorithm == "inner")
        (launch,) = FAMILY.lower(variant, FAMILY.heuristic(variant, target()), target()).launches
        every = list(statements(launch.kernel.body))
        assert any(isinstance(s, If) for s in every) is products
        assert any(isinstance(e, Apply) and e.fn == "div" for s in every for r in expressions(s) for e in walk(r))
