"""Determinants as loops: elimination with partial pivoting, written once for the host and the GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, Var, call, cast_to, const, load, select, var
from autofuse.ir.stage import Determinant
from autofuse.kernels.alone import Operands, cell, read
from autofuse.loops.ir import Alloc, Buffer, For, If, Let, LoopKind, Scope, Stmt, Store, loop

Make = Callable[[Expr, Expr], tuple[Stmt, ...]]


class Elimination(ABC):
    """Writes the elimination of matrix `g` in `work`, from element `base` on. How work is dealt out is the subclass's."""

    def __init__(self, determinant: Determinant, operands: Operands, work: Buffer, g: Var, base: Expr) -> None:
        self.n = determinant.source[-1]
        self.dtype = determinant.dtype.compute
        self.operands = operands
        self.work, self.g, self.base = work, g, base
        self.total = Buffer("total", self.dtype, 1, Scope.SHARED)
        self.pivot = Buffer("pivot", DType.INT32, 1, Scope.SHARED)

    @abstractmethod
    def once(self, *body: Stmt, seen: bool = True) -> tuple[Stmt, ...]:
        """Statements that run once, always by the same thread; what they write is `seen` by all that follows."""

    @abstractmethod
    def columns(self, name: str, first: Expr, make: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """`make` for every column from `first` on."""

    @abstractmethod
    def below(self, k: Expr, make: Make) -> tuple[Stmt, ...]:
        """`make` for every element below and to the right of the k-th of the diagonal."""

    def at(self, row: Expr, column: Expr) -> Expr:
        """Where an element lies in the work buffer."""
        return ix.add(self.base, ix.mul(row, self.n), column)

    def element(self, row: Expr, column: Expr) -> Expr:
        return load(self.work, (self.at(row, column),), self.dtype)

    def statements(self) -> tuple[Stmt, ...]:
        """The copy, the elimination column by column, and the result."""
        n, source, k, r = self.n, self.operands.inputs[0], var("k", self.n), var("r", self.n)
        start = ix.mul(self.g, n * n)

        def copy(j: Expr) -> tuple[Stmt, ...]:
            offset = ix.add(start, ix.mul(r, n), j)
            return (loop(r, LoopKind.SERIAL, Store(self.work, self.at(r, j), read(source, offset))),)

        p = var("p", n)
        chosen = cast_to(cell(self.pivot), INDEX)
        upper, lower = var("upper", None, self.dtype), var("lower", None, self.dtype)

        def swap(j: Expr) -> tuple[Stmt, ...]:
            return (
                Let(p, chosen),
                Let(upper, self.element(k, j)),
                Let(lower, self.element(p, j)),
                Store(self.work, self.at(k, j), lower),
                Store(self.work, self.at(p, j), upper),
            )

        def eliminate(i: Expr, j: Expr) -> tuple[Stmt, ...]:
            pivot = self.element(k, k)
            zero = const(0, self.dtype)
            # a column of zeros below the diagonal needs no elimination; the result is zero already
            factor = select(call("eq", pivot, zero), zero, call("div", self.element(i, k), pivot))
            value = call("sub", self.element(i, j), call("mul", factor, self.element(k, j)))
            return (Store(self.work, self.at(i, j), value),)

        return (
            Alloc(self.total),
            Alloc(self.pivot),
            *self.once(Store(self.total, const(0), const(1, self.dtype)), seen=False),
            *self.columns("c", const(0), copy),
            loop(
                k,
                LoopKind.SERIAL,
                *self.once(*self._choose(k)),
                *self.columns("s", k, swap),
                *self.below(k, eliminate),
            ),
            *self.once(Store(self.operands.outputs[0], self.g, cell(self.total)), seen=False),
        )

    def _choose(self, k: Var) -> tuple[Stmt, ...]:
        """The row with the largest element of column k, and the product so far."""
        i = var("i", self.n)
        largest = Buffer("largest", self.dtype, 1, Scope.REGISTER)
        row = Buffer("row", DType.INT32, 1, Scope.REGISTER)
        size, best = var("size", None, self.dtype), var("best", self.n)
        take = (Store(largest, const(0), size), Store(row, const(0), cast_to(i, DType.INT32)))
        value = self.element(best, k)
        signed = select(call("eq", best, k), value, call("neg", value))
        return (
            Alloc(largest),
            Alloc(row),
            Store(largest, const(0), call("abs", self.element(k, k))),
            Store(row, const(0), cast_to(k, DType.INT32)),
            loop(
                i,
                LoopKind.SERIAL,
                Let(size, call("abs", self.element(i, k))),
                If(call("gt", size, cell(largest)), take),
                begin=ix.add(k, const(1)),
            ),
            Let(best, cast_to(cell(row), INDEX)),
            Store(self.pivot, const(0), cast_to(best, DType.INT32)),
            Store(self.total, const(0), call("mul", cell(self.total), signed)),
        )


def grid(elimination: Elimination, *before: Stmt) -> For:
    """A block or task a matrix."""
    return loop(elimination.g, LoopKind.GRID, *before, *elimination.statements())
