"""The graph: values in single static assignment, nodes in topological order.

A node is what it computes (`compute`), not which ONNX operator it came from: attributes and constant parameters such as
axes have been used up by the importer. The operator's name and the original node stay for people.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autofuse.errors import VerificationError
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Load, loads
from autofuse.ir.reach import leaving
from autofuse.ir.stage import Alone, Compute, Control, Host, Kind, Scatter, Stage, inputs_of

ValueId = int
NodeId = int
Dim = int | str
"""A dimension as a model declares it: a number, or the name of a symbol ("?" where the model gives none)."""
SMALL_CONSTANT = 16
"""Integer constants up to this many elements are part of the structure: rewrites may look at them."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph. `name` is for people and for the model's inputs and outputs; it is never a key inside.

    `shape` is None only for outputs of Host and Control nodes whose shape depends on data, and for sequences and optionals.
    `declared` are the dimensions that the model itself states, symbols among them; `shape` is what they are bound to. None where the
    model states nothing.
    """

    id: ValueId
    name: str
    dtype: DType
    shape: tuple[int, ...] | None
    declared: tuple[Dim, ...] | None = None

    @property
    def size(self) -> int:
        """Number of elements (0 where the shape is unknown)."""
        return math.prod(self.shape) if self.shape is not None else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the plain, unpadded tensor."""
        return self.size * self.dtype.itemsize

    @property
    def open(self) -> bool:
        """Whether another size may be bound: a dimension is a symbol, or the model states no shape."""
        return self.declared is None or any(isinstance(d, str) for d in self.declared)

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether the declared dimensions allow a shape."""
        if self.declared is None:
            return True
        return len(shape) == len(self.declared) and all(
            isinstance(d, str) or d == n for d, n in zip(self.declared, shape, strict=True)
        )

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape where it must be known."""
        if self.shape is None:
            raise VerificationError(f"value {self.name!r} has no static shape, but a kernel wants it")
        return self.shape


@dataclass(frozen=True)
class Node:
    """One step. `origin` is the index of the ONNX node it was made from (nodes made from one composite share it)."""

    id: NodeId
    op: str
    label: str
    origin: int
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]
    compute: Compute

    @property
    def kind(self) -> Kind:
        return self.compute.kind

    @property
    def stage(self) -> Stage:
        """The stage of a node that is known to be one."""
        if not isinstance(self.compute, Stage):
            raise VerificationError(f"node {self.id} ({self.op}) is {self.kind}, not a stage")
        return self.compute


