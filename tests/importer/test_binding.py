"""Open dimensions: how they are bound, and what the message says when they are not."""

from __future__ import annotations

import pytest
from importer_models import check, info, model, node
from onnx import ModelProto

from autofuse.errors import ShapeError
from autofuse.importer.importing import import_model


def two_inputs(first: list[int | str | None] | None, second: list[int | str | None]) -> ModelProto:
    return model([node("Add", ["x", "z"])], [info("x", first), info("z", second)], ["y"])


def test_fixed_shapes_need_nothing() -> None:
    check(two_inputs([2, 3], [1, 3]))


def test_by_input_name_and_by_dimension_name() -> None:
    m = two_inputs(["batch", 3], ["batch", 3])
    for shapes in ({"x": (4, 3)}, {"batch": (4,)}, {"x": (4, 3), "z": (4, 3)}):
        graph = import_model(m, shapes)
        assert [graph.values[v].shape for v in graph.inputs] == [(4, 3), (4, 3)]


@pytest.mark.parametrize("dims", [["N", 3, "H", "W"], [None, 3, None, None]])
def test_open_dimensions_name_inputs_and_give_an_example(dims: list[int | str | None]) -> None:
    with pytest.raises(ShapeError, match=r"x: .*--shape x=1,3,224,224"):
        import_model(two_inputs(dims, [1]))


def test_unknown_rank() -> None:
    m = two_inputs(None, [1])
    with pytest.raises(ShapeError, match="unknown rank"):
        import_model(m)
    assert import_model(m, {"x": (2, 2)}).values[0].shape == (2, 2)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"x": (2, 4)}, "contradicts"),
        ({"x": (2,)}, "contradicts"),
        ({"w": (2, 3)}, "no such input"),
        ({"batch": (2, 3)}, "one dimension"),
        ({"x": (-1, 3)}, "negative"),
    ],
)
def test_what_does_not_fit(shapes: dict[str, tuple[int, ...]], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        import_model(two_inputs(["batch", 3], ["batch", 3]), shapes)


def test_zero_sizes_are_sizes() -> None:
    graph = import_model(two_inputs(["n", 3], [1, 3]), {"n": (0,)})
    assert graph.values[graph.outputs[0]].shape == (0, 3)
