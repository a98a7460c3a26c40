"""Every operator against an oracle that nobody here wrote, on the samples of its declaration."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from op_calls import DOMAINS, close, draw, feeds_of, model_of, numpy_run

from autofuse.ops.randomness import RANDOM
from autofuse.ops.table import OPERATORS, find

DRAWN = frozenset(op.name for op in RANDOM)
"""Operators whose numbers no oracle shares: test_randomness asks for their distribution."""

CASES = [(key, k) for key, op in OPERATORS.items() for k in range(len(op.samples)) if op.name not in DRAWN]

RECURRENCE = "the reference evaluator ignores this option of recurrences"
FLATTEN = "the reference evaluator does not flatten below opset 13"
ONNXRUNTIME: dict[str, str] = {
    "Softmax-2": FLATTEN,
    "Softmax-3": FLATTEN,
    "LogSoftmax-2": FLATTEN,
    "LogSoftmax-3": FLATTEN,
    "Hardmax-2": FLATTEN,
    "Hardmax-3": FLATTEN,
    "Div-1": "the reference evaluator rounds down where integers truncate",
    "Mean-2": "the reference evaluator adds in place and cannot broadcast",
    "ReduceSumSquare-6": "the reference evaluator widens integers",
    "LRN-0": "the reference evaluator counts images where it should count channels",
    "GlobalLpPool-0": "the reference evaluator lacks it",
    "GlobalLpPool-1": "the reference evaluator lacks it",
    "GlobalMaxPool-1": "the reference evaluator drops an axis",
    "MaxPool-4": "the reference evaluator's SAME_LOWER pads as SAME_UPPER",
    "MaxPool-10": "the reference evaluator pads integers with NaN",
    "MaxPool-12": "the reference evaluator gives positions in the padding",
    "ConvTranspose-5": "the reference evaluator fails on groups",
    "BatchNormalization-1": "the reference evaluator trains below opset 14",
    **{f"Scatter-{k}": "the reference evaluator lacks it" for k in range(3)},
    "Upsample-1": "the reference evaluator lacks scales as an attribute",
    "Upsample-2": "the reference evaluator lacks these linear scales",
    "SimplifiedLayerNormalization-0": "an operator of onnxruntime's own",
    "Pad-1": "the reference evaluator refuses negative pads",
    **{f"LSTM-{k}": RECURRENCE for k in (4, 5, 6, 8, 9)},
    **{f"GRU-{k}": RECURRENCE for k in range(3, 6)},
    **{f"RNN-{k}": RECURRENCE for k in range(2, 5)},
    "GridSample-25": "the reference evaluator lacks the names of opset 16",
    "GridSample-26": "the reference evaluator lacks the names of opset 16",
    "RoiAlign-8": "the reference evaluator shifts by half a pixel in opset 10",
    "MaxRoiPool-0": "the reference evaluator lacks it",
    "MaxRoiPool-1": "the reference evaluator lacks it",
}
"""Samples for which onnxruntime, with its optimisations off, is the better oracle."""


def oracle(key: tuple[str, str], case: str, model, feeds) -> list[np.ndarray]:
    """The expected outputs."""
    if case not in ONNXRUNTIME and (not key[0] or key[0] in DOMAINS):
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
    for g, want in zip(got, oracle(key, f"{op.name}-{k}", model, feeds_of(sample, inputs)), strict=True):
        assert g is not None
        close(g, want)


def test_every_operator_has_samples() -> None:
    assert [op.name for op in OPERATORS.values() if not op.samples] == []


def test_ai_onnx_is_the_default_domain() -> None:
    assert find("ai.onnx", "Relu") is find("", "Relu") is not None
    assert find("", "NoSuchOperator") is None
