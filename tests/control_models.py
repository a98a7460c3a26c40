"""Models with control flow, each with inputs that take another way through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, helper, numpy_helper

from tests.importer.importer_models import BOOL, F32, I64, info, model, node

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model with several sets of inputs."""

    model: ModelProto
    feeds: Sequence[Feeds]


def graph(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Feeds | None = None
) -> GraphProto:
    stored = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    return helper.make_graph(list(nodes), "inside", list(inputs), list(outputs), stored)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def if_on_data(weights: int = 1, other: str = "Sigmoid", own: int = 8) -> Case:
    """A condition from data, branches that capture a value which nothing else reads, an input and weights."""
    then = graph([node("MatMul", ["a", "w"], ["m"]), node("Exp", ["m"], ["t"])], [], [info("t", (4, 5))])
    other_graph = graph(
        [node("MatMul", ["a", "own"], ["n"]), node("Add", ["n", "x5"], ["k"]), node(other, ["k"], ["e"])],
        [],
        [info("e", (4, 5))],
        {"own": numbers(3, 5, seed=own)},
    )
    nodes = [
        node("Tanh", ["x"], ["a"]),
        node("MatMul", ["x", "w"], ["x5"]),
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["b"], then_branch=then, else_branch=other_graph),
        node("Relu", ["b"], ["y"]),
    ]
    constants = {"w": numbers(3, 5, seed=weights), "zero": np.float32(0)}
    x = numbers(4, 3, seed=2)
    return Case(model(nodes, {"x": (4, 3)}, ["y"], constants), [{"x": x - x.mean() + 0.3}, {"x": x - x.mean() - 0.3}])


def branches_of_other_shapes() -> Case:
    """What follows cannot know its shapes before a branch was taken."""
    then = graph([node("Exp", ["x"], ["t"])], [], [info("t", (4, 3))])
    other = graph([node("Concat", ["x", "x"], ["e"], axis=0)], [], [info("e", (8, 3))])
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["b"], then_branch=then, else_branch=other),
        node("MatMul", ["b", "w"], ["m"]),
        node("Softmax", ["m"], ["y"]),
        node("Shape", ["b"], ["size"]),
    ]
    constants = {"w": numbers(3, 5, seed=1), "zero": np.float32(0)}
    x = np.abs(numbers(4, 3, seed=2))
    return Case(model(nodes, {"x": (4, 3)}, ["y", "size"], constants), [{"x": x}, {"x": -x}])


def loop_with_an_if() -> Case:
    """An If inside a Loop captures from both graphs around it; two carried values, two collected results, of which one is read."""
    then = graph([node("Mul", ["v", "x"], ["t"])], [], [info("t", (3,))])
    other = graph([node("Sub", ["w", "a"], ["e"])], [], [info("e", (3,))])
    body = graph(
        [
            node("ReduceMax", ["v"], ["top"], keepdims=0),
            node("Less", ["top", "bound"], ["small"]),
            node("If", ["small"], ["b"], then_branch=then, else_branch=other),
            node("Add", ["b", "a"], ["v_next"]),
            node("Cast", ["i"], ["step"], to=F32),
            node("Add", ["n", "step"], ["n_next"]),
            node("Identity", ["go"], ["go_on"]),
            node("Neg", ["v_next"], ["seen"]),
            node("Abs", ["b"], ["unread"]),
        ],
        [info("i", (), I64), info("go", (), BOOL), info("v", (3,)), info("n", ())],
        [info("go_on", (), BOOL), info("v_next", (3,)), info("n_next", ()), info("seen", (3,)), info("unread", (3,))],
        {"w": np.array([0.5, -0.25, 0.125], np.float32)},
    )
    nodes = [
        node("Sigmoid", ["x"], ["a"]),
        node("Loop", ["trips", "", "x", "start"], ["last", "count", "all", "nobody"], body=body),
        node("Exp", ["last"], ["y"]),
    ]
    constants = {"bound": np.float32(1), "start": np.float32(0)}
    inputs = [info("x", (3,)), info("trips", (), I64)]
    x = numbers(3, seed=4)
    feeds = [{"x": x, "trips": np.array(n)} for n in (0, 1, 5)]
    return Case(model(nodes, inputs, ["y", "count", "all"], constants), feeds)


