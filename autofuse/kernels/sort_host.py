"""Sorting on the host: a task takes whole rows. `merge` sorts them bottom-up in scratch memory, `few` keeps the best while it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, load, select, var
from autofuse.ir.stage import Sort
from autofuse.ir.target import Target
from autofuse.kernels.alone import Operands, Rows, cell, one_of, only, operands_of, read, variant_for
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.launches import region_launch
from autofuse.kernels.points import up
from autofuse.kernels.sort import FEW, better, deliver, rows_of, select_few
from autofuse.loops.ir import Alloc, Buffer, If, Let, LoopKind, Scope, Stmt, Store, loop


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
        make = _merge if variant.algorithm == "merge" else _few
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
    """Runs of 1, 2, 4 ... elements are merged from one pair of buffers into the other; the right one's head goes first only where it is better."""
    n = r.length
    # a run's head may be looked at one place behind its end
    values = [Buffer(f"values{k}", sort.dtype.compute, n + 1, Scope.SHARED) for k in range(2)]
    places = [Buffer(f"places{k}", DType.INT32, n + 1, Scope.SHARED) for k in range(2)]
    left, right = (Buffer(name, DType.INT32, 1, Scope.REGISTER) for name in ("left", "right"))
    j = var("j", n)
    out: list[Stmt] = [
        Alloc(left),
        Alloc(right),
        loop(
            j,
            LoopKind.SERIAL,
            Store(values[0], j, read(operands.inputs[0], r.offset(row, j))),
            Store(places[0], j, cast_to(j, DType.INT32)),
        ),
    ]
    now, width = 0, 1
    while width < n:
        out.append(_level(sort, n, width, (values[now], places[now]), (values[1 - now], places[1 - now]), left, right))
        now, width = 1 - now, 2 * width
    w, p = var("w", sort.count), var("p", n)
    position = cast_to(load(places[now], (w,), DType.INT32), INDEX)
    out.append(loop(w, LoopKind.SERIAL, Let(p, position), *deliver(sort, r, operands, row, w, p)))
    return tuple(Alloc(b) for b in (*values, *places)), tuple(out)


def _level(
    sort: Sort,
    n: int,
    width: int,
    source: tuple[Buffer, Buffer],
    target: tuple[Buffer, Buffer],
    left: Buffer,
    right: Buffer,
) -> Stmt:
    """Merge neighbouring runs of `width` elements."""
    m, q = var("m", up(n, 2 * width)), var("q", min(2 * width, n))
    first = ix.mul(m, 2 * width)
    middle = ix.minimum(ix.add(first, const(width)), const(n))
    stop = ix.minimum(ix.add(first, const(2 * width)), const(n))
    a, b = var("a", n + 1), var("b", n + 1)
    values, places = source
    from_left, at = var("from_left", None, DType.BOOL), var("at", n + 1)
    ahead = better(sort, load(values, (b,), values.dtype), load(values, (a,), values.dtype))
    takes_left = ix.both(call("lt", a, middle), call("or", call("ge", b, stop), ix.negate(ahead)))

    def moved(head: Buffer, here: Expr) -> Store:
        one, none = const(1, DType.INT32), const(0, DType.INT32)
        return Store(head, const(0), call("add", cell(head), select(here, one, none)))

    body: tuple[Stmt, ...] = (
        Let(a, cast_to(cell(left), INDEX)),
        Let(b, cast_to(cell(right), INDEX)),
        Let(from_left, takes_left),
        Let(at, select(from_left, a, b)),
        Store(target[0], ix.add(first, q), load(values, (at,), values.dtype)),
        Store(target[1], ix.add(first, q), load(places, (at,), DType.INT32)),
        moved(left, from_left),
        moved(right, ix.negate(from_left)),
    )
    return loop(
        m,
        LoopKind.SERIAL,
        Store(left, const(0), cast_to(first, DType.INT32)),
        Store(right, const(0), cast_to(middle, DType.INT32)),
        loop(q, LoopKind.SERIAL, *body, end=ix.sub(stop, first)),
    )
