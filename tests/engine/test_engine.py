"""Engines on small models: what is fed and what is left out."""

from __future__ import annotations

import numpy as np
import onnx.reference
import pytest

from autofuse.devices.base import Device
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from tests.engine.test_traps import run
from tests.traps.trap import FLOAT, N, f32, make

RNG = np.random.default_rng(11)


def test_a_scalar_input_stays_a_scalar(device: Device) -> None:
    inputs = {"x": np.array(3.0, np.float32), "y": f32(1, 2)}
    model = make([N("Mul", ["x", "y"], ["z"]), N("Neg", ["x"], ["w"])], inputs, {"z": (FLOAT, (2,)), "w": (FLOAT, ())})
    graph = import_model(model)
    z, w = run(graph, Partitioner(graph, device.target).greedy(), device, inputs)
    np.testing.assert_array_equal(z, [3, 6])
    assert w.shape == ()
    assert w == -3


@pytest.mark.parametrize("read", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_results_of_a_recurrence_may_be_left_out(read: tuple[int, ...], device: Device) -> None:
    steps, batch, width, hidden = 3, 2, 4, 5
    shapes = {
        "w": (1, 4 * hidden, width),
        "r": (1, 4 * hidden, hidden),
        "h": (1, batch, hidden),
        "c": (1, batch, hidden),
    }
    constants = {k: RNG.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    names = ["y", "yh", "yc"]
    results = [(FLOAT, (steps, 1, batch, hidden)), *[(FLOAT, (1, batch, hidden))] * 2]
    outputs = {names[k]: results[k] for k in read}
    node = N("LSTM", ["x", "w", "r", "", "", "h", "c"], [n if n in outputs else "" for n in names], hidden_size=hidden)
    inputs = {"x": RNG.normal(size=(steps, batch, width)).astype(np.float32)}
    model = make([node], inputs, outputs, constants)
    whole = make(
        [N("LSTM", ["x", "w", "r", "", "", "h", "c"], names, hidden_size=hidden)],
        inputs,
        dict(zip(names, results, strict=True)),
        constants,
    )
    expected = onnx.reference.ReferenceEvaluator(whole).run(None, inputs)
    graph = import_model(model)
    for actual, k in zip(run(graph, Partitioner(graph, device.target).unfused(), device, inputs), read, strict=True):
        np.testing.assert_allclose(actual, np.asarray(expected[k]).reshape(actual.shape), rtol=1e-4, atol=1e-5)


def test_a_tensor_joined_with_parts_of_itself(device: Device) -> None:
    """The parts are views of the tensor: they cannot lie in the join while the tensor lies in another place of it."""
    x = RNG.normal(size=(4, 1, 16)).astype(np.float32)
    constants = {"zero": np.array([0]), "one": np.array([1]), "three": np.array([3]), "four": np.array([4])}
    nodes = [
        N("Exp", ["x"], ["e"]),
        N("Slice", ["e", "zero", "one", "zero"], ["head"]),
        N("Slice", ["e", "three", "four", "zero"], ["tail"]),
        N("Concat", ["tail", "e", "head"], ["joined"], axis=0),
        N("Neg", ["joined"], ["y"]),
    ]
    graph = import_model(make(nodes, {"x": x}, {"y": (FLOAT, (6, 1, 16))}, constants))
    e = np.exp(x)
    expected = -np.concatenate([e[3:], e, e[:1]])
    partitioner = Partitioner(graph, device.target)
    for partition in (partitioner.unfused(), partitioner.greedy()):
        np.testing.assert_allclose(run(graph, partition, device, {"x": x})[0], expected, rtol=1e-5)


def test_an_input_seen_in_another_shape_is_joined_by_copying(device: Device) -> None:
    x = RNG.normal(size=(2, 32)).astype(np.float32)
    nodes = [
        N("Reshape", ["x", "shape"], ["flat"]),
        N("Exp", ["flat"], ["e"]),
        N("Concat", ["flat", "e"], ["joined"], axis=0),
        N("Neg", ["joined"], ["y"]),
    ]
    graph = import_model(make(nodes, {"x": x}, {"y": (FLOAT, (2, 64))}, {"shape": np.array([1, 64])}))
    expected = -np.concatenate([x.reshape(1, 64), np.exp(x.reshape(1, 64))])
    np.testing.assert_allclose(
        run(graph, Partitioner(graph, device.target).unfused(), device, {"x": x})[0], expected, rtol=1e-5
    )
