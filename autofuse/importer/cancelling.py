"""Transposes that undo each other around element-wise operators, which compute the same in any order of axes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, numpy_helper

from autofuse.importer.proto import domain_of
from autofuse.importer.rewiring import Rewiring

_ELEMENTWISE = """
Abs Neg Relu LeakyRelu Elu Selu Celu ThresholdedRelu Sigmoid HardSigmoid HardSwish Swish Softplus Softsign Mish Tanh Exp Log Sqrt
Reciprocal Erf Gelu Floor Ceil Round Sign Sin Cos Tan Atan Clip Cast Identity Not IsNaN Add Sub Mul Div Pow Max Min Sum Mean Mod
Where Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor PRelu
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Operators that may be computed in another order of the axes."""


@dataclass(frozen=True, eq=False)
class Cluster:
    """Element-wise operators (`nodes`, in their order) that every value enters by a Transpose in `entries` and leaves by one of `exits` that
    undoes it; `perm` is that of the exits."""

    nodes: tuple[NodeProto, ...]
    entries: tuple[NodeProto, ...]
    exits: tuple[NodeProto, ...]
    perm: tuple[int, ...]

    @property
    def transposes(self) -> tuple[NodeProto, ...]:
        """All that the cluster can do without."""
        return (*self.entries, *self.exits)

    @property
    def reason(self) -> str:
        """In words."""
        through = ", ".join(dict.fromkeys(n.op_type for n in self.nodes))
        return f"they undo each other; {through} between them compute the same in any order of axes"


def cluster_before(graph: Rewiring, last: NodeProto) -> Cluster | None:
    """The element-wise operators before a Transpose, where every way in has the opposite Transpose and every way out this one; else None."""
    perm = graph.perm(last)
    if perm is None or graph.made(last.input[0], ELEMENTWISE) is None:
        return None
    opposite = tuple(int(k) for k in np.argsort(perm))
    cluster: dict[int, NodeProto] = {}
    entries: dict[int, NodeProto] = {}
    exits: dict[int, NodeProto] = {}
    work = [graph.maker[last.input[0]]]
    while work:
        n = work.pop()
        if id(n) in cluster:
            continue
        cluster[id(n)] = n
        for name in filter(None, n.input):
            before = graph.maker.get(name)
            if before is not None and before.op_type == "Transpose" and graph.perm(before) == opposite:
                entries[id(before)] = before
            elif _fixed(graph, name, perm) is not None:
                continue
            elif before is not None and before.op_type in ELEMENTWISE and not domain_of(before):
                work.append(before)
            else:
                return None
        for name in filter(None, n.output):
            if name in graph.outputs or name in graph.captures or len(graph.shape(name) or perm) != len(perm):
                return None
            for r in graph.readers.get(name, ()):
                if r.op_type == "Transpose" and graph.perm(r) == perm:
                    exits[id(r)] = r
                elif r.op_type in ELEMENTWISE and not domain_of(r):
                    work.append(r)
                else:
                    return None
    if not entries or any(_has(n, ("axis", "broadcast")) for n in cluster.values()):
        return None
    nodes = tuple(n for n in graph.nodes if id(n) in cluster)
    return Cluster(nodes, tuple(entries.values()), tuple(exits.values()), perm)


def cancel(graph: Rewiring, c: Cluster) -> None:
    """Compute a cluster in the order of axes that its exits restore, and let their readers read it as it is."""
    inside, entries = {id(n) for n in c.nodes}, {id(n) for n in c.entries}
    for n in c.nodes:
        for k, name in enumerate(n.input):
            before = graph.maker.get(name)
            if before is not None and id(before) in entries:
                n.input[k] = before.input[0]
            elif name and (before is None or id(before) not in inside):
                n.input[k] = _moved(graph, name, c.perm)
        for name in n.output:
            kind, shape = graph.types.get(name, (0, None))
            graph.types[name] = (kind, None if shape is None else tuple(shape[p] for p in c.perm))
            graph.stale.add(name)
    for e in c.exits:
        graph.alias(e.output[0], e.input[0])


def _fixed(graph: Rewiring, name: str, perm: tuple[int, ...]) -> np.ndarray | None:
    """A constant operand that can be given in another order of axes: one element, or no more axes than there are."""
    array = graph.array(name)
    return array if array is not None and array.ndim <= len(perm) else None


def _moved(graph: Rewiring, name: str, perm: tuple[int, ...]) -> str:
    """The name of a constant operand in another order of axes."""
    array = _fixed(graph, name, perm)
    assert array is not None
    if array.size == 1:
        return name
    full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape).transpose(perm)
    moved = graph.fresh(f"{name}_moved")
    graph.store(numpy_helper.from_array(np.ascontiguousarray(full), moved))
    return moved


def _has(n: NodeProto, names: Collection[str]) -> bool:
    return any(a.name in names for a in n.attribute)
