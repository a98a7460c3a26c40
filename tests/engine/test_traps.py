"""Models that fusing compilers got wrong give the right values, unfused and under every partition, on every device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autofuse.devices.base import Device
from autofuse.engine.assign import assign
from autofuse.engine.engine import Engine
from autofuse.engine.options import heuristic_options
from autofuse.fusion.partition import Partition, Partitioner, verify_partition
from autofuse.importer.importing import import_model
from autofuse.ir.graph import Graph
from tests.traps import TRAPS
from tests.traps.trap import FLOAT, Make, N, f32, make

PARTITIONS = 6


def run(graph: Graph, partition: Partition, device: Device, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a partition's heuristic plan."""
    options = heuristic_options(device.target, device.threads)
    plan = assign(graph, partition, device.target, device.threads, "default", options)
    with Engine.build(graph, plan, device) as engine:
        return list(engine.run(inputs).values())


@pytest.mark.parametrize("build", TRAPS, ids=lambda f: f.__name__)
def test_every_partition_gives_the_right_value(build: Make, device: Device) -> None:
    trap = build()
    graph = import_model(trap.model, {k: a.shape for k, a in trap.inputs.items()})
    partitioner = Partitioner(graph, device.target)
    for partition in itertools.islice(partitioner.enumerate(), PARTITIONS):
        verify_partition(graph, partition, device.target)
        found = run(graph, partition, device, dict(trap.inputs))
        for actual, expected in zip(found, trap.expected, strict=True):
            assert actual.dtype == expected.dtype or expected.dtype == np.float64
            np.testing.assert_allclose(actual, expected, rtol=trap.rtol, atol=trap.atol)


def test_greedy_fuses_what_may_be_fused(device: Device) -> None:
    """The other half of the traps: being right by fusing nothing would not do."""
    counts = {}
    for build in TRAPS:
        trap = build()
        graph = import_model(trap.model, {k: a.shape for k, a in trap.inputs.items()})
        partitioner = Partitioner(graph, device.target)
        counts[trap.name] = (len(partitioner.unfused().regions), len(partitioner.greedy().regions))
    assert counts["intermediate_outputs"][1] == 1
    assert counts["layer_norm_far_from_zero"][1] == 1
    assert counts["pool_read_twice"][1] == 1
    assert counts["negative_pad_is_a_crop"][1] == 1
    assert counts["tails_of_a_product"] == (2, 1)
    assert all(greedy <= unfused for unfused, greedy in counts.values()), counts


def test_addresses_beyond_32_bits(device: Device) -> None:
    """No tensor of this kernel is large, but the one that fusion does away with has 65537 x 65537 elements."""
    n = 65537
    x = np.arange(n, dtype=np.float32).reshape(n, 1)
    nodes = [
        N("Expand", ["x", "square"], ["e"]),
        N("Reshape", ["e", "flat"], ["f"]),
        N("Slice", ["f", "start", "end"], ["s"]),
        N("Neg", ["s"], ["y"]),
    ]
    constants = {"square": [n, n], "flat": [-1], "start": [-n - 2], "end": [-n + 1]}
    model = make(nodes, {"x": x}, {"y": (FLOAT, (3,))}, {k: np.array(v) for k, v in constants.items()})
    graph = import_model(model)
    (found,) = run(graph, Partitioner(graph, device.target).greedy(), device, {"x": x})
    np.testing.assert_array_equal(found, f32(2 - n, 2 - n, 1 - n))
