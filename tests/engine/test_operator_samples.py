"""Samples of declarations as engines: recurrences on every device, and on the host what onnx's own cases leave out."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from autofuse.devices.base import Device
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from autofuse.ir.stage import Kind
from autofuse.ops.recurrent import RECURRENT
from autofuse.ops.table import OPERATORS
from tests.engine.test_traps import run

sys.path.append(str(Path(__file__).parent.parent / "ops"))
from op_calls import draw, feeds_of, model_of, numpy_run

RECURRENCES = [(op.name, k) for op in RECURRENT for k in range(len(op.samples))]

OTHERS = [
    *[("RoiAlign", k) for k in (1, 2, 3, 4, 6, 7, 9)],
    *[("MaxRoiPool", k) for k in (0, 1)],
    *[("GridSample", k) for k in (5, 11, 17, 19, 21, 23, 24)],
    *[("DeformConv", k) for k in (1, 2)],
    *[("DFT", k) for k in (6, 8, 9, 10, 11)],
    ("STFT", 2),
    ("STFT", 3),
    *[("Resize", k) for k in range(12, 18)],
    *[("Col2Im", k) for k in (2, 3, 4)],
    *[(name, 0) for name in ("Bernoulli", "Multinomial")],
    *[("Cast", k) for k in (22, 23, 24, 26, 29, 33)],
    *[("BitCast", k) for k in (3, 4, 5)],
    *[("QuantizeLinear", k) for k in (19, 21, 22)],
    ("DequantizeLinear", 10),
    ("QLinearMatMul", 2),
    *[("MatMulInteger", k) for k in (3, 4, 5)],
]
"""Operators, and which of their samples."""


def check(name: str, k: int, device: Device) -> None:
    """A sample's engine against float64 arithmetic of the same declaration, which test_operators compares with oracles."""
    op = OPERATORS["", name]
    sample = op.samples[k]
    inputs = draw(sample)
    count = [True] * sample.outputs
    expected, _ = numpy_run(name, "", sample.opset, inputs, sample.attributes, count, sample.constant, wide=True)
    stored, _ = numpy_run(name, "", sample.opset, inputs, sample.attributes, count, sample.constant)
    graph = import_model(model_of(op, sample, inputs, stored))
    assert all(n.kind is not Kind.HOST for n in graph.nodes)
    found = run(graph, Partitioner(graph, device.target).greedy(), device, feeds_of(sample, inputs))
    for y, want, kind in zip(found, expected, stored, strict=True):
        assert want is not None and kind is not None
        assert y.dtype == kind.dtype
        if kind.dtype.kind in "iub":
            np.testing.assert_array_equal(y, want)
            continue
        close = {"float16": 2e-2, "float64": 1e-10}.get(str(kind.dtype), 1e-4)
        np.testing.assert_allclose(y.astype(np.float64), want, rtol=close, atol=close)


@pytest.mark.parametrize(("name", "k"), RECURRENCES, ids=[f"{n}-{k}" for n, k in RECURRENCES])
def test_recurrence(name: str, k: int, device: Device) -> None:
    check(name, k, device)


@pytest.mark.parametrize(("name", "k"), OTHERS, ids=[f"{n}-{k}" for n, k in OTHERS])
def test_on_the_host(name: str, k: int, cpu: Device) -> None:
    check(name, k, cpu)
