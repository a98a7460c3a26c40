"""Cleaned models are written only once an oracle has shown that their numbers are the same."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

sys.path.insert(0, str(Path(__file__).parents[1] / "importer"))

from exported import exported, model_of

import autofuse
from autofuse.api import verifying
from autofuse.errors import AutofuseError, MismatchError, StorageError
from autofuse.importer.cleaning import Cleaned, clean


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "m.onnx"
    onnx.save(exported(size=6, channels=4), path)
    return path


def test_a_cleaned_model_is_written_and_computes_the_same(model: Path, tmp_path: Path) -> None:
    found = autofuse.write_cleaned(model, tmp_path / "deep" / "c.onnx")
    assert found.exact and len(found.removed) == 7 and found.nodes_after == 11 < found.nodes_before
    assert "equal bit for bit by" in str(found) and "Cast 'from_half'" in str(found.as_json())
    with (
        autofuse.load(model, device="cpu", threads=1) as a,
        autofuse.load(tmp_path / "deep" / "c.onnx", device="cpu", threads=1) as b,
    ):
        x = {"x": np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)}
        np.testing.assert_allclose(a.run(x)["y"], b.run(x)["y"], rtol=1e-5)


def replaced(model: ModelProto, old: str, new: str) -> Cleaned:
    found = clean(model)
    for n in found.model.graph.node:
        n.op_type = new if n.op_type == old else n.op_type
    return found


def test_what_is_not_equal_is_refused_and_nothing_is_written(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.onnx"
    with pytest.raises(MismatchError, match="differs from the original's by"):
        autofuse.write_cleaned(model, out, cleaner=lambda m: replaced(m, "Sigmoid", "Tanh"))

    def renamed(m: ModelProto) -> Cleaned:
        found = clean(m)
        found.model.graph.output[0].name = found.model.graph.node[-1].output[0] = "other"
        return found

    with pytest.raises(MismatchError, match="outputs are not the original's"):
        autofuse.write_cleaned(model, out, cleaner=renamed)
    assert not out.exists() and not list(tmp_path.iterdir())


def test_what_no_oracle_can_run_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(
        [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])],
        [("x", (2,))],
        [("y", (2,))],
    )

    def broken(*_: object) -> dict[str, np.ndarray]:
        raise RuntimeError("not today")

    monkeypatch.setattr(verifying, "run_onnxruntime", broken)
    monkeypatch.setattr(verifying, "run_onnx_reference", broken)
    with pytest.raises(AutofuseError, match=r"not today.*was not written"):
        autofuse.write_cleaned(model, tmp_path / "c.onnx")
    assert not (tmp_path / "c.onnx").exists()


def test_a_model_is_not_written_over_itself(model: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the model itself"):
        autofuse.write_cleaned(model, model)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        autofuse.write_cleaned(model, tmp_path / "file" / "c.onnx")
