"""Faults that users of fusing compilers reported, as small operators with the right value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_calls import numpy_run

from autofuse.ir.stage import Kind
from autofuse.ops.declare import Unsupported

INF, NAN = np.inf, np.nan


def run(
    op: str, *inputs: Any, opset: int = 21, constant: tuple[int, ...] = (), outputs: int = 1, **attributes: Any
) -> Any:
    """One operator's outputs; lists are float32 tensors."""
    arrays = [np.asarray(x, np.float32) if isinstance(x, (list, float)) else x for x in inputs]
    made, _ = numpy_run(op, "", opset, arrays, attributes, [True] * outputs, constant)
    return made[0] if outputs == 1 else made


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def same(got: np.ndarray, want: Any) -> None:
    np.testing.assert_array_equal(got, np.asarray(want))


# ---- numbers


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_variance_is_computed_in_two_passes(dtype: str) -> None:
    rows = np.array([[40000, 40032, 40064, 40096], [7, 7, 7, 7]], dtype)
    got = run("LayerNormalization", rows, np.ones(4, dtype), np.zeros(4, dtype))
    assert got.dtype == dtype
    np.testing.assert_allclose(got[0].astype(float), [-1.342, -0.447, 0.447, 1.342], atol=2e-3)
    same(got[1], np.zeros(4, dtype))
    exact = run("LayerNormalization", [[40000, 40001, 40002, 40003]], [1, 1, 1, 1], [0, 0, 0, 0])
    np.testing.assert_allclose(exact[0], [-1.342, -0.447, 0.447, 1.342], atol=1e-3)


def test_half_types_accumulate_in_single() -> None:
    ones = np.ones((1, 4096), np.float16)
    same(run("ReduceSum", ones), [[4096]])
    same(run("MatMul", ones, ones.T.copy()), [[4096]])


def test_casts_are_not_folded() -> None:
    as_ints = run("Cast", [1.7, -1.7, 0.5], to=6)
    same(as_ints, np.array([1, -1, 0], np.int32))
    same(run("Cast", as_ints, to=9), [True, True, False])
    same(run("Cast", [0.5], to=9), [True])
    same(run("Cast", run("Cast", [70000.0, 2049.0], to=10), to=1), [INF, 2048])


def test_nan_and_inf_survive_zero() -> None:
    x = [NAN, INF, 2.0]
    same(run("Mul", x, [0.0, 0.0, 0.0]), [NAN, NAN, 0.0])
    same(run("Where", np.array([True, False, False]), [1.0, 1.0, 1.0], x), [1.0, INF, 2.0])


def test_integers_truncate() -> None:
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    same(run("Div", a, b), [3, -3, -3, 3])
    same(run("Mod", a, b), [1, 1, -1, -1])
    same(run("Mod", a, b, fmod=1), [1, -1, 1, -1])
    same(run("Mul", np.array([9], np.int32), run("Div", np.array([1], np.int32), np.array([3], np.int32))), [0])


def test_softmax_flattens_below_opset_13() -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    flat = np.exp(x.reshape(2, 6) - x.reshape(2, 6).max(1, keepdims=True))
    np.testing.assert_allclose(
        run("Softmax", x, opset=11), (flat / flat.sum(1, keepdims=True)).reshape(x.shape), rtol=1e-6
    )
    last = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(run("Softmax", x), last / last.sum(-1, keepdims=True), rtol=1e-6)


def test_the_two_gelus_differ() -> None:
    erf, tanh = run("Gelu", [2.0]), run("Gelu", [2.0], approximate="tanh")
    np.testing.assert_allclose([erf[0], tanh[0]], [1.9544997, 1.9545977], rtol=1e-6)


