"""The samples import and give what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import pytest
from importer_models import feeds, kinds, onnxruntime
from onnx import ModelProto

from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.importer.reference import run_reference
from autofuse.importer.samples import basic, chains, transformers
from autofuse.ir.graph import Graph
from autofuse.ir.stage import Kind

SMALL = {
    "mlp": lambda: basic.mlp(4, (24, 16, 12, 5)),
    "softmax": lambda: basic.softmax(6, 33),
    "bert_block": lambda: transformers.bert_block(16, 32, 4),
    "gpt_block": lambda: transformers.gpt_block(12, 48, 3),
    "gelu": lambda: chains.gelu(7, 33),
    "layernorm": lambda: chains.layernorm(7, 33),
    "rmsnorm": lambda: chains.rmsnorm(7, 33),
    "chain_softmax": lambda: chains.softmax(3, 5, 17),
    "swiglu": lambda: chains.swiglu(5, 26),
    "rotary": lambda: chains.rotary(2, 5, 8),
    "groupnorm": lambda: chains.groupnorm(8, 5, 3, 4),
}


def agree(model: ModelProto, simplify: bool) -> Graph:
    graph = import_model(model, simplify=simplify)
    given = feeds(graph)
    for mine, theirs in zip(run_reference(graph, given), onnxruntime(model, given), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 + 1e-4 * np.abs(theirs).max())
        assert mine.dtype == theirs.dtype
    return graph


@pytest.mark.parametrize("simplify", [True, False])
@pytest.mark.parametrize("name", SMALL)
def test_built_samples(name: str, simplify: bool) -> None:
    agree(SMALL[name](), simplify)


@pytest.mark.parametrize(
    "name", ["squeezenet", "shufflenet", "densenet121", "inception_v1", "inception_v2", "resnet50"]
)
def test_light_samples(name: str) -> None:
    graph = agree(load_model(f"sample:{name}"), simplify=True)
    assert Kind.HOST not in kinds(graph)


@pytest.mark.parametrize("name", ["alexnet", "zfnet512", "vgg19"])
def test_light_samples_with_large_weights(name: str) -> None:
    graph = import_model(load_model(f"sample:{name}"))
    assert Kind.HOST not in kinds(graph)
    assert graph.values[graph.outputs[0]].shape == (1, 1000)


def test_batchnorms_of_densenet_are_gone() -> None:
    """Behind a convolution they are in its weights; before one, with the Mul and Add after it, they are one map."""
    graph = import_model(load_model("sample:densenet121"))
    assert "BatchNormalization" not in [n.op for n in graph.nodes]
    assert len(graph.nodes) < 450
