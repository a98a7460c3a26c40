"""Determinants on the host: a task a matrix, in scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, const, var
from autofuse.ir.stage import Determinant
from autofuse.ir.target import Target
from autofuse.kernels.alone import one_of, only, operands_of, variant_for
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.determinant import Elimination, Make, grid
from autofuse.kernels.launches import region_launch
from autofuse.loops.ir import Alloc, Buffer, LoopKind, Scope, Stmt, loop


class DeterminantHost:
    """Elimination row by row."""

    name = "determinant_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """One variant."""
        if not target.is_cuda and only(program, Determinant) is not None:
            yield variant_for(self.name, "elimination", program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """None."""
        del variant, target
        return {}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """A task a matrix: nothing to choose."""
        del variant, target
        return Schedule.of({"matrices": 1})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel; none where there are no matrices."""
        del schedule, target
        determinant, operands = one_of(variant, Determinant), operands_of(variant)
        count = operands.outputs[0].size
        if not count:
            return Lowered(())
        n = determinant.source[-1]
        work = Buffer("work", determinant.dtype.compute, n * n, Scope.SHARED)
        body = grid(_Host(determinant, operands, work, var("g", count), const(0)), Alloc(work))
        return Lowered((region_launch("determinant", body, 1, determinant.flops, operands.binding),))


class _Host(Elimination):
    def once(self, *body: Stmt, seen: bool = True) -> tuple[Stmt, ...]:
        del seen
        return body

    def columns(self, name: str, first: Expr, make: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        j = var(name, self.n)
        return (loop(j, LoopKind.SERIAL, *make(j), begin=first),)

    def below(self, k: Expr, make: Make) -> tuple[Stmt, ...]:
        i, j = var("ei", self.n), var("ej", self.n)
        after = ix.add(k, const(1))
        return (loop(i, LoopKind.SERIAL, loop(j, LoopKind.SERIAL, *make(i, j), begin=after), begin=after),)
