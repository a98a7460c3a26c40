"""Reductions whose rows are few and long, on a GPU: several blocks share a row, and every pass is a launch of its own.

A launch leaves a partial result of each block in memory; the next one begins by putting those of its row together.
"""

from __future__ import annotations

from autofuse.fusion.form import Form
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, cast_to, const, load, select, var
from autofuse.kernels.access import Binding
from autofuse.kernels.base import Lowered, RegionLaunch, Scratch
from autofuse.kernels.combine_cuda import Accumulator, Threads
from autofuse.kernels.launches import region_launch
from autofuse.kernels.passes_cuda import passes_of
from autofuse.kernels.points import Points, below
from autofuse.kernels.rows_cuda import Rows, Span
from autofuse.loops.ir import Buffer, For, If, Let, LoopKind, Stmt, Store, loop


def split(form: Form, binding: Binding, points: Points, threads: int, vector: int, parts: int) -> Lowered:
    """One launch a pass, and a last one for the outputs of a row if no pass is left to store them."""
    partial = [
        Buffer(f"z{k}", Accumulator(a, b.dtype, 1, k).dtype, points.row_points * parts, written=True)
        for k, (a, b) in enumerate(zip(form.anchors, points.bodies, strict=True))
    ]
    writer = _Split(form, binding, points, threads, vector, parts, partial)
    launches = [writer.launch(k) for k in range(writer.steps)]
    return Lowered(tuple(launches), tuple(Scratch(b.size * b.dtype.itemsize) for b in partial))


class _Split:
    def __init__(
        self,
        form: Form,
        binding: Binding,
        points: Points,
        threads: int,
        vector: int,
        parts: int,
        partial: list[Buffer],
    ) -> None:
        self.form = form
        self.binding = binding
        self.points = points
        self.threads = threads
        self.vector = vector
        self.parts = parts
        self.partial = partial
        self.passes = passes_of(form, points)

    @property
    def steps(self) -> int:
        """Launches: what is one of a row waits for the last pass's partial results."""
        waits = bool(self.passes[-1].anchors) and any(not o.full for o in self.form.outputs)
        return len(self.passes) + int(waits)

    def launch(self, step: int) -> RegionLaunch:
        """One pass, or what comes after the last."""
        last = step == len(self.passes)
        parts = 1 if last else self.parts
        grid = self.points.row_points * parts
        g, t, row = var("g", grid), var("t", self.threads), var("row", self.points.row_points)
        part = ix.floor_mod(g, parts)
        shape = tuple(a.extent or 0 for a in self.points.rows)
        rows = Rows(
            self.form,
            self.binding,
            self.points,
            Threads(self.threads, self.threads, const(0), t, True),
            Span.whole(self.points, self.vector).part(part, parts),
            dict[Expr, Expr](zip(self.points.rows, ix.unflatten(row, shape), strict=True)),
            ix.TRUE,
        )
        body: list[Stmt] = [Let(row, ix.floor_div(g, parts))]
        for earlier in self.passes[:step]:
            for k in earlier.anchors:
                body += self._gather(rows, k, row, t)
        if not last:
            accumulators, statements = rows.accumulate(step)
            body += [*statements, *rows.finish(accumulators)]
            body += self._leave(step, ix.add(ix.mul(row, parts), part), t)
        if step == self.steps - 1:
            body += rows.row_outputs(below(part, 1))
        nest = loop(g, LoopKind.GRID, *rows.shared(), For(t, LoopKind.THREAD, tuple(body)))
        flops = self.form.flops // self.steps
        return region_launch(f"reduce_split{step}", nest, self.threads, flops, self.binding, self.partial)

    def _gather(self, rows: Rows, k: int, row: Expr, t: Expr) -> list[Stmt]:
        """The result of an anchor from the partial ones of an earlier launch."""
        a = rows.accumulator(k, 1)
        there = below(t, self.parts)
        guard = None if there is ix.TRUE else there
        value = load(self.partial[k], (ix.add(ix.mul(row, self.parts), t),), a.dtype, None, guard)
        return a.across_warp(rows.who, rows.scratch, select(there, value, a.identity), None)

    def _leave(self, step: int, slot: Expr, t: Expr) -> list[Stmt]:
        """Store a block's partial results."""
        stores = tuple(
            Store(self.partial[k], slot, cast_to(self.form.anchors[k].result, self.partial[k].dtype))
            for k in self.passes[step].anchors
        )
        return [If(below(t, 1), stores)] if stores else []
