"""Every operator against an oracle that nobody here wrote, on the samples of its declaration."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from op_calls import close, draw, feeds_of, model_of, numpy_run

from autofuse.ops.table import OPERATORS, find

CASES = [(key, k) for key, op in OPERATORS.items() for k in range(len(op.samples))]

ONNXRUNTIME: dict[str, str] = {
    "Softmax": "the reference evaluator does not flatten below opset 13",
    "LogSoftmax": "the reference evaluator does not flatten below opset 13",
    "Hardmax": "the reference evaluator does not flatten below opset 13",
    "Div": "the reference evaluator rounds down where integers truncate",
}
"""Operators for which onnxruntime, with its optimisations off, is the better oracle."""


def oracle(key: tuple[str, str], model, feeds) -> list[np.ndarray]:
    """The expected outputs."""
    if key[1] not in ONNXRUNTIME and not key[0]:
        return ReferenceEvaluator(model).run(None, feeds)
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize(("key", "k"), CASES, ids=[f"{d}.{n}-{k}" if d else f"{n}-{k}" for (d, n), k in CASES])
def test_sample(key: tuple[str, str], k: int) -> None:
    op = OPERATORS[key]
    sample = op.samples[k]
    inputs = draw(sample)
    got, _ = numpy_run(
        op.name, op.domain, sample.opset, inputs, sample.attributes, [True] * sample.outputs, sample.constant
    )
    model = model_of(op, sample, inputs, got)
    for g, want in zip(got, oracle(key, model, feeds_of(sample, inputs)), strict=True):
        assert g is not None
        close(g, want)


def test_every_operator_has_samples() -> None:
    assert [op.name for op in OPERATORS.values() if not op.samples] == []


def test_ai_onnx_is_the_default_domain() -> None:
    assert find("ai.onnx", "Relu") is find("", "Relu") is not None
    assert find("", "NoSuchOperator") is None
