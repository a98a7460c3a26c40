"""Seeing that a map is a[c] * x + b[c] of one of its inputs, with a and b made of constants."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autofuse.importer.rules.base import in_place
from autofuse.ir.expr import Apply, Expr, Load, Var, call, const, loads, variables
from autofuse.ir.graph import Graph, Node, ValueId
from autofuse.ir.stage import Stage
from autofuse.ops.evaluate import evaluate_expr

_Parts = tuple[Expr | None, Expr | None]
"""Scale and offset as expressions; None for one and zero."""


@dataclass(frozen=True, eq=False)
class Affine:
    """scale * x + offset in float64, each broadcast over the map's axes; None for one and zero, known without any value."""

    scale: np.ndarray | None
    offset: np.ndarray | None

    def then(self, outer: Affine) -> Affine:
        """outer(self(x))."""
        scale = self.scale if outer.scale is None else outer.scale if self.scale is None else outer.scale * self.scale
        inner = self.offset if self.offset is None or outer.scale is None else outer.scale * self.offset
        offset = inner if outer.offset is None else outer.offset if inner is None else inner + outer.offset
        return Affine(scale, offset)

    def varies_along(self, axes: Collection[int]) -> bool:
        """Whether it is constant along every axis but these."""
        arrays = [a for a in (self.scale, self.offset) if a is not None]
        return all(n == 1 or k in axes for a in arrays for k, n in enumerate(a.shape))


def affine_of(graph: Graph, node: Node, x: ValueId) -> Affine | None:
    """The map as an affine function of the value x, where it is one with constant scale and offset; else None."""
    stage = node.compute
    if not isinstance(stage, Stage) or stage.combine is not None or graph.values[x].shape != stage.shape:
        return None
    if stage.dtype.is_narrow:  # storing rounds so coarsely that it is a step of the model
        return None
    if any(v != x and v not in graph.constants for v in node.inputs):
        return None
    parts = _parts(stage.body, stage.axes, node.inputs.index(x))
    if parts is None:
        return None
    inputs = {k: graph.constants[v] for k, v in enumerate(node.inputs) if v != x}
    scale, offset = (None if p is None else _values(p, stage, inputs) for p in parts)
    return Affine(scale, offset)


@lru_cache(maxsize=1 << 12)
def _parts(body: Expr, axes: tuple[Var, ...], slot: int) -> _Parts | None:
    match body:
        case Load(source=source) if source == slot:
            return (None, None) if in_place(body.index, axes) and body.fill is None else None
        case Apply("cast", (Load(source=source) as inner,)) if source == slot:
            return _parts(inner, axes, slot) if inner.dtype.is_half and inner.dtype.compute is body.dtype else None
        case Apply(fn, args) if body.dtype.is_float:
            return _combined(fn, args, axes, slot)
        case _:
            return None


def _combined(fn: str, args: tuple[Expr, ...], axes: tuple[Var, ...], slot: int) -> _Parts | None:
    reads = [any(ld.source == slot for ld in loads(a)) for a in args]
    if sum(reads) != 1:
        return None
    if fn == "fma":
        if reads[2]:
            return _combined("add", (args[2], call("mul", args[0], args[1])), axes, slot)
        product = _combined("mul", args[:2], axes, slot)
        return None if product is None else (product[0], _plus(product[1], args[2]))
    inner = _parts(args[reads.index(True)], axes, slot)
    if inner is None:
        return None
    scale, offset = inner
    other = args[reads.index(False)] if len(args) == 2 else None
    match fn:
        case "neg":
            return _times(scale, const(-1.0, args[0].dtype)), _map("neg", offset)
        case "add" if other is not None:
            return scale, _plus(offset, other)
        case "sub" if other is not None and reads[0]:
            return scale, _plus(offset, call("neg", other))
        case "sub" if other is not None:
            return _times(scale, const(-1.0, other.dtype)), _plus(_map("neg", offset), other)
        case "mul" if other is not None:
            return _times(scale, other), _map("mul", offset, other)
        case "div" if other is not None and reads[0]:
            return call("div", _times(scale, const(1.0, other.dtype)), other), _map("div", offset, other)
        case _:
            return None


def _times(scale: Expr | None, factor: Expr) -> Expr:
    return factor if scale is None else call("mul", scale, factor)


def _plus(offset: Expr | None, addend: Expr) -> Expr:
    return addend if offset is None else call("add", offset, addend)


def _map(fn: str, offset: Expr | None, *others: Expr) -> Expr | None:
    return None if offset is None else call(fn, offset, *others)


def _values(e: Expr, stage: Stage, inputs: Mapping[int, np.ndarray]) -> np.ndarray:
    used = variables(e)
    rank = len(stage.axes)
    env: dict[Expr, np.ndarray] = {}
    for k, a in enumerate(stage.axes):
        if a in used:
            env[a] = np.arange(a.extent or 0).reshape([-1 if j == k else 1 for j in range(rank)])
    slots = [inputs.get(k, np.empty(0)) for k in range(max(inputs, default=-1) + 1)]
    with np.errstate(all="ignore"):
        values = np.asarray(evaluate_expr(e, env, slots, wide=True), dtype=np.float64)
    return values.reshape((1,) * (rank - values.ndim) + values.shape)
