"""Inputs in the operators' domains, float64 references, and what counts as wrong."""

from __future__ import annotations

import numpy as np
import pytest
from measure_regions import F32, argmax, build, gather, matmul, mlp, program, rounded, softmax, unary
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info
from onnx.numpy_helper import from_array

from autofuse.importer.importing import import_model
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const
from autofuse.measure import arrays
from autofuse.measure.inputs import Range, draw, generator_of, graph_inputs, program_inputs, ranges_of_program
from autofuse.measure.oracle import compare_model, graph_flops, whole_reference
from autofuse.measure.reference import Tolerance, compare_outputs, reference_outputs, special_inputs

DEFAULT = Tolerance()


def test_inputs_are_the_same_everywhere_and_differ_between_inputs() -> None:
    p = program(mlp())
    a, b = program_inputs(p), program_inputs(p)
    assert all((x == y).all() for x, y in zip(a, b, strict=True))
    assert len({x.tobytes() for x in a}) == len(a)
    assert any((x != y).any() for x, y in zip(a, program_inputs(p, seed=1), strict=True))


@pytest.mark.parametrize(
    ("fn", "low", "high"),
    [("log", 0, np.inf), ("sqrt", 0, np.inf), ("acosh", 1, np.inf), ("asin", -1, 1), ("atanh", -1, 1)],
)
def test_arguments_lie_in_the_domain(fn: str, low: float, high: float) -> None:
    p = program(unary(fn))
    (x,) = program_inputs(p)
    assert (x >= low).all() and (x <= high).all()
    assert np.isfinite(reference_outputs(p, [x])[0]).all()
    assert x.std() > 0.1


def test_domains_are_followed_through_several_stages() -> None:
    graph = build(
        lambda b: [
            b.elementwise(
                [b.elementwise([b.input("v", F32, (64,))], lambda x: call("add", x, const(1e-5, F32)))],
                lambda x: call("sqrt", x),
            )
        ]
    )
    assert (graph_inputs(graph)["v"] > 0).all()
    assert (program_inputs(program(graph))[0] > 0).all()


def test_an_index_stays_in_bounds() -> None:
    p = program(gather())
    (where,) = [k for k, t in enumerate(p.inputs) if t.dtype is DType.INT64]
    assert ranges_of_program(p)[where] == Range(0, 4, True)
    index = program_inputs(p)[where]
    assert index.min() >= 0 and index.max() <= 4 and len(set(index.tolist())) > 1
    assert graph_inputs(gather())["index"].max() <= 4


def test_constants_of_the_model_are_used_unless_they_hide_mistakes() -> None:
    p = program(build(lambda b: [matmul(b, b.input("x", F32, (2, 3)), b.constant(np.ones((3, 4), np.float32)))]))
    varied = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert (program_inputs(p, {1: varied})[1] == varied).all()
    told_apart = program_inputs(p, {1: np.full((3, 4), 0.02, np.float32)})[1]
    assert len(np.unique(told_apart)) == 12 and 0.01 <= told_apart.min() <= told_apart.max() <= 0.03


def test_the_reference_is_float64_from_end_to_end() -> None:
    p = program(softmax())
    (x,) = program_inputs(p)
    wanted = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    wanted /= wanted.sum(1, keepdims=True)
    (got,) = reference_outputs(p, [x])
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_what_is_within_the_tolerance_passes_and_what_is_not_is_placed() -> None:
    p = program(unary("tanh"))
    inputs = program_inputs(p)
    (ref,) = reference_outputs(p, inputs)
    good = (ref + 5e-4 * np.abs(ref).max()).astype(np.float32)
    check = compare_outputs(p, inputs, [good], [ref], DEFAULT)
    assert check.ok and 1e-4 < check.error < 1e-3
    bad = ref.astype(np.float32)
    bad[3, 5] += 0.01
    check = compare_outputs(p, inputs, [bad], [ref], DEFAULT)
    assert not check.ok and "1 of 128" in check.reason and "[3, 5]" in check.reason
    assert compare_outputs(p, inputs, [bad], [ref], Tolerance(relative=0.1)).ok


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_element_that_was_not_written_is_wrong(value: float) -> None:
    p = program(unary("tanh"))
    inputs = program_inputs(p)
    (ref,) = reference_outputs(p, inputs)
    got = ref.astype(np.float32)
    got[-1, -1] = value
    assert not compare_outputs(p, inputs, [got], [ref], DEFAULT).ok


