"""Short loops written out: each step becomes a part of the graph around, where it fuses with the others and knows its index.

It is done where a body cannot be one graph for all steps: a carried value changes its shape, or slices are cut at the index. The
number of steps must be known, and nothing may end the loop early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import GraphProto, NodeProto, helper

from autofuse.errors import AutofuseError
from autofuse.importer import proto
from autofuse.importer.binding import dims_of
from autofuse.importer.scope import Scope
from autofuse.ir.graph import ValueId
from autofuse.ops.builder import Builder

if TYPE_CHECKING:
    from autofuse.importer.emitter import Emitter, Results

MOST_NODES = 256
"""So many nodes of ONNX a loop may come to when it is written out."""


def unrolled(emitter: Emitter, scope: Scope, node: NodeProto, opset: int) -> Results | None:
    """The results of a Loop whose steps were emitted one by one; None where that cannot be done (what was emitted must then go)."""
    try:
        return _unrolled(emitter, scope, node, opset)
    except AutofuseError:  # some step does not fit its shapes: that shows, if it does, when the loop runs
        return None


def _unrolled(emitter: Emitter, scope: Scope, node: NodeProto, opset: int) -> Results | None:
    builder = emitter.builder
    inputs = [scope.lookup(i, emitter.constants) if i else None for i in node.input]
    count = steps(builder, *(*inputs[:2], None, None)[:2])
    body: GraphProto = proto.attributes(node)["body"]
    if not count or count * max(1, len(body.node)) > MOST_NODES:
        return None
    carried = list(inputs[2:])
    slices: list[Sequence[ValueId | None]] = []
    for k in range(count):
        results = _step(emitter, scope, body, k, carried)
        goes_on = None if results[0] is None else builder.constants.get(results[0])
        if goes_on is None or not goes_on.all():
            return None
        carried = list(results[1 : 1 + len(carried)])
        if any(v is None or builder.values[v].shape is None for v in carried):
            return None
        slices.append(results[1 + len(carried) :])
    joined = [_joined(emitter, [s[j] for s in slices], opset) for j in range(len(slices[0]))]
    found = [*carried, *joined]
    wanted = [v for v, name in zip(found, node.output, strict=False) if name]
    return None if any(v is None for v in wanted) else found


def steps(builder: Builder, count: ValueId | None, condition: ValueId | None) -> int | None:
    """How often a loop runs by its trip count and the condition that it begins with, where both are known; None else."""
    if count is None:
        return None
    trips = builder.parameter(count)
    if trips is None or trips.size != 1:
        return None
    if condition is not None:
        same = count in builder.contents and condition in builder.contents
        follows = same and builder.contents[condition].sources <= builder.contents[count].sources
        known = builder.parameter(condition) if follows else builder.deciding(condition)
        if known is None or known.size != 1 or not known.reshape(-1)[0]:
            return None
    return max(0, int(trips.reshape(-1)[0]))


def _step(emitter: Emitter, scope: Scope, body: GraphProto, k: int, carried: Sequence[ValueId | None]) -> Results:
    inner = Scope(scope.opsets, scope)
    inner.store(body)
    scalars = [np.full((1,) * len(dims_of(i) or ()), x) for i, x in zip(body.input[:2], (k, True), strict=True)]
    fed = [*(emitter.constants.array(s) for s in scalars), *carried]
    inner.values.update(zip((i.name for i in body.input), fed, strict=True))
    names = [o.name for o in body.output]
    emitter.nodes(inner, body.node, names)
    return [inner.lookup(n, emitter.constants) for n in names]


def _joined(emitter: Emitter, parts: Sequence[ValueId | None], opset: int) -> ValueId | None:
    """The slices of all steps along a new first axis; None where a shape is not known, or shapes differ."""
    builder = emitter.builder
    known = [v for v in parts if v is not None]
    shapes = {builder.values[v].shape for v in known}
    if len(known) < len(parts) or len(shapes) != 1:
        return None
    (shape,) = shapes
    if shape is None:
        return None
    rows = [builder.map([v], (1, *shape), lambda index, read: read.raw(0, index[1:]), builder.dtype(v)) for v in known]
    concat = helper.make_node("Concat", [str(k) for k in range(len(rows))], ["joined"], axis=0)
    inner = Scope({"": opset})
    inner.values.update((str(k), v) for k, v in enumerate(rows))
    emitter.nodes(inner, [concat], ["joined"])
    return inner.lookup("joined", emitter.constants)
