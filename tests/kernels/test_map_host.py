"""Maps on the host whose inputs run along another axis than their outputs: turned around in tiles of registers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from host_contract import Case, Maker, check, in_space, schedules, target

from autofuse.devices.cpu import CpuDevice
from autofuse.kernels.base import Schedule
from autofuse.kernels.families import lower
from autofuse.kernels.map_host import MapHost

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
