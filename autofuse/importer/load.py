"""Reading a model: from a path, from `sample:NAME`, from bytes, or as it stands."""

from __future__ import annotations

import os
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from autofuse.errors import ModelError
from autofuse.importer import samples
from autofuse.importer.proto import tensors

PREFIX = "sample:"


def load_model(source: str | os.PathLike[str] | bytes | ModelProto) -> ModelProto:
    """The model with all its weights.

    `source` is a path, `sample:NAME`, the bytes of a model, or a ModelProto (given back as it is). External data is read
    from the model's own folder and from nowhere else. Raises ModelError for whatever is not a readable model.
    """
    if isinstance(source, ModelProto):
        return _checked(source, "the model")
    if isinstance(source, bytes):
        return _parse(source, "the given bytes")
    text = os.fspath(source)
    if text.startswith(PREFIX):
        return samples.build(text[len(PREFIX) :])
    return _from_path(Path(text))


def _from_path(path: Path) -> ModelProto:
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.onnx"))
        hint = f"; it holds {', '.join(inside[:5])}" if inside else ""
        raise ModelError(f"{path} is a folder, not a model{hint}. Give the path of an .onnx file.")
    try:
        data = path.read_bytes()
    except FileNotFoundError as e:
        raise ModelError(
            f"there is no file {path}. Give the path of an .onnx file, or sample:NAME with one of "
            f"{', '.join(samples.names())}."
        ) from e
    except OSError as e:
        raise ModelError(f"{path} cannot be read: {e.strerror}. Check the file's permissions.") from e
    model = _parse(data, str(path))
    del data
    _load_external(model, path)
    return model


def _parse(data: bytes, where: str) -> ModelProto:
    if not data:
        raise ModelError(f"{where}: the file is empty. Export or download the model again.")
    if data.startswith(b"version https://git-lfs"):
        raise ModelError(f"{where} is a pointer of Git LFS, not the model itself. Fetch it with `git lfs pull`.")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as e:
        raise ModelError(
            f"{where} is no ONNX model, or it is truncated: {len(data)} bytes that do not parse. "
            "Download or export it again; models of other formats must be converted to ONNX first."
        ) from e
    return _checked(model, where)


def _checked(model: ModelProto, where: str) -> ModelProto:
    """What every model must have; random bytes that happen to parse do not."""
    if model.ir_version < 1 or not model.HasField("graph") or not model.graph.output:
        raise ModelError(
            f"{where} is no complete ONNX model: it has "
            f"{'no graph' if not model.HasField('graph') else 'no IR version or no outputs'}. "
            "Download or export it again; models of other formats must be converted to ONNX first."
        )
    if not model.opset_import and model.ir_version >= 3:
        raise ModelError(f"{where} imports no operator set, so its operators have no meaning. Export it again.")
    return model


def _load_external(model: ModelProto, path: Path) -> None:
    """Read tensors that are stored next to the model, having checked where each one points."""
    outside = [t for t in tensors(model) if t.data_location == TensorProto.EXTERNAL]
    if not outside:
        return
    folder = path.parent.resolve()
    for t in outside:
        entries = {e.key: e.value for e in t.external_data}
        _check_location(entries, t, path, folder)
        with (folder / entries["location"]).open("rb") as f:
            f.seek(int(entries.get("offset", 0)))
            t.raw_data = f.read(int(entries["length"]) if "length" in entries else -1)
        t.data_location = TensorProto.DEFAULT
        del t.external_data[:]


def _check_location(entries: dict[str, str], tensor: TensorProto, path: Path, folder: Path) -> None:
    location = entries.get("location", "")
    target = folder / location
    where = f"{path}: the tensor {tensor.name!r} is stored in {location!r}"
    if not location or Path(location).is_absolute() or not target.resolve().is_relative_to(folder):
        raise ModelError(
            f"{where}, which is outside of the model's folder {folder}. That is refused: a model may only read files "
            "next to it. Save the model again with its data beside it."
        )
    if not target.is_file():
        raise ModelError(f"{where}, but there is no such file in {folder}. Copy it there.")
    end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
    if end > target.stat().st_size:
        raise ModelError(
            f"{where} up to byte {end}, but that file has only {target.stat().st_size} bytes: it is truncated. "
            "Copy it again."
        )
