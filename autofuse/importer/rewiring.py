"""An ONNX graph whose nodes are taken out and whose readers are given other values, with what is known of its values meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper, shape_inference

from autofuse.importer.proto import captured, domain_of, free_names, opsets_of, subgraphs

Shape = tuple[int | str, ...]


class Kept(Exception):
    """Why a node must stay."""


def node_text(node: NodeProto) -> str:
    """An ONNX node as people know it."""
    return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} of {next(iter(node.output), '')!r}"


def value_types(model: ModelProto) -> dict[str, tuple[int, Shape | None]]:
    """Element type and shape of each value as far as onnx infers them; a dimension is a number, a symbol, or "?" followed by a number."""
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):  # too large, or not inferable
        inferred = model
    g = inferred.graph
    found: dict[str, tuple[int, Shape | None]] = {}
    for info in (*g.value_info, *g.input, *g.output):
        if info.type.WhichOneof("value") == "tensor_type":
            t = info.type.tensor_type
            found[info.name] = (t.elem_type, _dims(t.shape, info.name) if t.HasField("shape") else None)
    for tensor in g.initializer:
        found[tensor.name] = (tensor.data_type, tuple(tensor.dims))
    return found


def _dims(shape: onnx.TensorShapeProto, name: str) -> Shape:
    out: list[int | str] = []
    for k, d in enumerate(shape.dim):
        unknown = f"? {name} {k}"  # never equal to another one
        out.append(d.dim_value if d.HasField("dim_value") else d.dim_param or unknown)
    return tuple(out)


class Rewiring:
    """A copy of a model's graph that is being changed; `finish` writes the nodes that are left into `model`.

    `maker`, `readers` and `captures` say which nodes make a value, read it, and read it in a graph inside of them; `types` what is known of
    its type and shape; `stale` are values whose recorded types no longer hold.
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self.opset = opsets_of(model).get("", 1)
        self.types = value_types(model)
        self.nodes: list[NodeProto] = list(self.graph.node)
        self.position = {id(n): k for k, n in enumerate(self.nodes)}
        self.outputs = {o.name for o in self.graph.output}
        self.given = {i.name for i in self.graph.input} | {t.name for t in self.graph.initializer}
        self.given |= {t.values.name for t in self.graph.sparse_initializer}
        self.constants = {t.name: t for t in self.graph.initializer}
        self.was_read = {name for n in self.nodes for name in (*n.input, *captured(n))}
        self.stale: set[str] = set()
        self.index()

    # ---- the graph as it is now

    def index(self) -> None:
        """Look again who makes and reads what."""
        self.maker = {o: n for n in self.nodes for o in n.output if o}
        self.readers: dict[str, list[NodeProto]] = {}
        self.captures: dict[str, list[NodeProto]] = {}
        for n in self.nodes:
            for name in dict.fromkeys(i for i in n.input if i):
                self.readers.setdefault(name, []).append(n)
            for name in captured(n):
                self.captures.setdefault(name, []).append(n)

    def shape(self, name: str) -> Shape | None:
        """The shape of a value as far as it is known."""
        return self.types.get(name, (0, None))[1]

    def type_of(self, name: str) -> int:
        """The element type of a value (TensorProto.DataType); 0 where it is not known."""
        return self.types.get(name, (0, None))[0]

    def made(self, name: str, ops: Collection[str]) -> NodeProto | None:
        """The node of one of some operators that makes a value."""
        n = self.maker.get(name)
        return n if n is not None and n.op_type in ops and not domain_of(n) else None

    def perm(self, n: NodeProto) -> tuple[int, ...] | None:
        """The order of axes that a Transpose gives; None where it depends on a rank that is not known."""
        for a in n.attribute:
            if a.name == "perm":
                return tuple(a.ints)
        shape = self.shape(n.input[0])
        return None if shape is None else tuple(reversed(range(len(shape))))

    def array(self, name: str) -> np.ndarray | None:
        """A constant's value."""
        if name in self.constants:
            return numpy_helper.to_array(self.constants[name])
        n = self.made(name, ("Constant",))
        if n is not None:
            for a in n.attribute:
                if a.name == "value":
                    return numpy_helper.to_array(a.t)
                if a.name in ("value_float", "value_int"):
                    return np.asarray(a.f if a.name == "value_float" else a.i, np.float32 if a.type == 1 else np.int64)
        return None

    def store(self, tensor: TensorProto) -> None:
        """Add a constant."""
        self.graph.initializer.append(tensor)
        self.constants[tensor.name] = tensor
        self.given.add(tensor.name)
        self.types[tensor.name] = (tensor.data_type, tuple(tensor.dims))

    def fresh(self, wish: str) -> str:
        """A name that is not taken."""
        known = {*self.maker, *self.given, *self.types}
        k, name = 0, wish
        while name in known:
            k += 1
            name = f"{wish}_{k}"
        return name

    # ---- rewriting

    def is_read(self, name: str) -> bool:
        """Whether a node, or a graph inside of one, reads a value."""
        return name in self.readers or name in self.captures

    def check(self, y: str, x: str) -> None:
        """Kept where the readers of y can't take x."""
        if y in self.outputs:
            if x in self.given or x in self.outputs or x not in self.maker:
                raise Kept(
                    f"it gives the graph's output {y!r} its name: {x!r} is an input, a constant or another output"
                )
            old, new = x, y
        else:
            old, new = y, x
        for n in self.captures.get(old, ()):
            if any(new in _defined(g) for g in subgraphs(n)):
                raise Kept(f"a graph inside {node_text(n)} has a value of its own called {new!r}")

    def alias(self, y: str, x: str) -> None:
        """Let all readers of y read x. An output keeps its name: then x is called y everywhere."""
        if y not in self.outputs:
            self._rename(y, x, [*self.readers.get(y, ()), *self.captures.get(y, ())])
        else:
            old = self.maker[y]
            old.output[list(old.output).index(y)] = ""
            maker = self.maker[x]
            maker.output[list(maker.output).index(x)] = y
            self._rename(x, y, [*self.readers.get(x, ()), *self.captures.get(x, ())])
            self.types[y] = self.types.get(x, self.types.get(y, (0, None)))
            self.stale.add(x)
        self.index()

    def _rename(self, old: str, new: str, readers: Iterable[NodeProto]) -> None:
        for n in readers:
            for k, name in enumerate(n.input):
                if name == old:
                    n.input[k] = new
            for g in subgraphs(n):
                _rename_free(g, old, new)

    def sweep(self, dead: Iterable[NodeProto], of: Collection[str]) -> None:
        """Drop nodes that nobody reads any more, and what only they read where it is `of` some operators."""
        work = list(dead)
        while work:
            n = work.pop()
            if not any(n is m for m in self.nodes) or any(
                o and (o in self.outputs or self.is_read(o)) for o in n.output
            ):
                continue
            self.nodes = [m for m in self.nodes if m is not n]
            self.stale.update(n.output)
            self.index()
            work += [self.maker[i] for i in n.input if i in self.maker and self.maker[i].op_type in of]

    def finish(self) -> None:
        """Write what is left into the model, without what nobody reads any more."""
        g = self.graph
        ordered = [NodeProto.FromString(n.SerializeToString()) for n in _sorted(self.nodes)]
        del g.node[:]
        g.node.extend(ordered)
        read = {name for n in g.node for name in (*n.input, *captured(n))} | self.outputs
        inputs = {i.name for i in g.input}
        unread = {t.name for t in g.initializer} - read - inputs
        gone = [t for t in g.initializer if t.name in unread and t.name in self.was_read]
        for t in gone:
            g.initializer.remove(t)
        left = [i for i in g.value_info if i.name not in self.stale and i.name in self.maker]
        del g.value_info[:]
        g.value_info.extend(left)


