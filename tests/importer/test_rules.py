"""Every rule: a case where it applies and a case that it refuses; the numbers stay the same in both."""

from __future__ import annotations

import numpy as np
import pytest
from importer_models import I64, check, info, kinds, model, node, noted, ops, random
from onnx import TensorProto

from autofuse.importer.importing import import_model
from autofuse.importer.reference import run_reference
from autofuse.importer.rules import RULES
from autofuse.importer.rules.base import view_of
from autofuse.ir.stage import Kind

BN = ["scale", "shift", "mean", "variance"]


def statistics(channels: int, seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {n: rng.standard_normal(channels).astype(np.float32) for n in BN}
    made["variance"] = np.abs(made["variance"]) + 0.5
    return made


def conv_bn(*more: object, outputs: tuple[str, ...] = ("y",), groups: int = 1, bias: bool = True):
    nodes = [
        node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["c"], pads=[1, 1, 1, 1], group=groups),
        node("BatchNormalization", ["c", *BN], ["y"]),
        *more,
    ]
    constants = {"w": random(4, 4 // groups, 3, 3), "b": random(4, seed=2), **statistics(4)}
    return model(nodes, {"x": (2, 4, 5, 6)}, outputs, constants)


def test_rules_are_listed() -> None:
    assert next(iter(RULES)) == "fold constants"


# ---- constant folding


def test_fold_constants_integer_weights() -> None:
    """int8 weights through Cast and Mul become float weights."""
    nodes = [
        node("Cast", ["q"], ["f"], to=1),
        node("Mul", ["f", "s"], ["w"]),
        node("MatMul", ["x", "w"]),
    ]
    q = np.random.default_rng(0).integers(-128, 127, (6, 5)).astype(np.int8)
    graph = check(model(nodes, {"x": (3, 6)}, ["y"], {"q": q, "s": np.float32(0.02)}))
    assert kinds(graph) == [Kind.CONTRACT]


def test_fold_constants_keeps_what_is_fed_and_what_is_large() -> None:
    nodes = [node("Expand", ["one", "shape"], ["big"]), node("Add", ["x", "big"])]
    constants = {"one": np.float32([[1.5]]), "shape": np.array([3000, 3000])}
    graph = import_model(model(nodes, {"x": (1, 1)}, ["y"], constants))
    assert len(graph.nodes) == 2
    assert sum(a.nbytes for a in graph.constants.values()) < 100
    assert noted(graph, "fold constants", "too large")


def test_random_is_not_folded() -> None:
    m = model([node("RandomNormal", [], ["r"], shape=[2, 3]), node("Add", ["x", "r"])], {"x": (2, 3)}, ["y"])
    assert Kind.HOST in kinds(import_model(m))


# ---- literals


def test_scalar_literals_and_powers() -> None:
    nodes = [node("Pow", ["x", "two"], ["p"]), node("Mul", ["p", "half"])]
    graph = check(model(nodes, {"x": (3, 4)}, ["y"], {"two": np.float32(2), "half": np.float32(0.5)}))
    assert all(len(n.inputs) == 1 for n in graph.nodes)
    assert "pow" not in graph.nodes[0].stage.text()


def test_scalar_literals_refuse_learned_values() -> None:
    graph = check(model([node("Mul", ["x", "s"])], {"x": (3, 4)}, ["y"], {"s": np.float32([0.5])}))
    assert len(graph.nodes[0].inputs) == 2


# ---- identity


def test_identity_removed_and_outputs_keep_their_names() -> None:
    nodes = [
        node("Identity", ["x"], ["copy"]),
        node("Relu", ["copy"], ["r"]),
        node("Reshape", ["r", "same"], ["out"]),
        node("Transpose", ["out"], ["y"], perm=[0, 1]),
    ]
    m = model(nodes, {"x": (2, 3)}, ["copy", "out", "y"], {"same": np.array([2, 3])})
    graph = check(m)
    assert ops(graph) == ["Relu"]
    assert graph.outputs[0] == graph.inputs[0]
    assert graph.outputs[1] == graph.outputs[2]


def test_identity_refuses_changes_of_type_and_order() -> None:
    nodes = [
        node("Cast", ["x"], ["i"], to=I64),
        node("Cast", ["i"], ["f"], to=1),
        node("Transpose", ["f"], ["y"], perm=[1, 0]),
    ]
    graph = check(model(nodes, {"x": (3, 3)}, ["y"]))
    assert len(graph.nodes) == 3


# ---- affine folding


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_batchnorm_folds_into_convolution(groups: int, bias: bool) -> None:
    graph = check(conv_bn(groups=groups, bias=bias))
    assert kinds(graph) == [Kind.CONTRACT, Kind.MAP]


def test_chains_of_every_form_fold() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Sub", ["k1", "a"], ["b"]),
        node("Mul", ["b", "k2"], ["c"]),
        node("Neg", ["c"], ["d"]),
        node("Div", ["d", "k3"], ["e"]),
        node("Sub", ["e", "k4"], ["f"]),
        node("Add", ["k1", "f"], ["g"]),
        node("Relu", ["g"]),
    ]
    constants = {"w": random(6, 5), **{f"k{k}": random(5, seed=k) + 3 for k in range(1, 5)}}
    graph = check(model(nodes, {"x": (2, 3, 6)}, ["y"], constants))
    assert kinds(graph) == [Kind.CONTRACT, Kind.MAP, Kind.MAP]


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_with_alpha_and_beta_folds(transposed: int) -> None:
    nodes = [
        node("Gemm", ["x", "w", "b"], ["g"], transB=transposed, alpha=0.5, beta=2.0),
        node("Mul", ["g", "k"], ["m"]),
        node("Tanh", ["m"]),
    ]
    constants = {"w": random(*((5, 6) if transposed else (6, 5))), "b": random(5), "k": random(1, 5)}
    graph = check(model(nodes, {"x": (3, 6)}, ["y"], constants))
    assert kinds(graph) == [Kind.CONTRACT, Kind.MAP, Kind.MAP]


def test_half_precision_folds_within_its_rounding() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", *BN], ["y"])]
    constants = {k: a.astype(np.float16) for k, a in {"w": random(4, 4, 1, 1), **statistics(4)}.items()}
    m = model(nodes, [info("x", (1, 4, 5, 5), TensorProto.FLOAT16)], ["y"], constants)
    folded, plain = import_model(m), import_model(m, simplify=False)
    assert kinds(folded) == [Kind.CONTRACT, Kind.MAP]
    given = {"x": random(1, 4, 5, 5).astype(np.float16)}
    mine, exact = run_reference(folded, given)[0], run_reference(plain, given, wide=True)[0]
    assert mine.dtype == np.float16
    np.testing.assert_allclose(mine.astype(np.float64), exact, atol=1e-2 * np.abs(exact).max())


def test_weight_on_the_left_folds() -> None:
    nodes = [node("MatMul", ["w", "x"], ["c"]), node("Mul", ["c", "k"], ["d"]), node("Add", ["d", "l"])]
    constants = {"w": random(5, 6), "k": random(5, 1), "l": random(5, 1, seed=4)}
    graph = check(model(nodes, {"x": (6, 3)}, ["y"], constants))
    assert kinds(graph) == [Kind.CONTRACT, Kind.MAP]


def test_integer_contractions_stay() -> None:
    nodes = [
        node("MatMulInteger", ["x", "w"], ["c"]),
        node("Cast", ["c"], ["f"], to=1),
        node("Mul", ["f", "k"]),
    ]
    constants = {"w": np.arange(12, dtype=np.int8).reshape(4, 3), "k": random(3)}
    m = model(nodes, [info("x", (2, 4), TensorProto.INT8)], ["y"], constants)
    check(m, given={"x": np.arange(8, dtype=np.int8).reshape(2, 4)})


def test_shared_weight_is_copied() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c1"]),
        node("BatchNormalization", ["c1", *BN], ["y1"]),
        node("Conv", ["z", "w"], ["y2"]),
    ]
    constants = {"w": random(4, 4, 3, 3), **statistics(4)}
    m = model(nodes, {"x": (1, 4, 5, 5), "z": (1, 4, 5, 5)}, ["y1", "y2"], constants)
    graph = check(m)
    first, second = (n for n in graph.nodes if n.kind is Kind.CONTRACT)
    assert first.inputs[1] != second.inputs[1]