def loop_until(trip_count: bool = False) -> Case:
    """The condition ends the loop; a trip count bounds it or is left out. One carried value stays as it is."""
    body = graph(
        [
            node("Add", ["v", "v"], ["v_next"]),
            node("ReduceSum", ["v_next"], ["s"], keepdims=0),
            node("Less", ["s", "bound"], ["go_on"]),
            node("Identity", ["same"], ["same_next"]),
        ],
        [info("i", (), I64), info("go", (), BOOL), info("v", (2, 3)), info("same", (3,))],
        [info("go_on", (), BOOL), info("v_next", (2, 3)), info("same_next", (3,)), info("s", ())],
    )
    nodes = [node("Loop", ["trips" if trip_count else "", "start", "x", "z"], ["y", "same", "sums"], body=body)]
    inputs = [info("x", (2, 3)), info("z", (3,)), info("start", (), BOOL)]
    x, z = np.abs(numbers(2, 3, seed=5)), numbers(3, seed=6)
    feeds = [{"x": x, "z": z, "start": np.array(go)} for go in (True, False)]
    constants = {"bound": np.float32(40), **({"trips": np.array(2)} if trip_count else {})}
    return Case(model(nodes, inputs, ["y", "same", "sums"], constants), feeds)


def loop_that_grows(steps: int, known: bool = False) -> Case:
    """The carried value is longer after every step; the number of steps is fed, or known."""
    body = graph(
        [
            node("Concat", ["v", "x"], ["v_next"], axis=0),
            node("Identity", ["go"], ["go_on"]),
            node("ReduceSum", ["v_next"], ["s"], keepdims=0),
        ],
        [info("i", (), I64), info("go", (), BOOL), info("v", (None, 3))],
        [info("go_on", (), BOOL), info("v_next", (None, 3)), info("s", ())],
    )
    nodes = [node("Loop", ["trips", "", "x"], ["g", "sums"], body=body), node("Exp", ["g"], ["y"])]
    trips = {"trips": np.array(steps)}
    x = {"x": numbers(2, 3, seed=7)}
    if known:
        return Case(model(nodes, {"x": (2, 3)}, ["y", "sums"], trips), [x])
    return Case(model(nodes, [info("x", (2, 3)), info("trips", (), I64)], ["y", "sums"]), [x | trips])


def loop_that_grows_until() -> Case:
    """The number of steps is bounded by a constant, and data may end the loop before."""
    body = graph(
        [
            node("Concat", ["v", "x"], ["v_next"], axis=0),
            node("ReduceSum", ["v_next"], ["s"], keepdims=0),
            node("Less", ["s", "bound"], ["go_on"]),
        ],
        [info("i", (), I64), info("go", (), BOOL), info("v", (None, 3))],
        [info("go_on", (), BOOL), info("v_next", (None, 3))],
    )
    nodes = [node("Loop", ["trips", "", "x"], ["g"], body=body), node("Exp", ["g"], ["y"])]
    constants = {"trips": np.array(4), "bound": np.float32(1)}
    x = np.abs(numbers(2, 3, seed=9)) / 10
    return Case(model(nodes, {"x": (2, 3)}, ["y"], constants), [{"x": x}, {"x": 3 * x}, {"x": -x}])


def one_branch_fits(rows: int) -> Case:
    """A branch that does not fit the shapes at hand, but is never taken then: models hold variants for several sizes."""
    then = graph([node("MatMul", ["x", "w3"], ["t"])], [], [info("t", (None, 2))])
    other = graph([node("MatMul", ["x", "w4"], ["e"])], [], [info("e", (None, 2))])
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["b"], then_branch=then, else_branch=other),
        node("Tanh", ["b"], ["y"]),
    ]
    constants = {"w3": numbers(3, 2, seed=1), "w4": numbers(4, 2, seed=2), "zero": np.float32(0)}
    x = np.abs(numbers(rows, 3, seed=3))
    return Case(model(nodes, {"x": ("n", "m")}, ["y"], constants), [{"x": x}])


def scan_of_batches(lengths: Sequence[int] | None) -> Case:
    """Scan as it was in opset 8: sequences of several lengths, one of them backwards."""
    body = graph(
        [node("Add", ["state", "p"], ["k"]), node("Mul", ["k", "q"], ["out"])],
        [info("state", (2,)), info("p", (2,)), info("q", (2,))],
        [info("k", (2,)), info("out", (2,))],
    )
    scan = node(
        "Scan",
        ["lengths" if lengths else "", "s0", "x", "z"],
        ["state", "y"],
        body=body,
        num_scan_inputs=2,
        directions=[0, 1],
    )
    given = {"s0": numbers(3, 2, seed=1), "x": numbers(3, 4, 2, seed=2), "z": numbers(3, 4, 2, seed=3)}
    inputs = [info(k, a.shape) for k, a in given.items()]
    if lengths:
        given["lengths"] = np.array(lengths)
        inputs.append(info("lengths", (3,), I64))
    return Case(model([scan], inputs, ["state", "y"], opset=8), [given])


