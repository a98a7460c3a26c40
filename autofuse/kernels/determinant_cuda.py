"""Determinants on a GPU: a block a matrix, in shared memory where it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Var, const, var
from autofuse.ir.stage import Determinant
from autofuse.ir.target import Target
from autofuse.kernels.alone import Operands, one_of, only, operands_of, variant_for
from autofuse.kernels.base import Choice, Lowered, Schedule, Scratch, Variant
from autofuse.kernels.determinant import Elimination, Make, grid
from autofuse.kernels.launches import region_launch
from autofuse.kernels.points import below, up
from autofuse.loops.ir import Alloc, Barrier, Buffer, If, Let, Level, LoopKind, Scope, Stmt, loop

SHARED_BYTES = 40 * 1024
"""A larger matrix is worked on in global memory."""


class DeterminantCuda:
    """One thread chooses the pivot; all swap rows and eliminate."""

    name = "determinant_cuda"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """One variant."""
        if target.is_cuda and only(program, Determinant) is not None:
            yield variant_for(self.name, "elimination", program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`n` rows of a matrix; `max_threads`."""
        return {"n": one_of(variant, Determinant).source[-1], "max_threads": target.max_threads_per_block}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """About a thread for every four elements."""
        n, threads = one_of(variant, Determinant).source[-1], 32
        while threads < min(512, target.max_threads_per_block) and 4 * threads < n * n:
            threads *= 2
        return Schedule.of({"threads": threads})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel; none where there are no matrices."""
        del target
        determinant, operands, threads = one_of(variant, Determinant), operands_of(variant), schedule.integer("threads")
        count = operands.outputs[0].size
        if not count:
            return Lowered(())
        n, dtype, g = determinant.source[-1], determinant.dtype.compute, var("g", count)
        if n * n * dtype.itemsize <= SHARED_BYTES:
            work = Buffer("work", dtype, n * n, Scope.SHARED)
            body = grid(_Cuda(determinant, operands, work, g, const(0), threads), Alloc(work))
            return Lowered((region_launch("determinant", body, threads, determinant.flops, operands.binding),))
        work = Buffer("work", dtype, count * n * n, written=True)
        body = grid(_Cuda(determinant, operands, work, g, ix.mul(g, n * n), threads))
        launch = region_launch("determinant", body, threads, determinant.flops, operands.binding, (work,))
        return Lowered((launch,), (Scratch(work.size * dtype.itemsize),))


class _Cuda(Elimination):
    def __init__(
        self, determinant: Determinant, operands: Operands, work: Buffer, g: Var, base: Expr, threads: int
    ) -> None:
        super().__init__(determinant, operands, work, g, base)
        self.t = var("t", threads)
        self.threads = threads

    def once(self, *body: Stmt, seen: bool = True) -> tuple[Stmt, ...]:
        first = loop(self.t, LoopKind.THREAD, If(below(self.t, 1), body))
        return (first, Barrier(Level.BLOCK)) if seen else (first,)

    def columns(self, name: str, first: Expr, make: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        j = var(name, self.n)
        body = make(j)
        skipped = ix.less(j, first)
        if skipped is not ix.FALSE:
            body = (If(ix.negate(skipped), body),)
        return self._dealt(j, self.n, body)

    def below(self, k: Expr, make: Make) -> tuple[Stmt, ...]:
        e = var("e", self.n * self.n)
        i, j = ix.floor_div(e, self.n), ix.floor_mod(e, self.n)
        return self._dealt(e, self.n * self.n, (If(ix.both(ix.less(k, i), ix.less(k, j)), make(i, j)),))

    def _dealt(self, number: Var, count: int, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Run a body for every number below `count`, by the threads of the block in turn."""
        rounds = var(f"{number.name}r", up(count, self.threads))
        point = ix.add(ix.mul(rounds, self.threads), self.t)
        inner: tuple[Stmt, ...] = (Let(number, point), *body)
        if count % self.threads:
            inner = (If(below(point, count), inner),)
        return (loop(self.t, LoopKind.THREAD, loop(rounds, LoopKind.SERIAL, *inner)), Barrier(Level.BLOCK))
