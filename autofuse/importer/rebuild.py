"""Changing a graph: nodes are replaced and values renamed in an edit, and a new, numbered graph comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.expr import Expr, Load, load, rewrite
from autofuse.ir.graph import Graph, Node, NodeId, Value, ValueId
from autofuse.ir.stage import Compute, Stage, inputs_of


class Edit:
    """A set of changes to one graph. A replaced node's new nodes stand where it stood, so the order stays topological."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: list[Value] = list(graph.values)
        self.constants: dict[ValueId, np.ndarray] = dict(graph.constants)
        self._replaced: dict[NodeId, list[Node]] = {}
        self._alias: dict[ValueId, ValueId] = {}

    def value(self, dtype: DType, shape: tuple[int, ...] | None, name: str = "") -> ValueId:
        """A new value."""
        self.values.append(Value(len(self.values), name, dtype, shape))
        return len(self.values) - 1

    def constant(self, array: np.ndarray, name: str = "") -> ValueId:
        """A new constant."""
        array.setflags(write=False)
        v = self.value(from_numpy(array.dtype), array.shape, name)
        self.constants[v] = array
        return v

    def fix(self, v: ValueId, array: np.ndarray) -> None:
        """Make a constant of a value that a node made; the node must go."""
        array.setflags(write=False)
        self.constants[v] = array
        self.values[v] = dataclasses.replace(self.values[v], dtype=from_numpy(array.dtype), shape=array.shape)

    def replace(self, node: Node, *new: Node) -> None:
        """Put other nodes (none: drop it) in the place of one."""
        self._replaced[node.id] = list(new)

    def alias(self, old: ValueId, new: ValueId) -> None:
        """Let every reader of `old`, and the graph's outputs, read `new`. An unnamed `new` inherits the name."""
        self._alias[old] = new
        if not self.values[new].name:
            self.values[new] = dataclasses.replace(self.values[new], name=self.values[old].name)
        if self.values[new].declared is None and new not in self.graph.inputs:
            self.values[new] = dataclasses.replace(self.values[new], declared=self.values[old].declared)

    def resolve(self, v: ValueId) -> ValueId:
        """What a value has become."""
        while v in self._alias:
            v = self._alias[v]
        return v

    def finish(self, notes: Iterable[str] = ()) -> Graph:
        """The changed graph, its values and nodes numbered anew."""
        nodes: list[Node] = []
        for n in self.graph.nodes:
            for new in self._replaced.get(n.id, [n]):
                nodes.append(self._redirected(new) if self._alias else new)
        outputs = tuple(self.resolve(v) for v in self.graph.outputs)
        changed = dataclasses.replace(
            self.graph,
            values=tuple(self.values),
            nodes=tuple(nodes),
            outputs=outputs,
            constants=self.constants,
            notes=(*self.graph.notes, *notes),
        )
        return compact(changed)

    def _redirected(self, node: Node) -> Node:
        if not any(v in self._alias for v in node.inputs):
            return node
        inputs, compute = canonical([self.resolve(v) for v in node.inputs], node.compute)
        return dataclasses.replace(node, inputs=inputs, compute=compute)


def canonical(inputs: Sequence[ValueId], compute: Compute) -> tuple[tuple[ValueId, ...], Compute]:
    """A stage with a slot per distinct value that it reads, in order of first use; other computations as they are."""
    if not isinstance(compute, Stage):
        return tuple(inputs), compute
    used = list(dict.fromkeys(inputs[ld.source] for ld in inputs_of(compute) if isinstance(ld.source, int)))
    if used == list(inputs):
        return tuple(inputs), compute
    number = {v: k for k, v in enumerate(used)}
    return tuple(used), dataclasses.replace(
        compute, body=reslot(compute.body, {k: number.get(v, 0) for k, v in enumerate(inputs)})
    )


def reslot(body: Expr, slots: Mapping[int, int]) -> Expr:
    """The body with its input slots renumbered."""

    def fn(e: Expr) -> Expr | None:
        if isinstance(e, Load) and isinstance(e.source, int):
            return load(slots[e.source], e.index, e.dtype, e.fill, e.guard)
        return None

    return rewrite(body, fn)


def compact(graph: Graph) -> Graph:
    """The same graph without values that nothing mentions; values and nodes are numbered by position."""
    number: dict[ValueId, ValueId] = {}
    for v in graph.inputs:
        number.setdefault(v, len(number))
    for n in graph.nodes:
        for v in (*n.inputs, *n.outputs):
            number.setdefault(v, len(number))
    for v in graph.outputs:
        number.setdefault(v, len(number))
    return dataclasses.replace(
        graph,
        values=tuple(dataclasses.replace(graph.values[v], id=k) for v, k in number.items()),
        nodes=tuple(
            dataclasses.replace(
                n, id=k, inputs=tuple(number[v] for v in n.inputs), outputs=tuple(number[v] for v in n.outputs)
            )
            for k, n in enumerate(graph.nodes)
        ),
        inputs=tuple(number[v] for v in graph.inputs),
        outputs=tuple(number[v] for v in graph.outputs),
        constants={number[v]: a for v, a in graph.constants.items() if v in number},
        parameters={number[v]: a for v, a in graph.parameters.items()},
        open_parameters=frozenset(number[v] for v in graph.open_parameters),
    )
