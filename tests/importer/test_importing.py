"""How ONNX's ways of writing a model come through: order, names, optional inputs, functions, branches, the host."""

from __future__ import annotations

import numpy as np
import pytest
from importer_models import BOOL, F32, I64, check, feeds, info, kinds, model, node, noted, ops, random
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autofuse.errors import ModelError, ShapeError
from autofuse.importer.importing import import_model
from autofuse.importer.reference import run_reference
from autofuse.ir.dtype import DType
from autofuse.ir.stage import Host, Kind

# ---- files


def test_nodes_out_of_order_with_equal_names() -> None:
    nodes = [
        node("Add", ["b", "c"], name="n"),
        node("Exp", ["a"], ["b"], name="n"),
        node("Neg", ["a"], ["c"], name=""),
        node("Relu", ["x"], ["a"], name="n"),
    ]
    graph = import_model(model(nodes, {"x": (3,)}, ["y"]))
    assert [n.origin for n in graph.nodes] == [3, 1, 2, 0]
    assert [n.label for n in graph.nodes] == ["n", "n", "#2", "n"]
    x = random(3)
    a = np.maximum(x, 0)
    np.testing.assert_allclose(run_reference(graph, {"x": x})[0], np.exp(a) - a, rtol=1e-6)


def test_cycle_undefined_and_doubly_defined_values() -> None:
    with pytest.raises(ModelError, match="cycle"):
        import_model(model([node("Add", ["x", "y"], ["a"]), node("Relu", ["a"])], {"x": (3,)}, ["y"]))
    with pytest.raises(ModelError, match="nowhere"):
        import_model(model([node("Relu", ["nowhere"])], {"x": (3,)}, ["y"]))
    with pytest.raises(ModelError, match="made once"):
        import_model(model([node("Relu", ["x"]), node("Exp", ["x"])], {"x": (3,)}, ["y"]))
    with pytest.raises(ModelError, match="absent"):
        import_model(model([node("Relu", ["x"])], {"x": (3,)}, ["y", "absent"]))


def test_optional_input_left_out_in_the_middle() -> None:
    graph = check(model([node("Clip", ["x", "", "top"])], {"x": (5,)}, ["y"], {"top": np.float32(0.5)}))
    assert kinds(graph) == [Kind.MAP]


def test_initializer_as_output_and_input_as_output() -> None:
    m = model([node("Relu", ["x"])], [info("x", (2,))], ["y", "w", "x", "w"], {"w": random(3)})
    graph = check(m)
    assert graph.outputs[1] == graph.outputs[3]
    assert graph.outputs[1] in graph.constants
    assert graph.outputs[2] == graph.inputs[0]


def test_unused_outputs_and_dead_nodes() -> None:
    nodes = [
        node("Split", ["x"], ["a", "unused"], axis=0),
        node("NonZero", ["x"], ["dead"]),
        node("Relu", ["a"]),
    ]
    graph = check(model(nodes, {"x": (4, 2)}, ["y"]))
    assert Kind.HOST not in kinds(graph)


@pytest.mark.parametrize("ir", [3, 8])
def test_initializers_that_are_inputs(ir: int) -> None:
    m = model([node("Add", ["x", "w"])], {"x": (3,), "w": (3,)}, ["y"], {"w": random(3)}, opset=8, ir=ir)
    graph = import_model(m)
    assert [graph.values[v].name for v in graph.inputs] == ["x"]
    assert noted(graph, "default", "w") == (ir >= 4)


def test_sparse_initializer() -> None:
    m = model([node("Add", ["x", "w"])], {"x": (2, 3)}, ["y"])
    values = numpy_helper.from_array(np.float32([5, 7]), "w")
    indices = numpy_helper.from_array(np.array([1, 5]), "i")
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    check(m)


