"""Sorting on the host: a task takes whole rows.

`merge` sorts them bottom-up in scratch memory; `select` sorts again and again what may be among the best; `few` keeps the best in order
while it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, load, var
from autofuse.ir.stage import Sort
from autofuse.ir.target import Target
from autofuse.kernels.alone import Operands, Rows, cell, one_of, only, operands_of, read, variant_for
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.launches import region_launch
from autofuse.kernels.points import up
from autofuse.kernels.sort import FEW, better, better_flag, deliver, flag, rows_of, select_few
from autofuse.loops.ir import Alloc, Buffer, If, Let, LoopKind, Scope, Stmt, Store, loop

SPARE = 64
"""Places for elements that may be among the best, besides as many as are wanted."""


class SortHost:
    """Merge sort is stable, so that equal elements keep their order (Knuth, The Art of Computer Programming 3, 5.2.4)."""

    name = "sort_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """The likelier one first."""
        sort = only(program, Sort)
        if sort is None or target.is_cuda:
            return
        if 0 < sort.count <= FEW:
            yield variant_for(self.name, "few", program)
        if sort.count > 0 and 4 * (sort.count + SPARE) <= sort.source[sort.axis]:
            yield variant_for(self.name, "select", program)
        yield variant_for(self.name, "merge", program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`rows`; `length` of a row; `cores`."""
        r = rows_of(one_of(variant, Sort))
        return {"rows": r.count, "length": r.length, "cores": target.cores}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Tasks of some 4 Ki elements, fewer where cores would go without."""
        r = rows_of(one_of(variant, Sort))
        task = 256
        while task > 1 and (task * r.length > 4096 or r.count // task < 2 * target.cores):
            task //= 4
        return Schedule.of({"task": task})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel; none where the outputs are empty."""
        del target
        sort = one_of(variant, Sort)
        r = rows_of(sort)
        if not r.count or not sort.count:
            return Lowered(())
        operands, task = operands_of(variant), schedule.integer("task")
        g, i = var("g", up(r.count, task)), var("i", task)
        row = ix.add(ix.mul(g, task), i)
        make = {"merge": _merge, "select": _select, "few": _few}[variant.algorithm]
        allocations, body = make(sort, r, operands, row)
        if r.count % task:
            body = (If(ix.less(row, const(r.count)), body),)
        nest = loop(g, LoopKind.GRID, *allocations, loop(i, LoopKind.SERIAL, *body))
        return Lowered((region_launch(f"sort_{variant.algorithm}", nest, 1, sort.flops, operands.binding),))


Body = tuple[tuple[Stmt, ...], tuple[Stmt, ...]]
"""Allocations, and what is done to a row."""


def _few(sort: Sort, r: Rows, operands: Operands, row: Expr) -> Body:
    return (), select_few(sort, r, operands, row, Scope.SHARED)


def _merge(sort: Sort, r: Rows, operands: Operands, row: Expr) -> Body:
    """All elements of the row are sorted."""
    runs, j = _Runs(sort, r.length), var("j", r.length)
    copy = loop(j, LoopKind.SERIAL, *runs.put(j, read(operands.inputs[0], r.offset(row, j)), j))
    return runs.allocations, (copy, *runs.sort(const(r.length)), *_deliver(sort, r, operands, row, runs))


def _select(sort: Sort, r: Rows, operands: Operands, row: Expr) -> Body:
    """Elements that beat the last of the best so far are collected; when there is no more room they are sorted and the best stay.

    An element that equals the last of the best comes after it. Those that stay stand before all that are collected later, so that a
    stable sort keeps equal ones in the order of their positions.
    """
    k = sort.count
    room = k + max(k, SPARE)
    runs, j = _Runs(sort, room), var("j", r.length)
    filled, sifted = (Buffer(name, DType.INT32, 1, Scope.REGISTER) for name in ("filled", "sifted"))
    last = Buffer("last", runs.values.dtype, 1, Scope.REGISTER)
    x, place, c = var("x", None, runs.values.dtype), var("place", room + 1), var("c", k)
    none, one = const(0, DType.INT32), const(1, DType.INT32)
    back: tuple[Stmt, ...] = ()
    if runs.result is not const(0):
        value, position = runs.at(ix.add(runs.result, c))
        back = (loop(c, LoopKind.SERIAL, Store(runs.values, c, value), Store(runs.places, c, position)),)
    sift = (
        *runs.sort(const(room)),
        *back,
        Store(last, const(0), load(runs.values, (const(k - 1),), runs.values.dtype)),
        Store(filled, const(0), const(k, DType.INT32)),
        Store(sifted, const(0), one),
    )
    collect: tuple[Stmt, ...] = (
        Let(place, cast_to(cell(filled), INDEX)),
        *runs.put(place, x, j),
        Store(filled, const(0), call("add", cell(filled), one)),
        If(call("eq", cell(filled), const(room, DType.INT32)), sift),
    )
    wanted = call("or", call("eq", cell(sifted), none), better(sort, x, cell(last)))
    source = read(operands.inputs[0], r.offset(row, j))
    count = var("count", room + 1)
    body: tuple[Stmt, ...] = (
        Alloc(filled),
        Alloc(sifted),
        Alloc(last),
        Store(filled, const(0), none),
        Store(sifted, const(0), none),
        Store(last, const(0), const(0, last.dtype)),
        loop(j, LoopKind.SERIAL, Let(x, source), If(wanted, collect)),
        Let(count, cast_to(cell(filled), INDEX)),
        *runs.sort(count),
        *_deliver(sort, r, operands, row, runs),
    )
    return runs.allocations, body


