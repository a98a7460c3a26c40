"""If, Loop and Scan as nodes that hold their branches and bodies as graphs, and parts of a model whose shapes show late.

A graph inside a node is imported at once where the shapes of all that it reads are known. Where they are not (a value that grows from
step to step, what follows NonZero), it is imported when it runs, for the shapes that are met.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto

from autofuse.errors import AutofuseError
from autofuse.importer import bodies, hosts, proto
from autofuse.importer.binding import TensorType, dims_of, type_of
from autofuse.importer.hosts import StandAlone
from autofuse.importer.unrolling import steps
from autofuse.ir.dtype import DType
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.stage import Body, Control

if TYPE_CHECKING:
    from autofuse.importer.emitter import Emitter

OPERATORS = ("If", "Loop", "Scan")
DEFERRED = "Deferred"
BATCHED_SCAN = 9
"""Below this opset Scan works on batches."""
MOVES = frozenset(
    [
        *("Cast", "CastLike", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "GatherElements"),
        *(
            "GatherND",
            "Identity",
            "Range",
            "Reshape",
            "Shape",
            "Size",
            "Slice",
            "Split",
            "Squeeze",
            "Tile",
            "Transpose",
        ),
        *("Unsqueeze", "Where"),
    ]
)
"""Operators that compute nothing: a part of a model that has no other is not worth compiling for every size that is met."""

Attributes = tuple[tuple[str, tuple[int, ...]], ...]


class _Refused(Exception):
    """Why a node stays on the host."""


@dataclass(frozen=True)
class _Shaped:
    """What is known of an operator's results: type, and shape where it does not depend on data."""

    dtype: DType
    shape: tuple[int, ...] | None


def emit(emitter: Emitter, alone: StandAlone, opset: int) -> tuple[str, Sequence[ValueId | None] | None]:
    """Make the Control node of an If, Loop or Scan; None and the reason where it must stay on the host."""
    node = alone.model.graph.node[0]
    try:
        return "", _Maker(emitter, alone, node).make(opset)
    except _Refused as e:
        return str(e), None


def emit_deferred(emitter: Emitter, alone: StandAlone) -> Sequence[ValueId]:
    """Make the node that holds a part of a model whose shapes depend on data."""
    everything = tuple(range(len(alone.fed)))
    outputs = tuple((t.dtype, t.shape or ()) for t in alone.types)
    names = tuple(i.name for i in alone.model.graph.input)
    body = Body(alone.host.model, names, everything, outputs, None, bodies.digest(alone.model))
    found = [_Shaped(t.dtype, None) for t in alone.types]
    return _add(emitter, alone, DEFERRED, (body,), (), tuple(range(len(found))), found, ())


def _add(
    emitter: Emitter,
    alone: StandAlone,
    operator: str,
    inside: tuple[Body, ...],
    arguments: tuple[int | None, ...],
    results: tuple[int, ...],
    found: Sequence[_Shaped],
    attributes: Attributes,
) -> Sequence[ValueId]:
    given = [found[k] for k in results]
    shapes, dtypes = tuple(s.shape for s in given), tuple(s.dtype for s in given)
    compute = Control(operator, inside, arguments, results, shapes, dtypes, attributes, alone.host)
    return emitter.builder.node(alone.fed, compute, [(s.dtype, s.shape) for s in given])