@pytest.mark.parametrize("outputs", [("y", "c"), ("y", "r")])
def test_affine_refuses_a_result_with_other_uses(outputs: tuple[str, ...]) -> None:
    graph = check(conv_bn(node("Relu", ["c"], ["r"]), outputs=outputs, bias=False))
    assert noted(graph, "fold affine", "refused", "unscaled result")


def test_affine_refuses_other_axes() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "k"])]
    graph = check(model(nodes, {"x": (1, 2, 4, 4)}, ["y"], {"w": random(3, 2, 1, 1), "k": random(4)}))
    assert noted(graph, "fold affine", "other axes")
    assert len(graph.nodes) == 2


def test_affine_refuses_a_scale_that_is_fed() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "k"])]
    graph = check(model(nodes, {"x": (1, 2, 4, 4), "k": (3, 1, 1)}, ["y"], {"w": random(3, 2, 1, 1)}))
    assert len(graph.nodes) == 2


def test_affine_refuses_overflow() -> None:
    nodes = [node("MatMul", ["x", "w"], ["c"]), node("Mul", ["c", "k"])]
    constants = {"w": np.full((2, 3), 1e30, np.float32), "k": np.full(3, 1e30, np.float32)}
    graph = import_model(model(nodes, {"x": (1, 2)}, ["y"], constants))
    assert noted(graph, "fold affine", "not finite")


