"""What people may give: models, budgets, shapes, inputs from files. Everything is checked here, before work begins."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, numpy_helper

from autofuse.errors import InputError, UsageError
from autofuse.ir.graph import Graph
from autofuse.measure.inputs import graph_inputs

Model = str | os.PathLike[str] | bytes | ModelProto
Shapes = Mapping[str, tuple[int, ...]]
Arrays = Mapping[str, np.ndarray]

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds_of(budget: float | int | str) -> float:
    """A duration as seconds: a number, or text such as 90s, 5m, 1.5h. UsageError for anything else."""
    if isinstance(budget, str):
        match = _BUDGET.fullmatch(budget.strip().lower())
        if match is None:
            raise UsageError(f"{budget!r} is no duration; write 90s, 5m or 1h")
        seconds = float(match[1]) * _SECONDS[match[2] or "s"]
    else:
        seconds = float(budget)
    if not 0 < seconds < 1e7:
        raise UsageError(f"a budget must be more than nothing and less than 100 days, found {budget!r}")
    return seconds


def bytes_of(text: str) -> int:
    """A size such as 500M or 2GiB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no size; write 500M or 2G")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def shape_of(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME=1,3,224,224 as a name and its dimensions (NAME= is a scalar). The name may hold "=" and anything else but the last one."""
    name, equals, dims = text.rpartition("=")
    if not equals or not name:
        raise UsageError(f"--shape {text!r}: write NAME=1,3,224,224")
    words = [w.strip() for w in dims.replace("x", ",").split(",")] if dims.strip() else []
    if not all(w.isdigit() for w in words):
        raise UsageError(f"--shape {text!r}: dimensions are whole numbers, as in {name}=1,3,224,224")
    return name, tuple(int(w) for w in words)


def model_name(model: Model) -> str:
    """How reports call a model."""
    if isinstance(model, ModelProto):
        return model.graph.name or "model"
    return "model" if isinstance(model, bytes) else os.fspath(model)


def input_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The shapes of a graph's inputs, where they are known."""
    values = [graph.values[v] for v in graph.inputs]
    return {v.name: v.shape for v in values if v.shape is not None}


def read_inputs(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Inputs from an .npz (by name), an .npy (a model with one input) or a folder with input_0.pb … (a test_data_set, in order).

    `names` are the model's inputs. InputError where the file is missing, damaged, or doesn't say which input is which.
    """
    if path.is_dir():
        return _from_folder(path, names)
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
            if len(names) != 1:
                raise InputError(
                    f"{path} holds one array, the model has {len(names)} inputs ({_listed(names)}); "
                    "save them by name with numpy.savez"
                )
            return {names[0]: array}
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {k: archive[k] for k in archive.files}
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read: {error}. Write it with numpy.savez or numpy.save.") from error
    if not path.exists():
        raise InputError(f"there is no file {path}")
    raise InputError(
        f"{path}: inputs are an .npz, an .npy or a folder with a test_data_set, found {path.suffix or 'a file without ending'}"
    )


def _from_folder(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    folder = path
    if not list(folder.glob("input_*.pb")):
        inside = sorted(p for p in path.glob("test_data_set_*") if p.is_dir())
        if not inside:
            raise InputError(f"{path} holds neither input_0.pb nor a folder test_data_set_0")
        folder = inside[0]
    found: dict[str, np.ndarray] = {}
    for k in range(len(list(folder.glob("input_*.pb")))):
        file = folder / f"input_{k}.pb"
        tensor = TensorProto()
        try:
            tensor.ParseFromString(file.read_bytes())
            array = numpy_helper.to_array(tensor)
        except (OSError, DecodeError, ValueError, TypeError) as error:
            raise InputError(f"{file} is no tensor: {error}") from error
        # the order is what counts; a tensor's own name wins only where the model knows it
        name = tensor.name if tensor.name in names else names[k] if k < len(names) else ""
        if not name:
            raise InputError(f"{folder} has {k + 1} or more inputs, the model only {len(names)} ({_listed(names)})")
        found[name] = array
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")


def _typed(array: np.ndarray, graph: Graph, name: str) -> np.ndarray:
    """An array of bytes without a type, as which numpy stores types that it does not know, in the type of the graph's input."""
    wanted = next((graph.values[v].dtype.numpy for v in graph.inputs if graph.values[v].name == name), None)
    bare = isinstance(array, np.ndarray) and array.dtype == np.dtype(f"V{array.itemsize}")
    if not bare or wanted is None or wanted.isbuiltin != 2 or wanted.itemsize != array.itemsize:
        return array
    return array.view(wanted)


def complete_inputs(graph: Graph, given: Arrays | None, seed: int) -> dict[str, np.ndarray]:
    """The given inputs, or ones drawn in the range that each operator allows. InputError where a model's inputs cannot be drawn."""
    if given is not None:
        return {k: _typed(a, graph, k) for k, a in given.items()}
    drawn = graph_inputs(graph, seed)
    missing = [graph.values[v].name for v in graph.inputs if graph.values[v].name not in drawn]
    if missing:
        raise InputError(
            f"inputs of the kind of {missing[0]!r} (text, sequences) cannot be drawn; give them with inputs"
        )
    return drawn
