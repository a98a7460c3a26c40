"""Walks over ONNX protobuf messages: subgraphs, tensors, captured names, attributes as Python values, node order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from autofuse.errors import ModelError

AttributeType = AttributeProto.AttributeType
DEFAULT_DOMAINS = ("", "ai.onnx")


def domain_of(node: NodeProto) -> str:
    """The node's operator domain, with "" for the standard one however it is spelled."""
    return "" if node.domain in DEFAULT_DOMAINS else node.domain


def opsets_of(message: ModelProto | FunctionProto) -> dict[str, int]:
    """The opset version of each domain that a model or a function imports."""
    return {"" if o.domain in DEFAULT_DOMAINS else o.domain: o.version for o in message.opset_import}


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs held by a node's attributes (branches of If, bodies of Loop and Scan)."""
    for a in node.attribute:
        if a.type == AttributeType.GRAPH:
            yield a.g
        elif a.type == AttributeType.GRAPHS:
            yield from a.graphs


def captured(node: NodeProto) -> list[str]:
    """Outer values that a node's subgraphs read, each once, in order of first use."""
    return list(dict.fromkeys(name for g in subgraphs(node) for name in free_names(g)))


def stored_names(graph: GraphProto) -> set[str]:
    """The names of a graph's initializers, dense and sparse."""
    return {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}


def free_names(graph: GraphProto) -> list[str]:
    """Outer values that a subgraph reads, each once, in order of first use."""
    inner = {i.name for i in graph.input} | stored_names(graph)
    inner |= {o for n in graph.node for o in n.output}
    read = [name for n in graph.node for name in [*n.input, *captured(n)]] + [o.name for o in graph.output]
    return [name for name in dict.fromkeys(read) if name and name not in inner]


def reads(node: NodeProto) -> list[str]:
    """Every value that a node needs: its inputs and what its subgraphs capture."""
    names = [i for i in node.input if i]
    if any(a.type in (AttributeType.GRAPH, AttributeType.GRAPHS) for a in node.attribute):
        names += captured(node)
    return names


def walk_nodes(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and all nodes of their subgraphs."""
    for n in nodes:
        yield n
        for g in subgraphs(n):
            yield from walk_nodes(g.node)


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor that a model stores: initializers and attributes, in subgraphs and functions too."""
    yield from _graph_tensors(model.graph)
    for f in model.functions:
        yield from _node_tensors(f.node)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for s in graph.sparse_initializer:
        yield s.values
        yield s.indices
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Sequence[NodeProto]) -> Iterator[TensorProto]:
    for n in nodes:
        for a in n.attribute:
            if a.type == AttributeType.TENSOR:
                yield a.t
            elif a.type == AttributeType.TENSORS:
                yield from a.tensors
        for g in subgraphs(n):
            yield from _graph_tensors(g)


def attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes as plain Python and numpy values; graphs and types stay messages."""
    return {a.name: attribute_value(a) for a in node.attribute}


def attribute_value(a: AttributeProto) -> Any:
    """One attribute as a plain value: strings are decoded, tensors are numpy arrays."""
    match a.type:
        case AttributeType.FLOAT:
            return a.f
        case AttributeType.INT:
            return a.i
        case AttributeType.STRING:
            return a.s.decode("utf-8", "surrogateescape")
        case AttributeType.TENSOR:
            return to_array(a.t)
        case AttributeType.FLOATS:
            return list(a.floats)
        case AttributeType.INTS:
            return list(a.ints)
        case AttributeType.STRINGS:
            return [s.decode("utf-8", "surrogateescape") for s in a.strings]
        case AttributeType.GRAPH:
            return a.g
        case AttributeType.TENSORS:
            return [to_array(t) for t in a.tensors]
        case AttributeType.SPARSE_TENSOR:
            return dense(a.sparse_tensor)
        case _:
            return onnx.helper.get_attribute_value(a)


def to_array(tensor: TensorProto) -> np.ndarray:
    """A tensor's contents. Those in another file must have been read by `load_model`, which checks where they lie."""
    if tensor.data_location == TensorProto.EXTERNAL:
        raise ModelError(
            f"the tensor {tensor.name!r} is stored in another file, which was not loaded. Give the path of the model "
            "instead of a model that was loaded without its external data."
        )
    return numpy_helper.to_array(tensor)


def dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    """A sparse tensor written out."""
    values, indices = to_array(sparse.values), to_array(sparse.indices)
    out = np.zeros(tuple(sparse.dims), dtype=values.dtype)
    if indices.ndim == 2:
        out[tuple(indices.T)] = values
    else:
        out.reshape(-1)[indices] = values
    return out


def bind_references(nodes: Sequence[NodeProto], given: Mapping[str, AttributeProto]) -> list[NodeProto]:
    """Copies of a function's nodes with attribute references replaced by the caller's attributes.

    A reference to an attribute that is not given disappears, as the standard says.
    """
    return [_bound(n, given) for n in nodes]


def _bound(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    if not node.attribute:
        return node
    out = NodeProto()
    out.CopyFrom(node)
    del out.attribute[:]
    for a in node.attribute:
        if a.ref_attr_name:
            if a.ref_attr_name in given:
                new = out.attribute.add()
                new.CopyFrom(given[a.ref_attr_name])
                new.name = a.name
            continue
        new = out.attribute.add()
        new.CopyFrom(a)
        graphs = [new.g] if a.type == AttributeType.GRAPH else list(new.graphs)
        for g in graphs:
            inner = [_bound(n, given) for n in g.node]
            del g.node[:]
            g.node.extend(inner)
    return out


def describe(node: NodeProto, index: int) -> str:
    """How a node is named to people."""
    domain = domain_of(node)
    op = f"{domain}::{node.op_type}" if domain else node.op_type
    return f"node {node.name or '#' + str(index)} ({op})"


def ordered(nodes: Sequence[NodeProto], available: set[str]) -> list[int]:
    """Positions of the nodes in an order in which each reads only what is there.

    The given order is kept where it is one. `available` are the names known beforehand. Raises ModelError for a value that
    nobody makes, that two nodes make, or a cycle.
    """
    needs = [reads(n) for n in nodes]
    makers: dict[str, int] = {}
    for k, n in enumerate(nodes):
        for o in n.output:
            if not o:
                continue
            if o in makers:
                raise ModelError(
                    f"{describe(n, k)} makes the value {o!r}, which {describe(nodes[makers[o]], makers[o])} has made "
                    "already; every value of a model must be made once. Export the model again."
                )
            makers[o] = k
    known = set(available)
    for k, n in enumerate(nodes):
        if not known.issuperset(needs[k]):
            return _sorted(nodes, needs, makers, available)
        known.update(n.output)
    return list(range(len(nodes)))


def _sorted(
    nodes: Sequence[NodeProto], needs: list[list[str]], makers: dict[str, int], available: set[str]
) -> list[int]:
    waiting = [0] * len(nodes)
    followers: list[list[int]] = [[] for _ in nodes]
    for k, names in enumerate(needs):
        sources = set()
        for name in names:
            if name in makers:
                sources.add(makers[name])
            elif name not in available:
                raise ModelError(
                    f"{describe(nodes[k], k)} reads the value {name!r}, which no node makes and which is neither an "
                    "input nor an initializer. The file is damaged or was cut out of a larger model: export it again."
                )
        waiting[k] = len(sources)
        for s in sources:
            followers[s].append(k)
    ready = [k for k, w in enumerate(waiting) if w == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for f in followers[k]:
            waiting[f] -= 1
            if waiting[f] == 0:
                heapq.heappush(ready, f)
    if len(order) < len(nodes):
        stuck = next(k for k, w in enumerate(waiting) if w > 0)
        raise ModelError(f"{describe(nodes[stuck], stuck)} stands on a cycle: its input depends on its own output.")
    return order


def live(nodes: Sequence[NodeProto], order: Sequence[int], outputs: set[str]) -> tuple[list[int], set[str]]:
    """Those positions of `order` that the outputs depend on, and every name that is read."""
    wanted = set(outputs)
    kept: list[int] = []
    for k in reversed(order):
        if any(o in wanted for o in nodes[k].output if o):
            kept.append(k)
            wanted.update(reads(nodes[k]))
    kept.reverse()
    return kept, wanted