def test_group_and_full_size_addend_stay() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], group=2), node("Add", ["c", "z"])]
    graph = check(model(nodes, {"x": (1, 4, 3, 3), "z": (1, 4, 3, 3)}, ["y"], {"w": random(4, 2, 1, 1)}))
    assert kinds(graph) == [Kind.CONTRACT, Kind.MAP]


@pytest.mark.parametrize(("rows", "columns"), [((3, 1), (1, 4)), ((4, 1), (4, 4))])
def test_addends_of_unusual_shapes(rows: tuple[int, int], columns: tuple[int, int]) -> None:
    nodes = [node("MatMul", ["x", "w"], ["c"]), node("Add", ["c", "k"], ["d"]), node("Mul", ["d", "l"])]
    constants = {"w": random(2, 1), "k": random(*columns), "l": random(*columns, seed=4)}
    check(model(nodes, {"x": (rows[0], 2)}, ["y"], constants))


# ---- affine merging


def test_batchnorm_mul_add_merge() -> None:
    nodes = [
        node("BatchNormalization", ["x", *BN], ["a"]),
        node("Mul", ["a", "k"], ["b"]),
        node("Add", ["b", "l"], ["c"]),
        node("Relu", ["c"]),
    ]
    constants = {**statistics(4), "k": random(4, 1, 1), "l": random(4, 1, 1, seed=5)}
    graph = check(model(nodes, {"x": (2, 4, 3, 3)}, ["y"], constants))
    assert len(graph.nodes) == 2


def test_affine_merge_refuses_outputs_and_growth() -> None:
    nodes = [node("Add", ["x", "k"], ["a"]), node("Mul", ["a", "l"])]
    constants = {"k": random(4, 1), "l": random(5)}
    graph = check(model(nodes, {"x": (4, 5)}, ["y"], constants))
    assert len(graph.nodes) == 2 and noted(graph, "merge affine", "larger")
    constants["k"] = random(5)
    graph = check(model(nodes, {"x": (4, 5)}, ["y", "a"], constants))
    assert len(graph.nodes) == 2 and noted(graph, "merge affine", "output")


# ---- views


def test_views_merge_and_cancel() -> None:
    nodes = [
        node("Reshape", ["x", "s1"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3]),
        node("Reshape", ["b", "s2"], ["shuffled"]),
        node("Transpose", ["x"], ["t"], perm=[2, 0, 1]),
        node("Transpose", ["t"], ["back"], perm=[1, 2, 0]),
        node("Relu", ["back"], ["r"]),
    ]
    constants = {"s1": np.array([2, 2, 3, 5]), "s2": np.array([2, 6, 5])}
    graph = check(model(nodes, {"x": (2, 6, 5)}, ["shuffled", "r"], constants))
    assert len(graph.nodes) == 2
    assert view_of(graph.nodes[0]) is not None


