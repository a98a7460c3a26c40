"""Random models over the operator table: every partition gives what the float64 reference gives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from autofuse.devices.base import Device
from autofuse.fusion.partition import Partition
from autofuse.importer.importing import import_model
from autofuse.importer.reference import run_reference
from autofuse.ir.expr import Apply, apply, rewrite
from autofuse.ir.graph import Graph
from autofuse.ir.stage import Stage
from tests import random_models
from tests.graphs import OPSETS, random_model, usable
from tests.random_models import check, difference, reference, smallest

PARTS = 8
ON_CPU = 10
EMULATED = 4
"""Models of each part; `benchmarks/random_models.py` runs as many as one likes."""

SETTINGS = settings(
    deadline=None,
    database=None,
    derandomize=True,
    # a failing model is made smaller by `smallest`, which keeps the numbers that showed the fault
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("part", range(PARTS))
def test_partitions_equal_the_reference_on_the_cpu(part: int, cpu: Device) -> None:
    hold(part, ON_CPU, cpu, partitions=4)


@pytest.mark.parametrize("part", range(PARTS))
def test_partitions_equal_the_reference_emulated(part: int, emulated: Device) -> None:
    hold(PARTS + part, EMULATED, emulated, partitions=3)


def hold(part: int, count: int, device: Device, partitions: int) -> None:
    """Check models whose seeds hypothesis draws; each part has seeds of its own."""

    @settings(SETTINGS, max_examples=count)
    @given(st.integers(0, (1 << 20) - 1))
    def one(seed: int) -> None:
        wrong = check(seed * 2 * PARTS + part, device, partitions)
        assert not wrong, wrong

    one()


def test_the_models_reach_the_whole_table() -> None:
    """Nearly every operator turns up in some model, with zero sizes, ones, several outputs and values that are read several times."""
    wanted = {op.name for opset in set(OPSETS) for op, _ in usable(opset)}
    seen: set[str] = set()
    shapes: set[int] = set()
    outputs, readers = 0, 0
    for seed in range(300):
        model = random_model(seed).model
        seen |= {n.op_type for n in model.graph.node}
        graph = import_model(model)
        shapes |= {n for v in graph.values for n in v.shape or ()}
        outputs = max(outputs, len(graph.outputs))
        readers = max(readers, *(len(c) for c in graph.consumers.values()), 0)
    missing = sorted(wanted - seen)
    assert len(missing) <= 0.1 * len(wanted), missing
    assert {0, 1, 2, 3, 17} <= shapes and outputs >= 3 and readers >= 3


def test_equal_seeds_give_equal_models() -> None:
    for seed in range(20):
        a, b = random_model(seed), random_model(seed)
        assert a.model.SerializeToString(deterministic=True) == b.model.SerializeToString(deterministic=True)
        for x, y in zip(a.inputs.values(), b.inputs.values(), strict=True):
            np.testing.assert_array_equal(x, y)


WRONG = {"tanh": "sin", "sin": "cos", "exp": "tanh", "neg": "abs", "add": "sub", "mul": "add"}
"""What an operation is turned into."""


def test_a_wrong_operation_is_found(cpu: Device) -> None:
    """The first operation of a graph that has a wrong form is turned into it: some model's outputs differ from its reference."""
    for seed in range(200):
        drawn = random_model(seed)
        graph = import_model(drawn.model)
        broken = _wrong(graph)
        if broken is not None:
            expected = reference(graph, drawn.inputs, seed)
            if difference(broken, expected, drawn.inputs, cpu, 2, seed):
                return
    pytest.fail("no model shows the fault")


def test_a_fault_is_made_small(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that gets every graph with such an operation in it wrong: what is left is hardly more than that one."""

    def faulty(graph: Graph, partition: Partition, device: Device, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        right = run_reference(graph, inputs)
        return [y + 1 if y.dtype.kind == "f" and _wrong(graph) is not None else y for y in right]

    monkeypatch.setattr(random_models, "run", faulty)
    for seed in range(200):
        drawn = random_model(seed)
        graph = import_model(drawn.model)
        if _wrong(graph) is not None and len(graph.nodes) > 5:
            least = smallest(graph, drawn, cpu, 2)
            if len(least.nodes) < len(graph.nodes):
                assert _wrong(least) is not None and len(least.nodes) <= 3, least.text()
                return
    pytest.fail("no model shows the fault")


def _wrong(graph: Graph) -> Graph | None:
    """The graph with one operation changed; None where it has none that has a wrong form."""
    for k, n in enumerate(graph.nodes):
        if not isinstance(n.compute, Stage) or n.compute.combine is not None:
            continue
        found = n.compute.body
        while isinstance(found, Apply) and found.fn == "cast":
            found = found.args[0]
        if isinstance(found, Apply) and found.fn in WRONG and found.dtype.is_float:
            made = apply(
                WRONG[found.fn], found.args[: 1 if WRONG[found.fn] in ("sin", "cos", "tanh", "abs") else 2], found.dtype
            )
            body = rewrite(n.compute.body, lambda e, found=found, made=made: made if e is found else None)
            changed = dataclasses.replace(n, compute=dataclasses.replace(n.compute, body=body))
            return dataclasses.replace(graph, nodes=(*graph.nodes[:k], changed, *graph.nodes[k + 1 :]))
    return None
