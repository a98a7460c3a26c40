"""The standard backend interface on its own; tests/suite runs onnx's whole suite through it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import autofuse
from autofuse.api.devices import open_device
from tests.api.conftest import dynamic_model


def expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    r = np.maximum(x @ w, 0)
    e = np.exp(r - r.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_models_run_on_lists_and_on_dictionaries_in_any_size() -> None:
    model = dynamic_model()
    w = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    prepared = autofuse.onnx_backend.prepare(model)
    for n in (3, 1, 3):
        x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
        for fed in ([x], {"x": x}):
            (y,) = prepared.run(fed)
            np.testing.assert_allclose(y, expected(x, w), rtol=1e-5, atol=1e-6)
    (y,) = autofuse.onnx_backend.run_model(model, [x])
    np.testing.assert_allclose(y, expected(x, w), rtol=1e-5, atol=1e-6)


def test_one_device_serves_several_models() -> None:
    device = open_device("cpu", 1)
    prepared = [autofuse.onnx_backend.prepare(dynamic_model(), device) for _ in range(2)]
    assert all(p.device is device for p in prepared)


@pytest.mark.parametrize(("name", "known"), [("CPU", True), ("CUDA:1", True), ("TPU", False)])
def test_devices_are_known_by_onnx_names(name: str, known: bool) -> None:
    assert autofuse.onnx_backend.supports_device(name) is known


def test_a_node_alone_is_not_run() -> None:
    assert autofuse.onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [np.ones(1, np.float32)]) is None
