"""Recurrences as loops: what is common to the host and the GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, load, select, var
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Scan
from autofuse.kernels.access import Binding, bind, plain_layouts
from autofuse.kernels.base import Variant
from autofuse.loops.ir import Alloc, Buffer, For, Let, LoopKind, Scope, Stmt, Store, loop
from autofuse.ops.cells import GATES, cell_of

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
        self.cell = cell_of(self.scan)
        self.slots = self.cell.slots
        self.width = GATES[self.scan.cell] * self.hidden
        self.h = Buffer("h", self.dtype, self.hidden, Scope.SHARED)
        self.c = Buffer("c", self.dtype, self.hidden, Scope.SHARED)
        self.pre = Buffer("pre", self.dtype, self.width, Scope.SHARED)
        self.rh = Buffer("rh", self.dtype, self.hidden, Scope.SHARED)
        self.count = 0

    def grid(self) -> For:
        b, t = var("g", self.batch), var("t", self.steps)
        step = ix.sub(const(self.steps - 1), t) if self.cell.reverse else t
        row = ix.mul(b, self.hidden)
        begin: list[Stmt] = [Alloc(self.h), Alloc(self.pre), *self._copy(self.inputs[2], row, self.h)]
        if self.scan.cell == "LSTM":
            begin += [Alloc(self.c), *self._copy(self.inputs[3], row, self.c)]
        if self.scan.cell == "GRU":
            begin += [Alloc(self.rh)]
        flat = ix.add(ix.mul(step, self.batch), b)
        going: Expr | None = None
        if self.cell.lengths:
            lengths = self.inputs[self.slots["lengths"]]
            going = call("lt", step, cast_to(load(lengths, (b,), lengths.dtype), INDEX))
        body = self._step(ix.mul(flat, self.width), ix.mul(flat, self.hidden), going)
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

    def _step(self, gx: Expr, y: Expr, going: Expr | None) -> tuple[Stmt, ...]:
        """One step. Where `going` is false the sequence has ended: the state stays, and what is given is zero."""
        n = self.hidden
        cell = self.cell

        def given(j: Expr) -> Expr:
            return self.get(self.inputs[0], ix.add(gx, j))

        def pre(j: Expr, gate: int) -> Expr:
            return load(self.pre, (ix.add(j, const(gate * n)),), self.dtype)

        def old(j: Expr) -> Expr:
            return load(self.h, (j,), self.dtype)

        def deliver(j: Expr, h: Expr) -> tuple[Stmt, ...]:
            new = var(self.fresh("new"), None, self.dtype)
            kept = new if going is None else select(going, new, old(j))
            shown = new if going is None else select(going, new, const(0, self.dtype))
            out = (Store(self.outputs[0], ix.add(y, j), shown),) if 0 in self.outputs else ()
            return (Let(new, h), *out, Store(self.h, j, kept))

        if cell.op == "RNN":
            product = self.product(self.h, 0, n, given)
            return (*product, *self.each(lambda j: deliver(j, cell.act(0, pre(j, 0)))))
        if cell.op == "LSTM":
            product = self.product(self.h, 0, self.width, given)
            return (*product, *self.each(lambda j: self._lstm(j, pre, deliver, going)))
        if cell.linear:
            zero = const(0, self.dtype)
            product = (*self.product(self.h, 0, 2 * n, given), *self.product(self.h, 2 * n, 3 * n, lambda j: zero))

            def candidate(j: Expr) -> Expr:
                inner = call("add", pre(j, 2), self.get(self.inputs[self.slots["rb"]], j))
                return call("add", given(ix.add(j, const(2 * n))), call("mul", cell.reset(pre(j, 1)), inner))

            return (*product, *self.each(lambda j: deliver(j, cell.updated(pre(j, 0), candidate(j), old(j)))))
        reset = self.each(lambda j: Store(self.rh, j, call("mul", cell.reset(pre(j, 1)), old(j))))
        return (
            *self.product(self.h, 0, 2 * n, given),
            *reset,
            *self.product(self.rh, 2 * n, 3 * n, given),
            *self.each(lambda j: deliver(j, cell.updated(pre(j, 0), pre(j, 2), old(j)))),
        )

    def _lstm(self, j: Expr, pre: Pre, deliver: Deliver, going: Expr | None) -> tuple[Stmt, ...]:
        n = self.hidden
        gates = tuple(pre(j, k) for k in range(4))
        peepholes = None
        if self.cell.peepholes:
            weights = self.inputs[self.slots["p"]]
            peepholes = tuple(self.get(weights, ix.add(j, const(k * n))) for k in range(3))
        old = load(self.c, (j,), self.dtype)
        new = var(self.fresh("cell"), None, self.dtype)
        kept = new if going is None else select(going, new, old)
        h = self.cell.shown(gates, new, peepholes)
        return (Let(new, self.cell.state(gates, old, peepholes)), *deliver(j, h), Store(self.c, j, kept))