@dataclass(frozen=True, eq=False)
class Graph:
    """A model after import. `constants` are read-only arrays by value; inputs and outputs are in the model's order."""

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]
    output_names: tuple[str, ...]
    constants: Mapping[ValueId, np.ndarray]
    notes: tuple[str, ...] = field(default=())
    """What the importer did or refused to do, in words for people."""
    parameters: Mapping[ValueId, np.ndarray] = field(default_factory=dict)
    """Inputs whose contents decided about shapes or axes, with those contents: the graph is right for these alone."""
    open_parameters: frozenset[ValueId] = field(default=frozenset())
    """Inputs whose contents an operator asked for in vain: with them, its Host node would be kernels."""

    @cached_property
    def producer(self) -> Mapping[ValueId, Node]:
        """The node that makes each value (graph inputs and constants have none)."""
        return {v: n for n in self.nodes for v in n.outputs}

    @cached_property
    def consumers(self) -> Mapping[ValueId, tuple[Node, ...]]:
        """The nodes that read each value, each once."""
        found: dict[ValueId, list[Node]] = defaultdict(list)
        for n in self.nodes:
            for v in dict.fromkeys(n.inputs):
                found[v].append(n)
        return {v: tuple(ns) for v, ns in found.items()}

    @cached_property
    def output_set(self) -> frozenset[ValueId]:
        return frozenset(self.outputs)

    def value(self, v: ValueId) -> Value:
        return self.values[v]

    @cached_property
    def structural_hash(self) -> str:
        """SHA-256 of the structure: computations, types, shapes and small integer constants, without names and weights."""
        h = hashlib.sha256(b"autofuse graph 1\n")
        for line in self._structure():
            h.update(line.encode())
            h.update(b"\n")
        return h.hexdigest()

    def _structure(self) -> Iterable[str]:
        number: dict[ValueId, int] = {}

        def named(v: ValueId) -> str:
            if v not in number:
                number[v] = len(number)
                value = self.values[v]
                text = f"{number[v]}:{value.dtype.value}{value.shape}"
                if v in self.constants:
                    array = self.constants[v]
                    small = array.size <= SMALL_CONSTANT and array.dtype.kind in "iub"
                    text += f"={array.tolist()}" if small else "=constant"
                return text
            return str(number[v])

        yield "in " + " ".join(named(v) for v in self.inputs)
        for v, array in self.parameters.items():
            yield f"parameter {number[v]} {array.dtype} {array.tolist()}"
        for n in self.nodes:
            reads = " ".join(named(v) for v in n.inputs)
            yield f"{reads} -> {' '.join(named(v) for v in n.outputs)} = {n.compute.text()}"
        yield "out " + " ".join(named(v) for v in self.outputs)

    @cached_property
    def weights_digest(self) -> str:
        """SHA-256 of all constants, in order of first use."""
        h = hashlib.sha256()
        order = dict.fromkeys(v for n in self.nodes for v in n.inputs if v in self.constants)
        for v in [*order, *(v for v in self.outputs if v in self.constants)]:
            array = np.ascontiguousarray(self.constants[v])
            h.update(str(array.dtype).encode())
            h.update(array.tobytes() if array.dtype != object else repr(array.tolist()).encode())
        for n in self.nodes:
            if isinstance(n.compute, Control):
                for b in n.compute.bodies:
                    h.update(b.graph.weights_digest.encode() if b.graph is not None else b.model)
        return h.hexdigest()

    @cached_property
    def host_nodes(self) -> tuple[Node, ...]:
        """Every node that runs on the host, those inside branches and bodies (as far as they are known) too."""
        found: list[Node] = []
        for n in self.nodes:
            if n.kind is Kind.HOST:
                found.append(n)
            elif isinstance(n.compute, Control):
                found += [inner for g in n.compute.graphs for inner in g.host_nodes]
        return tuple(found)

    def text(self) -> str:
        """A stable, readable listing: one line a node."""
        lines = [f"graph {self.name}"]
        for v in self.inputs:
            value = self.values[v]
            lines.append(f"  in  %{v} {value.dtype.value}{list(value.shape or ())} {value.name!r}")
        for n in self.nodes:
            ins = ", ".join(f"%{v}" + ("c" if v in self.constants else "") for v in n.inputs)
            outs = ", ".join(f"%{v} {self.values[v].dtype.value}{list(self.values[v].shape or ())}" for v in n.outputs)
            lines.append(f"  {n.id:4} {outs} = {n.op}({ins})  {n.kind.value}")
            if isinstance(n.compute, Control):
                for b in n.compute.bodies:
                    inner = b.graph.text() if b.graph is not None else "graph, known once its shapes are"
                    lines += ["       " + line for line in inner.splitlines()]
        lines.append("  out " + ", ".join(f"%{v}" for v in self.outputs))
        return "\n".join(lines)


