"""Control flow after import: what becomes a graph of its own, what stays on the host and why, what a structure is."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from autofuse.importer.importing import import_model
from autofuse.importer.reference import run_reference
from autofuse.ir.graph import Graph
from autofuse.ir.stage import Control, Host, Kind
from tests.control_models import (
    CASES,
    after_nonzero,
    branches_of_other_shapes,
    graph,
    if_on_data,
    loop_that_cuts,
    loop_that_grows,
    loop_that_grows_until,
    loop_until,
    loop_with_an_if,
    scan_both_ways,
    scan_of_batches,
)
from tests.importer.importer_models import BOOL, I64, check, info, kinds, model, node, onnxruntime


def control(g: Graph) -> Control:
    (found,) = (n.compute for n in g.nodes if isinstance(n.compute, Control))
    return found


@pytest.mark.parametrize("name", list(CASES))
def test_the_reference_agrees_with_onnxruntime(name: str) -> None:
    case = CASES[name]()
    g = import_model(case.model)
    for given in case.feeds:
        for wide in (False, True):
            for mine, theirs in zip(run_reference(g, given, wide), onnxruntime(case.model, given), strict=True):
                assert mine.shape == theirs.shape
                np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_branches_are_graphs_with_captured_constants_in_place() -> None:
    g = import_model(if_on_data().model)
    found = control(g)
    assert [[n.op for n in inside.nodes] for inside in found.graphs] == [
        ["MatMul", "Exp"],
        ["MatMul", "Add", "Sigmoid"],
    ]
    assert all(len(inside.constants) == 1 for inside in found.graphs)
    assert found.shapes == ((4, 5),)
    assert Kind.HOST not in kinds(g)


def test_a_value_that_only_a_branch_reads_is_kept() -> None:
    g = import_model(if_on_data().model)
    (tanh,) = (n for n in g.nodes if n.op == "Tanh")
    (reader,) = g.consumers[tanh.outputs[0]]
    assert reader.op == "If"


def test_what_depends_on_a_branch_waits_for_its_shape() -> None:
    g = import_model(branches_of_other_shapes().model)
    assert [n.op for n in g.nodes][-2:] == ["If", "Deferred"]
    deferred = g.nodes[-1].compute
    assert isinstance(deferred, Control)
    assert deferred.graphs == ()
    assert all(g.values[v].shape is None for v in g.outputs)


def test_what_does_not_wait_is_computed_before() -> None:
    g = import_model(after_nonzero().model)
    assert "Exp" in [n.op for n in g.nodes]
    assert [n.op for n in g.nodes if n.kind is Kind.HOST] == ["NonZero"]
    assert g.values[g.outputs[2]].shape == (6,)


def test_moving_alone_is_not_worth_waiting() -> None:
    nodes = [node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["t"]), node("Cast", ["t"], to=TensorProto.FLOAT)]
    g = check(model(nodes, {"x": (3, 4)}, ["y"]))
    assert kinds(g) == [Kind.HOST] * 3


def test_a_loop_of_known_length_gives_known_shapes() -> None:
    case = loop_until(trip_count=True)
    assert control(import_model(case.model)).shapes == ((2, 3), (3,), None)
    body = graph(
        [node("Add", ["v", "v"], ["w"]), node("Identity", ["go"], ["on"])],
        [info("i", (), I64), info("go", (), BOOL), info("v", (3,))],
        [info("on", (), BOOL), info("w", (3,)), info("w", (3,))],
    )
    nodes = [node("Loop", ["n", "", "x"], ["last", "all"], body=body), node("Relu", ["all"])]
    g = check(model(nodes, {"x": (3,)}, ["y", "last"], {"n": np.array(4)}))
    assert control(g).shapes == ((3,), (4, 3))
    assert kinds(g) == [Kind.CONTROL, Kind.MAP]


def test_a_fed_trip_count_decides_about_shapes_where_it_is_known() -> None:
    body = graph(
        [node("Add", ["v", "v"], ["w"]), node("Identity", ["go"], ["on"])],
        [info("i", (), I64), info("go", (), BOOL), info("v", (3,))],
        [info("on", (), BOOL), info("w", (3,)), info("w", (3,))],
    )
    m = model(
        [node("Loop", ["n", "", "x"], ["last", "all"], body=body), node("Relu", ["all"])],
        [info("x", (3,)), info("n", (), I64)],
        ["y"],
    )
    assert import_model(m).open_parameters
    g = import_model(m, fed={"n": np.array(5)})
    assert control(g).shapes[1] == (5, 3)
    assert list(g.parameters) == [g.inputs[1]]


def test_a_fed_mode_chooses_a_branch_but_data_does_not() -> None:
    then = graph([node("Exp", ["x"], ["t"])], [], [info("t", (3,))])
    other = graph([node("Neg", ["x"], ["e"])], [], [info("e", (3,))])
    chosen = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    mode = [node("Equal", ["mode", "rate"], ["c"]), chosen]
    m = model(mode, [info("x", (3,)), info("mode", (), I64)], ["y"], {"rate": np.array(16000)})
    assert [n.op for n in import_model(m, fed={"mode": np.array(8000)}).nodes] == ["Neg"]
    data = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["c"]), chosen]
    m = model(data, {"x": (3,)}, ["y"], {"zero": np.float32(0)})
    g = import_model(m, fed={"x": np.ones(3, np.float32)})
    assert g.nodes[-1].kind is Kind.CONTROL
    assert not g.parameters
    assert not g.open_parameters


def test_a_fed_shape_chooses_a_branch_where_shapes_hang_on_it() -> None:
    then = graph([node("Exp", ["x"], ["t"])], [], [info("t", (3,))])
    other = graph([node("Concat", ["x", "x"], ["e"], axis=0)], [], [info("e", (6,))])
    nodes = [
        node("Gather", ["size", "zero"], ["first"], axis=0),
        node("Equal", ["first", "one"], ["c"]),
        node("If", ["c"], ["b"], then_branch=then, else_branch=other),
        node("Relu", ["b"], ["y"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1)}
    m = model(nodes, [info("x", (3,)), info("size", (4,), I64)], ["y"], constants)
    assert import_model(m).open_parameters
    g = import_model(m, fed={"size": np.array([2, 3, 4, 5])})
    assert [n.op for n in g.nodes] == ["Concat", "Relu"]
    assert g.values[g.outputs[0]].shape == (6,)


def test_a_value_that_grows_is_imported_when_it_runs() -> None:
    found = next(n.compute for n in import_model(loop_that_grows(3).model).nodes if isinstance(n.compute, Control))
    assert found.graphs == ()
    assert found.shapes == (None, None)


def test_short_loops_of_changing_shapes_are_written_out() -> None:
    g = import_model(loop_that_grows(4, known=True).model)
    assert Kind.CONTROL not in kinds(g)
    assert [g.values[v].shape for v in g.outputs] == [(10, 3), (4,)]
    g = import_model(loop_that_cuts(5).model)
    assert set(kinds(g)) == {Kind.MAP}
    assert g.values[g.outputs[0]].shape == (5, 1, 3)


def test_loops_that_data_may_end_are_not_written_out() -> None:
    assert Kind.CONTROL in kinds(import_model(loop_that_grows_until().model))


def test_long_loops_are_not_written_out() -> None:
    assert Kind.CONTROL in kinds(import_model(loop_that_grows(100, known=True).model))


def test_a_body_that_fits_every_step_is_not_written_out() -> None:
    assert [n.op for n in import_model(loop_with_an_if().model).nodes].count("Loop") == 1
    assert control(import_model(loop_until(trip_count=True).model)).operator == "Loop"


def test_scan_has_shapes_along_its_axes() -> None:
    assert control(import_model(scan_both_ways().model)).shapes == ((5,), (5, 4), (4, 5))
    assert control(import_model(scan_of_batches(None).model)).shapes == ((3, 2), (3, 4, 2))


# ---- the host


def test_sequences_inside_stay_on_the_host() -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    body = graph(
        [node("SequenceInsert", ["s", "x"], ["t"]), node("Identity", ["go"], ["on"])],
        [info("i", (), I64), info("go", (), BOOL), helper.make_value_info("s", kind)],
        [info("on", (), BOOL), helper.make_value_info("t", kind)],
    )
    nodes = [
        node("SequenceEmpty", [], ["none"], dtype=TensorProto.FLOAT),
        node("Loop", ["n", "", "none"], ["all"], body=body),
        node("ConcatFromSequence", ["all"], axis=0),
    ]
    g = check(model(nodes, {"x": (3,)}, ["y"], {"n": np.array(2)}))
    reasons = [n.compute.reason for n in g.nodes if isinstance(n.compute, Host) and n.op == "Loop"]
    assert len(reasons) == 1
    assert "sequences" in reasons[0]


def test_host_nodes_inside_are_counted() -> None:
    then = graph(
        [node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["t"], to=TensorProto.FLOAT)], [], [info("t", None)]
    )
    other = graph([node("Exp", ["x"], ["e"])], [], [info("e", (3, 3))])
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    g = check(model(nodes, {"x": (3, 3)}, ["y"], {"zero": np.float32(0)}))
    assert "NonZero" in [n.op for n in g.host_nodes]
    assert Kind.HOST not in kinds(g)


# ---- the structure


def test_the_structure_covers_the_graphs_inside_but_not_their_weights() -> None:
    first = import_model(if_on_data().model)
    again = import_model(if_on_data().model)
    tuned = import_model(if_on_data(weights=5).model)
    changed = import_model(if_on_data(other="Tanh").model)
    assert first.structural_hash == again.structural_hash == tuned.structural_hash
    assert first.structural_hash != changed.structural_hash
    assert first.weights_digest == again.weights_digest != tuned.weights_digest
    assert first.weights_digest != import_model(if_on_data(own=9).model).weights_digest
    assert "Sigmoid" in first.text()
    assert "Sigmoid" not in changed.text()


def test_the_structure_of_late_graphs_has_no_weights_or_names() -> None:
    first = import_model(branches_of_other_shapes().model)
    renamed = branches_of_other_shapes().model
    for n in renamed.graph.node:
        for names in (n.input, n.output):
            names[:] = ["inner" if x == "m" else x for x in names]
    assert import_model(renamed).structural_hash == first.structural_hash
