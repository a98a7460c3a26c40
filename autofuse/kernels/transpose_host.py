"""Maps that turn axes around, on the host: square tiles change rows and columns in vector registers.

An input that is contiguous along another axis than the output would be read lane by lane. Here a tile's rows are read as vectors along the
input's axis, exchanged in log2(side) rounds of two-vector shuffles (Eklundh, A fast computer method for matrix transposing, 1972), and
the map is evaluated and stored along the output's axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, Load, Var, apply, const, load, var
from autofuse.kernels.access import Operand
from autofuse.loops.ir import Alloc, Buffer, For, If, LoopKind, Scope, Stmt, Store, TransposeTile, loop

Where = dict[Expr, Expr]


def tiles(
    axes: Sequence[Var],
    across: Var,
    staged: Sequence[Load],
    values: Sequence[Expr],
    offsets: Sequence[Expr],
    outputs: Sequence[Operand],
    side: int,
    task: int,
    stream: bool,
) -> For:
    """The grid: tiles of side x side points of the axes `across` and the last one, about `task` points a task.

    `staged` are the loads that are contiguous along `across`; every value is evaluated along the last axis.
    """
    inner = axes[-1]
    batch = tuple(a for a in axes if a is not across and a is not inner)
    n, m = across.extent or 0, inner.extent or 0
    rows, columns = -(-n // side), -(-m // side)
    each = max(1, min(columns, task // (side * side)))
    parts = -(-columns // each)
    shape = (*(a.extent or 0 for a in batch), rows, parts)
    g = var("g", math.prod(shape))
    *outer, row, part = ix.unflatten(g, shape)
    first: Where = dict(zip(batch, outer, strict=True))
    column = ix.add(ix.mul(part, each), var("c", each))
    make = _Tile(across, inner, staged, values, offsets, outputs, side, stream)

    def body(rows_there: int, columns_there: int, at_column: Expr) -> tuple[Stmt, ...]:
        return make(first, ix.mul(row, side), ix.mul(at_column, side), rows_there, columns_there)

    def row_of_tiles(rows_there: int) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        whole = m // side
        if whole:
            c = var("c", each)
            end = None
            if parts * each != whole:
                end = ix.minimum(const(each), ix.sub(const(whole), ix.mul(part, each)))
            out.append(loop(c, LoopKind.SERIAL, *body(rows_there, side, column), end=end))
        if m % side:
            tail = body(rows_there, m % side, const(whole))
            last = apply("eq", (part, const(parts - 1)), DType.BOOL)
            out += [If(last, tail)] if parts > 1 else tail
        return tuple(out)

    if n % side == 0:
        return loop(g, LoopKind.GRID, *row_of_tiles(side))
    if n < side:
        return loop(g, LoopKind.GRID, *row_of_tiles(n))
    full = apply("lt", (row, const(rows - 1)), DType.BOOL)
    return loop(g, LoopKind.GRID, If(full, row_of_tiles(side), row_of_tiles(n % side)))


class _Tile:
    """The statements of one tile."""

    def __init__(
        self,
        across: Var,
        inner: Var,
        staged: Sequence[Load],
        values: Sequence[Expr],
        offsets: Sequence[Expr],
        outputs: Sequence[Operand],
        side: int,
        stream: bool,
    ) -> None:
        self.across, self.inner, self.staged = across, inner, staged
        self.values, self.offsets, self.outputs = values, offsets, outputs
        self.side, self.stream = side, stream

    def __call__(self, first: Where, at_row: Expr, at_column: Expr, rows: int, columns: int) -> tuple[Stmt, ...]:
        """`rows` points along `across` and `columns` along the innermost axis are inside; the rest is neither read nor stored."""
        side = self.side
        buffers = [Buffer(f"turned{k}", ld.dtype, side * side, Scope.REGISTER) for k, ld in enumerate(self.staged)]
        out: list[Stmt] = []
        for b, ld in zip(buffers, self.staged, strict=True):
            out.append(Alloc(b))

            def fill(i: Expr, l: Expr, ld: Load = ld, b: Buffer = b) -> Stmt:
                where = {**first, self.across: ix.add(at_row, l), self.inner: ix.add(at_column, i)}
                value = ix.substitute(ld, where)
                return Store(b, ix.add(ix.mul(i, side), l), _within(value, l, rows, side))

            out.append(self._rows(fill, columns, "a"))
            if columns < side:

                def clear(i: Expr, l: Expr, b: Buffer = b) -> Stmt:
                    return Store(b, ix.add(ix.mul(i, side), l), const(0, b.dtype))

                out.append(self._rows(clear, side, "z", columns))  # it is turned around with the rest
            out.append(TransposeTile(b, side))

        def drain(j: Expr, l: Expr) -> tuple[Stmt, ...]:
            where: Where = {**first, self.across: ix.add(at_row, j), self.inner: ix.add(at_column, l)}
            known = dict(where)
            for b, ld in zip(buffers, self.staged, strict=True):
                known[ld] = load(b, (ix.add(ix.mul(j, side), l),), ld.dtype)
            guard = apply("lt", (l, const(columns)), DType.BOOL) if columns < side else None
            return tuple(
                Store(o.buffer, ix.substitute(offset, where), ix.substitute(value, known), guard, self.stream)
                for o, offset, value in zip(self.outputs, self.offsets, self.values, strict=True)
            )

        j, l = var("j", rows), var("l", side)
        out.append(loop(j, LoopKind.UNROLL, loop(l, LoopKind.VECTOR, *drain(j, l))))
        return tuple(out)

    def _rows(self, make: Callable[[Expr, Expr], Stmt], count: int, name: str, begin: int = 0) -> Stmt:
        """A vector of `side` lanes for each row from `begin` to `count`."""
        i, l = var(f"{name}i", count - begin), var(f"{name}l", self.side)
        return loop(i, LoopKind.UNROLL, loop(l, LoopKind.VECTOR, make(ix.add(i, const(begin)), l)))


def _within(value: Expr, lane: Expr, count: int, side: int) -> Expr:
    """A load whose lanes from `count` on give zero and touch no memory."""
    if count == side or not isinstance(value, Load):
        return value
    inside = apply("lt", (lane, const(count)), DType.BOOL)
    guard = inside if value.guard is None else ix.both(inside, value.guard)
    return load(value.source, value.index, value.dtype, 0 if value.fill is None else value.fill, guard)
