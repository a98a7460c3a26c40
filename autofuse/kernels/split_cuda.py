"""Reductions whose rows are few and long, on a GPU: several blocks share a row, and every pass is a launch of its own.

A launch leaves a partial result of each block in memory; the next one begins by putting those of its row together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autofuse.fusion.form import Form
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Var, cast_to, const, load, select, var
from autofuse.kernels.access import Binding
from autofuse.kernels.base import Lowered, RegionLaunch, Scratch
from autofuse.kernels.combine_cuda import Accumulator, Threads
from autofuse.kernels.launches import region_launch
from autofuse.kernels.passes_cuda import Pass, passes_of
from autofuse.kernels.points import Points, below, up
from autofuse.kernels.rows_cuda import Rows, Span, block_nest, row_axes
from autofuse.loops.ir import Buffer, If, Let, Stmt, Store


def split(form: Form, binding: Binding, points: Points, who: Threads, t: Var, vector: int, parts: int) -> Lowered:
    """One launch a pass, and a last one for the outputs of a row if no pass is left to store them."""
    partial = tuple(
        Buffer(f"z{k}", Accumulator(a, b.dtype, 1, k).dtype, points.row_points * parts, written=True)
        for k, (a, b) in enumerate(zip(form.anchors, points.bodies, strict=True))
    )
    writer = _Split(form, binding, points, who, t, vector, parts, partial)
    launches = [writer.launch(k) for k in range(writer.steps)]
    return Lowered(tuple(launches), tuple(Scratch(b.size * b.dtype.itemsize) for b in partial))


@dataclass(frozen=True)
class _Split:
    """`partial` has a buffer an anchor, in which neighbouring threads of the next launch read neighbouring elements."""

    form: Form
    binding: Binding
    points: Points
    who: Threads
    t: Var
    vector: int
    parts: int
    partial: tuple[Buffer, ...]

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        return passes_of(self.form, self.points)

    @property
    def steps(self) -> int:
        """Launches: what is one of a row waits for the last pass's partial results."""
        waits = bool(self.passes[-1].anchors) and any(not o.full for o in self.form.outputs)
        return len(self.passes) + int(waits)

    def launch(self, step: int) -> RegionLaunch:
        """One pass, or what comes after the last."""
        last = step == len(self.passes)
        parts = 1 if last else self.parts
        points, who = self.points, self.who
        g, row = var("g", up(points.row_points, who.rows) * parts), var("row", points.row_points)
        part = ix.floor_mod(g, parts)
        number = ix.add(ix.mul(ix.floor_div(g, parts), who.rows), who.row)
        exists = below(number, points.row_points)
        span = Span.whole(points, self.vector).part(part, parts)
        rows = Rows(self.form, self.binding, points, who, span, row_axes(points, row), exists)
        body: list[Stmt] = [Let(row, ix.minimum(number, const(points.row_points - 1)))]
        for earlier in self.passes[:step]:
            for k in earlier.anchors:
                body += self._gather(rows, k, row)
        if not last:
            accumulators, statements = rows.accumulate(step)
            body += [*statements, *rows.finish(accumulators)]
            body += self._leave(step, self._slot(row, part), exists)
        if step == self.steps - 1:
            body += rows.row_outputs(below(part, 1))
        nest = block_nest(g, self.t, rows, body)
        flops = self.form.flops // self.steps
        return region_launch(f"reduce_split{step}", nest, who.threads, flops, self.binding, self.partial)

    def _slot(self, row: Expr, part: Expr) -> Expr:
        """Where the partial result of a row's part lies."""
        if self.who.adjacent:
            return ix.add(ix.mul(row, self.parts), part)
        return ix.add(ix.mul(part, self.points.row_points), row)

    def _gather(self, rows: Rows, k: int, row: Expr) -> list[Stmt]:
        """The result of an anchor from the partial ones of an earlier launch."""
        a = rows.accumulator(k, 1)
        if not self.who.adjacent:
            return a.serial(self.parts, lambda s: load(self.partial[k], (self._slot(row, s),), a.dtype))
        there = below(self.who.lane, self.parts)
        guard = None if there is ix.TRUE else there
        value = load(self.partial[k], (self._slot(row, self.who.lane),), a.dtype, None, guard)
        return a.across_warp(rows.who, rows.scratch, select(there, value, a.identity), None)

    def _leave(self, step: int, slot: Expr, exists: Expr) -> list[Stmt]:
        """Store a block's partial results."""
        stores = tuple(
            Store(self.partial[k], slot, cast_to(self.form.anchors[k].result, self.partial[k].dtype))
            for k in self.passes[step].anchors
        )
        return [If(ix.both(exists, below(self.who.lane, 1)), stores)] if stores else []
