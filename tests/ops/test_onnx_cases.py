"""ONNX's own node cases: every one whose operator has a declaration passes, or is refused by it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from op_calls import attribute_value, close, numpy_run

from autofuse.ops.declare import Unsupported
from autofuse.ops.table import find

EXCEPTIONS: dict[str, str] = {
    "test_bernoulli_seed": "it wants the very bits of numpy's generator",
}
"""Cases that are known to differ, and why."""

PARAMETERS: dict[str, tuple[int, ...]] = {
    "Clip": (),
    "Dropout": (1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "OneHot": (1,),
    "Range": (0, 1, 2),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "CumProd": (1,),
    "TopK": (1,),
    "MaxUnpool": (2,),
    "Trilu": (1,),
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "DFT": (1, 2),
    "STFT": (1, 3),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "HannWindow": (0,),
    "HammingWindow": (0,),
    "BlackmanWindow": (0,),
}
"""Inputs that are parameters; a model has them as initializers, the cases feed them."""

for _name in ("Reshape", "Squeeze", "Unsqueeze", "Expand", "Tile", "Split"):
    PARAMETERS[_name] = (1,)


def parameters(op: str) -> tuple[int, ...]:
    """The positions of an operator's inputs that are taken as constants here."""
    return (1,) if op.startswith("Reduce") else PARAMETERS.get(op, ())


def _cases() -> dict[str, Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        every = load_model_tests(kind="node")
    found = {}
    for case in every:
        nodes, functions = case.model.graph.node, case.model.functions
        if len(nodes) == 1 and not functions and find(nodes[0].domain, nodes[0].op_type) is not None:
            found[case.name] = case
    return found


CASES = _cases()


def _array(x: Any) -> np.ndarray:
    if isinstance(x, onnx.TensorProto):
        x = numpy_helper.to_array(x)
    if not isinstance(x, (np.ndarray, np.generic)):
        raise Unsupported(f"data of type {type(x).__name__}")
    return np.asarray(x)


def _run(case: Any) -> None:
    model = case.model
    node = model.graph.node[0]
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    for given, want in case.data_sets:
        fed = dict(zip([v.name for v in model.graph.input], given, strict=True))
        expected = dict(zip([v.name for v in model.graph.output], want, strict=True))
        inputs = [_array(fed[n]) if n else None for n in node.input]
        got, _ = numpy_run(
            node.op_type,
            "" if node.domain == "ai.onnx" else node.domain,
            opset,
            inputs,
            {a.name: attribute_value(a) for a in node.attribute},
            [bool(o) for o in node.output],
            [k for k in parameters(node.op_type) if k < len(inputs)],
        )
        for o, y in zip(node.output, got, strict=False):
            if o:
                assert y is not None
                tolerances = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-4, "float64": 1e-6}
                close(y, _array(expected[o]), tolerances.get(str(y.dtype)))


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    if name in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[name])
    try:
        _run(CASES[name])
    except Unsupported as refused:
        pytest.skip(str(refused))


def test_most_cases_run() -> None:
    """The table covers the great part of the cases."""
    assert len(CASES) > 700