def test_nan_and_infinities_must_stand_where_they_belong() -> None:
    p = program(unary("neg"))
    planted = special_inputs(p, program_inputs(p))
    assert planted is not None and np.isnan(planted[0]).sum() == 1 and np.isinf(planted[0]).sum() == 2
    wanted = reference_outputs(p, planted)
    right = [w.astype(np.float32) for w in wanted]
    assert compare_outputs(p, planted, right, wanted, DEFAULT, special=True).ok
    assert not compare_outputs(p, planted, [np.nan_to_num(right[0])], wanted, DEFAULT, special=True).ok
    assert not compare_outputs(p, planted, [-right[0]], wanted, DEFAULT, special=True).ok


def test_what_overflows_the_stored_type_is_infinite() -> None:
    graph = build(
        lambda b: [b.elementwise([b.input("x", DType.FLOAT16, (4,))], lambda x: call("mul", x, x), DType.FLOAT16)]
    )
    p = program(graph)
    x = np.asarray([300, -300, 1, 2], np.float16)
    ref = reference_outputs(p, [x])
    assert compare_outputs(p, [x], [np.asarray([np.inf, np.inf, 1, 4], np.float16)], ref, DEFAULT).ok
    assert not compare_outputs(p, [x], [np.asarray([65504, np.inf, 1, 4], np.float16)], ref, DEFAULT).ok


@pytest.mark.parametrize(("dtype", "relative"), [(DType.FLOAT16, 5e-3), (DType.BFLOAT16, 2e-2)])
def test_half_types_have_wider_tolerances(dtype: DType, relative: float) -> None:
    p = program(unary("tanh", dtype=dtype))
    inputs = program_inputs(p)
    (ref,) = reference_outputs(p, inputs)
    got = (ref * (1 + relative)).astype(dtype.numpy)
    assert compare_outputs(p, inputs, [got], [ref], DEFAULT).ok
    assert not compare_outputs(p, inputs, [(ref * (1 + 6 * relative)).astype(dtype.numpy)], [ref], DEFAULT).ok


def test_arg_max_may_differ_only_near_a_tie() -> None:
    p = program(argmax())
    (x,) = program_inputs(p)
    x[0, 7], x[0, 9] = 9.0, 9.0 - 1e-4
    (ref,) = reference_outputs(p, [x])
    assert ref[0] == 7
    near, far = ref.copy(), ref.copy()
    near[0], far[0] = 9, 10
    assert compare_outputs(p, [x], [near], [ref], DEFAULT).ok
    assert not compare_outputs(p, [x], [far], [ref], DEFAULT).ok
    out_of_range = ref.copy()
    out_of_range[0] = 50
    assert not compare_outputs(p, [x], [out_of_range], [ref], DEFAULT).ok


def test_a_cast_to_integer_may_differ_only_at_an_edge() -> None:
    p = program(rounded())
    (x,) = program_inputs(p)
    x[0], x[1] = 1.0 + 1e-6, 1.16
    (ref,) = reference_outputs(p, [x])
    assert ref[0] == ref[1] == 3
    near, far = ref.copy(), ref.copy()
    near[0], far[1] = 2, 2
    assert compare_outputs(p, [x], [near], [ref], DEFAULT).ok
    assert not compare_outputs(p, [x], [far], [ref], DEFAULT).ok


def test_a_narrow_float_may_differ_only_at_an_edge() -> None:
    """The reference rounds where the model does, so that a neighbour is right near the middle of two alone."""
    kind = DType.FLOAT8E4M3FN
    p = program(
        build(lambda b: [b.elementwise([b.input("x", DType.FLOAT32, (4,))], lambda x: call("mul", x, x), kind)])
    )
    x = np.sqrt(np.asarray([1.0625 + 1e-6, 1.09, 9.0, 1e4], np.float32))
    (ref,) = reference_outputs(p, [x])
    assert ref.dtype == np.float64 and ref[:3].tolist() == [1.125, 1.125, 9.0] and np.isnan(ref[3])
    right = ref.astype(kind.numpy)
    assert compare_outputs(p, [x], [right], [ref], DEFAULT).ok
    for k, value, fine in ((0, 1.0, True), (1, 1.0, False), (2, 10.0, False), (3, 448.0, False)):
        other = right.copy()
        other[k] = value
        assert compare_outputs(p, [x], [other], [ref], DEFAULT).ok == fine, k


