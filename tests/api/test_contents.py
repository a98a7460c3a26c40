"""Fed inputs that decide about shapes: a graph is made for their contents, and numbers are never folded from them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import autofuse
from autofuse.api.choosing import heuristic_plan
from autofuse.api.devices import open_device
from autofuse.api.engines import LIMIT
from autofuse.engine.engine import Engine
from autofuse.errors import InputError
from autofuse.importer.importing import import_model
from autofuse.importer.reference import run_reference
from autofuse.ir.stage import Kind

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model_of(
    nodes: list[onnx.NodeProto], inputs: list[tuple[str, int, list[int | str]]], outputs: list[str]
) -> ModelProto:
    """A model whose outputs are floats of unknown shape."""
    infos = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
    outs = [helper.make_tensor_value_info(o, FLOAT, None) for o in outputs]
    made = helper.make_model(
        helper.make_graph(nodes, "g", infos, outs), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    return made


def reduced() -> ModelProto:
    """The sum over fed axes, then Relu."""
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    return model_of(nodes, [("x", FLOAT, ["n", 3]), ("axes", INT64, [1])], ["y"])


X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def test_without_contents_the_operator_runs_on_the_host_and_says_what_would_help() -> None:
    graph = import_model(reduced(), {"n": (2,)})
    assert graph.nodes[0].kind is Kind.HOST
    assert [graph.values[v].name for v in graph.open_parameters] == ["axes"]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_with_contents_there_are_kernels_for_just_these(axis: int) -> None:
    fed = {"x": X, "axes": np.array([axis])}
    graph = import_model(reduced(), {"n": (2,)}, fed=fed)
    assert all(n.kind is not Kind.HOST for n in graph.nodes)
    assert {graph.values[v].name: a.tolist() for v, a in graph.parameters.items()} == {"axes": [axis]}
    expected = ReferenceEvaluator(reduced()).run(None, fed)[0]
    np.testing.assert_allclose(run_reference(graph, fed)[0], expected)


def test_contents_are_part_of_the_structure() -> None:
    hashes = {import_model(reduced(), {"n": (2,)}, fed={"axes": np.array([a])}).structural_hash for a in (0, 1, -1)}
    assert len(hashes) == 3


def test_numbers_are_left_to_the_kernels() -> None:
    """x is as small as a parameter, but only its values matter: nothing may be folded from it."""
    fed = {"x": X, "axes": np.array([0])}
    graph = import_model(reduced(), {"n": (2,)}, fed=fed)
    assert [n.op for n in graph.nodes] == ["ReduceSum", "Relu"]
    assert not graph.constants


def test_contents_are_followed_through_shape_arithmetic() -> None:
    nodes = [
        helper.make_node("Concat", ["rows", "columns"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Exp", ["r"], ["y"]),
    ]
    model = model_of(nodes, [("x", FLOAT, [2, 3]), ("rows", INT64, [1]), ("columns", INT64, [1])], ["y"])
    fed = {"x": X, "rows": np.array([3]), "columns": np.array([-1])}
    graph = import_model(model, fed=fed)
    assert all(n.kind is not Kind.HOST for n in graph.nodes)
    assert {graph.values[v].name for v in graph.parameters} == {"rows", "columns"}
    assert graph.values[graph.outputs[0]].shape == (3, 2)


def test_a_fed_condition_chooses_its_branch() -> None:
    def branch(op: str) -> onnx.GraphProto:
        out = [helper.make_tensor_value_info(op, FLOAT, None)]
        return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], out)

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Exp"), else_branch=branch("Neg"))
    model = model_of([node], [("x", FLOAT, [2, 3]), ("c", BOOL, [])], ["y"])
    engine = autofuse.load(model, device="cpu")
    with pytest.warns(UserWarning, match="other contents"):
        np.testing.assert_allclose(engine.run({"x": X, "c": np.array(True)})["y"], np.exp(X), rtol=1e-5)
    with pytest.warns(UserWarning, match="other contents"):
        np.testing.assert_allclose(engine.run({"x": X, "c": np.array(False)})["y"], -X)
    engine.close()


def test_an_engine_refuses_other_contents() -> None:
    device = open_device("cpu", 1)
    graph = import_model(reduced(), {"n": (2,)}, fed={"axes": np.array([1])})
    with Engine.build(graph, heuristic_plan(graph, device), device) as engine:
        assert engine.run({"x": X, "axes": np.array([1])})["y"].shape == (2, 1)
        with pytest.raises(InputError, match=r"'axes' decides about shapes.*made for \[1\], not for \[0\]"):
            engine.run({"x": X, "axes": np.array([0])})


@pytest.mark.filterwarnings("ignore:compiled for other")
def test_a_parameter_that_keeps_changing_goes_back_to_the_host() -> None:
    nodes = [helper.make_node("Expand", ["x", "shape"], ["y"])]
    engine = autofuse.load(model_of(nodes, [("x", FLOAT, [1]), ("shape", INT64, [1])], ["y"]), device="cpu")
    for n in range(1, 2 * LIMIT):
        found = engine.run({"x": np.ones(1, np.float32), "shape": np.array([n])})["y"]
        np.testing.assert_array_equal(found, np.ones(n, np.float32))
    made = engine.engines
    assert len(made) <= LIMIT
    assert len(made[0].host_nodes) == 1, "the last sizes ran on the host"
    engine.close()


def test_symbols_stay_in_the_types() -> None:
    graph = import_model(reduced(), {"n": (2,)})
    x = graph.values[graph.inputs[0]]
    assert (x.declared, x.shape, x.open) == (("n", 3), (2, 3), True)
    assert x.admits((7, 3))
    assert not x.admits((7, 4))
    assert not x.admits((7,))


@pytest.mark.filterwarnings("ignore:compiled for other")
def test_what_is_fed_wins_over_a_default_value() -> None:
    model = model_of([helper.make_node("Add", ["x", "b"], ["y"])], [("x", FLOAT, [2, 3]), ("b", FLOAT, [3])], ["y"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "b"))
    engine = autofuse.load(model, device="cpu")
    other = np.array([5, 6, 7], np.float32)
    np.testing.assert_array_equal(engine.run({"x": X})["y"], X + 1)
    np.testing.assert_array_equal(engine.run({"x": X, "b": other})["y"], X + other)
    np.testing.assert_array_equal(engine.run({"x": X})["y"], X + 1)
    assert len(engine.engines) == 2
    engine.close()
    with pytest.raises(InputError, match="'b'"):
        model.ir_version = 3
        autofuse.load(model, device="cpu").run({"x": X, "b": other})


def test_missing_and_unknown_inputs_are_named() -> None:
    engine = autofuse.load(reduced(), device="cpu", shapes={"n": (2,)})
    with pytest.raises(InputError, match="'axes' is missing"):
        engine.run({"x": X})
    with pytest.raises(InputError, match="unknown input 'z'"):
        engine.run({"x": X, "axes": np.array([0]), "z": X})
    engine.close()


def test_a_tensor_is_fed_as_an_optional() -> None:
    """Its shape is not stated by the model, and binds nothing."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    nodes = [helper.make_node("OptionalHasElement", ["o"], ["y"])]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "test",
            [helper.make_value_info("o", kind)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.BOOL, [])],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    prepared = autofuse.onnx_backend.prepare(model)
    for given, expected in ((np.ones(3, np.float32), True), (None, False)):
        (y,) = prepared.run([given])
        assert bool(y) is expected