def _defined(graph: GraphProto) -> set[str]:
    """Every name that a graph and those inside it define."""
    found = (
        {i.name for i in graph.input} | {t.name for t in graph.initializer} | {o for n in graph.node for o in n.output}
    )
    for n in graph.node:
        for g in subgraphs(n):
            found |= _defined(g)
    return found


def _rename_free(graph: GraphProto, old: str, new: str) -> None:
    """Rename an outer value in a graph that reads it."""
    if old not in free_names(graph):
        return
    for n in graph.node:
        for k, name in enumerate(n.input):
            if name == old:
                n.input[k] = new
        for g in subgraphs(n):
            _rename_free(g, old, new)
    for o in graph.output:
        if o.name == old:
            o.name = new


def _sorted(nodes: list[NodeProto]) -> Iterator[NodeProto]:
    """The nodes in an order in which each can run: as they stand, as far as possible."""
    made = {o for n in nodes for o in n.output if o}
    done: set[str] = set()
    waiting = list(nodes)
    while waiting:
        later: list[NodeProto] = []
        for n in waiting:
            needs = {i for i in (*n.input, *captured(n)) if i in made}
            if needs <= done:
                done.update(o for o in n.output if o)
                yield n
            else:
                later.append(n)
        if len(later) == len(waiting):  # damaged: the importer says so
            yield from later
            return
        waiting = later