@pytest.mark.parametrize("x", [[NAN, 1.0], [1.0, NAN]])
def test_nan_is_kept(x: list[float]) -> None:
    assert np.isnan(run("Relu", x)).sum() == 1
    assert np.isnan(run("ReduceMax", x)).all()
    assert np.isnan(run("ReduceMin", x)).all()
    assert np.isnan(run("Max", x, x[::-1])).all()
    assert np.isnan(run("Min", x, x[::-1])).all()
    assert np.isnan(run("Clip", x, np.float32(0), np.float32(1), constant=(1, 2))).sum() == 1
    assert np.isnan(run("MaxPool", [[x]], kernel_shape=[2])).all()


# ---- reductions and shapes


def test_noop_reductions_still_apply_their_function() -> None:
    x = [-3.0, 2.0]
    none = ints()
    same(run("ReduceSumSquare", x, none, constant=(1,), noop_with_empty_axes=1), [9, 4])
    same(run("ReduceL1", x, none, constant=(1,), noop_with_empty_axes=1), [3, 2])
    same(run("ReduceSum", x, none, constant=(1,), noop_with_empty_axes=0, keepdims=0), -1)


def test_empty_axes_give_the_identity() -> None:
    nothing = np.zeros((2, 0), np.float32)
    one = ints(1)
    same(run("ReduceSum", nothing, one, constant=(1,)), [[0], [0]])
    same(run("ReduceProd", nothing, one, constant=(1,)), [[1], [1]])
    same(run("ReduceMax", nothing, one, constant=(1,)), [[-INF], [-INF]])
    same(run("ReduceMin", nothing, one, constant=(1,)), [[INF], [INF]])
    same(run("ReduceLogSumExp", nothing, one, constant=(1,)), [[-INF], [-INF]])
    same(run("MatMul", nothing, np.zeros((0, 3), np.float32)), np.zeros((2, 3)))


def test_log_sum_exp_of_infinities() -> None:
    same(run("ReduceLogSumExp", [[-INF, -INF], [INF, 1.0]], ints(1), constant=(1,)), [[-INF], [INF]])
    np.testing.assert_allclose(run("ReduceLogSumExp", [[1000.0, 1000.0]]), [[1000 + np.log(2)]], rtol=1e-6)


def test_negative_indices_and_steps() -> None:
    x = np.arange(5, dtype=np.float32)
    same(run("Gather", x, ints(-1, 0, -5)), [4, 0, 0])
    same(run("Gather", x, ints(-1, 0, -5), constant=(1,)), [4, 0, 0])
    same(run("Slice", x, ints(-1), ints(-99), ints(0), ints(-2), constant=(1, 2, 3, 4)), [4, 2, 0])
    assert run("Slice", x, ints(3), ints(1), constant=(1, 2)).shape == (0,)
    with pytest.raises(Unsupported):
        run("Gather", x, ints(5), constant=(1,))


def test_allowzero() -> None:
    x = np.zeros((0, 3), np.float32)
    assert run("Reshape", x, ints(3, 0), constant=(1,), allowzero=1).shape == (3, 0)
    assert run("Reshape", np.zeros((2, 3), np.float32), ints(0, 3, 1), constant=(1,)).shape == (2, 3, 1)


# ---- windows


def test_negative_pads_crop() -> None:
    x = np.arange(5, dtype=np.float32)
    same(run("Pad", x, ints(-1, -2), constant=(1,)), [1, 2])
    same(run("Pad", x, ints(-1, 1), np.float32(9), constant=(1,)), [1, 2, 3, 4, 9])


def test_pools_pad_with_their_own_identity() -> None:
    x = [[[-5.0, -3.0, -4.0]]]
    same(run("MaxPool", x, kernel_shape=[3], pads=[1, 1]), [[[-3, -3, -3]]])
    same(run("AveragePool", x, kernel_shape=[3], pads=[1, 1], count_include_pad=0), [[[-4, -4, -3.5]]])
    padded = run("AveragePool", x, kernel_shape=[3], pads=[1, 1], count_include_pad=1)
    np.testing.assert_allclose(padded, [[[-8 / 3, -4, -7 / 3]]], rtol=1e-6)
    small = np.array([[[-128, -128]]], np.int8)
    same(run("MaxPool", small, kernel_shape=[3], pads=[1, 1]), small)


