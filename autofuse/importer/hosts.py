"""Host nodes: a one-node model that stands alone, what it gives, and running it in onnx's reference evaluator."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx.reference import ReferenceEvaluator

from autofuse.errors import ModelError
from autofuse.importer.binding import TensorType, onnx_type, type_of
from autofuse.importer.host_operators import OVERRIDES
from autofuse.importer.proto import domain_of, subgraphs, walk_nodes
from autofuse.ir.dtype import from_numpy
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Host

IR_VERSION = 10
KNOWN_ELEMENTS = 1024
"""Constants up to this size are shown to shape inference."""
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
FAILURES = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    NotImplementedError,
    AssertionError,
    ArithmeticError,
)
"""What an operator of the reference evaluator may raise."""


@dataclass(frozen=True)
class HostInput:
    """A value that the node reads: its name in the model, its type, and its contents where no kernel can hold them."""

    name: str
    type: TypeProto
    embedded: TensorProto | None = None


@dataclass(frozen=True, eq=False)
class StandAlone:
    """Nodes as a model of their own: the values that it is fed, its Host computation and the types of what it gives."""

    model: ModelProto
    fed: tuple[ValueId, ...]
    host: Host
    types: Sequence[TensorType]
    protos: Sequence[TypeProto]
    where: str


def tensor_type(dtype_code: int, shape: tuple[int, ...] | None) -> TypeProto:
    """A TypeProto of a dense tensor."""
    return helper.make_tensor_type_proto(dtype_code, None if shape is None else list(shape))


def build(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str],
    inputs: Sequence[HostInput],
    opsets: Mapping[str, int],
    functions: Sequence[FunctionProto],
) -> ModelProto:
    """A model that holds these nodes alone. Inputs become i0, i1, ...; outputs o0, o1, ...; no name of the model is left."""
    mapping: dict[str, str] = {}
    infos: list[ValueInfoProto] = []
    stored: list[TensorProto] = []
    for i in inputs:
        if i.embedded is not None:
            mapping[i.name] = f"c{len(stored)}"
            t = TensorProto()
            t.CopyFrom(i.embedded)
            t.name = mapping[i.name]
            stored.append(t)
        else:
            mapping[i.name] = f"i{len(infos)}"
            infos.append(helper.make_value_info(mapping[i.name], i.type))
    made = dict.fromkeys(o for n in nodes for o in n.output if o)
    mapping |= {o: f"t{k}" for k, o in enumerate(made)}
    mapping |= {o: f"o{k}" for k, o in enumerate(outputs)}
    copies = [_renamed(n, mapping) for n in nodes]
    results = [helper.make_empty_tensor_value_info(mapping[o]) for o in outputs]
    graph = helper.make_graph(copies, "host", infos, results, stored)
    imports = [helper.make_opsetid(d, v) for d, v in sorted(opsets.items())]
    model = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    model.ir_version = IR_VERSION
    model.producer_name = ""
    return model


def _renamed(node: NodeProto, names: Mapping[str, str], prefix: str = "") -> NodeProto:
    """A copy of a node under other names; its subgraphs get names of their own."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = copy.doc_string = ""
    copy.input[:] = [names[i] if i else "" for i in node.input]
    copy.output[:] = [names[o] if o else "" for o in node.output]
    for k, g in enumerate(subgraphs(copy)):
        _rename(g, names, f"{prefix}s{k}_")
    return copy


def _rename(graph: GraphProto, outer: Mapping[str, str], prefix: str) -> None:
    """Number the values of a subgraph under a prefix, and give captured values the names that they have outside."""
    names = {**outer, **{n: f"{prefix}{k}" for k, n in enumerate(dict.fromkeys(_defined(graph)))}}
    graph.name, graph.doc_string = prefix, ""
    del graph.value_info[:]
    for i in [*graph.input, *graph.output]:
        i.name = names[i.name]
    for t in graph.initializer:
        t.name = names[t.name]
    for s in graph.sparse_initializer:
        s.values.name = names[s.values.name]
    nodes = [_renamed(n, names, f"{prefix}{k}_") for k, n in enumerate(graph.node)]
    del graph.node[:]
    graph.node.extend(nodes)


def _defined(graph: GraphProto) -> Iterator[str]:
    yield from (i.name for i in graph.input)
    yield from (t.name for t in graph.initializer)
    yield from (s.values.name for s in graph.sparse_initializer)
    yield from (o for n in graph.node for o in n.output if o)


def infer(model: ModelProto, known: Mapping[int, np.ndarray], strict: bool = False) -> list[TypeProto]:
    """Types of the outputs by onnx's shape inference; `known` are the contents of constant inputs by position.

    With `strict`, raises onnx's InferenceError where the inputs do not fit the operator.
    """
    probe = ModelProto()
    probe.CopyFrom(model)
    for k, array in known.items():
        if array.size <= KNOWN_ELEMENTS:
            probe.graph.initializer.append(numpy_helper.from_array(array, f"i{k}"))
    result = onnx.shape_inference.infer_shapes(probe, strict_mode=strict, data_prop=True)
    return [o.type for o in result.graph.output]


def make(
    model: ModelProto, known: Mapping[int, np.ndarray], reason: str, where: str
) -> tuple[Host, list[TensorType], list[TypeProto]]:
    """The Host computation of a model made by `build`, with what is known of its outputs.

    Raises ModelError where onnx has no implementation to run either.
    """
    data = model.SerializeToString(deterministic=True)
    try:
        evaluator(data)
    except FAILURES as e:
        raise ModelError(
            f"{where} has neither a kernel in autofuse nor an implementation in onnx {onnx.__version__}'s reference "
            f"evaluator ({e}). Allowed are the operators of the onnx standard and functions stored in the model."
        ) from e
    protos = infer(model, known)
    types = [type_of(p) for p in protos]
    return Host(data, tuple(t.shape for t in types), tuple(t.dtype for t in types), reason), types, protos


def value_type(t: TensorType) -> TypeProto:
    """The TypeProto of a tensor that a kernel can hold."""
    return tensor_type(onnx_type(t.dtype), t.shape)


@functools.lru_cache(maxsize=256)
def evaluator(model: bytes) -> ReferenceEvaluator:
    """The reference evaluator of a Host's model."""
    return ReferenceEvaluator(onnx.load_model_from_string(model), new_ops=OVERRIDES)


def run(host: Host, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a Host for arrays (or lists, for sequences)."""
    session = evaluator(host.model)
    feeds = dict(zip(session.input_names, inputs, strict=True))
    return [_array(y) for y in session.run(None, feeds)]


def _array(y: Any) -> Any:
    return np.asarray(y) if isinstance(y, np.generic) else y


@functools.lru_cache(maxsize=256)
def is_random(model: bytes) -> bool:
    """Whether two runs may differ."""
    nodes = onnx.load_model_from_string(model).graph.node
    return any(n.op_type in RANDOM and not domain_of(n) for n in walk_nodes(nodes))


def fold(host: Host, inputs: Sequence[np.ndarray], room: int) -> list[np.ndarray] | None:
    """Run a Host on constants; None where it is random, fails, gives no plain tensors, or more than `room` bytes."""
    sizes = [np.prod(s, dtype=np.int64) * d.itemsize for s, d in zip(host.shapes, host.dtypes, strict=True) if s]
    if is_random(host.model) or sum(sizes) > room:
        return None
    try:
        outputs = run(host, inputs)
        for y in outputs:
            if not isinstance(y, np.ndarray) or y.nbytes > room:
                return None
            from_numpy(y.dtype)
    except FAILURES:
        return None
    return outputs
