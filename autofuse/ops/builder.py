"""The builder: declarations emit stages through it, and a Graph comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.errors import VerificationError
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.expr import Expr, Load, cast_to, const, load, rewrite
from autofuse.ir.graph import Dim, Graph, Node, Value, ValueId, verify
from autofuse.ir.reach import leaving
from autofuse.ir.stage import Alone, Combine, Compute, Scatter, Stage, axes_of, inputs_of

Index = tuple[Expr, ...]


class Reader:
    """Gives the elements of a stage's inputs while its body is built: `read(slot, index)`.

    Half types are read as float32, in which they compute. `fill` makes reads outside the tensor yield that value.
    """

    def __init__(self, tensors: Sequence[Value]) -> None:
        self._tensors = tensors

    def __call__(self, slot: int, index: Sequence[Expr], fill: float | int | None = None) -> Expr:
        return cast_to(self.raw(slot, index, fill), self._tensors[slot].dtype.compute)

    def raw(self, slot: int, index: Sequence[Expr], fill: float | int | None = None) -> Expr:
        """The element in its stored type."""
        tensor = self._tensors[slot]
        plain = tuple(ix.simplify(i) for i in index)
        if fill is not None:
            inside = ix.in_range(plain, tensor.dims)
            if inside is ix.TRUE:
                fill = None
        return load(slot, plain, tensor.dtype, fill)

    def broadcast(self, slot: int, index: Sequence[Expr]) -> Expr:
        """The element under numpy's broadcasting of the input to the rank of `index`."""
        dims = self._tensors[slot].dims
        tail = index[len(index) - len(dims) :]
        return self(slot, tuple(const(0) if n == 1 else i for i, n in zip(tail, dims, strict=True)))


Body = Callable[[Index, Reader], Expr]
ReduceBody = Callable[[Index, Index, Reader], Expr]


@dataclass(frozen=True, eq=False)
class Contents:
    """What a value holds that is no constant, and the graph inputs that this follows from."""

    array: np.ndarray
    sources: frozenset[ValueId]


