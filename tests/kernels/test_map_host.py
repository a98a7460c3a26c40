"""Maps on the host whose inputs run along another axis than their outputs: turned around in tiles of registers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from host_contract import Case, Maker, check, in_space, schedules, target

from autofuse.devices.cpu import CpuDevice
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import lower
from autofuse.kernels.map_host import MapHost
from autofuse.loops.ir import Prefetch, statements
from autofuse.render.cpp import render_cpp

MAP = MapHost()


def transposed(shape: tuple[int, ...], order: tuple[int, ...], dtype: type = np.float32) -> Case:
    g = Maker(dtype)
    return g.case(g.op("Transpose", g.input(*shape), perm=list(order)))


def transposed_sum(shape: tuple[int, int]) -> Case:
    """A transposed input beside one that is not, and arithmetic on both."""
    g = Maker()
    a, b = g.input(*shape), g.input(shape[1], shape[0])
    return g.case(g.op("Relu", g.op("Add", g.op("Transpose", a, perm=[1, 0]), b)))


def identity(*shape: int) -> Case:
    """Layouts turn it around: channels in blocks on one side only."""
    g = Maker()
    return g.case(g.op("Relu", g.input(*shape)))


def gated(rows: int, columns: int) -> Case:
    """One half of each row times the sigmoid of the other."""
    g = Maker()
    x = g.input(rows, 2 * columns)
    a, b = (
        g.op("Slice", x, *(g.b.constant(np.array([n], np.int64)) for n in (start, start + columns, 1)))
        for start in (0, columns)
    )
    return g.case(g.op("Mul", a, g.op("Sigmoid", b)))


def rotated(heads: int, positions: int, width: int) -> Case:
    """Rotary embedding: halves change places, and all heads share the tables."""
    g = Maker()
    x, cos, sin = g.input(heads, positions, width), g.input(positions, width), g.input(positions, width)
    first, second = (
        g.op("Slice", x, *(g.b.constant(np.array([n], np.int64)) for n in (start, start + width // 2, 2)))
        for start in (0, width // 2)
    )
    turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
    return g.case(g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin)))


def plain(case: Case) -> Variant:
    """The variant whose tensors all lie row by row."""
    found = MAP.variants(case.program, target())
    return next(v for v in found if all(l.is_plain for l in (*v.input_layouts, *v.output_layouts)))


CASES: dict[str, Callable[[], Case]] = {
    "whole tiles": lambda: transposed((32, 48), (1, 0)),
    "tails": lambda: transposed((37, 51), (1, 0)),
    "narrow": lambda: transposed((9, 40), (1, 0)),
    "batch": lambda: transposed((3, 20, 5, 33), (0, 3, 2, 1)),
    "heads": lambda: transposed((2, 24, 3, 16), (0, 2, 1, 3)),
    "double": lambda: transposed((19, 23), (1, 0), np.float64),
    "integers": lambda: transposed((19, 23), (1, 0), np.int32),
    "two inputs": lambda: transposed_sum((33, 18)),
    "channel blocks": lambda: identity(2, 32, 7, 9),
    "channel blocks with padding": lambda: identity(1, 24, 9, 9),
}


@pytest.mark.parametrize("name", CASES)
def test_turned_maps(name: str, tmp_path: Path) -> None:
    case, t = CASES[name](), target()
    for v in MAP.variants(case.program, t):
        for s in schedules(MAP, v, t, 3, seed=len(name)):
            check(case, MAP, v, s, t, tmp_path)
        for task in (64, 4096):
            for tile in (0, MAP.facts(v, t)["crossing"]):
                check(case, MAP, v, Schedule.of({"task": task, "unroll": 1, "stream": 0, "tile": tile}), t, tmp_path)


def test_tiles_are_the_heuristic_where_something_turns() -> None:
    t = target()
    for name in ("whole tiles", "two inputs", "channel blocks with padding"):
        found = set()
        for v in MAP.variants(CASES[name]().program, t):
            s = MAP.heuristic(v, t)
            assert in_space(MAP, v, s, t) == []
            found.add(s.integer("tile"))
        assert 1 in found, name


def test_text_of_a_turned_tile() -> None:
    """Vectors are read along the input, turned around, and stored along the output: nothing is read lane by lane."""
    device = CpuDevice(1)
    t = device.target
    (v,) = MAP.variants(CASES["whole tiles"]().program, t)
    lowered = lower(v, MAP.heuristic(v, t), t)
    text = device.compile([lowered.launches[0].kernel])[0].text
    assert "af_transpose(" in text
    assert "af_lanes" not in text
    device.close()


@pytest.mark.parametrize("ahead", (0, 1))
@pytest.mark.parametrize("together", (1, 2, 4))
@pytest.mark.parametrize("unroll", (1, 2, 8))
def test_rows_together_and_fetched_ahead(unroll: int, together: int, ahead: int, tmp_path: Path) -> None:
    """Heads that share tables, and rows in two pieces, with tails and without."""
    for case in (rotated(4, 40, 64), rotated(8, 130, 72), gated(21, 52), gated(3, 4096)):
        for v in MAP.variants(case.program, t := target()):
            if together > 1 and MAP.facts(v, t)["repeats"] == 1:
                continue
            choices = {"task": 1024, "unroll": unroll, "stream": 0, "tile": 0, "ahead": ahead, "together": together}
            check(case, MAP, v, Schedule.of(choices), t, tmp_path)


def test_what_is_read_again_is_shared() -> None:
    """Tables that no longer are in the first cache when the next head asks for them are read once for two heads; no choice of a half
    is left in the text, and no lane is masked."""
    t = target()
    v = plain(rotated(16, 1024, 64))
    s = MAP.heuristic(v, t)
    assert MAP.facts(v, t)["repeats"] == 16 and s.integer("together") == 2 and in_space(MAP, v, s, t) == []
    text = render_cpp(lower(v, s, t).launches[0].kernel, 64)
    assert text.count("af_load<float, 16>(x1") == text.count("af_load<float, 16>(x2") == 4
    assert text.count("af_store<float, 16>") == text.count("af_load<float, 16>(x0") == 8
    assert "masked" not in text and "?" not in text
    small = plain(rotated(16, 16, 64))
    assert MAP.facts(small, t)["repeats"] == 1, "these tables stay in the first cache"


def test_rows_that_lie_apart_are_fetched_ahead() -> None:
    """Halves of rows: hints for the same place of the next row, one a line. Rows that touch need none."""
    t = target()
    v = plain(gated(512, 1024))
    s = MAP.heuristic(v, t)
    assert s.flag("ahead") and in_space(MAP, v, s, t) == []
    hints = [p for p in statements(lower(v, s, t).launches[0].kernel.body) if isinstance(p, Prefetch)]
    assert len(hints) == 2 * s.integer("unroll") and all(p.far for p in hints)
    for case in (identity(512, 2048), gated(8, 64)):
        assert not MAP.heuristic(plain(case), t).flag("ahead")
