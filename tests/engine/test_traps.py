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
from tests.traps import TRAPS, Trap

PARTITIONS = 6


def run(graph: Graph, partition: Partition, device: Device, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a partition's heuristic plan."""
    options = heuristic_options(device.target, device.threads)
    plan = assign(graph, partition, device.target, device.threads, "default", options)
    with Engine.build(graph, plan, device) as engine:
        return list(engine.run(inputs).values())


@pytest.mark.parametrize("make", TRAPS, ids=lambda f: f.__name__)
def test_every_partition_gives_the_right_value(make, device: Device) -> None:  # type: ignore[no-untyped-def]
    trap: Trap = make()
    graph = import_model(trap.model)
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
    for make in TRAPS:
        trap = make()
        graph = import_model(trap.model)
        partitioner = Partitioner(graph, device.target)
        counts[trap.name] = (len(partitioner.unfused().regions), len(partitioner.greedy().regions))
    assert counts["intermediate_outputs"][1] == 1
    assert counts["layer_norm_far_from_zero"][1] == 1
    assert counts["pool_read_twice"][1] == 1
    assert counts["negative_pad_is_a_crop"][1] == 1
    assert counts["tails_of_a_product"] == (2, 1)
    assert all(greedy <= unfused for unfused, greedy in counts.values()), counts
