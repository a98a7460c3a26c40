"""Emitting a model's nodes into a Builder: by declaration, by function body, by branch, or as Host nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TypeProto
from onnx.shape_inference import InferenceError

from autofuse.errors import AutofuseError, ModelError, ShapeError, VerificationError
from autofuse.importer import contents, control, functions, hosts, proto
from autofuse.importer.binding import TensorType
from autofuse.importer.folding import fold
from autofuse.importer.scope import Constants, Scope
from autofuse.importer.unrolling import unrolled
from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.expr import Var
from autofuse.ir.graph import Node, ValueId
from autofuse.ir.stage import Control, Stage
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
        waiting: list[int] = []
        pending: set[str] = set()
        for k in kept:
            names = proto.reads(nodes[k])
            if not pending.isdisjoint(names) or any(self._is_shapeless(scope, n) for n in names):
                waiting.append(k)
                pending.update(o for o in nodes[k].output if o)
            else:
                self._one(scope, k, nodes[k], wanted, top)
        if control.worth_deferring([nodes[k] for k in waiting], OPERATORS.keys()):
            self._deferred(scope, [nodes[k] for k in waiting], [o for o in outputs if o in pending], waiting[0], top)
            return
        for k in waiting:
            self._one(scope, k, nodes[k], wanted, top)

    def _one(self, scope: Scope, k: int, node: NodeProto, wanted: set[str], top: bool) -> None:
        self._at(k, node, top)
        self._store(scope, node.output, self._node(scope, node, tuple(bool(o) and o in wanted for o in node.output)))

    def _at(self, k: int, node: NodeProto, top: bool) -> None:
        if top:
            self.builder.origin = k
            self.builder.label = node.name or f"#{k}"

    def _store(self, scope: Scope, names: Sequence[str], results: Results) -> None:
        for name, v in zip(names, results, strict=False):
            if name:
                scope.values[name] = v
                if v is not None:
                    self._name(v, name)

    def _is_shapeless(self, scope: Scope, name: str) -> bool:
        """Whether a value is a tensor whose shape shows only at run time."""
        v = scope.lookup(name, self.constants)
        value = None if v is None else self.builder.values[v]
        return value is not None and value.shape is None and value.dtype is not DType.STRING

    def _deferred(self, scope: Scope, nodes: Sequence[NodeProto], outputs: Sequence[str], k: int, top: bool) -> None:
        """What waits for shapes that depend on data, as one node that is imported when they are known."""
        self._at(k, nodes[0], top)
        self.builder.op = control.DEFERRED
        outputs = list(dict.fromkeys(outputs))
        alone = self._stand_alone(scope, nodes, outputs, "its shapes depend on data")
        made = control.emit_deferred(self, alone)
        self.types.update(zip(made, alone.protos, strict=True))
        self._store(scope, outputs, made)
        self.builder.notes.append(f"{alone.where} and what follows it are imported when their shapes are known")

    def inside(self, model: ModelProto) -> Emitter:
        """An emitter for a graph inside a node of this one's model."""
        emitter = Emitter(model)
        emitter._calling = list(self._calling)
        return emitter

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
            taken = self._taken(node, inputs[0])
            if taken is not None:
                return self._branch(scope, taken)
        opset = scope.opsets.get(domain, scope.opsets.get("", IMPLIED_OPSET) if not domain else 1)
        if node.op_type == "Identity" and not domain and not self._is_plain(inputs[0]):
            return inputs  # a kernel copies plain tensors; whatever else there is need not be copied
        if node.op_type in control.OPERATORS and not domain:
            return self._control(scope, node, opset)
        reason, results = self._declared(node, opset, inputs, wanted)
        if results is None:
            results = self._standard(node, opset, inputs, wanted)
        if results is None:
            results = self._host(scope, node, reason)
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
        if not all(self.covers(n) for n in self.builder.nodes[mark[1] :]):
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
        if not all(n.kind.has_kernel for n in self.builder.nodes[mark[1] :]):
            self._rollback(mark)
            return None
        for k in range(mark[1], len(self.builder.nodes)):
            self.builder.nodes[k] = dataclasses.replace(self.builder.nodes[k], op=node.op_type)
        return results

    def _taken(self, node: NodeProto, v: ValueId | None, most: int = 1) -> GraphProto | None:
        """The branch of an If, where what decides is known."""
        condition = None if v is None else self.builder.deciding(v, most)
        if condition is None or condition.size != 1:
            return None
        branch: GraphProto = proto.attributes(node)["then_branch" if condition.reshape(-1)[0] else "else_branch"]
        return branch

    def _control(self, scope: Scope, node: NodeProto, opset: int) -> Results:
        """An If, Loop or Scan with its graphs as engines of their own, or else on the host."""
        alone = self._stand_alone(scope, [node], [o for o in node.output if o], "")
        mark = self._mark()
        reason, results = control.emit(self, alone, opset)
        made = [n.compute for n in self.builder.nodes[mark[1] :] if isinstance(n.compute, Control)]
        if any(None in c.shapes and (node.op_type == "If" or not c.graphs) for c in made):
            self._rollback(mark)
            known = self._resolved(scope, node, opset)
            if known is not None:
                return known
            self._rollback(mark)
            reason, results = control.emit(self, alone, opset)
        if results is None:
            self._rollback(mark)
            return self._on_host(node, alone, reason)
        self._fold(mark[1], False)
        return results

    def _resolved(self, scope: Scope, node: NodeProto, opset: int) -> Results | None:
        """What would leave shapes open, without control flow: a short loop written out, the branch that a fed shape chooses."""
        if node.op_type == "Loop":
            return unrolled(self, scope, node, opset)
        v = scope.lookup(node.input[0], self.constants)
        taken = self._taken(node, v, contents.INTEGERS) if node.op_type == "If" else None
        return None if taken is None else self._branch(scope, taken)

    def _host(self, scope: Scope, node: NodeProto, reason: str) -> Results:
        """The node as a model of its own, run by onnx's reference evaluator."""
        return self._on_host(node, self._stand_alone(scope, [node], [o for o in node.output if o], reason), reason)

    def _on_host(self, node: NodeProto, alone: hosts.StandAlone, reason: str) -> Results:
        compute = dataclasses.replace(alone.host, reason=reason)
        self.builder.op = (
            node.op_type
        )  # the standard's definition, which left something over, has named its own nodes since
        mark = self._mark()
        made = iter(self.builder.node(alone.fed, compute, [(t.dtype, t.shape) for t in alone.types]))
        results = [next(made) if o else None for o in node.output]
        self._fold(mark[1], False)
        present = [v for v in results if v is not None]
        self.types.update({v: p for v, p in zip(present, alone.protos, strict=True) if not self._is_plain(v)})
        if any(v not in self.builder.constants for v in present):
            self.builder.notes.append(f"{alone.where} runs on the host: {reason}")
        return results

    def _stand_alone(
        self, scope: Scope, nodes: Sequence[NodeProto], outputs: Sequence[str], reason: str
    ) -> hosts.StandAlone:
        """Nodes as a model of their own."""
        where = f"{self.builder.label or proto.describe(nodes[0], 0)}: {nodes[0].op_type}"
        for node in nodes:
            self._check_known(scope, node, where)
        made = {o for n in nodes for o in n.output}
        names = list(dict.fromkeys(i for n in nodes for i in proto.reads(n) if i not in made))
        values = {n: scope.lookup(n, self.constants) for n in names}
        left_out = {n for n, v in values.items() if v is None}
        if left_out:
            nodes = [_without(n, left_out) for n in nodes]
        read = {n: v for n, v in values.items() if v is not None}
        inputs = [hosts.HostInput(n, self._type(v), self.constants.opaque.get(v)) for n, v in read.items()]
        fed = tuple(v for v in read.values() if v not in self.constants.opaque)
        locals_ = list(self.model.functions) if any(self._calls_function(n) for n in nodes) else []
        model = hosts.build(nodes, outputs, inputs, scope.opsets, locals_)
        known = {k: self.builder.constants[v] for k, v in enumerate(fed) if v in self.builder.constants}
        if len(nodes) == 1 and (proto.domain_of(nodes[0]), nodes[0].op_type) in OPERATORS:
            try:
                hosts.infer(model, known, strict=True)
            except InferenceError as e:
                shapes = ", ".join(str(self.builder.values[v].shape) for v in fed)
                raise ShapeError(f"{where} does not fit its inputs of shapes {shapes}: {e}") from e
        host, types, protos = hosts.make(model, known, reason, where)
        return hosts.StandAlone(model, fed, host, types, protos, where)

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

    def covers(self, node: Node) -> bool:
        """Whether a contraction runs over the whole of every dimension that a summed axis alone indexes."""
        stage = node.compute
        if not isinstance(stage, Stage) or stage.contraction is None:
            return True
        reads = [
            (ld, self.builder.shape(node.inputs[ld.source])) for ld in stage.contraction if isinstance(ld.source, int)
        ]
        return all(
            len(ld.index) == len(shape)
            and all(
                i.extent == n
                for i, n in zip(ld.index, shape, strict=True)
                if isinstance(i, Var) and i in stage.reduce_axes
            )
            for ld, shape in reads
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