def _deliver(sort: Sort, r: Rows, operands: Operands, row: Expr, runs: _Runs) -> tuple[Stmt, ...]:
    w, p = var("w", sort.count), var("p", r.length)
    _, position = runs.at(ix.add(runs.result, w))
    return (loop(w, LoopKind.SERIAL, Let(p, cast_to(position, INDEX)), *deliver(sort, r, operands, row, w, p)),)


class _Runs:
    """Elements and their positions in two halves of scratch memory, from which runs are merged to and fro."""

    def __init__(self, sort: Sort, room: int) -> None:
        self.sorting = sort
        self.room = room
        self.half = room + 1  # a run's head may be looked at one place behind its end
        self.levels = max(room - 1, 0).bit_length()
        self.values = Buffer("values", sort.dtype.compute, 2 * self.half, Scope.SHARED)
        self.places = Buffer("places", DType.INT32, 2 * self.half, Scope.SHARED)
        self.result = const(self.half * (self.levels % 2))
        self.uses = 0

    @property
    def allocations(self) -> tuple[Stmt, ...]:
        return Alloc(self.values), Alloc(self.places)

    def put(self, at: Expr, value: Expr, position: Expr) -> tuple[Stmt, ...]:
        return Store(self.values, at, value), Store(self.places, at, cast_to(position, DType.INT32))

    def at(self, place: Expr) -> tuple[Expr, Expr]:
        """The element and the position at a place."""
        return load(self.values, (place,), self.values.dtype), load(self.places, (place,), DType.INT32)

    def sort(self, count: Expr) -> tuple[Stmt, ...]:
        """Sort the first `count` elements of the first half; they end up at `result`.

        Runs of 1, 2, 4 ... elements are merged in pairs. Which head goes first is computed, not branched on: it can't be predicted.
        """
        self.uses += 1
        tag = str(self.uses)
        level, m, q = (
            var(f"{n}{tag}", max(e, 1)) for n, e in (("level", self.levels), ("m", self.room), ("q", self.room))
        )
        width = var(f"width{tag}", max(self.room, 2))
        first, middle, stop = (var(f"{n}{tag}", self.room + 1) for n in ("first", "middle", "stop"))
        a, b, at = (var(f"{n}{tag}", self.half) for n in ("a", "b", "at"))
        from_left = var(f"from_left{tag}", None, DType.INT32)
        left, right = (Buffer(f"{n}{tag}", DType.INT32, 1, Scope.REGISTER) for n in ("left", "right"))
        base = ix.mul(ix.floor_mod(level, 2), self.half)
        other = ix.sub(const(self.half), base)

        def value(place: Expr) -> Expr:
            return self.at(ix.add(base, place))[0]

        one = const(1, DType.INT32)
        behind = call("sub", one, better_flag(self.sorting, value(b), value(a)))
        takes_left = call("bit_and", flag(call("lt", a, middle)), call("bit_or", flag(call("ge", b, stop)), behind))
        target = ix.add(other, first, q)
        chosen, position = self.at(ix.add(base, at))
        merge: tuple[Stmt, ...] = (
            Let(a, cast_to(cell(left), INDEX)),
            Let(b, cast_to(cell(right), INDEX)),
            Let(from_left, takes_left),
            Let(at, call("add", b, call("mul", cast_to(from_left, INDEX), call("sub", a, b)))),
            Store(self.values, target, chosen),
            Store(self.places, target, position),
            Store(left, const(0), call("add", cell(left), from_left)),
            Store(right, const(0), call("add", cell(right), call("sub", one, from_left))),
        )
        twice = call("mul", width, const(2))
        pair: tuple[Stmt, ...] = (
            Let(first, call("mul", m, twice)),
            Let(middle, ix.minimum(call("add", first, width), count)),
            Let(stop, ix.minimum(call("add", first, twice), count)),
            Store(left, const(0), cast_to(first, DType.INT32)),
            Store(right, const(0), cast_to(middle, DType.INT32)),
            loop(q, LoopKind.SERIAL, *merge, end=call("sub", stop, first)),
        )
        pairs = call("trunc_div", call("sub", call("add", count, twice), const(1)), twice)
        run = loop(
            level,
            LoopKind.SERIAL,
            Let(width, call("shift_left", const(1), level)),
            loop(m, LoopKind.SERIAL, *pair, end=pairs),
            end=const(self.levels),
        )
        return Alloc(left), Alloc(right), run
