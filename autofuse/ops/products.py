"""Numpy evaluation of contractions as matrix products."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, var, variables, walk
from autofuse.ir.stage import Stage
from autofuse.ops.interpret import convert, evaluate_expr, float_type, strided

MOST_ELEMENTS = 1 << 28
"""Elements of an operand that may be laid out for a product."""


def contract(stage: Stage, inputs: Sequence[np.ndarray], wide: bool) -> np.ndarray | None:
    """The sum of products; None where an operand would be too large to lay out."""
    split = _split(stage)
    assert split.contraction is not None
    axes = [*split.axes, *split.reduce_axes]
    if 0 in [a.extent for a in axes]:
        return None
    kept = _product_type(split, wide)
    operands = []
    for ld in split.contraction:
        made = _operand(ld, axes, inputs, wide)
        if made is None or math.prod(made[0].shape) > MOST_ELEMENTS:
            return None
        operands.append((made[0].astype(kept, copy=False), made[1]))
    total = product(operands[0], operands[1], list(split.axes), list(split.reduce_axes))
    if kept != float_type(stage.acc_dtype, wide):
        total = convert(total.astype(np.int64), stage.acc_dtype, wide)
    return np.asarray(convert(_joined(total, stage, split), stage.dtype, wide), order="C")


def _product_type(stage: Stage, wide: bool) -> np.dtype:
    """Products of narrow integers are exact in double, where numpy has a fast matrix product."""
    acc = stage.acc_dtype
    narrow = stage.contraction is not None and all(ld.dtype.itemsize <= 2 for ld in stage.contraction)
    if acc in (DType.INT32, DType.INT64) and narrow:
        return np.dtype(np.float64)
    return float_type(acc, wide)


def _split(stage: Stage) -> Stage:
    """Axes that are read as quotient and remainder become two axes each.

    These are the channels of a grouped convolution and the positions of a strided transposed one. An output axis that the divisor
    does not divide is made longer: the caller cuts the surplus off.
    """
    assert stage.contraction is not None
    found: dict[Expr, int] = {}
    for e in (x for ld in stage.contraction for i in ld.index for x in walk(i)):
        match e:
            case Apply("floor_div" | "floor_mod", (arg, Const(value=d))):
                for a, c in ix.terms(arg)[0]:
                    if c == 1 and isinstance(a, Var) and (a in stage.axes or (a.extent or 0) % d == 0):
                        found.setdefault(a, int(d))
    if not found:
        return stage
    mapping: dict[Expr, Expr] = {}

    def parts(a: Var) -> tuple[Var, ...]:
        if a not in found:
            return (a,)
        d = found[a]
        outer, inner = var(f"{a.name}_o", -(-(a.extent or 0) // d)), var(f"{a.name}_i", d)
        mapping[a] = ix.add(ix.mul(outer, d), inner)
        return outer, inner

    axes = tuple(p for a in stage.axes for p in parts(a))
    reduce_axes = tuple(p for a in stage.reduce_axes for p in parts(a))
    body = ix.substitute(stage.body, mapping)
    return dataclasses.replace(stage, axes=axes, reduce_axes=reduce_axes, body=body)


def _joined(total: np.ndarray, stage: Stage, split: Stage) -> np.ndarray:
    """The product's dimensions back under the stage's own axes."""
    sizes = iter(split.axes)
    lengths = []
    for a in stage.axes:
        first = next(sizes)
        lengths.append((first.extent or 0) * (1 if first is a else next(sizes).extent or 0))
    return total.reshape(lengths)[tuple(slice(0, n) for n in stage.shape)]


def _operand(
    ld: Load, axes: Sequence[Var], inputs: Sequence[np.ndarray], wide: bool
) -> tuple[np.ndarray, list[Expr]] | None:
    """The operand with a dimension for each axis that it uses."""
    assert isinstance(ld.source, int)
    array = inputs[ld.source]
    if array.size:
        view = strided(ld, array, {a: (0, a.extent or 0) for a in axes})
        if view is not None:
            return view
    used = [a for a in axes if a in variables(ld)]
    shape = [a.extent or 0 for a in used]
    if math.prod(shape) > MOST_ELEMENTS:
        return None
    env: dict[Expr, np.ndarray] = {
        a: np.arange(n).reshape([-1 if j == k else 1 for j in range(len(used))])
        for k, (a, n) in enumerate(zip(used, shape, strict=True))
    }
    return np.broadcast_to(evaluate_expr(ld, env, inputs, wide), shape), list(used)


def product(
    left: tuple[np.ndarray, list[Expr]], right: tuple[np.ndarray, list[Expr]], out: list[Var], over: list[Var]
) -> np.ndarray:
    """Sum over `over` of left times right, with the dimensions `out`: one batched matrix product."""
    (x, xs), (y, ys) = left, right
    x, xs = _summed(x, xs, [a for a in over if a not in ys])
    y, ys = _summed(y, ys, [a for a in over if a not in xs])
    lost = math.prod(
        a.extent or 0 for a in over if a not in xs and a not in ys and a not in left[1] and a not in right[1]
    )
    batch = [a for a in out if a in xs and a in ys]
    rows = [a for a in out if a in xs and a not in ys]
    columns = [a for a in out if a in ys and a not in xs]
    depth = [a for a in over if a in xs and a in ys]

    def sizes(axes: Sequence[Var]) -> list[int]:
        return [a.extent or 0 for a in axes]

    def laid(z: np.ndarray, have: list[Expr], *groups: Sequence[Var]) -> np.ndarray:
        order = [have.index(a) for group in groups for a in group]
        return z.transpose(order).reshape([math.prod(sizes(group)) for group in groups])

    total = np.matmul(laid(x, xs, batch, rows, depth), laid(y, ys, batch, depth, columns))
    made = [*batch, *rows, *columns]
    total = total.reshape(sizes(made))
    if lost != 1:
        total = total * total.dtype.type(lost)
    absent = [a for a in out if a not in made]
    order = [made.index(a) for a in out if a in made]
    total = total.transpose(order).reshape([1 if a in absent else a.extent or 0 for a in out])
    return np.broadcast_to(total, sizes(out))


def _summed(x: np.ndarray, have: list[Expr], axes: Sequence[Expr]) -> tuple[np.ndarray, list[Expr]]:
    """Sum over the axes that only this operand has."""
    drop = tuple(k for k, a in enumerate(have) if a in axes)
    if not drop:
        return x, have
    return np.asarray(x.sum(axis=drop, dtype=x.dtype)), [a for k, a in enumerate(have) if k not in drop]
