"""Small models on disk, and folders of their own for what tests compile and measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from autofuse.importer.samples.basic import mlp


def dynamic_model() -> ModelProto:
    """y = softmax(relu(x @ w)), with an open batch dimension."""
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 6])]
    graph = helper.make_graph(nodes, "dynamic", inputs, outputs, [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFUSE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("AUTOFUSE_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are looked for in the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "fixed.onnx"
    onnx.save(mlp(4, (16, 12, 8)), path)
    return path


@pytest.fixture(scope="session")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "dynamic.onnx"
    onnx.save(dynamic_model(), path)
    return path
