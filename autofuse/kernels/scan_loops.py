"""Recurrences as loops: what is common to the host and the GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, cast_to, const, load, var
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Scan
from autofuse.kernels.access import Binding, bind, plain_layouts
from autofuse.kernels.base import Variant
from autofuse.kernels.cells import GATE_COUNT, sigmoid
from autofuse.loops.ir import Alloc, Buffer, For, Let, LoopKind, Scope, Stmt, Store, loop

Make = Callable[[Expr], Stmt | tuple[Stmt, ...]]
Start = Callable[[Expr], Expr]
Pre = Callable[[Expr, int], Expr]
Deliver = Callable[[Expr, Expr], tuple[Stmt, ...]]


def scan_variants(family: str, program: RegionProgram) -> tuple[Variant, ...]:
    """The one variant of a recurrence, its recurrent weights transposed; none for another program."""
    if len(program.steps) != 1 or not isinstance(program.steps[0].stage, Scan):
        return ()
    ins, outs = plain_layouts(program)
    weights = program.steps[0].operands[1]
    ins = tuple(Layout.permuted((1, 0)) if k == weights else l for k, l in enumerate(ins))
    return (Variant(family, "rows", program, ins, outs),)


def scan_of(variant: Variant) -> Scan:
    """The recurrence of a variant that is one."""
    scan = variant.program.steps[0].stage
    assert isinstance(scan, Scan)
    return scan


class Writer(ABC):
    """Writes one task (or block) a batch row. How state elements and products are dealt out is the subclass's."""

    def __init__(self, variant: Variant) -> None:
        self.scan = scan_of(variant)
        self.binding: Binding = bind(variant)
        operands = variant.program.steps[0].operands
        self.inputs = [self.binding.inputs[k].buffer for k in operands]
        # what nothing reads is no output of the region
        first = variant.program.first_number[0]
        self.outputs = {n - first: o.buffer for n, o in zip(variant.program.outputs, self.binding.outputs, strict=True)}
        self.steps, self.batch, self.hidden = self.scan.shapes[0]
        self.dtype = self.scan.dtypes[0].compute
        self.gates = GATE_COUNT[self.scan.cell]
        self.width = self.gates * self.hidden
        attributes = dict(self.scan.attributes)
        self.reverse = bool(attributes["reverse"])
        self.linear = bool(attributes["linear_before_reset"])
        self.h = Buffer("h", self.dtype, self.hidden, Scope.SHARED)
        self.c = Buffer("c", self.dtype, self.hidden, Scope.SHARED)
        self.pre = Buffer("pre", self.dtype, self.width, Scope.SHARED)
        self.rh = Buffer("rh", self.dtype, self.hidden, Scope.SHARED)
        self.count = 0

    def grid(self) -> For:
        b, t = var("g", self.batch), var("t", self.steps)
        step = ix.sub(const(self.steps - 1), t) if self.reverse else t
        row = ix.mul(b, self.hidden)
        begin: list[Stmt] = [Alloc(self.h), Alloc(self.pre), *self._copy(self.inputs[2], row, self.h)]
        if self.scan.cell == "LSTM":
            begin += [Alloc(self.c), *self._copy(self.inputs[3], row, self.c)]
        if self.scan.cell == "GRU":
            begin += [Alloc(self.rh)]
        flat = ix.add(ix.mul(step, self.batch), b)
        body = self._step(ix.mul(flat, self.width), ix.mul(flat, self.hidden))
        end: tuple[Stmt, ...] = ()
        for k, state in ((1, self.h), (2, self.c)):
            if k in self.outputs:
                end += self._write(state, self.outputs[k], row)
        return loop(b, LoopKind.GRID, *begin, loop(t, LoopKind.SERIAL, *body), *end)

    @abstractmethod
    def each(self, make: Make) -> tuple[Stmt, ...]:
        """Statements that run `make` for every element of the state."""

    @abstractmethod
    def product(self, state: Buffer, first: int, last: int, start: Start) -> tuple[Stmt, ...]:
        """pre[j] = start(j) + sum over k of state[k] R[j, k], for gate columns first..last-1."""

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _copy(self, source: Buffer, at: Expr, target: Buffer) -> tuple[Stmt, ...]:
        return self.each(lambda j: Store(target, j, self.get(source, ix.add(at, j))))

    def _write(self, source: Buffer, target: Buffer, at: Expr) -> tuple[Stmt, ...]:
        return self.each(lambda j: Store(target, ix.add(at, j), self.get(source, j)))

    def get(self, buffer: Buffer, offset: Expr) -> Expr:
        x = load(buffer, (offset,), buffer.dtype)
        return x if buffer.dtype is self.dtype else cast_to(x, self.dtype)

    def _step(self, gx: Expr, y: Expr) -> tuple[Stmt, ...]:
        n = self.hidden

        def given(j: Expr) -> Expr:
            return self.get(self.inputs[0], ix.add(gx, j))

        def pre(j: Expr, gate: int) -> Expr:
            return load(self.pre, (ix.add(j, const(gate * n)),), self.dtype)

        def deliver(j: Expr, h: Expr) -> tuple[Stmt, ...]:
            new = var(self.fresh("new"), None, self.dtype)
            kept = (Let(new, h), Store(self.h, j, new))
            return (*kept, Store(self.outputs[0], ix.add(y, j), new)) if 0 in self.outputs else kept

        if self.scan.cell == "RNN":
            product = self.product(self.h, 0, n, given)
            return (*product, *self.each(lambda j: deliver(j, call("tanh", pre(j, 0)))))
        if self.scan.cell == "LSTM":
            return (*self.product(self.h, 0, self.width, given), *self.each(lambda j: self._lstm(j, pre, deliver)))
        if self.linear:
            zero = const(0, self.dtype)
            product = (*self.product(self.h, 0, 2 * n, given), *self.product(self.h, 2 * n, 3 * n, lambda j: zero))

            def linear_candidate(j: Expr) -> Expr:
                inner = call("add", pre(j, 2), self.get(self.inputs[3], j))
                return call("add", given(ix.add(j, const(2 * n))), call("mul", sigmoid(pre(j, 1)), inner))

            return (*product, *self.each(lambda j: self._gru(j, pre, linear_candidate(j), deliver)))
        reset = self.each(lambda j: Store(self.rh, j, call("mul", sigmoid(pre(j, 1)), load(self.h, (j,), self.dtype))))
        return (
            *self.product(self.h, 0, 2 * n, given),
            *reset,
            *self.product(self.rh, 2 * n, 3 * n, given),
            *self.each(lambda j: self._gru(j, pre, pre(j, 2), deliver)),
        )

    def _lstm(self, j: Expr, pre: Pre, deliver: Deliver) -> tuple[Stmt, ...]:
        old = load(self.c, (j,), self.dtype)
        kept = call("mul", sigmoid(pre(j, 2)), old)
        cell = var(self.fresh("cell"), None, self.dtype)
        value = call("add", kept, call("mul", sigmoid(pre(j, 0)), call("tanh", pre(j, 3))))
        h = call("mul", sigmoid(pre(j, 1)), call("tanh", cell))
        return (Let(cell, value), Store(self.c, j, cell), *deliver(j, h))

    def _gru(self, j: Expr, pre: Pre, candidate: Expr, deliver: Deliver) -> tuple[Stmt, ...]:
        z = sigmoid(pre(j, 0))
        old = load(self.h, (j,), self.dtype)
        new = call("mul", call("sub", const(1, self.dtype), z), call("tanh", candidate))
        return deliver(j, call("add", new, call("mul", z, old)))