class Builder:
    """Accumulates values and nodes. `origin` and `label` name the ONNX node that is being emitted."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.inputs: list[ValueId] = []
        self.constants: dict[ValueId, np.ndarray] = {}
        self.contents: dict[ValueId, Contents] = {}
        self.parameters: dict[ValueId, np.ndarray] = {}
        self.open_parameters: set[ValueId] = set()
        self.notes: list[str] = []
        self.op = "?"
        self.label = ""
        self.origin = -1

    # ---- values

    def _value(self, name: str, dtype: DType, shape: tuple[int, ...] | None) -> ValueId:
        self.values.append(Value(len(self.values), name, dtype, shape))
        return len(self.values) - 1

    def input(
        self, name: str, dtype: DType, shape: tuple[int, ...] | None, declared: tuple[Dim, ...] | None = None
    ) -> ValueId:
        """A graph input. `declared` are its dimensions as the model states them."""
        v = self._value(name, dtype, shape)
        self.values[v] = dataclasses.replace(self.values[v], declared=declared)
        self.inputs.append(v)
        return v

    def constant(self, array: np.ndarray, name: str = "") -> ValueId:
        """A constant. The array is not copied and must not be changed afterwards."""
        v = self._value(name, from_numpy(array.dtype), tuple(array.shape))
        self.constants[v] = array
        return v

    def shape(self, v: ValueId) -> tuple[int, ...]:
        return self.values[v].dims

    def dtype(self, v: ValueId) -> DType:
        return self.values[v].dtype

    def known(self, v: ValueId) -> np.ndarray | None:
        """The contents of a constant, or None."""
        return self.constants.get(v)

    def parameter(self, v: ValueId) -> np.ndarray | None:
        """The contents of a value that decides about shapes: of a constant, or of what is fed and given here.

        The inputs that it came from are noted: the graph is then right for their contents alone. None where nothing is known; then
        the inputs are noted whose contents would help.
        """
        if v in self.constants:
            return self.constants[v]
        found = self.contents.get(v)
        if found is None:
            self.open_parameters |= self._ancestors(v)
            return None
        for source in found.sources:
            self.parameters[source] = self.contents[source].array
        return found.array

    def deciding(self, v: ValueId, most: int = 1) -> np.ndarray | None:
        """The contents of a condition that chooses between graphs, as `parameter` gives them, where flags and integers decide.

        A sampling rate or a mode seldom changes, and what it chooses is worth a graph of its own. What hangs on a model's data changes
        with every run and is left to run time: inputs of floats, or of more than `most` elements.
        """
        found = self.contents.get(v)
        sources = found.sources if found is not None else self._ancestors(v)
        if any(self.dtype(s).is_float or not 0 < self.values[s].size <= most for s in sources):
            return None
        return self.parameter(v)

    def _ancestors(self, v: ValueId) -> set[ValueId]:
        """The graph inputs that a value depends on."""
        wanted = {v}
        for n in reversed(self.nodes):
            if not wanted.isdisjoint(n.outputs):
                wanted.update(n.inputs)
        return wanted.intersection(self.inputs)

    # ---- nodes

    def node(
        self,
        inputs: Sequence[ValueId],
        compute: Compute,
        outputs: Sequence[tuple[DType, tuple[int, ...] | None]],
    ) -> tuple[ValueId, ...]:
        """Add a node and give back the values that it makes."""
        made = tuple(self._value("", d, s) for d, s in outputs)
        self.nodes.append(Node(len(self.nodes), self.op, self.label, self.origin, tuple(inputs), made, compute))
        return made

    def map(self, inputs: Sequence[ValueId], shape: Sequence[int], body: Body, dtype: DType | None = None) -> ValueId:
        """out[index] = body(index, read). `dtype` is the stored type; by default the body's own."""
        axes = axes_of(tuple(shape))
        e = ix.simplify(body(axes, Reader([self.values[v] for v in inputs])))
        stored = dtype if dtype is not None else e.dtype
        return self._stage(inputs, Stage(axes, e, stored))

    def reduce(
        self,
        inputs: Sequence[ValueId],
        shape: Sequence[int],
        over: Sequence[int],
        combine: Combine,
        body: ReduceBody,
        dtype: DType | None = None,
    ) -> ValueId:
        """out[index] = combine over the extents `over` of body(index, reduced index, read).

        For ARG* the output is INT64: the row-major position within `over`.
        """
        axes, reduced = axes_of(tuple(shape)), axes_of(tuple(over), "r")
        e = ix.simplify(body(axes, reduced, Reader([self.values[v] for v in inputs])))
        stored = DType.INT64 if combine.is_arg else dtype if dtype is not None else e.dtype
        return self._stage(inputs, Stage(axes, e, stored, reduced, combine))

    def scatter(
        self,
        inputs: Sequence[ValueId],
        shape: Sequence[int],
        updates: Sequence[int],
        initial: Body,
        index: Callable[[Index, Reader], Sequence[Expr]],
        value: Body,
        combine: Combine | None = None,
        dtype: DType | None = None,
    ) -> ValueId:
        """out = initial(index, read); then out[index(u, read)] = combine(itself, value(u, read)) for every u of extents `updates`, in order.

        Indices must lie inside `shape`. `dtype` is the stored type; by default that of the initial values.
        """
        axes, over = axes_of(tuple(shape)), axes_of(tuple(updates), "u")
        read = Reader([self.values[v] for v in inputs])
        start = ix.simplify(initial(axes, read))
        at = tuple(ix.simplify(i) for i in index(over, read))
        stored = dtype if dtype is not None else start.dtype
        return self.alone(inputs, Scatter(axes, start, over, at, ix.simplify(value(over, read)), stored, combine))[0]

    def alone(self, inputs: Sequence[ValueId], compute: Alone) -> tuple[ValueId, ...]:
        """A node that is computed on its own; its outputs."""
        return self.node(inputs, compute, list(zip(compute.dtypes, compute.shapes, strict=True)))

    def _stage(self, inputs: Sequence[ValueId], stage: Stage) -> ValueId:
        inputs, stage = _canonical_slots(inputs, stage)
        if wrong := leaving(stage, [self.shape(v) for v in inputs]):
            raise VerificationError(wrong)
        return self.node(inputs, stage, [(stage.dtype, stage.shape)])[0]

    def elementwise(self, inputs: Sequence[ValueId], fn: Callable[..., Expr], dtype: DType | None = None) -> ValueId:
        """A function of broadcast elements; half-typed results are stored in the half type."""
        shape = np.broadcast_shapes(*(self.shape(v) for v in inputs)) if inputs else ()

        def body(index: Index, read: Reader) -> Expr:
            return fn(*(read.broadcast(k, index) for k in range(len(inputs))))

        if dtype is None:
            stored = self.dtype(inputs[-1])
            probe = body(axes_of(shape), Reader([self.values[v] for v in inputs]))
            dtype = stored if probe.dtype is stored.compute else None
        return self.map(inputs, shape, body, dtype)

    # ---- the result

    def graph(self, outputs: Sequence[tuple[str, ValueId]]) -> Graph:
        """The finished, verified graph with its outputs by name."""
        return verify(
            Graph(
                self.name,
                tuple(self.values),
                tuple(self.nodes),
                tuple(self.inputs),
                tuple(v for _, v in outputs),
                tuple(n for n, _ in outputs),
                dict(self.constants),
                tuple(self.notes),
                dict(self.parameters),
                frozenset(self.open_parameters),
            )
        )


def _canonical_slots(inputs: Sequence[ValueId], stage: Stage) -> tuple[tuple[ValueId, ...], Stage]:
    """Merge slots that hold the same value and drop slots that the body never reads."""
    used = list(dict.fromkeys(inputs[ld.source] for ld in inputs_of(stage) if isinstance(ld.source, int)))
    number = {v: k for k, v in enumerate(used)}
    if tuple(used) == tuple(inputs):
        return tuple(inputs), stage
    body = renumber(stage.body, {k: number[v] for k, v in enumerate(inputs) if v in number})
    return tuple(used), dataclasses.replace(stage, body=body)


def renumber(body: Expr, slots: dict[int, int]) -> Expr:
    """The body with its input slots renumbered."""

    def fn(e: Expr) -> Expr | None:
        if isinstance(e, Load) and isinstance(e.source, int):
            return load(slots[e.source], e.index, e.dtype, e.fill, e.guard)
        return None

    return rewrite(body, fn)
