"""Control flow on the host: against onnxruntime, and all of onnx's own test cases for it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from importer_models import BOOL, I64, check, info, model, node, random
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from autofuse.importer.importing import import_model
from autofuse.importer.reference import run_reference

PREFIXES = (
    "test_if",
    "test_loop",
    "test_scan",
    "test_scatter",
    "test_sequence",
    "test_optional",
    "test_identity",
    "test_string",
    "test_range",
    "test_split_to_sequence",
    "test_reversesequence",
    "test_nonmaxsuppression",
    "test_unique",
    "test_center_crop_pad",
    "test_blackmanwindow",
    "test_swiglu",
    "test_cast_UINT4",
    "test_dequantizelinear",
)


def collect() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [c for c in collect_testcases(None) if c.name.startswith(PREFIXES)]


def array(x: Any) -> Any:
    return numpy_helper.to_array(x) if isinstance(x, TensorProto) else x


@pytest.mark.parametrize("case", collect(), ids=lambda c: c.name)
def test_onnx_case(case: Any) -> None:
    for inputs, outputs in case.data_sets:
        given = dict(zip([i.name for i in case.model.graph.input], map(array, inputs), strict=False))
        dense = {i.name for i in case.model.graph.input if i.type.HasField("tensor_type")}
        shapes = {n: x.shape for n, x in given.items() if n in dense}
        for mine, theirs in zip(run_reference(import_model(case.model, shapes), given), outputs, strict=True):
            compare(mine, array(theirs))


def compare(mine: Any, theirs: Any) -> None:
    if isinstance(mine, list):
        for a, b in zip(mine, theirs if isinstance(theirs, list) else [theirs], strict=True):
            compare(a, b)
    elif theirs is None:
        assert mine is None
    elif theirs.dtype.kind in "OUS":
        assert [str(s) for s in np.asarray(mine).reshape(-1)] == [str(s) for s in theirs.reshape(-1)]
    else:
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        wide = np.float64 if theirs.dtype.kind not in "c" else theirs.dtype
        np.testing.assert_allclose(mine.astype(wide), theirs.astype(wide), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("trips", [0, 3])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_loop_collects_along_a_new_axis(shape: tuple[int, ...], trips: int) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "x"], ["v_out"]),
            helper.make_node("Identity", ["v_out"], ["each"]),
            helper.make_node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [info("i", (), I64), info("go", (), BOOL), info("v", shape)],
        [info("go_out", (), BOOL), info("v_out", shape), info("each", shape)],
    )
    m = model(
        [node("Loop", ["n", "", "x"], ["y", "all"], body=body)], {"x": shape}, ["y", "all"], {"n": np.array(trips)}
    )
    check(m)


def test_scan_backwards_along_other_axes() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["s_out"]), helper.make_node("Mul", ["s_out", "k"], ["o"])],
        "body",
        [info("s", (2,)), info("e", (2,))],
        [info("s_out", (2,)), info("o", (2,))],
    )
    options = {
        "num_scan_inputs": 1,
        "scan_input_axes": [1],
        "scan_input_directions": [1],
        "scan_output_axes": [1],
        "scan_output_directions": [1],
    }
    m = model(
        [node("Scan", ["s0", "x"], ["s", "y"], body=body, **options)],
        {"s0": (2,), "x": (2, 5)},
        ["s", "y"],
        {"k": random(2)},
    )
    check(m)


def test_scatter_by_its_old_name() -> None:
    constants = {"i": np.array([[0, -1, 2]])}
    check(
        model([node("Scatter", ["x", "i", "u"], axis=1)], {"x": (2, 4), "u": (1, 3)}, ["y"], constants, opset=9, ir=4)
    )


@pytest.mark.parametrize(
    ("to", "texts", "expected"),
    [
        ("FLOAT8E4M3FN", ["1.5", "NaN", "-INF", "1e3"], [1.5, np.nan, -448, 448]),
        ("BFLOAT16", ["0.5", "+INF"], [0.5, np.inf]),
        ("INT4", ["7", "-8"], [7, -8]),
        ("FLOAT", ["-1e-3", "inf"], [-1e-3, np.inf]),
        ("INT64", ["12345678901234567", "-1"], [12345678901234567, -1]),
    ],
)
def test_texts_become_numbers_of_every_type(to: str, texts: list[str], expected: list[float]) -> None:
    code = TensorProto.DataType.Value(to)
    dtype = helper.tensor_dtype_to_np_dtype(code)
    text, one = info("x", (len(texts),), TensorProto.STRING), info("like", (1,), code)
    nodes = [node("Cast", ["x"], ["y"], to=code), node("CastLike", ["x", "like"], ["z"])]
    m = model(nodes, [text, one], ["y", "z"], opset=25)
    given = {"x": np.array(texts, object), "like": np.ones(1, np.float32).astype(dtype)}
    want = np.array(expected, np.int64 if to == "INT64" else np.float32).astype(dtype)
    for mine in run_reference(import_model(m), given):
        assert mine.dtype == dtype
        np.testing.assert_array_equal(mine.astype(np.float64), want.astype(np.float64))


def test_choices_without_a_seed() -> None:
    m = model([node("Multinomial", ["x"], ["y"], sample_size=2000)], {"x": (2, 3)}, ["y"])
    p = np.array([[0.1, 0.3, 0.6], [0.5, 0.5, 0.0]])
    given = {"x": (np.log(np.maximum(p, 1e-30)) - 2).astype(np.float32)}
    graph = import_model(m)
    (one,), (other,) = run_reference(graph, given), run_reference(graph, given)
    assert one.dtype == np.int32 and one.shape == (2, 2000)
    assert (one != other).any()
    for row, expected in zip(one, p, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / row.size, expected, atol=0.06)
