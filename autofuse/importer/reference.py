"""Running a whole graph in numpy: the reference that kernels, plans and rewrites are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autofuse.errors import InputError
from autofuse.importer import hosts
from autofuse.importer.importing import body_graph
from autofuse.ir.dtype import DType
from autofuse.ir.graph import Graph, Node, Value, ValueId
from autofuse.ir.stage import Body, Control, Host, Stage
from autofuse.ops.alone import evaluate_alone
from autofuse.ops.control_flow import run_control
from autofuse.ops.evaluate import evaluate


def run_reference(graph: Graph, inputs: Mapping[str, Any], wide: bool = False) -> list[Any]:
    """The graph's outputs for named inputs. With `wide`, floats are carried in float64 from node to node.

    Host nodes run in onnx's reference evaluator, in the types that they declare. Raises InputError for a missing input or one of
    a wrong type or shape.
    """
    values: dict[ValueId, Any] = {}
    for v in graph.inputs:
        values[v] = _input(graph.values[v], inputs)
    left = {v: len(ns) for v, ns in graph.consumers.items()}
    for n in graph.nodes:
        found = [values[v] if v in values else graph.constants[v] for v in n.inputs]
        for v, y in zip(n.outputs, run_node(graph, n, found, wide), strict=True):
            values[v] = y
        for v in dict.fromkeys(n.inputs):
            left[v] -= 1
            if left[v] == 0 and v not in graph.output_set:
                values.pop(v, None)
    return [values[v] if v in values else graph.constants[v] for v in graph.outputs]


def _input(value: Value, inputs: Mapping[str, Any]) -> Any:
    if value.name not in inputs:
        raise InputError(f"the input {value.name!r} is missing; given are {', '.join(map(repr, inputs)) or 'none'}")
    given = inputs[value.name]
    if value.shape is None or value.dtype is DType.STRING:
        return given
    array = np.asarray(given)
    if array.dtype != value.dtype.numpy or array.shape != value.shape:
        raise InputError(
            f"the input {value.name!r} must be {value.dtype.value}{list(value.shape)}, given is "
            f"{array.dtype}{list(array.shape)}"
        )
    return array


def run_node(graph: Graph, node: Node, inputs: Sequence[Any], wide: bool = False) -> list[Any]:
    """The outputs of one node of a graph, in the types that `run_reference` carries."""
    match node.compute:
        case Stage() as stage:
            return [evaluate(stage, inputs, wide)]
        case Host() as host:
            narrow = [_narrowed(graph.values[v], x) for v, x in zip(node.inputs, inputs, strict=True)]
            return hosts.run(host, narrow)
        case Control() as control:
            narrow = [_narrowed(graph.values[v], x) for v, x in zip(node.inputs, inputs, strict=True)]
            return run_control(control, narrow, lambda k, given: _run_body(control.bodies[k], given, wide))
        case alone:
            return list(evaluate_alone(alone, inputs, wide))


def _run_body(body: Body, inputs: Sequence[Any], wide: bool) -> list[Any]:
    """A graph inside a node; what it gives is rounded to its types, since it may be carried on to the next step."""
    graph = body_graph(body, inputs, {})
    given = {graph.values[v].name for v in graph.inputs}
    named = {n: x for n, x in zip(body.names, inputs, strict=True) if n in given}
    found = run_reference(graph, named, wide)
    return [_narrowed(graph.values[v], y) for v, y in zip(graph.outputs, found, strict=True)]


def _narrowed(value: Value, x: Any) -> Any:
    """A value in the type that its Host node expects."""
    if not isinstance(x, np.ndarray) or value.dtype is DType.STRING:
        return x
    return x.astype(value.dtype.numpy, copy=False)
