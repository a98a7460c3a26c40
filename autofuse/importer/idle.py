"""Nodes that compute nothing: what their readers may take instead, and why; or why they have to stay (`Kept`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from autofuse.importer.rewiring import Kept, Rewiring

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
SHAPERS = VIEWS | {"Expand", "Tile"}
SINGLE = frozenset({"Concat", "Sum", "Max", "Min", "Mean"})
MOVES = frozenset({"Identity", "Cast", "CastLike", "Transpose", "Dropout", *SHAPERS})
"""Operators of which an export leaves some behind."""
"""Operators of which an export leaves some behind."""
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


@dataclass(frozen=True)
class Idle:
    """The readers of a node may take `value` instead of its result. `kind` is what people call it, `also` are nodes before it that are part of it."""

    value: str
    kind: str
    reason: str
    also: tuple[NodeProto, ...] = ()


def idle(graph: Rewiring, n: NodeProto) -> Idle | None:
    """What a node is that computes nothing; None where it computes something. Raises Kept where it looks like one and has to stay."""
    match n.op_type:
        case "Identity":
            return Idle(n.input[0], "Identity", "it copies its input") if n.input else None
        case "Cast" | "CastLike":
            return _cast(graph, n)
        case "Transpose":
            return _transpose(graph, n)
        case "Dropout":
            return _dropout(graph, n)
        case op if op in SHAPERS:
            return _reshape(graph, n)
        case op if op in SINGLE and len(n.input) == 1:
            return Idle(n.input[0], f"{op} of one", "it combines a single input")
        case _:
            return None


def _cast(graph: Rewiring, n: NodeProto) -> Idle | None:
    x = n.input[0]
    to = _integer(n, "to") if n.op_type == "Cast" else graph.type_of(n.input[1])
    between = graph.type_of(x)
    if not to or not between:
        return None
    name = TensorProto.DataType.Name(to).lower()
    if to == between:
        return Idle(x, "Cast to the same type", f"its input is {name} already")
    before = graph.made(x, ("Cast",))
    if before is not None and graph.type_of(before.input[0]) == to:
        if between in _WIDER.get(to, ()):
            return Idle(before.input[0], "Cast there and back", f"every {name} survives the type between", (before,))
        other = TensorProto.DataType.Name(between).lower()
        raise Kept(f"{name} is rounded to {other} and back: without the two casts the numbers differ")
    return None


def _transpose(graph: Rewiring, n: NodeProto) -> Idle | None:
    perm = graph.perm(n)
    if perm is None:
        return None
    if perm == tuple(range(len(perm))):
        return Idle(n.input[0], "Transpose that moves nothing", "its order of axes is the one that there is")
    before = graph.made(n.input[0], ("Transpose",))
    inner = None if before is None else graph.perm(before)
    if before is not None and inner is not None and tuple(inner[p] for p in perm) == tuple(range(len(perm))):
        return Idle(before.input[0], "Transpose there and back", "the two undo each other", (before,))
    return None


def _dropout(graph: Rewiring, n: NodeProto) -> Idle | None:
    if len(n.output) > 1 and n.output[1] and (n.output[1] in graph.outputs or graph.is_read(n.output[1])):
        raise Kept("its mask is read")
    if graph.opset < 7 and not _integer(n, "is_test"):
        raise Kept("below opset 7 it is in training mode unless is_test is set")
    if graph.opset >= 12 and len(n.input) > 2 and n.input[2]:
        mode = graph.array(n.input[2])
        if mode is None or bool(mode.reshape(-1)[0]):
            raise Kept("it may be in training mode")
    return Idle(n.input[0], "Dropout in inference", "outside of training it copies its input")


def _reshape(graph: Rewiring, n: NodeProto) -> Idle | None:
    shape = graph.shape(n.output[0])
    if shape is None or any(isinstance(d, str) and d.startswith("?") for d in shape):
        return None
    x = n.input[0]
    if graph.shape(x) == shape:
        return Idle(x, f"{n.op_type} to the same shape", "its input has this shape already")
    between: list[NodeProto] = []
    while n.op_type in VIEWS:
        before = graph.made(x, VIEWS)
        if before is None:
            return None
        between.insert(0, before)
        x = before.input[0]
        if graph.shape(x) == shape:
            return Idle(x, f"{n.op_type} there and back", "the shape is the one that was there before", tuple(between))
    return None


def _integer(n: NodeProto, name: str) -> int:
    return next((int(a.i) for a in n.attribute if a.name == name), 0)
