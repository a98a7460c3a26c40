"""Graphs inside nodes: a branch or body cut out as a model that stands alone, and importing it for known types."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper

from autofuse.errors import ModelError
from autofuse.importer import proto, rules
from autofuse.importer.binding import TensorType
from autofuse.importer.literals import inline_literals
from autofuse.importer.rebuild import compact
from autofuse.importer.scope import Scope
from autofuse.ir.graph import SMALL_CONSTANT, Graph, ValueId, verify
from autofuse.ops.builder import Contents

if TYPE_CHECKING:
    from autofuse.importer.emitter import Emitter


def cut_out(alone: ModelProto, graph: GraphProto) -> ModelProto:
    """A subgraph of the node of a model made by `hosts.build`, as a model: its own inputs come first, then what it captures."""
    free = set(proto.free_names(graph))
    body = GraphProto()
    body.CopyFrom(graph)
    body.name = "body"
    body.input.extend(i for i in alone.graph.input if i.name in free)
    body.initializer.extend(t for t in alone.graph.initializer if t.name in free)
    model = helper.make_model(body, opset_imports=alone.opset_import, functions=alone.functions)
    model.ir_version = alone.ir_version
    model.producer_name = ""
    return model


def digest(model: ModelProto) -> str:
    """SHA-256 (24 hex digits) of a model without its weights: of floats and large tensors the type and dimensions count."""
    copy = ModelProto()
    copy.CopyFrom(model)
    _forget_weights(copy.graph)
    return hashlib.sha256(copy.SerializeToString(deterministic=True)).hexdigest()[:24]


def _forget_weights(graph: GraphProto) -> None:
    kept = [_shell(t) for t in graph.initializer]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for n in graph.node:
        for a in n.attribute:
            if a.type == AttributeProto.TENSOR:
                a.t.CopyFrom(_shell(a.t))
        for g in proto.subgraphs(n):
            _forget_weights(g)


def _shell(t: TensorProto) -> TensorProto:
    floats = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    if t.data_type not in floats and np.prod(t.dims) <= SMALL_CONSTANT:
        return t
    return TensorProto(name=t.name, data_type=t.data_type, dims=t.dims)


def emit_body(
    emitter: Emitter,
    types: Sequence[TensorType],
    known: Mapping[int, np.ndarray],
    contents: Mapping[int, np.ndarray] | None = None,
) -> Graph:
    """The graph of a model that a fresh emitter holds, for the given types of its inputs.

    `known` are inputs, by position, that are constants of the graph; `contents` are those that are fed and may decide about shapes.
    Raises an AutofuseError where the model does not fit those types.
    """
    model, builder = emitter.model, emitter.builder
    scope = Scope(proto.opsets_of(model))
    scope.store(model.graph)
    for k, (info, t) in enumerate(zip(model.graph.input, types, strict=True)):
        if k in known:
            scope.values[info.name] = emitter.constants.array(known[k], info.name)
            continue
        v = builder.input(info.name, t.dtype, t.shape)
        emitter.types[v] = info.type
        scope.values[info.name] = v
        if contents and k in contents:
            builder.contents[v] = Contents(contents[k], frozenset({v}))
    names = [o.name for o in model.graph.output]
    emitter.nodes(scope, model.graph.node, names)
    made: list[tuple[str, ValueId]] = []
    for k, name in enumerate(names):
        result = scope.lookup(name, emitter.constants)
        if result is None or result in emitter.constants.opaque:
            raise ModelError(f"output {k} of a graph inside a node is of an element type that cannot be given out")
        made.append((f"o{k}", result))
    return finish(emitter, made)


def finish(emitter: Emitter, outputs: Sequence[tuple[str, ValueId]], simplify: bool = True) -> Graph:
    """The graph of what was emitted, simplified."""
    graph = compact(inline_literals(emitter.builder.graph(outputs), emitter.constants.literals))
    return verify(rules.simplify(graph) if simplify else graph)
