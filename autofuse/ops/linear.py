"""Linear algebra: MatMul, Gemm, Einsum, Det."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, const
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine, Determinant
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.common import F16, F32, F64, I32, like
from autofuse.ops.declare import Call, Op, Sample, Unsupported


def broadcast_index(index: Sequence[Expr], dims: Sequence[int]) -> Index:
    """The trailing part of an index, with 0 where a dimension is broadcast."""
    tail = index[len(index) - len(dims) :]
    return tuple(const(0) if n == 1 else i for i, n in zip(tail, dims, strict=True))


def matmul(b: Builder, x: ValueId, y: ValueId, dtype: DType | None = None) -> ValueId:
    """numpy's matmul as one contraction; `dtype` is the stored type, by default the first operand's."""
    left, right = b.shape(x), b.shape(y)
    if not left or not right:
        raise Unsupported("a scalar has no matrix product")
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    depth = left[-1]
    if depth != (right[-2] if len(right) > 1 else right[0]):
        raise Unsupported(f"the inner dimensions of {left} and {right} differ")
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    shape = (*batch, *rows, *columns)

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        lead, k = out[: len(batch)], reduced[0]
        row = out[len(batch) : len(batch) + len(rows)]
        column = out[len(batch) + len(rows) :]
        a = (*broadcast_index(lead, left[:-2]), *row, k)
        c = (*broadcast_index(lead, right[:-2]), k, *column)
        return call("mul", read(0, a), read(1, c))

    return b.reduce([x, y], shape, [depth], Combine.SUM, body, dtype or b.dtype(x))


def _matmul(c: Call) -> Sequence[ValueId]:
    return [matmul(c.builder, c.input(0), c.input(1))]


def gemm(
    b: Builder, x: ValueId, y: ValueId, trans: tuple[bool, bool], addend: ValueId | None, alpha: float, beta: float
) -> ValueId:
    """alpha op(x) op(y) + beta addend: a contraction, then a map where there is something left to do."""
    dtype = b.dtype(x)
    ta, tb = trans
    rows, depth = b.shape(x)[::-1] if ta else b.shape(x)
    columns = b.shape(y)[0] if tb else b.shape(y)[1]
    if not dtype.is_float and not (float(alpha).is_integer() and float(beta).is_integer()):
        raise Unsupported("a fractional alpha or beta on integers")

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        (m, n), k = out, reduced[0]
        return call("mul", read(0, (k, m) if ta else (m, k)), read(1, (n, k) if tb else (k, n)))

    plain = alpha == 1.0 and addend is None
    product = b.reduce([x, y], (rows, columns), [depth], Combine.SUM, body, dtype if plain else dtype.compute)
    if plain:
        return product

    def after(i: Index, read: Reader) -> Expr:
        e = read(0, i)
        e = e if alpha == 1.0 else call("mul", e, like(e, alpha))
        if addend is None:
            return e
        r = read.broadcast(1, i)
        return call("add", e, r if beta == 1.0 else call("mul", r, like(r, beta)))

    inputs = [product] if addend is None else [product, addend]
    return b.map(inputs, (rows, columns), after, dtype)


def _gemm(c: Call) -> Sequence[ValueId]:
    beta = float(c.attr("beta", 1.0))
    trans = (bool(c.attr("transA", 0)), bool(c.attr("transB", 0)))
    addend = c.input(2) if c.has(2) and beta != 0.0 else None
    return [gemm(c.builder, c.input(0), c.input(1), trans, addend, float(c.attr("alpha", 1.0)), beta)]


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The labels of each operand and of the output; an ellipsis becomes capital-free private-use letters."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise Unsupported(f"{equation!r} does not fit {len(ranks)} operands")
    widths = [rank - len(t.replace("...", "")) if "..." in t else 0 for t, rank in zip(terms, ranks, strict=True)]
    if any(w < 0 for w in widths):
        raise Unsupported(f"{equation!r} does not fit the ranks of its operands")
    dots = "".join(chr(0xE000 + k) for k in range(max(widths, default=0)))
    labels = [t.replace("...", dots[len(dots) - w :]) for t, w in zip(terms, widths, strict=True)]
    if any(len(t) != rank for t, rank in zip(labels, ranks, strict=True)):
        raise Unsupported(f"{equation!r} does not fit the ranks of its operands")
    if arrow:
        return labels, right.replace("...", dots)
    every = "".join(labels)
    once = sorted(ch for ch in set(every) if every.count(ch) == 1 and ch not in dots)
    return labels, dots + "".join(once)


def _contract(b: Builder, operands: Sequence[tuple[ValueId, str]], out: str, dtype: DType) -> ValueId:
    """The sum over every label that `out` lacks of the product of one or two operands."""
    extents: dict[str, int] = {}
    for v, labels in operands:
        for ch, n in zip(labels, b.shape(v), strict=True):
            extents[ch] = n if extents.get(ch, 1) == 1 else extents[ch]
    over = [ch for ch in extents if ch not in out]

    def product(index: Index, reduced: Index, read: Reader) -> Expr:
        where = dict(zip([*out, *over], [*index, *reduced], strict=True))
        factors = []
        for slot, (v, labels) in enumerate(operands):
            dims = b.shape(v)
            factors.append(read(slot, [const(0) if n == 1 else where[ch] for ch, n in zip(labels, dims, strict=True)]))
        return reduce(lambda x, y: call("mul", x, y), factors)

    shape = [extents[ch] for ch in out]
    inputs = [v for v, _ in operands]
    if not over:
        return b.map(inputs, shape, lambda i, read: product(i, (), read), dtype)
    return b.reduce(inputs, shape, [extents[ch] for ch in over], Combine.SUM, product, dtype)


def _einsum(c: Call) -> Sequence[ValueId]:
    """Contracted from left to right, two at a time; a label is summed up as soon as nothing else needs it."""
    b = c.builder
    values = [c.input(k) for k in range(len(c.inputs))]
    labels, out = _parse(str(c.attr("equation")), [len(b.shape(v)) for v in values])
    if any(ch not in "".join(labels) for ch in out) or len(set(out)) != len(out):
        raise Unsupported(f"the output labels of {c.attr('equation')!r}")
    dtype = b.dtype(values[0])
    pending = list(zip(values, labels, strict=True))
    while len(pending) > 2:
        first, second, *rest = pending
        needed = set(out).union(*(text for _, text in rest))
        kept = "".join(ch for ch in dict.fromkeys(first[1] + second[1]) if ch in needed)
        pending = [(_contract(b, [first, second], kept, dtype.compute), kept), *rest]
    return [_contract(b, pending, out, dtype)]


def _det(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    shape = b.shape(x)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise Unsupported(f"the determinant of matrices of shape {shape[-2:]}")
    if not shape[-1]:
        return [b.constant(np.ones(shape[:-2], b.dtype(x).numpy))]
    return b.alone([x], Determinant(shape, b.dtype(x)))


def _mm(*shapes: tuple[int, ...], dtype: str = F32) -> Sample:
    return Sample(tuple((dtype, s) for s in shapes))


LINEAR: tuple[Op, ...] = (
    Op(
        "MatMul",
        _matmul,
        (
            _mm((3, 4), (4, 5)),
            _mm((2, 1, 3, 4), (3, 4, 5)),
            _mm((4,), (4, 5)),
            _mm((2, 3, 4), (4,)),
            _mm((4,), (4,)),
            _mm((3, 0), (0, 5)),
            _mm((3, 4), (4, 5), dtype=F64),
            _mm((3, 4), (4, 5), dtype=F16),
            Sample(((I32, (3, 4)), (I32, (4, 2))), low=-9, high=9),
        ),
    ),
    Op(
        "Gemm",
        _gemm,
        (
            _mm((3, 4), (4, 5), (5,)),
            _mm((3, 4), (4, 5)),
            Sample(
                ((F32, (4, 3)), (F32, (5, 4)), (F32, (3, 1))), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
            ),
            Sample(((F16, (3, 4)), (F16, (4, 5)), (F16, (1, 5))), {"alpha": 0.25}),
            Sample(((F32, (3, 4)), (F32, (4, 5))), {"alpha": 0.25}),
            Sample(((F32, (3, 3)), (F32, (3, 3)), (F32, (3,)))),
        ),
    ),
    Op(
        "Einsum",
        _einsum,
        (
            Sample(((F32, (2, 3, 4)), (F32, (2, 4, 5))), {"equation": "bij,bjk->bik"}),
            Sample(((F32, (3, 4)),), {"equation": "ij->ji"}),
            Sample(((F32, (3, 4)),), {"equation": "ij->i"}),
            Sample(((F32, (3, 3)),), {"equation": "ii->i"}),
            Sample(((F32, (3,)), (F32, (4,))), {"equation": "i,j->ij"}),
            Sample(((F32, (2, 3, 4)), (F32, (2, 4, 5))), {"equation": "...ij,...jk"}),
            Sample(((F32, (2, 3)), (F32, (3, 4)), (F32, (4, 5))), {"equation": "ij,jk,kl->il"}),
            Sample(((F32, (2, 4, 3, 5)), (F32, (2, 4, 6, 5))), {"equation": "bhqd,bhkd->bhqk"}),
        ),
    ),
    Op(
        "Det",
        _det,
        (
            Sample(((F32, (2, 2)),)),
            Sample(((F32, (3, 2, 4, 4)),)),
            Sample(((F64, (2, 13, 13)),)),
            Sample((np.array([[[0, 2], [3, 4]], [[1, 2], [2, 4]], [[0, 0], [0, 5]]], np.float32),)),
            Sample(((F32, (3, 1, 1)),)),
        ),
        since=11,
    ),
)
