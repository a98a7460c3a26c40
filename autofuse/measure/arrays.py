"""Arrays on disk between a tune and its worker: an .npz that also holds bfloat16, the narrow types and text, which numpy's format does not know."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from autofuse.ir.dtype import DType, from_numpy

_MARK = "@"


def save(path: str, named: Mapping[str, np.ndarray]) -> None:
    """Write arrays under their names, all at once: a reader sees the whole file or none."""
    plain: dict[str, np.ndarray] = {}
    for name, a in named.items():
        array = np.asarray(a)
        if array.dtype == object:
            plain[f"text{_MARK}{name}"] = array.astype(str)
        elif array.dtype.isbuiltin == 2:
            plain[f"{from_numpy(array.dtype).value}{_MARK}{name}"] = array.view(f"u{array.itemsize}")
        else:
            plain[f"{_MARK}{name}"] = array
    handle, temporary = tempfile.mkstemp(dir=Path(path).parent, suffix=".npz")
    with os.fdopen(handle, "wb") as f:
        np.savez(f, **plain)  # type: ignore[arg-type]
    os.replace(temporary, path)


def load(path: str) -> dict[str, np.ndarray]:
    """Read what save wrote."""
    out: dict[str, np.ndarray] = {}
    with np.load(path, allow_pickle=False) as stored:
        for key in stored.files:
            kind, _, name = key.partition(_MARK)
            array = stored[key]
            if kind == "text":
                array = array.astype(object)
            elif kind:
                array = array.view(DType(kind).numpy)
            out[name] = array
    return out
