"""Names for people, and names that may become parts of file paths."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping

from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.target import Target

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST = 48


def safe_name(text: str, otherwise: str = "model") -> str:
    """Text as one harmless path component: letters, digits, _ and - only, never empty, never long.

    What had to be shortened gets a digest, so that two long names don't meet in one folder.
    """
    plain = _UNSAFE.sub("_", text).strip("_-")
    if not plain:
        return otherwise
    if len(plain) > _LONGEST:
        return f"{plain[: _LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return plain


def model_stem(model: str) -> str:
    """A model's name without folders and endings: of a path, or of `sample:NAME`."""
    if model.startswith("sample:"):
        return safe_name(model.removeprefix("sample:"))
    return safe_name(os.path.splitext(os.path.basename(model))[0])


def model_folder(model: str, structure: str) -> str:
    """`<stem>-<hash8>`: the second part is the structural hash, by which a plan is found again."""
    return f"{model_stem(model)}-{structure[:8]}"


def device_folder(target: Target) -> str:
    """The folder of a kind of device and its architecture: what a plan depends on."""
    return safe_name(f"{target.kind}-{target.arch}", "device")


def case_folder(shapes: Mapping[str, tuple[int, ...]], accuracy: str, threads: int) -> str:
    """`<shapes-accuracy-threads>`, in words as far as they fit."""
    text = "_".join(f"{safe_name(name, 'input')}_{'x'.join(map(str, dims))}" for name, dims in shapes.items())
    return f"{safe_name(text, 'scalars')}-{safe_name(accuracy, 'default')}-{threads}t"


def value_name(graph: Graph, v: ValueId) -> str:
    """A value as people see it: the model's name, or the operator that made it and its number."""
    if v in graph.output_set:
        return graph.output_names[graph.outputs.index(v)]
    name = graph.values[v].name
    if name:
        return name
    maker = graph.producer.get(v)
    return f"%{v}" if maker is None else f"{maker.op}%{v}"


def node_name(graph: Graph, n: int) -> str:
    """A node as people see it: its operator and number."""
    return f"{graph.nodes[n].op}#{n}"
