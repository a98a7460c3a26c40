"""Sorting rows: the order of elements, and the selection of a few, which host and GPU share."""

from __future__ import annotations

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, load, select, var
from autofuse.ir.stage import Sort
from autofuse.kernels.alone import Operands, Rows, cell, read
from autofuse.loops.ir import Alloc, Buffer, If, Let, LoopKind, Scope, Stmt, Store, loop

FEW = 16
"""Up to so many elements a row's best are kept sorted while the row is read once."""


def rows_of(sort: Sort) -> Rows:
    """The rows that are sorted."""
    return Rows.along(sort.source, sort.axis)


def better(sort: Sort, a: Expr, b: Expr) -> Expr:
    """Whether element a must come before element b whatever their positions; NaN is greater than any number."""
    if not sort.largest:
        a, b = b, a
    greater = call("gt", a, b)
    if not a.dtype.is_float:
        return greater
    return call("or", greater, ix.both(call("isnan", a), ix.negate(call("isnan", b))))


def flag(test: Expr) -> Expr:
    """A test as 0 or 1, to compute with."""
    return cast_to(test, DType.INT32)


def better_flag(sort: Sort, a: Expr, b: Expr) -> Expr:
    """`better` as 0 or 1, without branches."""
    if not sort.largest:
        a, b = b, a
    greater = flag(call("gt", a, b))
    if not a.dtype.is_float:
        return greater
    number = call("sub", const(1, DType.INT32), flag(call("isnan", b)))
    return call("bit_or", greater, call("bit_and", flag(call("isnan", a)), number))


def deliver(sort: Sort, r: Rows, operands: Operands, row: Expr, rank: Expr, position: Expr) -> tuple[Stmt, ...]:
    """Write the element at a position of a row as the rank-th of its row."""
    found: list[Stmt] = []
    to = r.offset(row, rank, sort.count)
    if 0 in operands.outputs:
        x = operands.inputs[0]
        found.append(Store(operands.outputs[0], to, load(x, (r.offset(row, position),), x.dtype)))
    if 1 in operands.outputs:
        found.append(Store(operands.outputs[1], to, cast_to(position, DType.INT64)))
    return tuple(found)


def select_few(sort: Sort, r: Rows, operands: Operands, row: Expr, scope: Scope) -> tuple[Stmt, ...]:
    """The best of a row by one thread: they are kept sorted in buffers of `scope`; an element that beats the last of them is put in its place.

    An element is compared with all that are kept: those that it does not beat stay before it, the others move on by one.
    """
    k = sort.count
    values = Buffer("best", sort.dtype.compute, k, scope)
    places = Buffer("places", DType.INT32, k, scope)
    rank = Buffer("rank", DType.INT32, 1, Scope.REGISTER)
    j, c, m, w = var("j", r.length), var("c", k), var("m", k), var("w", k)
    kept = ix.minimum(j, const(k))

    def value(at: Expr) -> Expr:
        return load(values, (at,), values.dtype)

    x = var("x", None, sort.dtype.compute)
    before = var("before", k + 1)
    counted = call("add", cell(rank), select(better(sort, x, value(c)), const(0, DType.INT32), const(1, DType.INT32)))
    last = ix.minimum(j, const(k - 1))
    source = ix.sub(ix.sub(last, m), const(1))
    target = ix.sub(last, m)
    put: tuple[Stmt, ...] = (
        Store(rank, const(0), const(0, DType.INT32)),
        loop(c, LoopKind.SERIAL, Store(rank, const(0), counted), end=kept),
        Let(before, cast_to(cell(rank), INDEX)),
        loop(
            m,
            LoopKind.SERIAL,
            Store(values, target, value(source)),
            Store(places, target, load(places, (source,), DType.INT32)),
            end=ix.sub(last, before),
        ),
        Store(values, before, x),
        Store(places, before, cast_to(j, DType.INT32)),
    )
    worst = value(const(k - 1))
    room = ix.less(j, const(k))
    wanted = room if room is ix.TRUE else call("or", room, better(sort, x, worst))
    position = cast_to(load(places, (w,), DType.INT32), INDEX)
    p = var("p", r.length)
    return (
        Alloc(values),
        Alloc(places),
        Alloc(rank),
        loop(j, LoopKind.SERIAL, Let(x, read(operands.inputs[0], r.offset(row, j))), If(wanted, put)),
        loop(w, LoopKind.SERIAL, Let(p, position), *deliver(sort, r, operands, row, w, p)),
    )
