"""Models around computations that stand alone: what is before and after them fuses, they keep their kernels, and values are right."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

from autofuse.devices.base import Device
from autofuse.fusion.partition import Partitioner, verify_partition
from autofuse.importer.importing import import_model
from autofuse.ir.stage import Kind
from tests.engine.test_traps import run
from tests.traps.trap import FLOAT, INT64, Trap, f32, make

N = helper.make_node
RNG = np.random.default_rng(11)
PARTITIONS = 5


def numbers(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def written_twice_and_read_again() -> Trap:
    """Updates hit a place twice, from the end too; the data that they are written into is an output itself."""
    x, at, new = numbers(6, 5), np.array([[4], [-2], [0], [4]], np.int64), numbers(4, 5)
    nodes = [
        N("Relu", ["x"], ["r"]),
        N("Neg", ["u"], ["n"]),
        N("ScatterND", ["r", "i", "n"], ["s"], reduction="add"),
        N("Mul", ["s", "r"], ["m"]),
        N("Exp", ["m"], ["y"]),
    ]
    r = np.maximum(x, 0)
    s = r.copy()
    for k, row in zip((4, 4, 0, 4), new, strict=True):
        s[k] -= row
    model = make(nodes, {"x": x, "i": at, "u": new}, {"y": (FLOAT, x.shape), "r": (FLOAT, x.shape)})
    return Trap("written_twice", model, {"x": x, "i": at, "u": new}, [np.exp(s * r), r], 1e-4, 1e-4)


def the_last_update_wins() -> Trap:
    x, at, new = numbers(4, 3), np.array([[1, -1, 1], [1, 0, -3]], np.int64), numbers(2, 3)
    expected = x.copy()
    for row, where in zip(new, at, strict=True):
        for column in range(3):
            expected[where[column], column] = row[column]
    nodes = [N("ScatterElements", ["x", "i", "u"], ["s"]), N("Identity", ["s"], ["y"])]
    model = make(nodes, {"x": x, "i": at, "u": new}, {"y": (FLOAT, x.shape)})
    return Trap("last_update", model, {"x": x, "i": at, "u": new}, [expected])


def best_of_equal_ones() -> Trap:
    """Ties go to the lower position, NaN counts as the greatest; what is sorted is computed before, the positions are used after."""
    x = np.array([[3, 7, 7, np.nan, 1, 7], [0, 0, 0, 0, 0, 0], [-np.inf, 2, np.inf, 2, 5, np.inf]], np.float32)
    nodes = [
        N("Neg", ["x"], ["n"]),
        N("TopK", ["n", "k"], ["v", "i"], largest=0),
        N("Mul", ["v", "c"], ["w"]),
        N("GatherElements", ["x", "i"], ["y"], axis=1),
    ]
    places = np.array([[1, 2, 5], [0, 1, 2], [2, 5, 4]], np.int64)
    best = np.take_along_axis(x, places, 1)
    outputs = {"w": (FLOAT, (3, 3)), "i": (INT64, (3, 3)), "y": (FLOAT, (3, 3))}
    model = make(nodes, {"x": x}, outputs, {"k": np.array([3], np.int64), "c": f32(2)})
    return Trap("best_of_equal", model, {"x": x}, [-2 * best, places, best])


def running_sum_between_maps() -> Trap:
    """Exclusive and from the end, over an axis that is not the last one."""
    x = numbers(2, 40, 3)
    nodes = [
        N("Mul", ["x", "x"], ["a"]),
        N("CumSum", ["a", "axis"], ["c"], exclusive=1, reverse=1),
        N("Sqrt", ["c"], ["y"]),
    ]
    total = (x.astype(np.float64) ** 2)[:, ::-1].cumsum(1)[:, ::-1] - x.astype(np.float64) ** 2
    model = make(nodes, {"x": x}, {"y": (FLOAT, x.shape)}, {"axis": np.array(-2, np.int64)})
    return Trap("running_sum", model, {"x": x}, [np.sqrt(np.maximum(total, 0))], 1e-4, 1e-3)


def determinant_of_products() -> Trap:
    x = numbers(3, 4, 4)
    nodes = [N("MatMul", ["x", "x"], ["p"]), N("Det", ["p"], ["d"]), N("Sqrt", ["d"], ["y"])]
    model = make(nodes, {"x": x}, {"y": (FLOAT, (3,))})
    return Trap("determinant", model, {"x": x}, [np.abs(np.linalg.det(x.astype(np.float64)))], 1e-3, 1e-4)


MODELS: tuple[Callable[[], Trap], ...] = (
    written_twice_and_read_again,
    the_last_update_wins,
    best_of_equal_ones,
    running_sum_between_maps,
    determinant_of_products,
)


@pytest.mark.parametrize("build", MODELS, ids=lambda f: f.__name__)
def test_every_partition_gives_the_right_value(build: Callable[[], Trap], device: Device) -> None:
    trap = build()
    graph = import_model(trap.model)
    assert any(n.kind in (Kind.SCATTER, Kind.SORT, Kind.SCAN) for n in graph.nodes)
    assert not any(n.kind is Kind.HOST for n in graph.nodes)
    partitioner = Partitioner(graph, device.target)
    for partition in itertools.islice(partitioner.enumerate(), PARTITIONS):
        verify_partition(graph, partition, device.target)
        found = run(graph, partition, device, dict(trap.inputs))
        for actual, expected in zip(found, trap.expected, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=trap.rtol, atol=trap.atol)


def test_maps_before_a_scatter_fuse_and_those_after_it_do_not(cpu: Device) -> None:
    graph = import_model(written_twice_and_read_again().model)
    greedy = Partitioner(graph, cpu.target).greedy()
    (region,) = (r for r in greedy.regions if any(graph.nodes[n].kind is Kind.SCATTER for n in r.nodes))
    assert [graph.nodes[n].op for n in region.nodes] == ["Neg", "ScatterND"]
    reasons = {v.rule: v.reason for v in greedy.refusals.values()}
    assert "read only when all of it is done" in reasons["scatter"]
    assert "delivers nothing but" in reasons["outputs"]


def test_a_sort_stays_alone_and_says_why(cpu: Device) -> None:
    graph = import_model(best_of_equal_ones().model)
    greedy = Partitioner(graph, cpu.target).greedy()
    assert all(len(r.nodes) == 1 for r in greedy.regions if graph.nodes[r.nodes[0]].kind is Kind.SORT)
    assert any("whole rows" in v.reason for v in greedy.refusals.values())
