"""The vision networks that come with the onnx package, with weights drawn anew.

Their files hold the constant 0.02 for every weight, so that any input gives the same output. Here every weight is drawn from a
generator seeded by its name: convolutions and matmuls keep the variance of their input, variances are positive, biases small.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from autofuse.errors import ModelError
from autofuse.importer.samples.writer import IR_VERSION

FILES: Mapping[str, tuple[str, float]] = {
    "squeezenet": ("light_squeezenet", 0.6),
    "resnet50": ("light_resnet50", 0.25),
    "vgg19": ("light_vgg19", 0.4),
    "alexnet": ("light_bvlc_alexnet", 0.35),
    "zfnet512": ("light_zfnet512", 1.2),
    "densenet121": ("light_densenet121", 0.3),
    "inception_v1": ("light_inception_v1", 0.25),
    "inception_v2": ("light_inception_v2", 0.2),
    "shufflenet": ("light_shufflenet", 0.005),
}
"""Name of each sample: its file, and the gain of its last layer, chosen so that the scores neither vanish nor saturate."""


def build(name: str) -> ModelProto:
    """One of the networks, with seeded weights as plain initializers."""
    file, gain = FILES[name]
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"{file}.onnx"
    if not path.is_file():
        raise ModelError(f"the installed onnx {onnx.__version__} has no {path}. Install an onnx wheel that brings it.")
    source = onnx.load_model(str(path))
    shapes = _weights(source)
    uses = _uses(source, set(shapes))
    model = ModelProto()
    model.CopyFrom(source)
    model.ir_version = IR_VERSION
    graph = model.graph
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(n for n in source.graph.node if not set(n.output) & set(shapes))
    read = {i for n in graph.node for i in n.input}
    graph.initializer.extend(t for t in source.graph.initializer if t.name in read and t.name not in shapes)
    kept = {t.name for t in source.graph.initializer}
    graph.input.extend(i for i in source.graph.input if i.name not in kept)
    for weight, shape in shapes.items():
        if weight in uses:
            graph.initializer.append(numpy_helper.from_array(_draw(weight, shape, uses[weight], gain), weight))
    return model


def _weights(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all floating-point weights: initializers, and what ConstantOfShape nodes make."""
    found = {t.name: tuple(t.dims) for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    sizes = {t.name: t for t in model.graph.initializer if t.data_type == TensorProto.INT64}
    for n in model.graph.node:
        if n.op_type == "ConstantOfShape":
            found[n.output[0]] = tuple(int(d) for d in numpy_helper.to_array(sizes[n.input[0]]))
    return found


class _Use:
    """Where a weight is read: the operator, which input, and whether its result is the scores or joins a residual sum."""

    def __init__(self, node: NodeProto, slot: int, last: bool, joins: bool) -> None:
        self.op, self.slot, self.last, self.joins = node.op_type, slot, last, joins
        self.transposed = any(a.name == "transB" and a.i for a in node.attribute)


def _uses(model: ModelProto, weights: set[str]) -> dict[str, _Use]:
    """The first reader of each weight, seen through Unsqueeze."""
    nodes = [n for n in model.graph.node if n.op_type != "ConstantOfShape"]
    source = {n.output[0]: n.input[0] for n in nodes if n.op_type == "Unsqueeze"}
    last = next(n.output[0] for n in reversed(nodes) if n.op_type in ("Conv", "Gemm"))
    summed = {i for n in nodes if n.op_type == "Sum" for i in n.input}
    found: dict[str, _Use] = {}
    for n in nodes:
        if n.op_type == "Unsqueeze":
            continue
        for slot, name in enumerate(n.input):
            weight = source.get(name, name)
            if weight in weights:
                found.setdefault(weight, _Use(n, slot, n.output[0] == last, n.output[0] in summed))
    return found


def _draw(name: str, shape: tuple[int, ...], use: _Use, gain: float) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if use.op in ("Conv", "Gemm") and use.slot == 1:
        summed = int(np.prod(shape[1:])) if use.op == "Conv" or use.transposed else shape[0]
        spread = (gain if use.last else float(np.sqrt(2))) / float(np.sqrt(max(summed, 1)))
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(spread)
    centred = rng.random(shape, dtype=np.float32) * 2 - 1
    scale = use.op == "Mul" or (use.op == "BatchNormalization" and use.slot == 1)
    variance = use.op == "BatchNormalization" and use.slot == 4
    if scale:
        return (centred * np.float32(0.2) + 1) * np.float32(0.5 if use.joins else 1.0)
    return centred * np.float32(0.5) + 1 if variance else centred * np.float32(0.1)


MODELS: Mapping[str, Callable[[], ModelProto]] = {name: functools.partial(build, name) for name in FILES}
