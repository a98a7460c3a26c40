"""Weights stored in a narrower type: only under fast, half the bytes, errors as the type says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autofuse.devices.cache import KernelCache
from autofuse.devices.cpu import CpuDevice
from autofuse.engine import lowering
from autofuse.engine.assign import assign
from autofuse.engine.engine import Engine
from autofuse.engine.options import heuristic_options
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from autofuse.ir.dtype import DType
from autofuse.ir.graph import Graph
from autofuse.measure.reference import Tolerance


def product(rows: int) -> Graph:
    """x @ w + b, with Relu."""
    generator = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(generator.standard_normal(s).astype(np.float32), n)
        for n, s in (("w", (512, 768)), ("b", (768,)))
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [rows, 512]), ("y", [rows, 768]))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], stored)
    return import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), {})


@pytest.mark.parametrize(("name", "worst"), [("bf16", 4e-3), ("f16", 6e-4)])
def test_half_the_bytes_and_the_errors_of_the_type(name: str, worst: float, tmp_path: Path) -> None:
    device, graph = CpuDevice(1, KernelCache(tmp_path)), product(3)
    options = heuristic_options(device.target, 1, "fast")
    narrow = lambda p: [o for o in options(p) if o.variant.algorithm.startswith(f"{name}-")]  # noqa: E731
    plan = assign(graph, Partitioner(graph, device.target).greedy(), device.target, 1, "fast", narrow)
    x = np.random.default_rng(1).standard_normal((3, 512)).astype(np.float32)
    w, b = (a for a in graph.constants.values() if a.ndim in (1, 2))
    if w.ndim == 1:
        w, b = b, w
    wanted = np.maximum(x.astype(np.float64) @ w + b, 0)
    for _ in range(2):  # the second time from the record
        lowering._MADE.clear()
        with Engine.build(graph, plan, device) as engine:
            got = engine.run({"x": x})["y"]
            assert engine.weight_bytes < 0.6 * (w.nbytes + b.nbytes)
        error = np.abs(got - wanted).max() / np.abs(wanted).max()
        assert worst / 100 < error < worst


def test_only_fast_has_it(tmp_path: Path) -> None:
    device, graph = CpuDevice(1, KernelCache(tmp_path)), product(3)
    partition = Partitioner(graph, device.target).greedy()
    program = Partitioner(graph, device.target).structures.program(partition.regions[0])
    found = {
        a: {o.variant.family for o in heuristic_options(device.target, 1, a)(program)}
        for a in ("exact", "default", "fast")
    }
    assert "narrow_weights_host" in found["fast"]
    assert "narrow_weights_host" not in found["default"] | found["exact"]
    assert Tolerance(fast=True).of(DType.FLOAT32)[0] == 10 * Tolerance().of(DType.FLOAT32)[0]


def test_many_rows_are_left_alone(tmp_path: Path) -> None:
    device, graph = CpuDevice(1, KernelCache(tmp_path)), product(64)
    partition = Partitioner(graph, device.target).greedy()
    program = Partitioner(graph, device.target).structures.program(partition.regions[0])
    assert not any(o.variant.lower_precision for o in heuristic_options(device.target, 1, "fast")(program))