class _Maker:
    """One node: `alone` is its model, in which the node's inputs are named i0, i1, ... by position."""

    def __init__(self, emitter: Emitter, alone: StandAlone, node: NodeProto) -> None:
        self.emitter = emitter
        self.builder = emitter.builder
        self.alone = alone
        self.node = node
        self.position = {f"i{k}": k for k in range(len(alone.fed))}
        self.attributes: dict[str, Any] = proto.attributes(node)

    def make(self, opset: int) -> Sequence[ValueId | None]:
        """The node's results, None for those that are left out."""
        if any(not _is_tensor(self.builder.dtype(v)) for v in self.alone.fed) or any(
            not _is_tensor(t.dtype) for t in self.alone.types
        ):
            raise _Refused(f"{self.node.op_type} reads or gives sequences, optionals or strings")
        if any(i and i not in self.position for i in self.node.input):
            raise _Refused(f"{self.node.op_type} reads tensors of an element type without kernels")
        arguments = tuple(self.position[i] if i else None for i in self.node.input)
        match self.node.op_type:
            case "If":
                inside, found, attributes = self._if()
            case "Loop":
                inside, found, attributes = self._loop(arguments)
            case _:
                inside, found, attributes = self._scan(arguments, opset < BATCHED_SCAN)
        if all(b.graph is not None and b.graph.nodes and not _has_kernels(b.graph) for b in inside):
            raise _Refused(f"nothing inside {self.node.op_type} has a kernel")
        asked = [bool(o) for o in self.node.output]
        results = tuple(k for k, o in enumerate(asked) if o)
        made = iter(_add(self.emitter, self.alone, self.node.op_type, inside, arguments, results, found, attributes))
        return [next(made) if o else None for o in asked]

    # ---- operators

    def _if(self) -> tuple[tuple[Body, ...], list[_Shaped], Attributes]:
        inside = tuple(self._body(self.attributes[a], []) for a in ("then_branch", "else_branch"))
        found: list[_Shaped] = []
        for k, (dtype, _) in enumerate(inside[0].outputs):
            if inside[1].outputs[k][0] is not dtype:
                raise _Refused(f"the branches of If give different types for output {k}")
            shapes = [b.graph.values[b.graph.outputs[k]].shape if b.graph is not None else None for b in inside]
            found.append(_Shaped(dtype, shapes[0] if shapes[0] == shapes[1] else None))
        return inside, found, ()

    def _loop(self, arguments: Sequence[int | None]) -> tuple[tuple[Body, ...], list[_Shaped], Attributes]:
        graph: GraphProto = self.attributes["body"]
        scalars = [_scalar(dims_of(i)) for i in graph.input[:2]]
        carried = [self._type(k) for k in arguments[2:]]
        formals = [TensorType(DType.INT64, scalars[0]), TensorType(DType.BOOL, scalars[1]), *carried]
        body = self._body(graph, formals)
        first = 1 + len(carried)
        body, found = self._settled(body, carried, 1)
        trips = self._trips(arguments, body) if len(body.outputs) > first else None
        for k in range(first, len(body.outputs)):
            dtype, shape = body.outputs[k]
            inner = None if body.graph is None else body.graph.values[body.graph.outputs[k]].shape
            found.append(_Shaped(dtype, None if trips is None or inner is None else (trips, *shape)))
        return (body,), found, (("index_shape", scalars[0]), ("condition_shape", scalars[1]))

    def _trips(self, arguments: Sequence[int | None], body: Body) -> int | None:
        """How many times a loop runs, where its condition cannot end it early; None where that depends on data."""
        if body.graph is None:
            return None
        goes_on = body.graph.outputs[0]
        always = body.graph.constants.get(goes_on)
        passed = goes_on in body.graph.inputs and body.graph.values[goes_on].name == body.names[1]
        if not passed and (always is None or not always.all()):
            return None
        count, condition = (None if k is None else self.alone.fed[k] for k in (*arguments[:2], None, None)[:2])
        return steps(self.builder, count, condition)

    def _scan(
        self, arguments: Sequence[int | None], batched: bool
    ) -> tuple[tuple[Body, ...], list[_Shaped], Attributes]:
        scanned = int(self.attributes["num_scan_inputs"])
        types = [self._type(k) for k in (arguments[1:] if batched else arguments)]
        batch = {t.shape[0] if t.shape else None for t in types} if batched else set()
        if len(batch) > 1 or None in batch:
            raise _Refused("the batches of Scan are not known or not of one size")
        rows = [TensorType(t.dtype, t.shape[1:] if batched and t.shape else t.shape) for t in types]
        states, tensors = rows[: len(rows) - scanned], rows[len(rows) - scanned :]
        axes = self._listed("scan_input_axes", scanned)
        axes = [a if a >= 0 or t.shape is None else a + len(t.shape) for a, t in zip(axes, tensors, strict=True)]
        slices = [
            TensorType(t.dtype, None if t.shape is None else (*t.shape[:a], *t.shape[a + 1 :]))
            for t, a in zip(tensors, axes, strict=True)
        ]
        lengths = {t.shape[a] for t, a in zip(tensors, axes, strict=True) if t.shape is not None}
        if len(lengths) > 1:
            raise _Refused(f"the inputs of Scan have different lengths: {sorted(lengths)}")
        body = self._body(self.attributes["body"], [*states, *slices])
        body, found = self._settled(body, states, 0)
        count = len(body.outputs) - len(states)
        joined = self._listed("scan_output_axes", count)
        for k, axis in enumerate(joined, len(states)):
            dtype, shape = body.outputs[k]
            inner = None if body.graph is None else body.graph.values[body.graph.outputs[k]].shape
            whole = list(shape)
            whole.insert(axis % (len(shape) + 1), next(iter(lengths), 0))
            found.append(_Shaped(dtype, tuple(whole) if inner is not None and lengths else None))
        if batched:
            front = tuple(n for n in batch if n is not None)
            found = [_Shaped(f.dtype, None if f.shape is None else (*front, *f.shape)) for f in found]
        attributes = {
            "scanned": [scanned],
            "batched": [int(batched)],
            "input_axes": axes,
            "input_directions": self._listed("directions" if batched else "scan_input_directions", scanned),
            "output_axes": joined,
            "output_directions": self._listed("scan_output_directions", count),
        }
        return (body,), found, tuple((k, tuple(v)) for k, v in attributes.items())

    def _settled(self, body: Body, carried: Sequence[TensorType], first: int) -> tuple[Body, list[_Shaped]]:
        """What the carried values come to; where a shape changes from step to step, the body is imported when it runs."""
        outputs = body.outputs[first : first + len(carried)]
        if any(dtype is not t.dtype for (dtype, _), t in zip(outputs, carried, strict=True)):
            raise _Refused(f"the body of {self.node.op_type} changes the type of a value that it carries on")
        if body.graph is not None:
            after = [body.graph.values[v].shape for v in body.graph.outputs[first : first + len(carried)]]
            if after == [t.shape for t in carried]:
                return body, [_Shaped(t.dtype, t.shape) for t in carried]
            body = self._late(body)
        return body, [_Shaped(t.dtype, None) for t in carried]

    # ---- bodies

    def _type(self, k: int | None) -> TensorType:
        if k is None:
            raise _Refused(f"{self.node.op_type} carries a value that is left out")
        value = self.builder.values[self.alone.fed[k]]
        return TensorType(value.dtype, value.shape)

    def _listed(self, name: str, count: int) -> list[int]:
        return [int(x) for x in self.attributes.get(name) or [0] * count]

    def _body(self, graph: GraphProto, formals: Sequence[TensorType]) -> Body:
        """A subgraph as a body, imported where the shapes of all that it reads are known."""
        model = bodies.cut_out(self.alone.model, graph)
        if len(formals) != len(graph.input):
            raise _Refused(f"the graph inside {self.node.op_type} takes {len(graph.input)} inputs, not {len(formals)}")
        names = tuple(i.name for i in model.graph.input)
        captures = tuple(self.position[n] for n in names[len(formals) :])
        types = [*formals, *(self._type(k) for k in captures)]
        known, contents = self._known(captures, len(formals))
        result = self._imported(model, types, known, contents)
        if result is not None:
            self._note_parameters(result, dict(zip(names[len(formals) :], captures, strict=True)))
        if result is not None:
            values = [result.values[v] for v in result.outputs]
            outputs = [(v.dtype, v.shape or ()) for v in values]
        else:
            outputs = [_declared(t) for t in hosts.infer(model, {})]
        if any(not _is_tensor(dtype) for dtype, _ in outputs):
            raise _Refused(f"{self.node.op_type} carries sequences, optionals or strings")
        data = model.SerializeToString(deterministic=True)
        return Body(data, names, captures, tuple(outputs), result, "" if result is not None else bodies.digest(model))

    def _late(self, body: Body) -> Body:
        """The body without the graph, whose shapes hold for the first step alone."""
        model = onnx.load_model_from_string(body.model)
        return Body(body.model, body.names, body.captures, body.outputs, None, bodies.digest(model))

    def _known(self, captures: Sequence[int], first: int) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        """What is known of captured values, by position among the body's inputs: constants, and contents of what is fed."""
        known: dict[int, np.ndarray] = {}
        contents: dict[int, np.ndarray] = {}
        for k, position in enumerate(captures, first):
            v = self.alone.fed[position]
            if v in self.builder.constants:
                known[k] = self.builder.constants[v]
            elif v in self.builder.contents:
                contents[k] = self.builder.contents[v].array
        return known, contents

    def _imported(
        self,
        model: ModelProto,
        types: Sequence[TensorType],
        known: Mapping[int, np.ndarray],
        contents: Mapping[int, np.ndarray],
    ) -> Graph | None:
        if any(t.shape is None for t in types):
            return None
        try:
            graph = bodies.emit_body(self.emitter.inside(model), types, known, contents)
        except AutofuseError:  # a branch that does not fit the shapes at hand may be one that never runs
            return None
        return graph

    def _note_parameters(self, graph: Graph, captured: Mapping[str, int]) -> None:
        """What decides about shapes inside decides about them outside too."""
        for v in (*graph.parameters, *graph.open_parameters):
            position = captured.get(graph.values[v].name)
            if position is not None:
                self.builder.parameter(self.alone.fed[position])


def _is_tensor(dtype: DType) -> bool:
    return dtype is not DType.STRING


def _has_kernels(graph: Graph) -> bool:
    return any(n.kind.has_kernel or any(_has_kernels(g) for g in _inner(n.compute)) for n in graph.nodes)


def _inner(compute: object) -> tuple[Graph, ...]:
    return compute.graphs if isinstance(compute, Control) else ()


def _scalar(dims: tuple[int | str, ...] | None) -> tuple[int, ...]:
    """The shape in which a body wants a scalar: some bodies declare one element along an axis."""
    return (1,) * len(dims or ())


def _declared(t: TypeProto) -> tuple[DType, tuple[int, ...]]:
    """A declared type, with 0 for what is open."""
    found = type_of(t)
    dims = [d.dim_value for d in t.tensor_type.shape.dim] if found.dtype is not DType.STRING else []
    return found.dtype, tuple(dims)


def worth_deferring(nodes: Sequence[NodeProto], known: Collection[tuple[str, str]]) -> bool:
    """Whether some node, or one in its subgraphs, computes something that has a kernel; `known` are operators by domain and name."""
    return any((proto.domain_of(n), n.op_type) in known and n.op_type not in MOVES for n in proto.walk_nodes(nodes))