@pytest.mark.parametrize("opset", [10, 12, 19, 22])
def test_no_window_starts_in_the_end_padding(opset: int) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    same(run("MaxPool", x, kernel_shape=[1], strides=[2], ceil_mode=1, opset=opset), [[[0, 2]]])
    got = run("AveragePool", x[..., :3], kernel_shape=[2], strides=[2], ceil_mode=1, opset=opset)
    same(got, [[[0.5, 2]]])


def test_same_lower_with_dilation() -> None:
    x = np.arange(1, 8, dtype=np.float32).reshape(1, 1, 7)
    got = run("Conv", x, [[[1.0, 10.0]]], auto_pad="SAME_LOWER", dilations=[3])
    padded = np.pad(x[0, 0], (2, 1))
    same(got, [[padded[:7] + 10 * padded[3:]]])


def test_dilated_pooling_indices() -> None:
    x = np.array([[[1, 9, 2, 8, 3]]], np.float32)
    best, where = run("MaxPool", x, kernel_shape=[2], dilations=[2], outputs=2)
    same(best, [[[2, 9, 3]]])
    same(where, [[[2, 1, 4]]])


def test_transposed_convolution_output_padding() -> None:
    x, w = [[[1.0, 2.0]]], [[[1.0, 1.0, 1.0]]]
    same(run("ConvTranspose", x, w, strides=[2], output_padding=[1]), [[[1, 1, 3, 2, 2, 0]]])
    assert run("ConvTranspose", x, w, strides=[2], auto_pad="SAME_UPPER").shape == (1, 1, 4)
    assert run("ConvTranspose", x, w, strides=[2], auto_pad="SAME_LOWER").shape == (1, 1, 4)


def test_resize_ties() -> None:
    x = np.array([[[1, 2, 3, 4]]], np.float32)
    half = np.array([1, 1, 0.5], np.float32)
    same(run("Resize", x, None, half, constant=(2,), nearest_mode="round_prefer_floor"), [[[1, 3]]])
    same(run("Resize", x, None, half, constant=(2,), nearest_mode="round_prefer_ceil"), [[[2, 4]]])


def test_doubling_is_a_quotient() -> None:
    x = np.zeros((1, 1, 4, 6), np.float32)
    scales = np.array([1, 1, 2, 2], np.float32)
    _, b = numpy_run(
        "Resize",
        "",
        21,
        [x, None, scales],
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        [True],
        (2,),
    )
    assert (
        b.nodes[-1].stage.text() == "map[i0<1, i1<1, i2<8, i3<12]:float32 0[i0, i1, floor_div(i2, 2), floor_div(i3, 2)]"
    )


# ---- forms that fusion relies on


def kinds(op: str, *inputs: np.ndarray, constant: tuple[int, ...] = (), **attributes: Any) -> list[Kind]:
    _, b = numpy_run(op, "", 21, inputs, attributes, [True], constant)
    return [n.kind for n in b.nodes]


