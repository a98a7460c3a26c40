"""Numpy evaluation of stages: constant folding, and the float64 reference that kernels are checked against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, walk
from autofuse.ir.functions import FUNCTIONS
from autofuse.ir.stage import Combine, Stage

CHUNK = 1 << 22
"""Points evaluated at a time: bounds the memory of a reduction over large domains."""


def evaluate(stage: Stage, inputs: Sequence[np.ndarray], wide: bool = False) -> np.ndarray:
    """The stage's output. With `wide`, float arithmetic is done in float64 and the result is float64 (the reference)."""
    with np.errstate(all="ignore"):
        if stage.contraction is not None:
            fast = _contract(stage, inputs, wide)
            if fast is not None:
                return fast
        return _general(stage, inputs, wide)


def _float(dtype: DType, wide: bool) -> np.dtype:
    return np.dtype(np.float64) if wide and dtype.is_float else dtype.numpy


def _store(out: np.ndarray, dtype: DType, wide: bool) -> np.ndarray:
    return convert(out, dtype, wide)


def convert(x: Any, dtype: DType, wide: bool = False) -> np.ndarray:
    """Cast as ONNX does: floats truncate towards zero to integers, anything but zero is True."""
    array = np.asarray(x)
    if dtype is DType.BOOL:
        return array.astype(bool)
    return array.astype(_float(dtype, wide))


