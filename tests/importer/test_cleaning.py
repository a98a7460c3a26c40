"""Models without their exports' leftovers: what goes, what stays, and that no number changes (by onnx.reference)."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from exported import TO_FIRST, TO_LAST, exported, model_of
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from autofuse.importer.cleaning import Cleaned, clean

N = helper.make_node
SHAPE = (2, 3, 4, 5)


def outputs(model: ModelProto, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds = {
        i.name: rng.standard_normal([d.dim_value or 3 for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in model.graph.input
    }
    found: list[np.ndarray] = ReferenceEvaluator(model).run(None, feeds)
    return found


def cleaned(model: ModelProto) -> Cleaned:
    """The cleaned model, with its outputs compared and the model checked."""
    before = model.SerializeToString()
    found = clean(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(found.model, full_check=True)
    for a, b in zip(outputs(model), outputs(found.model), strict=True):
        np.testing.assert_array_equal(a, b)
    return found


def ops(found: Cleaned) -> list[str]:
    return [n.op_type for n in found.model.graph.node]


def small(*nodes: NodeProto, out: tuple[int | str, ...] = SHAPE, **more: object) -> ModelProto:
    """x of SHAPE to y; `c` is a constant of the last but two axes, `s` one of a single element, `same` and `flat` are shapes."""
    rng = np.random.default_rng(1)
    constants = [
        ("c", rng.standard_normal((3,)).astype(np.float32)),
        ("s", np.array([2.0], np.float32)),
        ("full", rng.standard_normal((1, 4, 1, 3)).astype(np.float32)),
        ("same", np.array(SHAPE, np.int64)),
        ("flat", np.array((6, 20), np.int64)),
        ("no", np.array(False)),
    ]
    read = {i for n in nodes for i in n.input}
    return model_of(nodes, [("x", SHAPE)], [("y", out)], [c for c in constants if c[0] in read], **more)  # type: ignore[arg-type]


GOES = {
    "Identity": [N("Relu", ["x"], ["a"]), N("Identity", ["a"], ["b"]), N("Neg", ["b"], ["y"])],
    "Identity before an output": [N("Relu", ["x"], ["a"]), N("Neg", ["a"], ["z"]), N("Identity", ["z"], ["y"])],
    "Cast to the same type": [N("Cast", ["x"], ["a"], to=1), N("Neg", ["a"], ["y"])],
    "Cast there and back": [N("Cast", ["x"], ["a"], to=11), N("Cast", ["a"], ["b"], to=1), N("Neg", ["b"], ["y"])],
    "Transpose that moves nothing": [N("Transpose", ["x"], ["a"], perm=[0, 1, 2, 3]), N("Neg", ["a"], ["y"])],
    "Transpose there and back": [
        N("Transpose", ["x"], ["a"], perm=TO_LAST),
        N("Transpose", ["a"], ["b"], perm=TO_FIRST),
        N("Neg", ["b"], ["y"]),
    ],
    "Transpose by default there and back": [
        N("Transpose", ["x"], ["a"]),
        N("Transpose", ["a"], ["b"]),
        N("Neg", ["b"], ["y"]),
    ],
    "Reshape to the same shape": [N("Reshape", ["x", "same"], ["a"]), N("Neg", ["a"], ["y"])],
    "Reshape there and back": [
        N("Reshape", ["x", "flat"], ["a"]),
        N("Reshape", ["a", "same"], ["b"]),
        N("Neg", ["b"], ["y"]),
    ],
    "Expand to the same shape": [N("Expand", ["x", "same"], ["a"]), N("Neg", ["a"], ["y"])],
    "Dropout": [N("Dropout", ["x"], ["a", ""]), N("Neg", ["a"], ["y"])],
    "Dropout that says so": [N("Dropout", ["x", "", "no"], ["a"]), N("Neg", ["a"], ["y"])],
    "Concat of one": [N("Concat", ["x"], ["a"], axis=1), N("Neg", ["a"], ["y"])],
}


@pytest.mark.parametrize("name", GOES)
def test_what_computes_nothing_goes(name: str) -> None:
    found = cleaned(small(*GOES[name]))
    assert len(found.removed) == 1 and not found.kept
    assert set(ops(found)) <= {"Neg", "Relu"} and "Neg" in ops(found)
    assert not found.model.graph.initializer


STAYS = {
    "rounded": (
        [N("Cast", ["x"], ["a"], to=10), N("Cast", ["a"], ["b"], to=1), N("Neg", ["b"], ["y"])],
        "rounded to float16",
    ),
    "truncated": (
        [N("Cast", ["x"], ["a"], to=7), N("Cast", ["a"], ["b"], to=1), N("Neg", ["b"], ["y"])],
        "rounded to int64",
    ),
    "an output's name": ([N("Identity", ["x"], ["y"])], "its name"),
    "training": ([N("Dropout", ["x", "", "no"], ["a", "m"]), N("Where", ["m", "a", "x"], ["y"])], "its mask is read"),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_would_change_numbers_or_names_stays(name: str) -> None:
    nodes, why = STAYS[name]
    found = cleaned(small(*nodes))
    assert not found.removed and len(found.model.graph.node) == len(nodes)
    assert any(why in reason for _, reason in found.kept)


def test_a_dropout_in_training_stays() -> None:
    model = small(N("Dropout", ["x", "", "t"], ["a"]), N("Neg", ["a"], ["y"]))
    model.graph.input.append(helper.make_tensor_value_info("t", TensorProto.BOOL, []))
    found = clean(model)
    assert not found.removed and "training" in found.kept[0][1]
    old = small(N("Dropout", ["x"], ["y"]), opset=6)
    assert not clean(old).removed


@pytest.mark.parametrize("end", ["y", "z"])
def test_transposes_around_elementwise_operators_go(end: str) -> None:
    """Operands of every kind: a vector along the last axis, a full tensor, one element, another branch with the same transpose."""
    nodes = [
        N("Transpose", ["x"], ["a"], perm=TO_LAST),
        N("Neg", ["x"], ["m"]),
        N("Transpose", ["m"], ["am"], perm=TO_LAST),
        N("Add", ["a", "c"], ["b"]),
        N("Mul", ["b", "full"], ["d"]),
        N("Clip", ["d", "", "s0"], ["e"]),
        N("Sub", ["e", "am"], ["f"]),
        N("Max", ["f", "s"], ["g"]),
        N("Transpose", ["g"], [end], perm=TO_FIRST),
    ]
    if end == "z":
        nodes.append(N("Relu", ["z"], ["y"]))
    model = small(*nodes)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.7, np.float32), "s0"))
    found = cleaned(model)
    assert "Transpose" not in ops(found) and len(found.removed) == 1
    assert set(found.removed[0].nodes) == {"Transpose of 'a'", "Transpose of 'am'", f"Transpose of {end!r}"}


@pytest.mark.parametrize(
    "nodes",
    [
        # the value between is read in its own order, too
        [N("Transpose", ["x"], ["a"], perm=TO_LAST), N("Relu", ["a"], ["b"]), N("Transpose", ["b"], ["d"], perm=TO_FIRST),
         N("ReduceSum", ["b"], ["r"], keepdims=0), N("Add", ["d", "r"], ["y"])],
        # Softmax has an axis
        [N("Transpose", ["x"], ["a"], perm=TO_LAST), N("Softmax", ["a"], ["b"]), N("Transpose", ["b"], ["y"], perm=TO_FIRST)],
        # the second one does not undo the first
        [N("Transpose", ["x"], ["a"], perm=TO_LAST), N("Relu", ["a"], ["b"]), N("Transpose", ["b"], ["d"], perm=TO_LAST),
         N("Transpose", ["d"], ["y"], perm=(0, 2, 3, 1))],
        # an operand without a transpose
        [N("Transpose", ["x"], ["a"], perm=(0, 1, 3, 2)), N("Reshape", ["x", "flip"], ["q"]), N("Add", ["a", "q"], ["b"]),
         N("Transpose", ["b"], ["y"], perm=(0, 1, 3, 2))],
    ],
)  # fmt: skip
def test_transposes_that_matter_stay(nodes: list[NodeProto]) -> None:
    model = small(*nodes)
    if any("flip" in n.input for n in nodes):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array((2, 3, 5, 4), np.int64), "flip"))
    found = cleaned(model)
    kept = sum(n.op_type == "Transpose" for n in nodes)
    assert ops(found).count("Transpose") >= min(kept, 1)
    assert not any("around" in r.kind for r in found.removed)


def test_values_that_a_branch_reads_are_renamed_there() -> None:
    then = helper.make_graph([N("Neg", ["b"], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, SHAPE)])
    other = helper.make_graph([N("Relu", ["b"], ["e"])], "else", [], [helper.make_tensor_value_info("e", 1, SHAPE)])
    nodes = [
        N("Exp", ["x"], ["a"]),
        N("Identity", ["a"], ["b"]),
        N("ReduceMax", ["x"], ["m"], keepdims=0),
        N("Greater", ["m", "s1"], ["q"]),
        N("If", ["q"], ["y"], then_branch=then, else_branch=other),
    ]
    model = small(*nodes)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.0, np.float32), "s1"))
    found = cleaned(model)
    assert "Identity" not in ops(found)
    # a branch with a value of its own of that name keeps the copy
    shadow = helper.make_graph(
        [N("Neg", ["b"], ["a2"]), N("Neg", ["a2"], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, SHAPE)]
    )
    shadow.node[0].output[0] = shadow.node[1].input[0] = "a"
    model = small(*nodes[:4], N("If", ["q"], ["y"], then_branch=shadow, else_branch=other))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.0, np.float32), "s1"))
    assert "a value of its own" in clean(model).kept[0][1]


def test_open_dimensions_are_the_same_only_by_their_symbol() -> None:
    nodes = [N("Reshape", ["x", "same"], ["a"]), N("Neg", ["a"], ["y"])]
    model = small(*nodes)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, ("n", 3, 4, 5)))
    assert not clean(model).removed
    assert not clean(
        small(N("Transpose", ["x"], ["a"], perm=(0, 1, 3, 2)), N("Neg", ["a"], ["y"]), out=(2, 3, 5, 4))
    ).removed


def test_an_export_loses_all_that_it_left_behind_and_only_what_is_asked_for() -> None:
    model = exported(size=6, channels=4)
    found = cleaned(model)
    assert len(model.graph.node) == 20 and len(found.model.graph.node) == 11
    assert sorted({r.kind for r in found.removed}) == [
        "Cast to the same type", "Dropout in inference", "Identity", "Reshape to the same shape",
        "Transposes around element-wise operators",
    ]  # fmt: skip
    assert [n for n, _ in found.kept] == ["Cast 'from_half'"]
    around = next(r for r in found.removed if "around" in r.kind)
    assert around.before == ("Conv 'conv0'",) and around.after == ("Add 'residual0'",)
    one = clean(model, {around.key})
    assert [r.key for r in one.removed] == [around.key] and len(one.model.graph.node) == 18
    assert not clean(found.model).removed


def test_random_chains_keep_their_numbers() -> None:
    """Chains of leftovers and operators, with reads of earlier values: most of them lose nodes, none changes a number."""
    lost = 0
    for seed in range(60):
        rng = random.Random(seed)
        nodes: list[NodeProto] = []
        values = [("x", (0, 1, 2, 3))]  # a value and where each of its axes comes from
        for k in range(rng.randint(4, 14)):
            v, axes = values[-1] if rng.random() < 0.8 else rng.choice(values)
            out = f"v{k}"
            kind = rng.choice(["move", "move", "back", "unary", "binary", "copy", "cast", "drop"])
            if kind == "move":
                perm = rng.choice([TO_LAST, TO_FIRST, (0, 1, 3, 2), (0, 1, 2, 3)])
                nodes.append(N("Transpose", [v], [out], perm=perm))
                axes = tuple(axes[p] for p in perm)
            elif kind == "back":
                perm = tuple(axes.index(p) for p in range(4))
                nodes.append(N("Transpose", [v], [out], perm=perm))
                axes = (0, 1, 2, 3)
            elif kind == "binary":
                same = [w for w, a in values if a == axes]
                nodes.append(N(rng.choice(["Add", "Mul", "Max"]), [v, rng.choice([*same, "s"])], [out]))
            elif kind == "cast":
                to, back = rng.choice([(1, 1), (11, 1), (10, 1)])
                nodes.append(N("Cast", [v], [f"{out}_t"], to=to))
                nodes.append(N("Cast", [f"{out}_t"], [out], to=back))
            else:
                op = {"unary": rng.choice(["Relu", "Neg", "Abs"]), "copy": "Identity", "drop": "Dropout"}[kind]
                nodes.append(N(op, [v], [out]))
            values.append((out, axes))
        shape = tuple(SHAPE[a] for a in values[-1][1])
        nodes.append(N("Neg", [values[-1][0]], ["y"]))
        read = {i for n in nodes for i in n.input}
        model = small(*nodes, out=shape)
        extra = rng.choice(values[1:])
        if extra[0] in read and rng.random() < 0.5:
            model.graph.output.append(helper.make_tensor_value_info(extra[0], 1, tuple(SHAPE[a] for a in extra[1])))
        found = cleaned(model)
        lost += len(found.model.graph.node) < len(nodes)
    assert lost > 30