def image(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_convolutions_are_contractions() -> None:
    assert kinds("Conv", image(1, 4, 5, 5), image(6, 2, 3, 3), image(6), group=2) == [Kind.CONTRACT, Kind.MAP]
    assert kinds("Conv", image(1, 4, 5, 5), image(4, 1, 3, 3), group=4, pads=[1] * 4) == [Kind.CONTRACT]
    assert kinds("ConvTranspose", image(1, 4, 5, 5), image(4, 2, 3, 3), strides=[2, 2]) == [Kind.CONTRACT]
    assert kinds("Gemm", image(2, 3), image(4, 3), image(4), transB=1) == [Kind.CONTRACT, Kind.MAP]
    assert kinds("Einsum", image(2, 3, 4), image(2, 4, 5), equation="bij,bjk->bik") == [Kind.CONTRACT]
    assert kinds("MatMulInteger", np.ones((2, 3), np.uint8), np.ones((3, 2), np.int8)) == [Kind.CONTRACT]


def test_normalisations_are_reductions_and_maps() -> None:
    assert kinds("Softmax", image(2, 3)) == [Kind.REDUCE, Kind.MAP, Kind.REDUCE, Kind.MAP]
    layer = kinds("LayerNormalization", image(2, 3), image(3), image(3))
    assert layer == [Kind.REDUCE, Kind.MAP, Kind.MAP, Kind.REDUCE, Kind.MAP, Kind.MAP]
    assert Kind.CONTRACT not in kinds("ReduceSumSquare", image(2, 3))


def test_moves_keep_affine_indices() -> None:
    _, b = numpy_run("Unsqueeze", "", 21, [image(3, 4), ints(1)], {}, [True], (1,))
    assert b.nodes[-1].stage.text() == "map[i0<3, i1<1, i2<4]:float32 0[i0, i2]"
    _, b = numpy_run("Split", "", 21, [image(6, 2)], {"axis": 0}, [False, True], ())
    assert [n.stage.text() for n in b.nodes] == [
        "map[i0<3, i1<2]:float32 0[i0 + 3, i1]".replace("i0 + 3", "add(i0, 3)")
    ]


def test_an_assignment_to_a_slice_is_a_map() -> None:
    """Exporters write it as ScatterND at known places: a box of them needs neither a kernel of its own nor a table."""
    rows, columns = np.meshgrid([2, 3], [4, 5, 6], indexing="ij")
    x, new, at = image(6, 8), image(2, 3), np.stack([rows, columns], -1).astype(np.int64)
    made, b = numpy_run("ScatterND", "", 18, [x, at, new], {}, [True], (1,))
    expected = x.copy()
    expected[2:4, 4:7] = new
    same(made[0], expected)
    assert [n.kind for n in b.nodes] == [Kind.MAP] and len(b.nodes[0].inputs) == 2


def test_many_concatenated_inputs_stay_shallow() -> None:
    parts = [np.full((1, 2), k, np.float32) for k in range(300)]
    made, b = numpy_run("Concat", "", 21, parts, {"axis": 0}, [True], ())
    same(made[0], np.concatenate(parts))
    assert b.nodes[-1].stage.text()


def test_old_batch_norm_gives_running_and_own_statistics() -> None:
    """Below opset 14 more than one output means training, and the last two are the batch's own."""
    x, (scale, bias, mean) = image(4, 3, 5), (image(3), image(3), image(3))
    variance = np.abs(image(3)) + 1
    y, running, spread, own, own_spread = run(
        "BatchNormalization", x, scale, bias, mean, variance, opset=9, outputs=5, momentum=0.75
    )
    m, v = x.mean((0, 2)), x.var((0, 2))
    for got, want in (
        (running, 0.75 * mean + 0.25 * m),
        (spread, 0.75 * variance + 0.25 * v),
        (own, m),
        (own_spread, v),
    ):
        np.testing.assert_allclose(got, want, 1e-5, 1e-6)
    side = (slice(None), None)
    want = (x - m[side]) / np.sqrt(v[side] + 1e-5) * scale[side] + bias[side]
    np.testing.assert_allclose(y, want, 1e-4, 1e-5)


def test_refusals() -> None:
    x = image(2, 3, 4)
    four = [image(3)] * 4
    with pytest.raises(Unsupported, match="each position"):
        run("BatchNormalization", x, *four, spatial=0)
    with pytest.raises(Unsupported, match="training"):
        run("Dropout", x, np.float32(0.5), np.array(True), constant=(1, 2))
    with pytest.raises(Unsupported, match="not a constant"):
        run("Reshape", x, ints(-1))
    data, mask = run("Dropout", x, outputs=2)
    same(data, x)
    assert mask.dtype == bool and mask.all()


def test_gemm_addends() -> None:
    eye = np.eye(3, dtype=np.float32)
    column, row = [[1.0], [2.0], [3.0]], [1.0, 2.0, 3.0]
    same(run("Gemm", eye, eye, column), eye + np.array([[1], [2], [3]]))
    same(run("Gemm", eye, eye, row), eye + np.array([1, 2, 3]))
