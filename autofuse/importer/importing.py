"""ModelProto to Graph: shapes bound, constants folded, functions and constant branches inlined, the rest on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TypeProto

from autofuse.errors import ModelError
from autofuse.importer import contents, proto
from autofuse.importer.binding import TensorType, bind, dims_of, type_of
from autofuse.importer.bodies import emit_body, finish
from autofuse.importer.emitter import IMPLIED_OPSET, Emitter
from autofuse.importer.scope import Scope
from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.stage import Body


def import_model(
    model: ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    simplify: bool = True,
    fed: Mapping[str, Any] | None = None,
    overridden: Collection[str] = (),
) -> Graph:
    """The Graph of a model, which is not changed.

    `shapes` binds open dimensions, by input name ({"x": (1, 3, 224, 224)}) or by the dimension's own name ({"batch": (4,)}).
    An initializer that is also listed as an input is a constant below IR version 4; from 4 on it is a default value, and an input
    where `overridden` names it. Operators without a kernel become Host nodes. With
    `simplify` the rules of `importer.rules` run to a fixed point.

    `fed` are inputs by name as they will be given at run time. Where one of them decides about shapes (axes, a target shape, a count, the
    condition of an If), the graph is made for its contents and says so in `Graph.parameters`; numbers never are folded from it.

    Raises ShapeError where a dimension stays open or shapes do not fit, ModelError where the model cannot be run at all.
    """
    emitter = Emitter(model)
    scope = Scope(proto.opsets_of(model) or {"": IMPLIED_OPSET})
    scope.store(model.graph)
    _inputs(emitter, model.graph, scope, shapes or {}, overridden)
    contents.take(emitter.builder, fed or {})
    names = [o.name for o in model.graph.output]
    emitter.nodes(scope, model.graph.node, names, top=True)
    made: list[tuple[str, ValueId]] = []
    for name in names:
        v = scope.lookup(name, emitter.constants)
        if v is None or v in emitter.constants.opaque:
            raise ModelError(f"the graph output {name!r} is of an element type that cannot be given out")
        made.append((name, v))
    _declare_outputs(emitter, model.graph, [v for _, v in made])
    return finish(emitter, made, simplify)


def body_graph(body: Body, inputs: Sequence[Any], known: Mapping[int, np.ndarray]) -> Graph:
    """The graph of a body for what it is given: its own where the types are those that were known, else imported for them.

    `known` are inputs, by position, that are constants. Raises an AutofuseError where the body does not fit these types.
    """
    if body.graph is not None and suits(body.graph, dict(zip(body.names, inputs, strict=True))):
        return body.graph
    model = onnx.load_model_from_string(body.model)
    types = [_met(i.type, x) for i, x in zip(model.graph.input, inputs, strict=True)]
    return emit_body(Emitter(model), types, known)


def suits(graph: Graph, inputs: Mapping[str, Any]) -> bool:
    """Whether a graph inside a node was made for the types of these inputs, by name."""
    for v in graph.inputs:
        value = graph.values[v]
        given = inputs[value.name]
        if isinstance(given, np.ndarray) and (given.shape != value.shape or given.dtype != value.dtype.numpy):
            return False
    return True


def _met(declared: TypeProto, given: Any) -> TensorType:
    if not isinstance(given, np.ndarray):
        return type_of(declared)
    dtype = from_numpy(given.dtype)
    return TensorType(dtype, None if dtype is DType.STRING else given.shape)


def defaults(model: ModelProto) -> frozenset[str]:
    """The inputs that have a default value, which may be fed or left out."""
    if model.ir_version < 4:
        return frozenset()
    return frozenset(i.name for i in model.graph.input) & proto.stored_names(model.graph)


def _inputs(
    emitter: Emitter,
    graph: GraphProto,
    scope: Scope,
    shapes: Mapping[str, tuple[int, ...]],
    overridden: Collection[str],
) -> None:
    wrong = sorted(set(overridden) - defaults(emitter.model))
    if wrong:
        raise ModelError(
            f"{wrong[0]!r} is no input with a default value, so nothing can be fed in its stead. Below IR version 4 (this model has "
            f"{emitter.model.ir_version}) initializers are constants."
        )
    infos = [i for i in graph.input if i.name not in scope.stored or i.name in overridden]
    bound, notes = bind(infos, shapes)
    emitter.builder.notes += notes
    names = [i.name for i in graph.input if i.name in scope.stored and i.name not in overridden]
    if emitter.model.ir_version >= 4 and names:
        emitter.builder.notes.append(
            f"inputs with a default value are constants until something else is fed: {', '.join(names[:10])}"
            + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        )
    for i in infos:
        t = type_of(i.type)
        v = emitter.builder.input(i.name, t.dtype, bound.get(i.name, t.shape), dims_of(i))
        emitter.types[v] = i.type
        scope.values[i.name] = v


def _declare_outputs(emitter: Emitter, graph: GraphProto, made: Sequence[ValueId]) -> None:
    """Note the dimensions that the model states for its outputs, where they agree with what was inferred."""
    values = emitter.builder.values
    for info, v in zip(graph.output, made, strict=True):
        if info.type.WhichOneof("value") != "tensor_type" or values[v].declared is not None:
            continue
        stated = dataclasses.replace(values[v], declared=dims_of(info))
        shape = stated.shape
        if shape is None or stated.admits(shape):  # some models state wrong shapes: the operators' definitions hold
            values[v] = stated
