"""Split an output axis of a contraction that is read by quotient and remainder into the two: o = s q + r.

A transposed convolution of stride s reads input (o + p) // s and weight (o + p) mod s: no two neighbours share a weight, and a kernel
that runs along o can keep nothing in registers. Along q, with r fixed, it is a plain convolution, and r selects the
weights (the sub-pixel form: Shi et al., Is the deconvolution layer the same as a convolutional layer?, 2016). The result is
laid out as before by a reshape, which costs nothing.
"""

from __future__ import annotations

import dataclasses

from autofuse.importer.rebuild import Edit
from autofuse.importer.rules.base import RuleResult
from autofuse.ir import index as ix
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, load, loads, var, variables, walk
from autofuse.ir.graph import Graph, Node
from autofuse.ir.stage import Kind, Stage


def apply(graph: Graph) -> RuleResult:
    """Left alone is an axis whose length is no multiple of the stride, or that is also read in another way."""
    edit = Edit(graph)
    applied = 0
    for n in graph.nodes:
        if n.kind is not Kind.CONTRACT:
            continue
        strides = {a: s for a in n.stage.axes if (s := _stride(n.stage, a)) is not None}
        split = _split(n.stage, strides) if strides else None
        if split is None:
            continue
        edit.replace(n, *_nodes(edit, n, split, strides))
        applied += 1
    return RuleResult(edit.finish() if applied else graph, applied)


def _indices(body: Expr) -> list[Expr]:
    return [e for ld in loads(body) for i in ld.index for e in walk(i)]


def _stride(stage: Stage, axis: Var) -> int | None:
    """The one divisor by which an axis is divided with remainder, where it goes into the axis' length."""
    found = {
        int(d.value)
        for e in _indices(stage.body)
        if isinstance(e, Apply) and e.fn == "floor_mod" and axis in variables(e)
        for d in e.args[1:]
        if isinstance(d, Const)
    }
    if len(found) != 1:
        return None
    stride = found.pop()
    return stride if stride > 1 and (axis.extent or 0) % stride == 0 and (axis.extent or 0) > stride else None


def _split(stage: Stage, strides: dict[Var, int]) -> Stage | None:
    """The stage over quotients and remainders; None where a division of a quotient is left."""
    axes: list[Var] = []
    at: dict[Expr, Expr] = {}
    quotients: set[Var] = set()
    for k, a in enumerate(stage.axes):
        if a not in strides:
            axes.append(a)
            continue
        s = strides[a]
        q, r = var(f"q{k}", (a.extent or 0) // s), var(f"p{k}", s)
        axes += [q, r]
        quotients.add(q)
        at[a] = ix.add(ix.mul(q, s), r)
    body = ix.substitute(stage.body, at)
    divided = [e for e in _indices(body) if isinstance(e, Apply) and e.fn in ("floor_div", "floor_mod")]
    if any(quotients & variables(e) for e in divided):
        return None
    made = dataclasses.replace(stage, axes=tuple(axes), body=body)
    return made if made.contraction is not None else None


def _nodes(edit: Edit, node: Node, split: Stage, strides: dict[Var, int]) -> tuple[Node, Node]:
    """The contraction over the split axes, and the reshape that makes the node's own output of it."""
    stage = node.stage
    value = edit.value(split.dtype, split.shape)
    index: list[Expr] = []
    for a in stage.axes:
        s = strides.get(a)
        index += [a] if s is None else [ix.floor_div(a, s), ix.floor_mod(a, s)]
    body: Load = load(0, tuple(index), split.dtype)
    reshape = Stage(stage.axes, body, stage.dtype)
    contraction = dataclasses.replace(node, outputs=(value,), compute=split)
    return contraction, dataclasses.replace(node, inputs=(value,), compute=reshape)
