"""Emitting a model's nodes into a Builder: by declaration, by function body, by branch, or as Host nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TypeProto
from onnx.shape_inference import InferenceError

from autofuse.errors import AutofuseError, ModelError, ShapeError, VerificationError
from autofuse.importer import contents, functions, hosts, proto
from autofuse.importer.binding import TensorType
from autofuse.importer.folding import fold
from autofuse.importer.scope import Constants, Scope
from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.expr import Var
from autofuse.ir.graph import Node, ValueId
from autofuse.ir.stage import Kind, Stage
from autofuse.ops.builder import Builder
from autofuse.ops.declare import Call, Unsupported
from autofuse.ops.table import OPERATORS

Results = Sequence[ValueId | None]
IMPLIED_OPSET = 1
Mark = tuple[int, int, int, int]


class Emitter:
    """Emits nodes; `builder` holds what came of them so far."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.builder = Builder(model.graph.name or "graph")
        self.constants = Constants(self.builder)
        self.functions = functions.local_functions(model)
        self.types: dict[ValueId, TypeProto] = {}
        """What onnx knows of values that are no plain tensors."""
        self._calling: list[str] = []

    # ---- bodies

    def nodes(self, scope: Scope, nodes: Sequence[NodeProto], outputs: Sequence[str], top: bool = False) -> None:
        """Emit those nodes that the outputs need."""
        order = proto.ordered(nodes, scope.names())
        kept, wanted = proto.live(nodes, order, set(outputs))
        for k in kept:
            node = nodes[k]
            if top:
                self.builder.origin = k
                self.builder.label = node.name or f"#{k}"
            results = self._node(scope, node, tuple(bool(o) and o in wanted for o in node.output))
            for name, v in zip(node.output, results, strict=False):
                if name:
                    scope.values[name] = v
                    if v is not None:
                        self._name(v, name)

    def _name(self, v: ValueId, name: str) -> None:
        value = self.builder.values[v]
        if not value.name:
            self.builder.values[v] = dataclasses.replace(value, name=name)

    def _body(self, body: functions.Body, inputs: Results, wanted: tuple[bool, ...]) -> Results:
        """Emit a function's body in a scope of its own."""
        scope = Scope(body.opsets)
        for k, name in enumerate(body.inputs):
            scope.values[name] = inputs[k] if k < len(inputs) else None
        asked = [o for o, w in zip(body.outputs, wanted, strict=False) if w]
        self.nodes(scope, body.nodes, asked)
        return [scope.lookup(o, self.constants) if w else None for o, w in zip(body.outputs, wanted, strict=False)]

    def _branch(self, scope: Scope, graph: GraphProto) -> Results:
        inner = Scope(scope.opsets, scope)
        inner.store(graph)
        names = [o.name for o in graph.output]
        self.nodes(inner, graph.node, names)
        return [inner.lookup(n, self.constants) for n in names]

    # ---- one node

    def _node(self, scope: Scope, node: NodeProto, wanted: tuple[bool, ...]) -> Results:
        domain = proto.domain_of(node)
        self.builder.op = node.op_type
        if node.op_type == "Constant" and not domain:
            return [self._constant(node)]
        inputs = [scope.lookup(i, self.constants) if i else None for i in node.input]
        local = self.functions.get((domain, node.op_type, node.overload))
        if local is not None:
            return self._local(functions.instantiate(local, node), node, inputs, wanted)
        if node.op_type == "If" and not domain:
            condition = self.builder.parameter(inputs[0]) if inputs[0] is not None else None
            if condition is not None and condition.size == 1:
                branches = proto.attributes(node)
                return self._branch(scope, branches["then_branch" if condition.reshape(-1)[0] else "else_branch"])
        opset = scope.opsets.get(domain, scope.opsets.get("", IMPLIED_OPSET) if not domain else 1)
        reason, results = self._declared(node, opset, inputs, wanted)
        if results is None:
            results = self._standard(node, opset, inputs, wanted)
        if results is None:
            results = self._host(scope, node, opset, reason)
        return results

    def _local(self, body: functions.Body, node: NodeProto, inputs: Results, wanted: tuple[bool, ...]) -> Results:
        name = f"{node.domain}::{node.op_type}"
        if name in self._calling:
            raise ModelError(f"the function {name} calls itself ({' -> '.join(self._calling)}), which ONNX forbids")
        self._calling.append(name)
        try:
            return self._body(body, inputs, wanted)
        finally:
            self._calling.pop()

    def _constant(self, node: NodeProto) -> ValueId:
        a = node.attribute[0]
        if a.name == "value":
            v = self.constants.of(a.t)
        else:
            value = proto.attribute_value(a)
            kinds = {
                "value_int": np.int64,
                "value_ints": np.int64,
                "value_float": np.float32,
                "value_floats": np.float32,
            }
            v = self.constants.array(
                np.asarray(value, dtype=kinds.get(a.name, None if a.name == "sparse_value" else object))
            )
        self.constants.literals.add(v)
        return v

    def _is_plain(self, v: ValueId | None) -> bool:
        value = None if v is None else self.builder.values[v]
        return value is None or (value.shape is not None and value.dtype is not DType.STRING)

    def _declared(
        self, node: NodeProto, opset: int, inputs: Results, wanted: tuple[bool, ...]
    ) -> tuple[str, Results | None]:
        """What a declaration makes of the node; None and the reason where there is none that applies."""
        op = OPERATORS.get((proto.domain_of(node), node.op_type))
        if op is None:
            return f"{node.op_type} has no kernel", None
        if not all(self._is_plain(v) for v in inputs):
            return "an input has no static shape or is no plain tensor", None
        mark = self._mark()
        call = Call(
            node.op_type,
            proto.domain_of(node),
            opset,
            tuple(inputs),
            proto.attributes(node),
            wanted,
            self.builder,
        )
        try:
            results = op.emit(call)
        except Unsupported as e:
            self._rollback(mark)
            return str(e), None
        except (ValueError, IndexError, KeyError, VerificationError) as e:
            self._rollback(mark)
            return f"{node.op_type} does not apply to these inputs: {e}", None
        if not all(self._covers(n) for n in self.builder.nodes[mark[1] :]):
            self._rollback(mark)
            return f"{node.op_type} does not apply to these inputs: what is summed over has different sizes", None
        self._fold(mark[1], self.constants.all_literal(inputs))
        return "", results

    def _standard(self, node: NodeProto, opset: int, inputs: Results, wanted: tuple[bool, ...]) -> Results | None:
        """The node by its definition in the standard, where that leaves nothing to the host."""
        if not all(self._is_plain(v) for v in inputs):
            return None
        types = [TypeProto() if v is None else self._type(v) for v in inputs]
        body = functions.standard_body(node, opset, types)
        if body is None:
            return None
        mark = self._mark()
        try:
            results = self._body(body, inputs, wanted)
        except AutofuseError:
            self._rollback(mark)
            return None
        if any(n.kind is Kind.HOST for n in self.builder.nodes[mark[1] :]):
            self._rollback(mark)
            return None
        for k in range(mark[1], len(self.builder.nodes)):
            self.builder.nodes[k] = dataclasses.replace(self.builder.nodes[k], op=node.op_type)
        return results

    def _host(self, scope: Scope, node: NodeProto, opset: int, reason: str) -> Results:
        """The node as a model of its own, run by onnx's reference evaluator."""
        where = f"{self.builder.label or proto.describe(node, 0)}: {node.op_type}"
        self._check_known(scope, node, where)
        names = list(dict.fromkeys([i for i in node.input if i] + proto.captured(node)))
        values = {n: scope.lookup(n, self.constants) for n in names}
        if any(v is None for v in values.values()):
            node = _without(node, {n for n, v in values.items() if v is None})
        read = {n: v for n, v in values.items() if v is not None}
        inputs = [hosts.HostInput(n, self._type(v), self.constants.opaque.get(v)) for n, v in read.items()]
        fed = [v for v in read.values() if v not in self.constants.opaque]
        locals_ = list(self.model.functions) if self._calls_function(node) else []
        model = hosts.build(node, inputs, scope.opsets, locals_)
        known = {k: self.builder.constants[v] for k, v in enumerate(fed) if v in self.builder.constants}
        if (proto.domain_of(node), node.op_type) in OPERATORS:
            try:
                hosts.infer(model, known, strict=True)
            except InferenceError as e:
                shapes = ", ".join(str(self.builder.values[v].shape) for v in fed)
                raise ShapeError(f"{where} does not fit its inputs of shapes {shapes}: {e}") from e
        compute, types, protos = hosts.make(model, known, reason, where)
        mark = self._mark()
        made = iter(self.builder.node(fed, compute, [(t.dtype, t.shape) for t in types]))
        results = [next(made) if o else None for o in node.output]
        self._fold(mark[1], False)
        present = [v for v in results if v is not None]
        self.types.update({v: p for v, p in zip(present, protos, strict=True) if not self._is_plain(v)})
        if any(v not in self.builder.constants for v in present):
            self.builder.notes.append(f"{where} runs on the host: {reason}")
        return results

    def _check_known(self, scope: Scope, node: NodeProto, where: str) -> None:
        for n in proto.walk_nodes([node]):
            domain = proto.domain_of(n)
            opset = scope.opsets.get(domain, IMPLIED_OPSET)
            if (domain, n.op_type, n.overload) not in self.functions and not functions.is_standard(n, opset):
                raise ModelError(
                    f"{where}: the operator {n.op_type!r} of domain {domain or 'ai.onnx'!r} (version {opset}) is not "
                    "known. Allowed are the operators of the onnx standard and functions that the model itself defines: "
                    "export the model with its custom operators as functions."
                )

    def _calls_function(self, node: NodeProto) -> bool:
        return any((proto.domain_of(n), n.op_type, n.overload) in self.functions for n in proto.walk_nodes([node]))

    def _type(self, v: ValueId) -> TypeProto:
        value = self.builder.values[v]
        if v in self.constants.opaque:
            t = self.constants.opaque[v]
            return hosts.tensor_type(t.data_type, tuple(t.dims))
        if value.dtype is DType.STRING and value.shape is None and v in self.types:
            return self.types[v]
        return hosts.value_type(TensorType(value.dtype, value.shape))

    def _covers(self, node: Node) -> bool:
        """Whether a contraction runs over the whole of every dimension that a summed axis alone indexes."""
        stage = node.compute
        if not isinstance(stage, Stage) or stage.contraction is None:
            return True
        return all(
            i.extent == n
            for ld in stage.contraction
            if isinstance(ld.source, int)
            for i, n in zip(ld.index, self.builder.shape(node.inputs[ld.source]), strict=True)
            if isinstance(i, Var) and i in stage.reduce_axes
        )

    # ---- folding and taking back

    def _fold(self, first: int, literal: bool) -> None:
        """Turn nodes from position `first` on into constants where their inputs are. `literal` says whether those are."""
        b = self.builder
        segment, b.nodes[first:] = b.nodes[first:], []
        for n in segment:
            found = fold(n, b.constants)
            if found is None:
                b.nodes.append(dataclasses.replace(n, id=len(b.nodes)))
                contents.follow(b, n)
                continue
            for v, array in zip(n.outputs, found, strict=True):
                array.setflags(write=False)
                b.constants[v] = array
                b.values[v] = dataclasses.replace(b.values[v], dtype=from_numpy(array.dtype), shape=array.shape)
                if literal:
                    self.constants.literals.add(v)

    def _mark(self) -> Mark:
        b = self.builder
        return len(b.values), len(b.nodes), len(b.notes), len(b.parameters)

    def _rollback(self, mark: Mark) -> None:
        b = self.builder
        values, nodes, notes, parameters = mark
        for v in range(values, len(b.values)):
            b.constants.pop(v, None)
            self.types.pop(v, None)
            self.constants.opaque.pop(v, None)
            self.constants.literals.discard(v)
            b.contents.pop(v, None)
        for source in list(b.parameters)[parameters:]:
            del b.parameters[source]
        del b.values[values:], b.nodes[nodes:], b.notes[notes:]


def _without(node: NodeProto, names: Iterable[str]) -> NodeProto:
    """A copy of the node with those inputs left out."""
    gone = set(names)
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = ["" if i in gone else i for i in node.input]
    return copy