@pytest.mark.parametrize("kind", [DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("rest", [False, True])
def test_a_cast_of_the_model_rounds_in_the_reference_too(kind: DType, rest: bool) -> None:
    """What a half type cuts off is a number that models compute with: x in two halves, say."""

    def body(x: Expr) -> Expr:
        h = cast_to(cast_to(x, kind), DType.FLOAT32)
        return call("sub", x, h) if rest else h

    p = program(build(lambda b: [b.elementwise([b.input("x", DType.FLOAT32, (1000,))], body)]))
    (x,) = program_inputs(p)
    (ref,) = reference_outputs(p, [x])
    h = x.astype(kind.numpy).astype(np.float32)
    got = x - h if rest else h
    np.testing.assert_array_equal(got, ref)
    assert compare_outputs(p, [x], [got], [ref], DEFAULT).ok
    assert not compare_outputs(p, [x], [np.zeros_like(got) if rest else got * 1.1], [ref], DEFAULT).ok


def test_integers_of_integers_are_exact() -> None:
    p = program(unary("neg", dtype=DType.INT32))
    inputs = program_inputs(p)
    ref = reference_outputs(p, inputs)
    off = [ref[0] + 1]
    assert compare_outputs(p, inputs, ref, ref, DEFAULT).ok
    assert not compare_outputs(p, inputs, off, ref, DEFAULT).ok


def test_a_wrong_shape_is_wrong() -> None:
    p = program(unary("tanh"))
    inputs = program_inputs(p)
    ref = reference_outputs(p, inputs)
    assert "shape" in compare_outputs(p, inputs, [ref[0].T], ref, DEFAULT).reason


def test_whole_models_are_compared_by_name() -> None:
    graph = mlp()
    inputs = graph_inputs(graph)
    wanted = whole_reference(graph, inputs)
    assert list(wanted) == ["y0"] and graph_flops(graph) > 2 * 8 * 32 * 64
    right = {"y0": wanted["y0"].astype(np.float32)}
    assert compare_model(graph, right, wanted, DEFAULT).ok
    wrong = {"y0": right["y0"] * 1.1}
    check = compare_model(graph, wrong, wanted, DEFAULT)
    assert not check.ok and "'y0'" in check.reason


def test_quantised_outputs_of_a_model_may_be_a_step_apart() -> None:
    made = make_graph(
        [make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])],
        "quantised",
        [make_tensor_value_info("x", TensorProto.FLOAT, [64])],
        [make_tensor_value_info("y", TensorProto.UINT8, [64])],
        [from_array(np.array(0.5, np.float32), "scale"), from_array(np.array(3, np.uint8), "zero")],
    )
    graph = import_model(make_model(made))
    wanted = {"y": np.arange(10, 74).astype(np.uint8)}
    assert compare_model(graph, {"y": wanted["y"] + np.uint8(1)}, wanted, DEFAULT).ok
    assert not compare_model(graph, {"y": wanted["y"] + np.uint8(2)}, wanted, DEFAULT).ok


@pytest.mark.parametrize("dtype", [t for t in DType if t is not DType.STRING])
def test_arrays_of_every_type_survive_the_way_to_the_worker(dtype: DType, tmp_path: object) -> None:
    a = draw(dtype, (3, 4), Range(0, 3), generator_of(dtype))
    path = f"{tmp_path}/a.npz"
    arrays.save(path, {"file": a, "a/b": a[0]})
    back = arrays.load(path)
    assert back["file"].dtype == a.dtype and (back["file"] == a).all() and (back["a/b"] == a[0]).all()


def test_texts_survive_too(tmp_path: object) -> None:
    path = f"{tmp_path}/a.npz"
    arrays.save(path, {"s": np.asarray(["x", "yy"], object)})
    assert arrays.load(path)["s"].tolist() == ["x", "yy"]