def test_views_refuse_padding_of_a_slice() -> None:
    nodes = [
        node("Slice", ["x", "from", "to"], ["a"]),
        node("Pad", ["a", "pads"], ["y"]),
    ]
    constants = {"from": np.array([2]), "to": np.array([5]), "pads": np.array([1, 2])}
    graph = check(model(nodes, {"x": (8,)}, ["y"], constants))
    assert len(graph.nodes) == 2
    assert noted(graph, "merge views", "padding")


def test_slice_of_a_padded_tensor_merges() -> None:
    nodes = [node("Pad", ["x", "pads"], ["a"]), node("Slice", ["a", "from", "to", "axes", "steps"])]
    constants = {
        "pads": np.array([2, -1]),
        "from": np.array([-1]),
        "to": np.array([-100]),
        "axes": np.array([0]),
        "steps": np.array([-2]),
    }
    graph = check(model(nodes, {"x": (6,)}, ["y"], constants))
    assert len(graph.nodes) == 1


# ---- dead code, common subexpressions


def test_dead_code_goes_and_outputs_stay() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Exp", ["a"], ["unused"]),
        node("Mul", ["x", "k"], ["m"]),
        node("Sigmoid", ["m"], ["s"]),
        node("Mul", ["x", "s"]),
    ]
    m = model(nodes, {"x": (3,)}, ["y", "m", "s"], {"k": np.float32(1.702)})
    assert ops(check(m)) == ["Mul", "Sigmoid", "Mul"]


def test_common_subexpressions_merge() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Exp", ["x"], ["b"]),
        node("Relu", ["a"], ["c"]),
        node("Relu", ["b"], ["d"]),
        node("Add", ["c", "d"]),
    ]
    graph = check(model(nodes, {"x": (3,)}, ["y", "c", "d"]))
    assert ops(graph) == ["Exp", "Relu", "Add"]
    assert len(graph.nodes[2].inputs) == 1


def test_common_subexpressions_refuse_hosts() -> None:
    nodes = [
        node("RandomNormal", [], ["a"], shape=[3]),
        node("RandomNormal", [], ["b"], shape=[3]),
        node("Sub", ["a", "b"], ["d"]),
        node("Add", ["d", "x"]),
    ]
    graph = import_model(model(nodes, {"x": (3,)}, ["y"]))
    assert kinds(graph).count(Kind.HOST) == 2
    assert noted(graph, "common subexpressions", "host")


def test_maxpool_relu_add_keeps_both_readers() -> None:
    nodes = [
        node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Relu", ["p"], ["r"]),
        node("Add", ["p", "r"]),
    ]
    check(model(nodes, {"x": (1, 2, 4, 4)}, ["y"]))


def test_inputs_stay_even_if_unread() -> None:
    m = model([node("Relu", ["x"])], [info("x", (2,)), info("unused", (3,))], ["y"])
    assert len(import_model(m).inputs) == 2


# ---- phases of a transposed convolution


@pytest.mark.parametrize(("kernel", "pads", "extra"), [(2, 0, 0), (4, 1, 0), (3, 1, 1)])
def test_split_phases_of_a_transposed_convolution(kernel: int, pads: int, extra: int) -> None:
    """The contraction has an axis for the phase; the numbers stay, also with the scale behind it folded."""
    attributes = {"strides": [2, 2], "pads": [pads] * 4, "output_padding": [extra] * 2}
    nodes = [node("ConvTranspose", ["x", "w", "b"], ["c"], **attributes), node("BatchNormalization", ["c", *BN])]
    constants = {"w": random(6, 4, kernel, kernel), "b": random(4, seed=2), **statistics(4)}
    graph = check(model(nodes, {"x": (2, 6, 5, 7)}, ["y"], constants))
    first = graph.nodes[0].stage
    assert first.shape == (2, 4, 5, 2, 7, 2)
    assert noted(graph, "split phases: applied 1 times")
    assert noted(graph, "fold affine: applied 1 times") == (kernel % 2 == 0)  # else weights are read past their end


def test_split_phases_leaves_odd_lengths_alone() -> None:
    nodes = [node("ConvTranspose", ["x", "w"], strides=[2])]
    graph = check(model(nodes, {"x": (1, 6, 5)}, ["y"], {"w": random(6, 4, 3)}))
    assert graph.nodes[0].stage.shape == (1, 4, 11)