def _general(stage: Stage, inputs: Sequence[np.ndarray], wide: bool) -> np.ndarray:
    axes = [*stage.axes, *stage.reduce_axes]
    shape = stage.shape
    over = tuple(a.extent or 0 for a in stage.reduce_axes)
    total = math.prod(shape) * math.prod(over)
    if stage.combine is None or total <= CHUNK or not shape or shape[0] <= 1 or 0 in shape:
        return _block(stage, axes, inputs, wide, 0, shape[0] if shape else 1)
    rows = max(1, CHUNK * shape[0] // total)
    parts = [_block(stage, axes, inputs, wide, k, min(k + rows, shape[0])) for k in range(0, shape[0], rows)]
    return np.concatenate(parts)


def _block(
    stage: Stage, axes: list[Var], inputs: Sequence[np.ndarray], wide: bool, first: int, last: int
) -> np.ndarray:
    """Evaluate the rows first..last-1 of the leading axis."""
    rank = len(axes)
    shape = (last - first, *stage.shape[1:]) if stage.axes else ()
    over = tuple(a.extent or 0 for a in stage.reduce_axes)
    full = (*shape, *over)
    env: dict[Expr, Any] = {}
    for k, a in enumerate(axes):
        start, n = (first, full[0]) if k == 0 and stage.axes else (0, full[k])
        env[a] = np.arange(start, start + n, dtype=np.int64).reshape([n if j == k else 1 for j in range(rank)])
    values = evaluate_expr(stage.body, env, inputs, wide)
    values = np.broadcast_to(np.asarray(values), full)
    if stage.combine is None:
        return np.array(_store(values, stage.dtype, wide))
    acc = _float(stage.acc_dtype, wide)
    return _store(_combine(values.astype(acc), stage.combine, len(shape)), stage.dtype, wide)


def _combine(values: np.ndarray, combine: Combine, kept: int) -> np.ndarray:
    shape, over = values.shape[:kept], values.shape[kept:]
    flat = values.reshape(*shape, math.prod(over))
    dtype = values.dtype
    match combine:
        case Combine.SUM:
            return np.asarray(flat.sum(-1, dtype=dtype))
        case Combine.PROD:
            return np.asarray(flat.prod(-1, dtype=dtype))
        case Combine.MAX | Combine.MIN:
            low = combine is Combine.MAX
            if dtype.kind == "f":
                identity = -np.inf if low else np.inf
            elif dtype.kind == "b":
                identity = not low
            else:
                info = np.iinfo(dtype)
                identity = info.min if low else info.max
            fn = np.maximum if low else np.minimum
            return np.asarray(fn.reduce(flat, axis=-1, initial=dtype.type(identity)))
        case Combine.ARGMAX | Combine.ARGMIN:
            found = flat.argmax(-1) if combine is Combine.ARGMAX else flat.argmin(-1)
            return np.asarray(found, dtype=np.int64)
        case _:
            back = flat[..., ::-1]
            found = back.argmax(-1) if combine is Combine.ARGMAX_LAST else back.argmin(-1)
            return np.asarray(flat.shape[-1] - 1 - found, dtype=np.int64)


def evaluate_expr(root: Expr, env: Mapping[Expr, Any], inputs: Sequence[np.ndarray], wide: bool) -> Any:
    """Evaluate an expression over arrays of axis values, vectorised."""
    done: dict[Expr, Any] = dict(env)
    for e in walk(root):
        if e in done:
            continue
        match e:
            case Const():
                done[e] = np.asarray(e.value, dtype=_float(e.dtype, wide))
            case Var():
                raise KeyError(f"axis {e.name} has no value")
            case Load():
                done[e] = _load(e, done, inputs, wide)
            case Apply("cast", (a,)):
                done[e] = convert(done[a], e.dtype, wide)
            case Apply():
                done[e] = FUNCTIONS[e.fn].numpy(*(done[a] for a in e.args))
    return done[root]


def _load(e: Load, done: Mapping[Expr, Any], inputs: Sequence[np.ndarray], wide: bool) -> Any:
    if not isinstance(e.source, int):
        raise KeyError(f"load from {e.source!r}: not an input slot")
    array = inputs[e.source]
    index = [np.asarray(done[i]) for i in e.index]
    safe = []
    inside: Any = True
    for i, n in zip(index, array.shape, strict=True):
        ok = (i >= 0) & (i < n)
        inside = inside & ok
        safe.append(np.clip(i, 0, max(n - 1, 0)))
    if array.size == 0:
        shape = np.broadcast_shapes(*(i.shape for i in index)) if index else ()
        return np.full(shape, e.fill or 0, dtype=_float(e.dtype, wide))
    out = array[tuple(safe)]
    if wide and e.dtype.is_float:
        out = out.astype(np.float64)
    return out if e.fill is None else np.where(inside, out, np.asarray(e.fill, dtype=out.dtype))


def _contract(stage: Stage, inputs: Sequence[np.ndarray], wide: bool) -> np.ndarray | None:
    """A sum of products through einsum on strided views; None where an index is not affine with a clear range."""
    assert stage.contraction is not None
    axes = [*stage.axes, *stage.reduce_axes]
    if len(axes) > 26:
        return None
    letters = {a: chr(97 + k) for k, a in enumerate(axes)}
    dtype = _float(stage.acc_dtype, wide)
    operands: list[np.ndarray] = []
    subscripts: list[str] = []
    for ld in stage.contraction:
        view = _strided(ld, inputs[ld.source] if isinstance(ld.source, int) else None, dtype)
        if view is None:
            return None
        operands.append(view[0])
        subscripts.append("".join(letters[a] for a in view[1]))
    for a in axes:  # an axis that neither operand has (a broadcast) needs one that carries it
        if not any(letters[a] in s for s in subscripts):
            operands[0] = np.broadcast_to(operands[0][..., None], (*operands[0].shape, a.extent or 0))
            subscripts[0] += letters[a]
    out = "".join(letters[a] for a in stage.axes)
    if dtype.kind == "f":
        result = np.einsum(f"{','.join(subscripts)}->{out}", *operands, optimize=True)
    else:
        result = np.einsum(f"{','.join(subscripts)}->{out}", *operands, dtype=dtype, casting="unsafe")
    return _store(np.asarray(result), stage.dtype, wide)


def _strided(ld: Load, array: np.ndarray | None, dtype: np.dtype) -> tuple[np.ndarray, list[Var]] | None:
    """A view of an operand with a dimension per axis that its index uses."""
    if array is None:
        return None
    pads: list[tuple[int, int]] = []
    strides_of: dict[Var, list[tuple[int, int]]] = {}
    base: list[int] = []
    for d, (i, n) in enumerate(zip(ld.index, array.shape, strict=True)):
        parts, constant = ix.terms(i)
        if any(not isinstance(a, Var) or c < 0 for a, c in parts):
            return None
        lo, hi = ix.bounds(i)
        if (lo < 0 or hi >= n) and ld.fill is None:
            return None
        pads.append((max(0, -lo), max(0, hi - n + 1)))
        base.append(constant + max(0, -lo))
        for a, c in parts:
            if isinstance(a, Var):
                strides_of.setdefault(a, []).append((d, c))
    source = array.astype(dtype, copy=False)
    if any(p != (0, 0) for p in pads):
        source = np.pad(source, pads, constant_values=ld.fill or 0)
    source = source[tuple(slice(b, None) for b in base)]
    used = list(strides_of)
    shape = [a.extent or 0 for a in used]
    strides = [sum(source.strides[d] * c for d, c in strides_of[a]) for a in used]
    return np.lib.stride_tricks.as_strided(source, shape, strides, writeable=False), used