def test_names_are_kept_for_people() -> None:
    graph = import_model(model([node("Relu", ["x"], ["hidden"]), node("Exp", ["hidden"])], {"x": (2,)}, ["y"]))
    assert [graph.values[n.outputs[0]].name for n in graph.nodes] == ["hidden", "y"]


def test_the_model_is_not_changed() -> None:
    m = model([node("Relu", ["x"], ["a"]), node("Exp", ["a"])], {"x": ("n",)}, ["y"])
    before = m.SerializeToString(deterministic=True)
    import_model(m, {"n": (3,)})
    assert m.SerializeToString(deterministic=True) == before


def test_structure_is_independent_of_names_and_weights() -> None:
    def build(prefix: str, seed: int):
        nodes = [node("MatMul", [f"{prefix}x", f"{prefix}w"], [f"{prefix}a"]), node("Relu", [f"{prefix}a"], ["y"])]
        return import_model(model(nodes, {f"{prefix}x": (2, 3)}, ["y"], {f"{prefix}w": random(3, 4, seed=seed)}))

    assert build("p", 1).structural_hash == build("q", 2).structural_hash
    assert build("p", 1).weights_digest != build("p", 2).weights_digest


# ---- constants


def test_shape_arithmetic_folds() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "first"], ["n"]),
        node("Unsqueeze", ["n", "axis"], ["n1"]),
        node("Concat", ["n1", "rest"], ["t"], axis=0),
        node("Reshape", ["x", "t"]),
    ]
    constants = {"first": np.array(0), "axis": np.array([0]), "rest": np.array([-1])}
    graph = check(model(nodes, {"x": (2, 3, 4)}, ["y"], constants))
    assert len(graph.nodes) == 1


def test_nonzero_of_a_constant_folds_and_gives_a_shape() -> None:
    nodes = [node("NonZero", ["k"], ["i"]), node("Transpose", ["i"], ["t"]), node("GatherND", ["x", "t"])]
    graph = check(model(nodes, {"x": (2, 3)}, ["y"], {"k": np.float32([[1, 0, 1], [0, 1, 0]])}))
    assert Kind.HOST not in kinds(graph)


@pytest.mark.parametrize("kind", ["value_int", "value_floats", "value_strings", "value"])
def test_constant_nodes(kind: str) -> None:
    given = {
        "value_int": {"value_int": 3},
        "value_floats": {"value_floats": [1.0, 2.0]},
        "value_strings": {"value_strings": ["a", "b"]},
        "value": {"value": numpy_helper.from_array(random(2, 2))},
    }[kind]
    graph = import_model(model([node("Constant", [], **given)], {}, ["y"]))
    (mine,) = run_reference(graph, {})
    (theirs,) = ReferenceEvaluator(model([node("Constant", [], **given)], {}, ["y"])).run(None, {})
    assert np.array_equal(mine, np.asarray(theirs).astype(object) if kind == "value_strings" else theirs)


def test_weights_of_four_bits() -> None:
    """Dequantising a constant folds; by a scale that is fed it is a map."""
    q = helper.make_tensor("q", TensorProto.INT4, [4, 3], np.arange(-6, 6))
    m = model(
        [node("DequantizeLinear", ["q", "s"], ["w"]), node("MatMul", ["x", "w"])],
        {"x": (2, 4)},
        ["y"],
        {"s": np.float32(0.5)},
        opset=21,
        ir=10,
    )
    m.graph.initializer.append(q)
    graph = import_model(m)
    assert kinds(graph) == [Kind.CONTRACT]
    given = feeds(graph)
    np.testing.assert_allclose(run_reference(graph, given)[0], ReferenceEvaluator(m).run(None, given)[0], rtol=1e-5)
    m.graph.node[0].input[1] = "scale"
    m.graph.input.append(info("scale", ()))
    graph = import_model(m)
    assert kinds(graph) == [Kind.MAP, Kind.CONTRACT]
    given = {**feeds(graph), "scale": np.float32(0.25)}
    np.testing.assert_allclose(run_reference(graph, given)[0], ReferenceEvaluator(m).run(None, given)[0], rtol=1e-5)


