"""What a name means while nodes are emitted: values made so far, initializers that nobody has asked for yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from onnx import GraphProto, SparseTensorProto, TensorProto

from autofuse.errors import ModelError
from autofuse.importer.binding import element_type
from autofuse.importer.proto import dense, to_array
from autofuse.ir.dtype import DType
from autofuse.ir.graph import ValueId
from autofuse.ops.builder import Builder

Stored = TensorProto | SparseTensorProto


class Scope:
    """The names of one graph or function body. A subgraph sees those of the graph around it, a function body does not."""

    def __init__(self, opsets: Mapping[str, int], parent: Scope | None = None) -> None:
        self.opsets = opsets
        self.parent = parent
        self.values: dict[str, ValueId | None] = {}
        self.stored: dict[str, Stored] = {}

    def store(self, graph: GraphProto) -> None:
        """Take over a graph's initializers; each becomes a constant when it is first read."""
        self.stored.update((t.name, t) for t in graph.initializer)
        self.stored.update((s.values.name, s) for s in graph.sparse_initializer)

    def names(self) -> set[str]:
        """Every name that can be read here."""
        outer = self.parent.names() if self.parent is not None else set()
        return outer | set(self.values) | set(self.stored)

    def lookup(self, name: str, constants: Constants) -> ValueId | None:
        """The value of a name; None for an optional argument that was left out."""
        if name in self.values:
            return self.values[name]
        if name in self.stored:
            v = self.values[name] = constants.of(self.stored[name])
            return v
        if self.parent is not None:
            return self.parent.lookup(name, constants)
        raise ModelError(f"the value {name!r} is read, but nothing makes it. The model is damaged: export it again.")


class Constants:
    """Turns stored tensors into constants of the builder.

    Tensors of element types that no kernel handles stay messages: `opaque` holds them, and they are embedded where a Host
    node reads them. `literals` are constants that the model's author wrote down rather than learned.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.opaque: dict[ValueId, TensorProto] = {}
        self.literals: set[ValueId] = set()

    def of(self, stored: Stored) -> ValueId:
        if isinstance(stored, SparseTensorProto):
            return self.array(dense(stored), stored.values.name)
        if element_type(stored.data_type) is None:
            v = self.builder.constant(np.empty(0, dtype=object), stored.name)
            self._forget_shape(v)
            self.opaque[v] = stored
            return v
        return self.array(to_array(stored), stored.name)

    def array(self, array: np.ndarray, name: str = "") -> ValueId:
        """A read-only constant."""
        if array.dtype.kind in "US":
            array = array.astype(object)
        array.setflags(write=False)
        return self.builder.constant(array, name)

    def _forget_shape(self, v: ValueId) -> None:
        self.builder.values[v] = dataclasses.replace(self.builder.values[v], dtype=DType.STRING, shape=None)

    def all_literal(self, values: Iterable[ValueId | None]) -> bool:
        """Whether every value is a literal (or left out)."""
        return all(v is None or v in self.literals for v in values)
