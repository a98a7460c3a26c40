"""Scalars that the model's author wrote down become literals of the expressions that read them.

They are then part of the kernel's text and of the structural hash, cost no pointer and no load, and let an exponent of two be a
product. Learned scalars stay data: only constants of rank 0 and those from Constant nodes are taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from autofuse.importer.rebuild import Edit, canonical
from autofuse.ir import index as ix
from autofuse.ir.expr import Apply, Const, Expr, Load, call, const, rewrite
from autofuse.ir.graph import Graph, Node, ValueId
from autofuse.ir.stage import Stage, inputs_of


def inline_literals(graph: Graph, literals: Collection[ValueId] = ()) -> Graph:
    """The graph with scalar constants written into the stages. `literals` may be of any rank, with one element."""
    scalars: dict[ValueId, np.ndarray] = {
        v: a for v, a in graph.constants.items() if a.size == 1 and (a.ndim == 0 or v in literals) and a.dtype != object
    }
    edit = Edit(graph)
    for n in graph.nodes:
        if not isinstance(n.compute, Stage) or n.compute.contraction is not None:
            continue
        here = {k: scalars[v] for k, v in enumerate(n.inputs) if v in scalars}
        if not here:
            continue
        body = _written(n.compute.body, here)
        inputs, compute = canonical(n.inputs, dataclasses.replace(n.compute, body=body))
        edit.replace(n, dataclasses.replace(n, inputs=inputs, compute=compute))
    return edit.finish()


def takes(graph: Graph, node: Node, v: ValueId) -> bool:
    """Whether a node reads v and would take it as a literal."""
    array = graph.constants.get(v)
    if array is None or array.ndim > 0 or array.dtype == object or not isinstance(node.compute, Stage):
        return False
    return node.compute.contraction is None and any(
        ld.fill is None and node.inputs[ld.source] == v for ld in inputs_of(node.compute) if isinstance(ld.source, int)
    )


def _written(body: Expr, scalars: Mapping[int, np.ndarray]) -> Expr:
    def fn(e: Expr) -> Expr | None:
        match e:
            case Load(source=int() as slot) if slot in scalars and e.fill is None and e.guard is None:
                return const(scalars[slot].reshape(-1)[0].item(), e.dtype)
            case Apply("cast", (Const(value=x, dtype=d),)) if (d.is_half or d.is_narrow) and e.dtype is d.compute:
                return const(x, e.dtype)
            case Apply("pow", (x, Const(value=p))) if e.dtype.is_float and p in (2, 3):
                square = call("mul", x, x)
                return square if p == 2 else call("mul", square, x)
            case _:
                return None

    written = rewrite(body, fn)
    return ix.simplify(written)