# ---- functions


def gelu_function() -> object:
    return helper.make_function(
        "mine",
        "Scaled",
        ["a", "b"],
        ["out"],
        [
            node("Constant", [], ["k"]),
            node("Mul", ["a", "k"], ["m"]),
            node("Add", ["m", "b"], ["out"]),
        ],
        [helper.make_opsetid("", 17)],
        ["factor"],
    )


def test_local_functions_are_inlined_with_their_attributes() -> None:
    f = gelu_function()
    reference = f.node[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "value_float", "factor", 1
    calls = [
        node("Scaled", ["x", "x"], ["a"], domain="mine", factor=2.0),
        node("Scaled", ["a", "x"], domain="mine", factor=0.5),
    ]
    m = model(calls, {"x": (3,)}, ["y"], functions=[f], domains={"mine": 1})
    graph = check(m)
    assert ops(graph) == ["Mul", "Add", "Mul", "Add"]
    assert {n.origin for n in graph.nodes} == {0, 1}


def test_function_that_calls_itself() -> None:
    f = helper.make_function(
        "mine", "Loop", ["a"], ["b"], [node("Loop", ["a"], ["b"], domain="mine")], [helper.make_opsetid("mine", 1)]
    )
    m = model([node("Loop", ["x"], domain="mine")], {"x": (3,)}, ["y"], functions=[f], domains={"mine": 1})
    with pytest.raises(ModelError, match="calls itself"):
        import_model(m)


def test_standard_functions_are_inlined() -> None:
    """An operator without a declaration whose definition in the standard consists of operators that have one."""
    nodes = [node("HannWindow", ["n"], ["w"]), node("Mul", ["x", "w"])]
    graph = check(model(nodes, {"x": (2, 8)}, ["y"], {"n": np.array(8)}))
    assert ops(graph) == ["Mul"]


def test_attention_is_inlined_with_shapes() -> None:
    m = model([node("Attention", ["q", "k", "v"])], dict.fromkeys("qkv", (1, 2, 4, 8)), ["y"], opset=23, ir=10)
    graph = import_model(m)
    assert Kind.HOST not in kinds(graph)
    assert set(ops(graph)) == {"Attention"}
    given = feeds(graph)
    np.testing.assert_allclose(run_reference(graph, given)[0], ReferenceEvaluator(m).run(None, given)[0], atol=1e-5)


# ---- branches


def branch(name: str, op: str, shape: tuple[int, ...] = (3,)) -> object:
    nodes = [helper.make_node(op, ["x"], [f"{name}_t"]), helper.make_node("Add", [f"{name}_t", "a"], [f"{name}_o"])]
    return helper.make_graph(nodes, name, [], [info(f"{name}_o", shape)])


@pytest.mark.parametrize("taken", [True, False])
def test_if_with_a_constant_condition_is_inlined(taken: bool) -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("If", ["c"], then_branch=branch("then", "Exp"), else_branch=branch("else", "Neg")),
    ]
    graph = check(model(nodes, {"x": (3,)}, ["y"], {"c": np.array(taken)}))
    assert ops(graph) == ["Relu", "Exp" if taken else "Neg", "Add"]


def test_captures_of_an_if_on_data_are_uses() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("If", ["c"], ["b"], then_branch=branch("then", "Exp"), else_branch=branch("else", "Neg")),
        node("Mul", ["b", "x"]),
    ]
    m = model(nodes, [info("x", (3,)), info("c", (), BOOL)], ["y"])
    for flag in (True, False):
        graph = check(m, given={"x": random(3), "c": np.array(flag)})
    control = next(n for n in graph.nodes if n.kind is Kind.CONTROL)
    assert len(control.inputs) == 3
    assert graph.values[control.outputs[0]].shape == (3,)
    assert kinds(graph) == [Kind.MAP, Kind.CONTROL, Kind.MAP]


