"""A contraction as a matrix product: which axes make its rows, columns and depth, and how its factors lie in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, const, loads, variables
from autofuse.ir.layout import Layout
from autofuse.kernels.access import Binding, Resolver, bind, collapse, plain_layouts
from autofuse.kernels.base import Variant
from autofuse.kernels.contract_roles import Contraction, contraction
from autofuse.kernels.points import VECTOR_BYTES, own_loads, stride_of


@dataclass(frozen=True)
class Side:
    """A factor as a matrix of its own axes by the axes of the sum (and the batch's).

    `along_depth` tells that neighbours in memory lie along the sum, `vector` how many of them can be read at once. `held` is what shared
    memory keeps of an element: the factor itself, or what it is converted from.
    """

    axes: tuple[Var, ...]
    factor: Expr
    held: Expr
    along_depth: bool
    vector: int

    @property
    def points(self) -> int:
        return math.prod(a.extent or 1 for a in self.axes)

    @property
    def dtype(self) -> DType:
        """The type that shared memory holds."""
        return self.held.dtype

    @property
    def plain(self) -> Load | None:
        """The read that the held value is, if it is one that may always be done."""
        return self.held if isinstance(self.held, Load) and self.held.guard is None else None

    @property
    def can_copy(self) -> bool:
        """Whether asynchronous copies (of 4 bytes or more) can fill shared memory."""
        return self.plain is not None and self.vector * self.dtype.itemsize >= 4

    def element(self, held: Expr) -> Expr:
        """The factor, given what shared memory holds of it."""
        return held if self.held is self.factor else ix.substitute(self.factor, {self.held: held})


@dataclass(frozen=True)
class Gemm:
    """result[batch, row, column] = sum over depth of rows.factor x columns.factor, then the outputs' values.

    `columns` is the side whose axes end with the one along which the outputs are contiguous. `store` is the number of neighbouring columns that
    can be written at once.
    """

    binding: Binding
    rows: Side
    columns: Side
    batch: tuple[Var, ...]
    depth: tuple[Var, ...]
    result: Var
    values: tuple[Expr, ...]
    offsets: tuple[Expr, ...]
    store: int
    flops: int

    @property
    def batches(self) -> int:
        return math.prod(a.extent or 1 for a in self.batch)

    @property
    def terms(self) -> int:
        """Terms of the sum."""
        return math.prod(a.extent or 1 for a in self.depth)


def gemm_layouts(program: RegionProgram) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """Row-major, but constant factors with their own axes innermost, where neighbouring threads read them."""
    ins, outs = plain_layouts(program)
    c = contraction(program)
    if c is None:
        return ins, outs
    layouts = list(ins)
    for side in (0, 1):
        ld = _converted(c.factors[side])
        if isinstance(ld, Load) and isinstance(ld.source, int) and program.inputs[ld.source].constant:
            order = _order(c, side, ld)
            other = [x.source for x in loads(c.factors[1 - side])]
            other += [x.source for _, value in c.outputs for x in loads(value)]
            if order is not None and ld.source not in other:
                layouts[ld.source] = Layout.permuted(order)
    return tuple(layouts), outs


def _order(c: Contraction, side: int, ld: Load) -> tuple[int, ...] | None:
    """Dimensions of a constant: those of the batch, of the sum, then its own; None where a dimension mixes them."""
    own, reduced = set(c.only(side)), set(c.reduced)
    keys: list[tuple[int, int]] = []
    for d, i in enumerate(ld.index):
        found = variables(i)
        kinds = {2 if a in own else 1 if a in reduced else 0 for a in found}
        if len(kinds) > 1:
            # an axis that was split into groups and members, say: groups are the batch's
            return None
        keys.append((kinds.pop() if kinds else 0, d))
    return tuple(d for _, d in sorted(keys))


@lru_cache(maxsize=512)
def gemm(variant: Variant) -> Gemm:
    """The matrix product of a variant's program under its layouts."""
    c = contraction(variant.program)
    assert c is not None
    binding = bind(variant)
    resolve = Resolver(binding.inputs, {})
    every = [resolve(f) for f in c.factors]
    every += [resolve(value) for _, value in c.outputs]
    every += [o.offset([resolve(i) for i in index]) for o, (index, _) in zip(binding.outputs, c.outputs, strict=True)]
    own = [c.only(0), c.only(1)]
    batch = tuple(a for a in c.rows if a not in own[0] and a not in own[1])
    groups: list[tuple[Var, ...]] = [own[0], own[1], batch, c.reduced]
    for k, group in enumerate(groups):
        groups[k], where = collapse(group, every)
        every = [ix.substitute(e, where) for e in every]
    values, offsets = every[2 : 2 + len(c.outputs)], every[2 + len(c.outputs) :]
    swap = _columns_first(groups[0], groups[1], offsets)
    first, second = (1, 0) if swap else (0, 1)
    rows = _side(groups[first], every[first], groups[3])
    columns = _side(groups[second], every[second], groups[3])
    sizes = [o.buffer.dtype.itemsize for o in binding.outputs]
    store = _together(columns.axes, [*zip(offsets, sizes, strict=True)], values)
    return Gemm(
        binding, rows, columns, groups[2], groups[3], c.result, tuple(values), tuple(offsets), store, c.form.flops
    )


def _columns_first(a: Sequence[Var], b: Sequence[Var], offsets: Sequence[Expr]) -> bool:
    """Whether the outputs are contiguous along the first factor's axes rather than the second's."""

    def contiguous(axes: Sequence[Var]) -> bool:
        return bool(axes) and all(stride_of(o, axes[-1]) == 1 for o in offsets)

    return contiguous(a) and not contiguous(b)


def _side(axes: tuple[Var, ...], factor: Expr, depth: tuple[Var, ...]) -> Side:
    held = _converted(factor)

    def width(group: tuple[Var, ...]) -> int:
        return _together(group, [], [held])

    reads = own_loads(held)
    along = bool(depth) and any(stride_of(ld.index[0], depth[-1]) == 1 for ld in reads)
    if along and axes and any(stride_of(ld.index[0], axes[-1]) == 1 for ld in reads):
        along = width(depth) > width(axes)
    return Side(axes, factor, held, along, width(depth if along else axes))


def _converted(e: Expr) -> Expr:
    """What a factor is converted from, if it is a converted read of a narrower type."""
    match e:
        case Apply("cast", (Load() as ld,)) if ld.dtype.itemsize < e.dtype.itemsize and ld.dtype.has_zero:
            return ld
        case _:
            return e


def _together(axes: tuple[Var, ...], stored: Sequence[tuple[Expr, int]], values: Sequence[Expr]) -> int:
    """How many neighbours along the last axis can be accessed at once: all accesses are aligned, unguarded and move by 0 or 1."""
    if not axes:
        return 1
    axis = axes[-1]
    accesses = list(stored)
    for v in values:
        for ld in loads(v):
            if axis in variables(ld.index[0]) or (ld.guard is not None and axis in variables(ld.guard)):
                if ld.guard is not None:
                    return 1
                accesses.append((ld.index[0], ld.dtype.itemsize))
    if not accesses or not all(stride_of(offset, axis) in (0, 1) for offset, _ in accesses):
        return 1
    limit = VECTOR_BYTES // max(size for _, size in accesses)
    while limit > 1 and ((axis.extent or 1) % limit or not all(_aligned(o, axis, limit) for o, _ in accesses)):
        limit //= 2
    return max(1, limit)


def _aligned(offset: Expr, axis: Var, width: int) -> bool:
    parts, constant = ix.terms(offset)
    return constant % width == 0 and all(c % width == 0 for a, c in parts if a is not axis)


def zero(dtype: DType) -> Const:
    """What fills a tile outside of the matrix."""
    return const(0, dtype)
