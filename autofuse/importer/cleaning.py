"""An ONNX model without what its export left behind: nodes that compute nothing, and transposes that undo each other.

Only the graph itself is cleaned; branches and bodies, and functions of the model, are left alone. Every removal is exact: no value that
stays is changed, but for the order of its elements between two transposes that cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper, shape_inference

from autofuse.importer.proto import captured, domain_of, free_names, opsets_of, subgraphs

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
SHAPERS = VIEWS | {"Expand", "Tile"}
SINGLE = frozenset({"Concat", "Sum", "Max", "Min", "Mean"})
MOVES = frozenset({"Identity", "Cast", "CastLike", "Transpose", "Dropout", *SHAPERS})
"""Operators of which an export leaves some behind."""
_ELEMENTWISE = """
Abs Neg Relu LeakyRelu Elu Selu Celu ThresholdedRelu Sigmoid HardSigmoid HardSwish Swish Softplus Softsign Mish Tanh Exp Log Sqrt
Reciprocal Erf Gelu Floor Ceil Round Sign Sin Cos Tan Atan Clip Cast Identity Not IsNaN Add Sub Mul Div Pow Max Min Sum Mean Mod
Where Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor PRelu
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Operators that may be computed in another order of the axes."""
_T = TensorProto
_WIDER: Mapping[int, frozenset[int]] = {
    _T.FLOAT16: frozenset({_T.FLOAT, _T.DOUBLE}),
    _T.BFLOAT16: frozenset({_T.FLOAT, _T.DOUBLE}),
    _T.FLOAT: frozenset({_T.DOUBLE}),
    _T.INT8: frozenset({_T.INT16, _T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE}),
    _T.UINT8: frozenset({_T.UINT16, _T.UINT32, _T.UINT64, _T.INT16, _T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE}),
    _T.INT16: frozenset({_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE}),
    _T.UINT16: frozenset({_T.UINT32, _T.UINT64, _T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE}),
    _T.INT32: frozenset({_T.INT64, _T.DOUBLE}),
    _T.UINT32: frozenset({_T.UINT64, _T.INT64, _T.DOUBLE}),
    _T.BOOL: frozenset({_T.UINT8, _T.INT8, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE}),
}
"""Types that hold every value of a type exactly."""

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Leftover:
    """What can go: `key` is the value whose readers take another one, `nodes` the ONNX nodes concerned (operator and name), `before` and
    `after` what stands around them, `labels` what the graph's nodes made from them are called."""

    key: str
    kind: str
    nodes: tuple[str, ...]
    reason: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Cleaned:
    """`kept` are nodes that look like leftovers, each with why it has to stay."""

    model: ModelProto
    removed: tuple[Leftover, ...]
    kept: tuple[tuple[str, str], ...]


def clean(model: ModelProto, only: Collection[str] | None = None) -> Cleaned:
    """The cleaned model; the given one is not changed. `only` names leftovers by their keys, the others stay."""
    return _Cleaner(model, only).run()


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


class _Kept(Exception):
    """Why a node must stay."""


