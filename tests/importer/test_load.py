"""Reading models: what is refused, and that the message says what, where and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from importer_models import check, model, node, random
from onnx import ModelProto, TensorProto

from autofuse.errors import ModelError
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model


def simple() -> ModelProto:
    return model([node("MatMul", ["x", "w"])], {"x": (2, 40)}, ["y"], {"w": random(40, 30)})


def save_external(folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save_model(simple(), str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def point_to(path: Path, location: str) -> None:
    m = onnx.load_model(str(path), load_external_data=False)
    for e in m.graph.initializer[0].external_data:
        if e.key == "location":
            e.value = location
    path.write_bytes(m.SerializeToString())


def test_path_bytes_and_proto(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(simple().SerializeToString())
    for source in (path, str(path), path.read_bytes(), simple()):
        assert load_model(source).graph.node[0].op_type == "MatMul"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"this is no model at all, but a text of some length", "no"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "git lfs pull"),
        (simple().SerializeToString()[:2000], "truncated"),
        (onnx.GraphProto(name="g").SerializeToString(), "ONNX"),
    ],
)
def test_what_is_no_model(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=words) as e:
        load_model(path)
    assert str(path) in str(e.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        load_model(tmp_path / "absent.onnx")
    (tmp_path / "inside.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match=r"folder.*inside\.onnx"):
        load_model(tmp_path)


def test_unknown_sample() -> None:
    with pytest.raises(ModelError, match="squeezenet"):
        load_model("sample:nothing")


def test_external_data(tmp_path: Path) -> None:
    m = load_model(save_external(tmp_path))
    assert m.graph.initializer[0].data_location == TensorProto.DEFAULT
    check(m)


@pytest.mark.parametrize("location", ["../weights.bin", "{outside}/weights.bin", "sub/../../weights.bin", ""])
def test_external_data_may_not_leave_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = save_external(folder)
    os.replace(folder / "weights.bin", tmp_path / "weights.bin")
    point_to(path, location.format(outside=tmp_path))
    with pytest.raises(ModelError, match="outside"):
        load_model(path)


def test_external_data_through_a_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = save_external(folder)
    os.replace(folder / "weights.bin", tmp_path / "elsewhere.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(ModelError, match="outside"):
        load_model(path)


def test_external_data_missing_or_truncated(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(data[:-8])
    with pytest.raises(ModelError, match="truncated"):
        load_model(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="no such file"):
        load_model(path)


def test_a_model_without_its_external_data_is_refused(tmp_path: Path) -> None:
    m = onnx.load_model(str(save_external(tmp_path)), load_external_data=False)
    with pytest.raises(ModelError, match="another file"):
        import_model(m)


def test_samples_are_the_same_every_time() -> None:
    first, second = (load_model("sample:squeezenet").graph.initializer for _ in range(2))
    assert [t.raw_data for t in first] == [t.raw_data for t in second]
    values = np.frombuffer(first[0].raw_data, np.float32)
    assert values.std() > 0