def verify(graph: Graph) -> Graph:
    """Check every rule of a Graph and give it back: definitions before uses, slots and ranks, types and shapes that agree.

    Raises VerificationError naming the node.
    """
    defined: set[ValueId] = set(graph.inputs) | set(graph.constants)
    if any(v.id != i for i, v in enumerate(graph.values)):
        raise VerificationError("values are not numbered by their position")
    for position, n in enumerate(graph.nodes):
        where = f"node {n.id} ({n.op}, {n.label!r})"
        if n.id != position:
            raise VerificationError(f"{where} stands at position {position}")
        for v in n.inputs:
            if v not in defined:
                raise VerificationError(f"{where} reads value {v} before it is made")
        for v in n.outputs:
            if v in defined:
                raise VerificationError(f"{where} makes value {v} a second time")
            defined.add(v)
        match n.compute:
            case Stage() as stage:
                _verify_stage(graph, n, stage, where)
            case Host() as host:
                if len(host.dtypes) != len(n.outputs):
                    raise VerificationError(f"{where} declares {len(host.dtypes)} outputs, has {len(n.outputs)}")
            case Control() as control:
                _verify_control(n, control, where)
            case alone:
                _verify_alone(graph, n, alone, where)
    for v in graph.outputs:
        if v not in defined:
            raise VerificationError(f"graph output {v} is never made")
    return graph


def _verify_control(n: Node, control: Control, where: str) -> None:
    if not len(control.dtypes) == len(control.shapes) == len(control.results) == len(n.outputs):
        raise VerificationError(f"{where} declares {len(control.results)} outputs, has {len(n.outputs)}")
    if any(k is not None and not 0 <= k < len(n.inputs) for k in control.arguments):
        raise VerificationError(f"{where} has {len(n.inputs)} inputs, its arguments are {control.arguments}")
    for b in control.bodies:
        if len(b.captures) > len(b.names) or any(not 0 <= k < len(n.inputs) for k in b.captures):
            raise VerificationError(f"{where} has {len(n.inputs)} inputs, a graph in it captures {b.captures}")
        if b.graph is None:
            continue
        verify(b.graph)
        unknown = {b.graph.values[v].name for v in b.graph.inputs} - set(b.names)
        if unknown or len(b.graph.outputs) != len(b.outputs):
            raise VerificationError(f"{where}: a graph in it has other inputs or outputs than it declares")


def _verify_stage(graph: Graph, n: Node, stage: Stage, where: str) -> None:
    if len(n.outputs) != 1:
        raise VerificationError(f"{where} is a stage and must have one output, has {len(n.outputs)}")
    out = graph.values[n.outputs[0]]
    if out.shape != stage.shape or out.dtype is not stage.dtype:
        raise VerificationError(
            f"{where} computes {stage.dtype.value}{stage.shape}, its value is {out.dtype.value}{out.shape}"
        )
    _verify_loads(graph, n, inputs_of(stage), where)
    if wrong := leaving(stage, [graph.values[v].dims for v in n.inputs]):
        raise VerificationError(f"{where}: {wrong}")


def _verify_alone(graph: Graph, n: Node, alone: Alone, where: str) -> None:
    made = [(graph.values[v].dtype, graph.values[v].shape) for v in n.outputs]
    declared = list(zip(alone.dtypes, alone.shapes, strict=True))
    if made != declared:
        raise VerificationError(f"{where} declares outputs {declared}, has {made}")
    if isinstance(alone, Scatter):
        _verify_loads(graph, n, [ld for e in alone.expressions for ld in loads(e)], where)
        if len(alone.index) != len(alone.axes):
            raise VerificationError(f"{where} writes at {len(alone.index)} indices in {len(alone.axes)} dimensions")


def _verify_loads(graph: Graph, n: Node, found: Iterable[Load], where: str) -> None:
    for ld in found:
        if not isinstance(ld.source, int) or not 0 <= ld.source < len(n.inputs):
            raise VerificationError(f"{where} loads from {ld.source!r}, which is no input slot")
        source = graph.values[n.inputs[ld.source]]
        if source.dtype is not ld.dtype or len(source.dims) != len(ld.index):
            raise VerificationError(
                f"{where} loads {ld.dtype.value} of rank {len(ld.index)} from slot {ld.source}, which is "
                f"{source.dtype.value}{source.shape}"
            )
