"""Points: a form over buffers, with axes merged, and how its points are dealt out to vectors and threads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autofuse.fusion.form import Form
from autofuse.ir import index as ix
from autofuse.ir.expr import Apply, Expr, Load, Var, const, loads, var, variables
from autofuse.kernels.access import Binding, Resolver, collapse

VECTOR_BYTES = 16
"""The widest access of one thread."""


@dataclass(frozen=True)
class Points:
    """A form's expressions over buffers, in row axes and reduced axes that are merged as far as the addresses allow.

    `bodies` has an entry an anchor, `values` and `offsets` one an output. `position` is the row-major position in the reduced
    domain where an anchor carries it (else 0).
    """

    rows: tuple[Var, ...]
    reduced: tuple[Var, ...]
    bodies: tuple[Expr, ...]
    values: tuple[Expr, ...]
    offsets: tuple[Expr, ...]
    position: Expr

    @cached_property
    def row_points(self) -> int:
        return math.prod(a.extent or 0 for a in self.rows)

    @cached_property
    def reduced_points(self) -> int:
        return math.prod(a.extent or 0 for a in self.reduced)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (*self.bodies, *self.values, *self.offsets, self.position)


def points_of(form: Form, binding: Binding, rows: Sequence[Var] | None = None) -> Points:
    """The points of a form. `rows` gives another order of the row axes than the form's, outermost first."""
    resolve = Resolver(binding.inputs, {})
    bodies = [resolve(a.body) for a in form.anchors]
    values = [resolve(o.value) for o in form.outputs]
    offsets = [
        operand.offset(tuple(resolve(i) for i in o.index))
        for o, operand in zip(form.outputs, binding.outputs, strict=True)
    ]
    # axes may be merged at will unless an element's position in the reduced domain is asked for
    carries = any(a.combine.is_arg for a in form.anchors)
    position = ix.flatten(form.reduced, tuple(a.extent or 0 for a in form.reduced)) if carries else const(0)
    every = [*bodies, *values, *offsets, position]
    new_rows, where = collapse(form.rows if rows is None else rows, every)
    every = [ix.substitute(e, where) for e in every]
    new_reduced, where = collapse(form.reduced, every)
    every = [ix.substitute(e, where) for e in every]
    a, b = len(bodies), len(bodies) + len(values)
    return Points(new_rows, new_reduced, tuple(every[:a]), tuple(every[a:b]), tuple(every[b:-1]), every[-1])


def stride_of(offset: Expr, axis: Var) -> int | None:
    """The elements that an offset moves by a step along an axis; None where that is not constant."""
    parts, _ = ix.terms(offset)
    stride = 0
    for atom, c in parts:
        if atom is axis:
            stride = c
        elif axis in variables(atom):
            return None
    return stride


def own_loads(e: Expr) -> tuple[Load, ...]:
    """The loads of an expression that give data, those inside of other loads' offsets and guards left out."""
    found: dict[Load, None] = {}
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        if isinstance(x, Load):
            found[x] = None
        elif isinstance(x, Apply):
            stack.extend(x.args)
    return tuple(found)


def vector_limit(axis: Var | None, values: Iterable[Expr], stored: Iterable[tuple[Expr, int]]) -> int:
    """The most neighbouring points along an axis that one thread can take with 16-byte accesses.

    `stored` are (offset, item size) of what is written. One where the extent is odd or an access neither stays nor moves by one element.
    """
    if axis is None:
        return 1
    widest = 1
    accesses: list[tuple[Expr, int]] = list(stored)
    for v in values:
        accesses += [(ld.index[0], ld.dtype.itemsize) for ld in loads(v) if axis in variables(ld.index[0])]
    for offset, size in accesses:
        if stride_of(offset, axis) not in (0, 1):
            return 1
        widest = max(widest, size)
    limit = VECTOR_BYTES // widest
    while limit > 1 and (axis.extent or 0) % limit:
        limit //= 2
    return max(1, limit)


def place(axes: Sequence[Var], chunk: Expr, vector: int, lane: Expr) -> dict[Expr, Expr]:
    """The axes at a lane of a chunk: `vector` neighbouring points along the last axis are a chunk, in row-major order."""
    if not axes:
        return {}
    shape = [a.extent or 0 for a in axes]
    shape[-1] //= vector
    index = list(ix.unflatten(chunk, tuple(shape)))
    index[-1] = ix.add(ix.mul(index[-1], vector), lane)
    return dict(zip(axes, index, strict=True))


def up(n: int, d: int) -> int:
    """n / d, rounded up."""
    return -(-n // d)


def below(e: Expr, n: int) -> Expr:
    """e < n, folded where the ranges decide."""
    return ix.less(e, const(n))


_LEAST = 8
"""An axis shorter than this fills too little of a tile to be worth one."""


def crossing(
    rows: Sequence[Var], values: Sequence[Expr], side: int | None = None
) -> tuple[Var, tuple[Load, ...]] | None:
    """The axis along which inputs are contiguous while the outputs are not, and the loads that run along it.

    `rows` are the axes with the outputs' innermost one last. With `side`, inputs need be contiguous only within every `side` points, as
    channels in blocks are. None where all inputs run along the outputs' axis, or tiles would be narrow.
    """
    if len(rows) < 2:
        return None
    inner = rows[-1]
    if (inner.extent or 0) < _LEAST:
        return None
    along: dict[Var, list[Load]] = {}
    for value in values:
        for ld in own_loads(value):
            if inner not in variables(ld.index[0]) or stride_of(ld.index[0], inner) == 1:
                continue
            for axis in rows[:-1]:
                if _stride_within(ld.index[0], axis, side) == 1 and ld not in along.setdefault(axis, []):
                    along[axis].append(ld)
    axes = [a for a in along if (a.extent or 0) >= _LEAST]
    if not axes:
        return None
    best = max(axes, key=lambda a: len(along[a]))
    return best, tuple(along[best])


def _stride_within(offset: Expr, axis: Var, side: int | None) -> int | None:
    """The stride along an axis, or along each run of `side` points of it."""
    if side is None or axis not in variables(offset):
        return stride_of(offset, axis)
    lane = var("lane", side)
    block = var("block", -(-(axis.extent or 1) // side))
    return stride_of(ix.substitute(offset, {axis: ix.add(ix.mul(block, side), lane)}), lane)