def test_loop_runs_a_graph_of_its_own() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "x"], ["v_out"]),
            helper.make_node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [info("i", (), I64), info("go", (), BOOL), info("v", (3,))],
        [info("go_out", (), BOOL), info("v_out", (3,))],
    )
    m = model([node("Loop", ["n", "", "x"], body=body)], {"x": (3,)}, ["y"], {"n": np.array(4)})
    graph = check(m)
    assert kinds(graph) == [Kind.CONTROL]
    assert graph.values[graph.outputs[0]].shape == (3,)
    assert graph.host_nodes == ()


# ---- the host


def test_host_nodes_stand_alone() -> None:
    grams = {"ngram_counts": [0], "ngram_indexes": [0, 1, 2], "pool_int64s": [2, 3, 5]}
    count = node(
        "TfIdfVectorizer", ["x"], ["d"], mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0, **grams
    )
    m = model([count, node("Relu", ["d"])], [info("x", (6,), TensorProto.INT64)], ["y"])
    graph = check(m)
    host = graph.nodes[0].compute
    assert isinstance(host, Host)
    assert host.shapes == ((3,),)
    assert kinds(graph) == [Kind.HOST, Kind.MAP]


def test_behind_an_unknown_shape_all_waits_for_it() -> None:
    nodes = [node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["f"], to=F32), node("Relu", ["f"])]
    graph = check(model(nodes, {"x": (3, 4)}, ["y"]))
    assert kinds(graph) == [Kind.HOST, Kind.CONTROL]
    assert graph.values[graph.outputs[0]].shape is None


def test_sequences_and_strings_stay_on_the_host() -> None:
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("SequenceAt", ["s", "k"], ["a"]),
        node("Relu", ["a"]),
    ]
    graph = check(model(nodes, {"x": (3,)}, ["y"], {"k": np.array(1)}))
    assert Kind.HOST in kinds(graph)
    m = model([node("StringConcat", ["x", "x"])], [info("x", ["n"], TensorProto.STRING)], ["y"], opset=20, ir=9)
    graph = import_model(m)
    assert graph.values[graph.outputs[0]].dtype is DType.STRING
    (y,) = run_reference(graph, {"x": np.array(["a", "b"], dtype=object)})
    assert list(y) == ["aa", "bb"]


def test_unknown_operators_are_named() -> None:
    m = model([node("Frobnicate", ["x"], domain="acme", name="f")], {"x": (3,)}, ["y"], domains={"acme": 1})
    with pytest.raises(ModelError, match=r"f: .*Frobnicate.*acme.*functions"):
        import_model(m)
    with pytest.raises(ModelError, match="Frobnicate"):
        import_model(model([node("Frobnicate", ["x"])], {"x": (3,)}, ["y"]))


def test_shapes_that_do_not_fit() -> None:
    m = model([node("MatMul", ["x", "w"], name="here")], {"x": (2, 3)}, ["y"], {"w": random(4, 5)})
    with pytest.raises(ShapeError, match=r"here.*\(2, 3\).*\(4, 5\)"):
        import_model(m)


def test_parts_that_are_more_than_the_whole() -> None:
    m = model([node("Split", ["x", "s"], ["y", "z"], name="here")], {"x": (4, 2)}, ["y", "z"], {"s": np.array([3, 3])})
    with pytest.raises(ShapeError, match=r"here.*split"):
        import_model(m)


def test_indices_beyond_a_dimension_are_no_kernel() -> None:
    """The indices have three rows and the data two: a kernel would read past the end of it."""
    indices = np.zeros((3, 4), np.int64)
    m = model([node("GatherElements", ["x", "i"], axis=1)], {"x": (2, 4)}, ["y"], {"i": indices})
    (gathered,) = import_model(m).nodes
    assert isinstance(gathered.compute, Host) and "dimension 0" in gathered.compute.reason
