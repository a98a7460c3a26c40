"""Running sums and products on a GPU: a thread a row, or a block that shares a long one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, const, load, select, var
from autofuse.ir.stage import Running
from autofuse.ir.target import Target
from autofuse.kernels.alone import Operands, Rows, cell, one_of, only, operands_of, read, variant_for
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.launches import region_launch
from autofuse.kernels.points import below, up
from autofuse.kernels.running import COMBINES, identity, step
from autofuse.loops.ir import Alloc, Barrier, Buffer, For, If, Level, LoopKind, Scope, Stmt, Store, loop

LONG = 512
"""From this length on a row is worth a block of its own where there are few of them."""


class RunningCuda:
    """`rows`: a thread goes along a row. `block`: each thread combines a piece of the row, the pieces' totals are scanned in shared memory
    (Hillis and Steele, 1986), and each thread goes over its piece again from where the ones before it end."""

    name = "running_cuda"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """The likelier one first; `block` for long rows only."""
        running = only(program, Running)
        if running is None or not target.is_cuda:
            return
        r = Rows.along(running.shape, running.axis)
        every = ["rows"]
        if r.length >= LONG:
            every.insert(0 if r.count < 64 * target.cores else 1, "block")
        for algorithm in every:
            yield variant_for(self.name, algorithm, program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`algorithm`; `rows`; `length` of a row; `max_threads`."""
        r = _rows(variant)
        facts: dict[str, Choice] = {"algorithm": variant.algorithm, "rows": r.count, "length": r.length}
        return {**facts, "max_threads": target.max_threads_per_block}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Small blocks where every thread has a row; a block as wide as leaves each thread some eight elements."""
        r = _rows(variant)
        if variant.algorithm == "rows":
            return Schedule.of({"threads": 64})
        threads = 64
        while threads < min(1024, target.max_threads_per_block) and r.length >= 16 * threads:
            threads *= 2
        return Schedule.of({"threads": threads})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel; none where the output is empty."""
        del target
        running, r = one_of(variant, Running), _rows(variant)
        if not r.count or not r.length:
            return Lowered(())
        threads, operands = schedule.integer("threads"), operands_of(variant)
        make = _by_rows if variant.algorithm == "rows" else _by_blocks
        body = make(running, r, operands, threads)
        name = f"running_{variant.algorithm}"
        return Lowered((region_launch(name, body, threads, running.flops, operands.binding),))


def _rows(variant: Variant) -> Rows:
    running = one_of(variant, Running)
    return Rows.along(running.shape, running.axis)


def _advance(running: Running, operands: Operands, acc: Buffer, offset: Expr) -> tuple[Stmt, ...]:
    """Take an element into the accumulator and deliver the result."""
    deliver = Store(operands.outputs[0], offset, cell(acc))
    move = Store(acc, const(0), call(COMBINES[running.combine], cell(acc), read(operands.inputs[0], offset)))
    return (deliver, move) if running.exclusive else (move, deliver)


def _by_rows(running: Running, r: Rows, operands: Operands, threads: int) -> For:
    g, t, s = var("g", up(r.count, threads)), var("t", threads), var("s", r.length)
    row = ix.add(ix.mul(g, threads), t)
    acc = Buffer("acc", running.dtype.compute, 1, Scope.REGISTER)
    body: tuple[Stmt, ...] = (
        Alloc(acc),
        Store(acc, const(0), identity(running)),
        loop(s, LoopKind.SERIAL, *_advance(running, operands, acc, r.offset(row, step(running, s)))),
    )
    if r.count % threads:
        body = (If(below(row, r.count), body),)
    return loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, *body))


def _by_blocks(running: Running, r: Rows, operands: Operands, threads: int) -> For:
    g, t = var("g", r.count), var("t", threads)
    piece = up(r.length, threads)
    carried, fn = running.dtype.compute, COMBINES[running.combine]
    totals = [Buffer(f"totals{k}", carried, threads, Scope.SHARED) for k in range(2)]
    acc = Buffer("acc", carried, 1, Scope.REGISTER)

    def along(name: str, deliver: bool) -> Stmt:
        """A thread goes along its piece, with or without delivering results."""
        s = var(name, piece)
        position = ix.add(ix.mul(t, piece), s)
        offset = r.offset(g, step(running, position))
        taken = Store(acc, const(0), call(fn, cell(acc), read(operands.inputs[0], offset)))
        body: tuple[Stmt, ...] = _advance(running, operands, acc, offset) if deliver else (taken,)
        if threads * piece != r.length:
            body = (If(below(position, r.length), body),)
        return loop(s, LoopKind.SERIAL, *body)

    def at(buffer: Buffer, k: Expr) -> Expr:
        return load(buffer, (k,), carried)

    begin = (Alloc(acc), Store(acc, const(0), identity(running)), along("p", False), Store(totals[0], t, cell(acc)))
    out: list[Stmt] = [Alloc(totals[0]), Alloc(totals[1]), loop(t, LoopKind.THREAD, *begin), Barrier(Level.BLOCK)]
    now, distance = 0, 1
    while distance < threads:
        source, target = totals[now], totals[1 - now]
        far = load(source, (ix.sub(t, const(distance)),), carried, 0, ix.negate(below(t, distance)))
        total = select(below(t, distance), at(source, t), call(fn, far, at(source, t)))
        out += [loop(t, LoopKind.THREAD, Store(target, t, total)), Barrier(Level.BLOCK)]
        now, distance = 1 - now, 2 * distance
    before = load(totals[now], (ix.sub(t, const(1)),), carried, 0, ix.negate(below(t, 1)))
    start = Store(acc, const(0), select(below(t, 1), identity(running), before))
    out.append(loop(t, LoopKind.THREAD, Alloc(acc), start, along("q", True)))
    return loop(g, LoopKind.GRID, *out)
