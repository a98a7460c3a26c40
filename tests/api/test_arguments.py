"""Budgets, shapes and inputs from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from autofuse.api.arguments import read_inputs, seconds_of, shape_of
from autofuse.errors import InputError, UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1.5h", 5400), ("250ms", 0.25), ("7", 7), (60, 60), (0.5, 0.5), ("2min", 120)],
)
def test_budgets(text: str | float, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "fast", "5 parsecs", "-3s", "0", 0, -1, "1e99", float("nan"), float("inf")])
def test_what_is_no_budget(text: str | float) -> None:
    with pytest.raises(UsageError):
        seconds_of(text)


@pytest.mark.parametrize(
    ("text", "name", "dims"),
    [("x=1,3,224,224", "x", (1, 3, 224, 224)), ("a=b=2", "a=b", (2,)), ("s=", "s", ()), ("x=2x3", "x", (2, 3))],
)
def test_shapes(text: str, name: str, dims: tuple[int, ...]) -> None:
    assert shape_of(text) == (name, dims)


@pytest.mark.parametrize("text", ["x", "=1,2", "x=a,b", "x=1,,2", "x=-1"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(UsageError):
        shape_of(text)


def test_archives_arrays_and_test_data_sets(tmp_path: Path) -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3)
    np.savez(tmp_path / "both.npz", a=a, b=b)
    np.save(tmp_path / "one.npy", a)
    folder = tmp_path / "model" / "test_data_set_0"
    folder.mkdir(parents=True)
    (folder / "input_0.pb").write_bytes(numpy_helper.from_array(a, "a").SerializeToString())
    (folder / "input_1.pb").write_bytes(numpy_helper.from_array(b, "").SerializeToString())
    for path in (tmp_path / "both.npz", folder, folder.parent):
        found = read_inputs(path, ["a", "b"])
        assert list(found) == ["a", "b"]
        assert np.array_equal(found["a"], a) and np.array_equal(found["b"], b)
    assert np.array_equal(read_inputs(tmp_path / "one.npy", ["x"])["x"], a)


def test_input_files_that_cannot_be_used(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "bad.npz").write_bytes(b"PK nonsense")
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    (tmp_path / "pickled.npy").write_bytes(b"")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "data.txt").write_text("1 2 3")
    (tmp_path / "empty").mkdir()
    for name, names in [
        ("one.npy", ["a", "b"]), ("bad.npz", ["a"]), ("bad.npy", ["a"]), ("pickled.npy", ["a"]), ("objects.npy", ["a"]), ("data.txt", ["a"]),
        ("empty", ["a"]), ("absent.npz", ["a"]), ("absent.npy", ["a"]), ("absent", ["a"]),
    ]:  # fmt: skip
        with pytest.raises(InputError):
            read_inputs(tmp_path / name, names)
