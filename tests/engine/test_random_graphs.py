"""Random graphs: every enumerated partition passes the verifier and equals the reference."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from autofuse.devices.base import Device
from autofuse.fusion.partition import Partitioner, verify_partition
from autofuse.importer.reference import run_reference
from tests.engine.test_traps import run
from tests.graphs import random_graph, random_inputs

GRAPHS = 200
BATCH = 10


@pytest.mark.parametrize("first", range(0, GRAPHS, BATCH))
def test_partitions_equal_the_reference_on_cpu(first: int, cpu: Device) -> None:
    for seed in range(first, first + BATCH):
        check(seed, cpu, partitions=3)


@pytest.mark.parametrize("first", range(0, 30, 5))
def test_partitions_equal_the_reference_emulated(first: int, emulated: Device) -> None:
    for seed in range(first, first + 5):
        check(seed, emulated, partitions=2)


def check(seed: int, device: Device, partitions: int) -> None:
    """The unfused, the greedy and a random partition of one graph; the message names the seed and prints the graph."""
    graph = random_graph(seed)
    inputs = random_inputs(graph, seed)
    expected = run_reference(graph, inputs, wide=True)
    partitioner = Partitioner(graph, device.target)
    rng = random.Random(seed)
    drawn = [partitioner.chosen(lambda e: rng.random() < 0.6)]
    for k, partition in enumerate(itertools.chain([partitioner.unfused(), partitioner.greedy()][:partitions], drawn)):
        verify_partition(graph, partition, device.target)
        for actual, wanted in zip(run(graph, partition, device, inputs), expected, strict=True):
            np.testing.assert_allclose(
                actual, wanted, rtol=2e-3, atol=2e-4, err_msg=f"random_graph({seed}), partition {k}\n{graph.text()}"
            )
