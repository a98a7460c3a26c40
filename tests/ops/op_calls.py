"""Builds calls from samples and from ONNX nodes, runs what they emit in numpy, and asks the oracles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from autofuse.ir.dtype import from_numpy
from autofuse.ir.graph import Graph, ValueId, verify
from autofuse.ir.stage import Alone
from autofuse.ops import evaluate as ev
from autofuse.ops.alone import evaluate_alone
from autofuse.ops.builder import Builder
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.table import OPERATORS, find

DOMAINS = {"ai.onnx.ml": 4, "ai.onnx.preview.training": 1}
"""The standard's other domains, which the reference evaluator knows, and the version that samples are of."""


def attribute_value(a: onnx.AttributeProto) -> Any:
    """An attribute in the plain form that declarations read."""
    value = helper.get_attribute_value(a)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [v.decode() for v in value]
    return list(value) if a.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


def numpy_run(
    name: str,
    domain: str,
    opset: int,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any],
    outputs: Sequence[bool],
    constant: Sequence[int],
    wide: bool = False,
) -> tuple[list[np.ndarray | None], Builder]:
    """Emit one operator and evaluate it; every constant is folded as the importer would before a later stage asks for it."""
    op = find(domain, name)
    if op is None:
        raise Unsupported(f"{domain}::{name} has no declaration")
    b = Builder()
    arrays: dict[int, np.ndarray] = {}
    ids: list[int | None] = []
    for k, x in enumerate(inputs):
        if x is None:
            ids.append(None)
        elif k in constant:
            ids.append(b.constant(x))
        else:
            if x.dtype.kind in "OUS":
                raise Unsupported("strings")
            try:
                v = b.input(f"x{k}", from_numpy(x.dtype), x.shape)
            except KeyError as error:
                raise Unsupported(f"type {x.dtype}") from error
            arrays[v] = x
            ids.append(v)
    made = op.emit(Call(name, domain, opset, tuple(ids), stored(attributes), tuple(outputs), b))
    graph = verify(b.graph([(f"y{k}", v) for k, v in enumerate(made) if v is not None]))
    arrays.update(graph.constants)
    for n in graph.nodes:
        if isinstance(n.compute, Alone):
            arrays.update(zip(n.outputs, evaluate_alone(n.compute, [arrays[v] for v in n.inputs], wide), strict=True))
            continue
        arrays[n.outputs[0]] = ev.evaluate(n.stage, [arrays[v] for v in n.inputs], wide)
        assert arrays[n.outputs[0]].shape == n.stage.shape
        if not wide:
            assert arrays[n.outputs[0]].dtype == n.stage.dtype.numpy
    return [None if v is None else arrays[v] for v in made], b


def draw(sample: Sample, seed: int = 0) -> list[np.ndarray | None]:
    """The inputs of a sample as arrays."""
    rng = np.random.default_rng(seed)
    out: list[np.ndarray | None] = []
    for spec in sample.inputs:
        if spec is None or isinstance(spec, np.ndarray):
            out.append(spec)
            continue
        kind, shape = spec
        if kind == "bool":
            out.append(rng.random(shape) < 0.5)
        elif "int" in kind:
            out.append(
                rng.integers(
                    int(sample.low) if kind[0] != "u" else max(0, int(sample.low)), int(sample.high), shape
                ).astype(kind)
            )
        else:
            out.append(np.asarray(rng.uniform(sample.low, sample.high, shape)).astype(kind))
    return out


def stored(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as a model holds them: floats in single precision."""
    return {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in attributes.items()}


def model_of(
    op: Op, sample: Sample, inputs: Sequence[np.ndarray | None], typed: Sequence[np.ndarray | None]
) -> onnx.ModelProto:
    """A one-node model; `typed` gives the types of its outputs."""
    names = [f"x{k}" if x is not None else "" for k, x in enumerate(inputs)]
    outs = [f"y{k}" for k in range(sample.outputs)]
    attributes = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in sample.attributes.items()
    }
    node = helper.make_node(op.name, names, outs, domain=op.domain, **attributes)

    def info(name: str, x: np.ndarray) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)

    graph = helper.make_graph(
        [node],
        "one",
        [
            info(n, x)
            for k, (n, x) in enumerate(zip(names, inputs, strict=True))
            if x is not None and k not in sample.constant
        ],
        [info(n, y) for n, y in zip(outs, typed, strict=False) if y is not None],
        [numpy_helper.from_array(inputs[k], names[k]) for k in sample.constant if inputs[k] is not None],
    )
    opsets = [helper.make_opsetid("", sample.opset)]
    if op.domain:
        opsets.append(helper.make_opsetid(op.domain, DOMAINS.get(op.domain, 1)))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10 if sample.opset < 23 else 11)


def feeds_of(sample: Sample, inputs: Sequence[np.ndarray | None]) -> dict[str, np.ndarray]:
    return {f"x{k}": x for k, x in enumerate(inputs) if x is not None and k not in sample.constant}


def tolerance(dtype: np.dtype) -> float:
    return {"float16": 4e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-10}.get(str(dtype), 0.0)


def close(got: np.ndarray, want: np.ndarray, tol: float | None = None) -> None:
    """Same type and shape, equal values: exactly for integers, within the type's tolerance for floats."""
    want = np.asarray(want)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    if got.dtype.kind not in "fV" and str(got.dtype) != "bfloat16":
        np.testing.assert_array_equal(got, want)
        return
    tol = tolerance(got.dtype) if tol is None else tol
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tol, atol=tol)


def emitted(key: tuple[str, str], sample: Sample) -> tuple[Graph, dict[ValueId, np.ndarray]]:
    """The graph that a sample emits, and its inputs."""
    b = Builder()
    ids: list[ValueId | None] = []
    arrays: dict[ValueId, np.ndarray] = {}
    for k, x in enumerate(draw(sample)):
        if x is None:
            ids.append(None)
            continue
        v = b.constant(x) if k in sample.constant else b.input(f"x{k}", from_numpy(x.dtype), x.shape)
        ids.append(v)
        arrays[v] = x
    call = Call(key[1], key[0], sample.opset, tuple(ids), stored(sample.attributes), (True,) * sample.outputs, b)
    made = OPERATORS[key].emit(call)
    graph = b.graph([(f"y{k}", v) for k, v in enumerate(made) if v is not None])
    return graph, {**arrays, **graph.constants}