def loop_that_cuts(steps: int) -> Case:
    """Every step reads the rows at its index; the condition is carried on, so that it holds for every step."""
    body = graph(
        [
            node("Unsqueeze", ["i", "zero"], ["begin"]),
            node("Add", ["begin", "one"], ["end"]),
            node("Slice", ["x", "begin", "end"], ["row"]),
            node("Add", ["v", "row"], ["v_next"]),
            node("Identity", ["go"], ["go_on"]),
            node("Neg", ["v_next"], ["seen"]),
        ],
        [info("i", (), I64), info("go", (), BOOL), info("v", (1, 3))],
        [info("go_on", (), BOOL), info("v_next", (1, 3)), info("seen", (1, 3))],
        {"zero": np.array([0]), "one": np.array([1])},
    )
    nodes = [node("Loop", ["trips", "go0", "start"], ["last", "all"], body=body), node("Relu", ["all"], ["y"])]
    constants = {"trips": np.array(steps), "go0": np.array(True), "start": np.zeros((1, 3), np.float32)}
    return Case(model(nodes, {"x": (5, 3)}, ["y", "last"], constants), [{"x": numbers(5, 3, seed=8)}])


def scan_both_ways() -> Case:
    """Axes and directions of inputs and outputs, a state, a captured value and captured weights."""
    body = graph(
        [
            node("MatMul", ["p", "w"], ["m"]),
            node("Add", ["m", "state"], ["k"]),
            node("Tanh", ["k"], ["state_next"]),
            node("Mul", ["state_next", "q"], ["product"]),
            node("Add", ["product", "a"], ["out"]),
            node("Neg", ["k"], ["other"]),
        ],
        [info("state", (5,)), info("p", (3,)), info("q", (5,))],
        [info("state_next", (5,)), info("out", (5,)), info("other", (5,))],
    )
    scan = node(
        "Scan",
        ["s0", "x", "z"],
        ["state", "outs", "others"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[1, 0],
        scan_input_directions=[0, 1],
        scan_output_axes=[-1, 0],
        scan_output_directions=[1, 0],
    )
    nodes = [node("Sigmoid", ["s0"], ["a"]), scan, node("Relu", ["outs"], ["y"])]
    inputs = {"s0": (5,), "x": (3, 4), "z": (4, 5)}
    given = {"s0": numbers(5, seed=1), "x": numbers(3, 4, seed=2), "z": numbers(4, 5, seed=3)}
    return Case(model(nodes, inputs, ["y", "state", "others"], {"w": numbers(3, 5, seed=4)}), [given])


def after_nonzero() -> Case:
    """Rows that are chosen by data, then arithmetic on as many rows as there were; twice, one after the other."""
    nodes = [
        node("ReduceSum", ["x", "last"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("NonZero", ["c"], ["i"]),
        node("Squeeze", ["i", "first"], ["rows"]),
        node("Gather", ["x", "rows"], ["g"], axis=0),
        node("MatMul", ["g", "w"], ["m"]),
        node("Tanh", ["m"], ["y"]),
        node("Compress", ["y", "keep"], ["k"], axis=1),
        node("Softmax", ["k"], ["z"], axis=-1),
        node("Exp", ["s"], ["e"]),
    ]
    constants = {
        "w": numbers(3, 5, seed=1),
        "zero": np.float32(0),
        "last": np.array([1]),
        "first": np.array([0]),
    }
    x = numbers(6, 3, seed=2)
    keep = np.array([True, False, True, True, False])
    inputs = [info("x", (6, 3)), info("keep", (5,), BOOL)]
    feeds = [{"x": x, "keep": keep}, {"x": -x, "keep": ~keep}, {"x": np.abs(x), "keep": keep}]
    return Case(model(nodes, inputs, ["y", "z", "e"], constants), feeds)


CASES: dict[str, Callable[[], Case]] = {
    "if on data": if_on_data,
    "branches of other shapes": branches_of_other_shapes,
    "loop with an if": loop_with_an_if,
    "loop until": loop_until,
    "loop until or a count": lambda: loop_until(trip_count=True),
    "loop that grows": lambda: loop_that_grows(4),
    "loop that grows, written out": lambda: loop_that_grows(4, known=True),
    "loop that grows until": loop_that_grows_until,
    "loop that cuts": lambda: loop_that_cuts(5),
    "scan both ways": scan_both_ways,
    "scan of batches": lambda: scan_of_batches(None),
    "scan of batches of several lengths": lambda: scan_of_batches([2, 4, 1]),
    "after nonzero": after_nonzero,
}
"""Models without a Host node but for what chooses by data."""