class _Cleaner:
    def __init__(self, model: ModelProto, only: Collection[str] | None) -> None:
        self.only = only
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
        self.removed: list[Leftover] = []
        self.kept: dict[str, str] = {}
        self.stale: set[str] = set()
        self._index()

    # ---- the graph as it is now

    def _index(self) -> None:
        self.maker = {o: n for n in self.nodes for o in n.output if o}
        self.readers: dict[str, list[NodeProto]] = {}
        self.captures: dict[str, list[NodeProto]] = {}
        for n in self.nodes:
            for name in dict.fromkeys(i for i in n.input if i):
                self.readers.setdefault(name, []).append(n)
            for name in captured(n):
                self.captures.setdefault(name, []).append(n)

    def _shape(self, name: str) -> Shape | None:
        return self.types.get(name, (0, None))[1]

    def _type(self, name: str) -> int:
        return self.types.get(name, (0, None))[0]

    def _made(self, name: str, ops: Collection[str]) -> NodeProto | None:
        """The node of one of some operators that makes a value."""
        n = self.maker.get(name)
        return n if n is not None and n.op_type in ops and not domain_of(n) else None

    # ---- running

    def run(self) -> Cleaned:
        changed = True
        while changed:
            changed = False
            for n in list(self.nodes):
                if any(n is m for m in self.nodes) and not domain_of(n):
                    changed |= self._try(n)
        self._finish()
        return Cleaned(self.model, tuple(self.removed), tuple(self.kept.items()))

    def _try(self, n: NodeProto) -> bool:
        try:
            return self._remove(n) or (n.op_type == "Transpose" and self._cancel(n))
        except _Kept as why:
            self.kept[node_text(n)] = str(why)
            return False

    def _remove(self, n: NodeProto) -> bool:
        found = self._source(n)
        if found is None or not self._wanted(n.output[0]):
            return False
        x, kind, also, reason = found
        y = n.output[0]
        self._check(y, x)
        self._note(y, kind, [*also, n], reason, [x], [y])
        self._alias(y, x)
        self._sweep([n])
        return True

    def _wanted(self, key: str) -> bool:
        return self.only is None or key in self.only

    # ---- what computes nothing

    def _source(self, n: NodeProto) -> tuple[str, str, list[NodeProto], str] | None:
        """The value that a node's readers may take instead of its result, what kind of leftover it is, nodes before it that are part of it,
        and the reason."""
        match n.op_type:
            case "Identity":
                return (n.input[0], "Identity", [], "it copies its input") if n.input else None
            case "Cast" | "CastLike":
                return self._cast(n)
            case "Transpose":
                return self._transpose(n)
            case "Dropout":
                return self._dropout(n)
            case op if op in SHAPERS:
                return self._reshape(n)
            case op if op in SINGLE and len(n.input) == 1:
                return n.input[0], f"{op} of one", [], "it combines a single input"
            case _:
                return None

    def _cast(self, n: NodeProto) -> tuple[str, str, list[NodeProto], str] | None:
        x = n.input[0]
        to = _integer(n, "to") if n.op_type == "Cast" else self._type(n.input[1])
        if not to or not self._type(x):
            return None
        name = TensorProto.DataType.Name(to).lower()
        if to == self._type(x):
            return x, "Cast to the same type", [], f"its input is {name} already"
        before = self._made(x, ("Cast",))
        if before is not None and self._type(before.input[0]) == to:
            if self._type(x) in _WIDER.get(to, ()):
                return before.input[0], "Cast there and back", [before], f"every {name} survives the type between"
            between = TensorProto.DataType.Name(self._type(x)).lower()
            raise _Kept(f"{name} is rounded to {between} and back: without the two casts the numbers differ")
        return None

    def _transpose(self, n: NodeProto) -> tuple[str, str, list[NodeProto], str] | None:
        perm = self._perm(n)
        if perm is None:
            return None
        if perm == tuple(range(len(perm))):
            return n.input[0], "Transpose that moves nothing", [], "its order of axes is the one that there is"
        before = self._made(n.input[0], ("Transpose",))
        inner = None if before is None else self._perm(before)
        if before is not None and inner is not None and tuple(inner[p] for p in perm) == tuple(range(len(perm))):
            return before.input[0], "Transpose there and back", [before], "the two undo each other"
        return None

    def _dropout(self, n: NodeProto) -> tuple[str, str, list[NodeProto], str] | None:
        if len(n.output) > 1 and n.output[1] and (n.output[1] in self.outputs or self._is_read(n.output[1])):
            raise _Kept("its mask is read")
        if self.opset < 7 and not _integer(n, "is_test"):
            raise _Kept("below opset 7 it is in training mode unless is_test is set")
        if self.opset >= 12 and len(n.input) > 2 and n.input[2]:
            mode = self._array(n.input[2])
            if mode is None or bool(mode.reshape(-1)[0]):
                raise _Kept("it may be in training mode")
        return n.input[0], "Dropout in inference", [], "outside of training it copies its input"

    def _reshape(self, n: NodeProto) -> tuple[str, str, list[NodeProto], str] | None:
        shape = self._shape(n.output[0])
        if shape is None or any(isinstance(d, str) and d.startswith("?") for d in shape):
            return None
        x = n.input[0]
        if self._shape(x) == shape:
            return x, f"{n.op_type} to the same shape", [], "its input has this shape already"
        between: list[NodeProto] = []
        while n.op_type in VIEWS:
            before = self._made(x, VIEWS)
            if before is None:
                return None
            between.insert(0, before)
            x = before.input[0]
            if self._shape(x) == shape:
                return x, f"{n.op_type} there and back", between, "the shape is the one that was there before"
        return None

    def _perm(self, n: NodeProto) -> tuple[int, ...] | None:
        for a in n.attribute:
            if a.name == "perm":
                return tuple(a.ints)
        shape = self._shape(n.input[0])
        return None if shape is None else tuple(reversed(range(len(shape))))

    def _array(self, name: str) -> np.ndarray | None:
        """A constant's value."""
        if name in self.constants:
            return numpy_helper.to_array(self.constants[name])
        n = self._made(name, ("Constant",))
        if n is not None:
            for a in n.attribute:
                if a.name == "value":
                    return numpy_helper.to_array(a.t)
                if a.name in ("value_float", "value_int"):
                    return np.asarray(a.f if a.name == "value_float" else a.i, np.float32 if a.type == 1 else np.int64)
        return None

    # ---- transposes that cancel through element-wise operators

    def _cancel(self, last: NodeProto) -> bool:
        """Compute the element-wise operators before a Transpose in the order of axes that it restores, where every way in has the opposite
        Transpose and every way out this one."""
        perm = self._perm(last)
        if perm is None or not self._wanted(last.output[0]) or self._made(last.input[0], ELEMENTWISE) is None:
            return False
        opposite = tuple(int(k) for k in np.argsort(perm))
        cluster: dict[int, NodeProto] = {}
        entries: dict[int, NodeProto] = {}
        exits: dict[int, NodeProto] = {}
        work = [self.maker[last.input[0]]]
        while work:
            n = work.pop()
            if id(n) in cluster:
                continue
            cluster[id(n)] = n
            for name in filter(None, n.input):
                before = self.maker.get(name)
                if before is not None and before.op_type == "Transpose" and self._perm(before) == opposite:
                    entries[id(before)] = before
                elif self._fixed(name, perm) is not None:
                    continue
                elif before is not None and before.op_type in ELEMENTWISE and not domain_of(before):
                    work.append(before)
                else:
                    return False
            for name in filter(None, n.output):
                if name in self.outputs or name in self.captures or len(self._shape(name) or perm) != len(perm):
                    return False
                for r in self.readers.get(name, ()):
                    if r.op_type == "Transpose" and self._perm(r) == perm:
                        exits[id(r)] = r
                    elif r.op_type in ELEMENTWISE and not domain_of(r):
                        work.append(r)
                    else:
                        return False
        if not entries or any(_has(n, ("axis", "broadcast")) for n in cluster.values()):
            return False
        for e in exits.values():
            self._check(e.output[0], e.input[0])
        order = [n for n in self.nodes if id(n) in cluster]
        through = ", ".join(dict.fromkeys(n.op_type for n in order))
        sources = [e.input[0] for e in entries.values()]
        ends = [e.output[0] for e in exits.values()]
        nodes = [*entries.values(), *exits.values()]
        reason = f"they undo each other; {through} between them compute the same in any order of axes"
        self._note(last.output[0], "Transposes around element-wise operators", nodes, reason, sources, ends)
        for n in order:
            for k, name in enumerate(n.input):
                before = self.maker.get(name)
                if before is not None and id(before) in entries:
                    n.input[k] = before.input[0]
                elif name and (before is None or id(before) not in cluster):
                    n.input[k] = self._moved(name, perm)
            for name in n.output:
                kind, shape = self.types.get(name, (0, None))
                self.types[name] = (kind, None if shape is None else tuple(shape[p] for p in perm))
                self.stale.add(name)
        for e in exits.values():
            self._alias(e.output[0], e.input[0])
        self._sweep(nodes)
        return True

    def _fixed(self, name: str, perm: tuple[int, ...]) -> np.ndarray | None:
        """A constant operand that can be given in another order of axes: one element, or no more axes than there are."""
        array = self._array(name)
        return array if array is not None and array.ndim <= len(perm) else None

    def _moved(self, name: str, perm: tuple[int, ...]) -> str:
        array = self._fixed(name, perm)
        assert array is not None
        if array.size == 1:
            return name
        full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape).transpose(perm)
        moved = self._fresh(f"{name}_moved")
        tensor = numpy_helper.from_array(np.ascontiguousarray(full), moved)
        self.graph.initializer.append(tensor)
        self.constants[moved] = tensor
        self.given.add(moved)
        self.types[moved] = (tensor.data_type, tuple(full.shape))
        return moved

    def _fresh(self, wish: str) -> str:
        known = {*self.maker, *self.given, *self.types}
        k, name = 0, wish
        while name in known:
            k += 1
            name = f"{wish}_{k}"
        return name

    # ---- rewriting

    def _is_read(self, name: str) -> bool:
        return name in self.readers or name in self.captures

    def _check(self, y: str, x: str) -> None:
        """_Kept where the readers of y can't take x."""
        if y in self.outputs:
            if x in self.given or x in self.outputs or x not in self.maker:
                raise _Kept(
                    f"it gives the graph's output {y!r} its name: {x!r} is an input, a constant or another output"
                )
            old, new = x, y
        else:
            old, new = y, x
        for n in self.captures.get(old, ()):
            if any(new in _defined(g) for g in subgraphs(n)):
                raise _Kept(f"a graph inside {node_text(n)} has a value of its own called {new!r}")

    def _alias(self, y: str, x: str) -> None:
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
        self._index()

    def _rename(self, old: str, new: str, readers: Iterable[NodeProto]) -> None:
        for n in readers:
            for k, name in enumerate(n.input):
                if name == old:
                    n.input[k] = new
            for g in subgraphs(n):
                _rename_free(g, old, new)

    def _sweep(self, dead: list[NodeProto]) -> None:
        """Drop nodes that nobody reads any more, and what only they read."""
        work = list(dead)
        while work:
            n = work.pop()
            if not any(n is m for m in self.nodes) or any(
                o and (o in self.outputs or self._is_read(o)) for o in n.output
            ):
                continue
            self.nodes = [m for m in self.nodes if m is not n]
            self.stale.update(n.output)
            self._index()
            work += [
                self.maker[i] for i in n.input if i in self.maker and self.maker[i].op_type in (*MOVES, "Constant")
            ]

    def _note(
        self, key: str, kind: str, nodes: list[NodeProto], reason: str, sources: list[str], ends: list[str]
    ) -> None:
        names = {id(n) for n in nodes}
        before = dict.fromkeys(node_text(self.maker[x]) for x in sources if x in self.maker)
        readers = [r for y in ends for r in self.readers.get(y, ()) if id(r) not in names]
        self.removed.append(
            Leftover(
                key,
                kind,
                tuple(node_text(n) for n in nodes),
                reason,
                tuple(before),
                tuple(dict.fromkeys(node_text(r) for r in readers)),
                tuple(n.name or f"#{self.position[id(n)]}" for n in nodes),
            )
        )
        for n in nodes:
            self.kept.pop(node_text(n), None)

    def _finish(self) -> None:
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


def _integer(n: NodeProto, name: str) -> int:
    return next((int(a.i) for a in n.attribute if a.name == name), 0)


def _has(n: NodeProto, names: Collection[str]) -> bool:
    return any(a.name in names for a in n.attribute)


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
