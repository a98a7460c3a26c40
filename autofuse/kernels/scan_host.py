"""Recurrences on the host: one task a batch row, the state in scratch memory, vectors along the gates.

The recurrent weights are kept transposed, so that for each element of the state one row of them is read with unit stride.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, cast_to, const, load, var
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Scan
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, bind, plain_layouts
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.cells import GATE_COUNT, sigmoid
from autofuse.kernels.spans import lanewise, span
from autofuse.loops.ir import Alloc, Buffer, For, Kernel, Let, LoopKind, Scope, Stmt, Store, loop
from autofuse.loops.verify import verify_kernel

_Make = Callable[[Expr], Stmt | tuple[Stmt, ...]]
_Start = Callable[[Expr], Expr]
_Pre = Callable[[Expr, int], Expr]
_Deliver = Callable[[Expr, Expr], tuple[Stmt, ...]]


class ScanHost:
    """LSTM, GRU and RNN recurrences (their meaning: autofuse.ops.recurrent)."""

    name = "scan_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """One variant, with transposed recurrent weights."""
        if target.is_cuda or len(program.steps) != 1 or not isinstance(program.steps[0].stage, Scan):
            return
        ins, outs = plain_layouts(program)
        weights = program.steps[0].operands[1]
        ins = tuple(Layout.permuted((1, 0)) if k == weights else l for k, l in enumerate(ins))
        yield Variant(self.name, "rows", program, ins, outs)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`hidden`: elements of the state."""
        del target
        return {"hidden": _scan(variant).shapes[0][2]}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """As many accumulators as hide the latency of a multiply-add."""
        del variant, target
        return Schedule.of({"unroll": 8})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        writer = _Writer(variant, schedule, target)
        body = writer.grid()
        kernel = Kernel(
            "scan",
            writer.binding.parameters,
            body,
            body.var.extent or 0,
            flops=_scan(variant).flops,
            bytes=writer.binding.nbytes,
        )
        return Lowered((RegionLaunch(verify_kernel(kernel), writer.binding.arguments),))


def _scan(variant: Variant) -> Scan:
    scan = variant.program.steps[0].stage
    assert isinstance(scan, Scan)
    return scan


class _Writer:
    def __init__(self, variant: Variant, schedule: Schedule, target: Target) -> None:
        self.scan = _scan(variant)
        self.binding: Binding = bind(variant)
        operands = variant.program.steps[0].operands
        self.inputs = [self.binding.inputs[k].buffer for k in operands]
        self.steps, self.batch, self.hidden = self.scan.shapes[0]
        self.dtype = self.scan.dtypes[0].compute
        self.gates = GATE_COUNT[self.scan.cell]
        self.width = self.gates * self.hidden
        self.unroll = schedule.integer("unroll")
        self.lanes = target.lanes(self.dtype.itemsize)
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
        end = self._write(self.h, self.binding.outputs[1].buffer, row)
        if self.scan.cell == "LSTM":
            end += self._write(self.c, self.binding.outputs[2].buffer, row)
        return loop(b, LoopKind.GRID, *begin, loop(t, LoopKind.SERIAL, *body), *end)

    def _name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _copy(self, source: Buffer, at: Expr, target: Buffer) -> tuple[Stmt, ...]:
        return self._each(lambda j: Store(target, j, self._get(source, ix.add(at, j))))

    def _write(self, source: Buffer, target: Buffer, at: Expr) -> tuple[Stmt, ...]:
        return self._each(lambda j: Store(target, ix.add(at, j), self._get(source, j)))

    def _get(self, buffer: Buffer, offset: Expr) -> Expr:
        x = load(buffer, (offset,), buffer.dtype)
        return x if buffer.dtype is self.dtype else cast_to(x, self.dtype)

    def _each(self, make: _Make) -> tuple[Stmt, ...]:
        """A vectorised loop over the state."""

        def block(start: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
            def lane(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                del register
                made = make(point)
                return made if isinstance(made, tuple) else (made,)

            return (lanewise(start, lanes, unroll, lane, self._name("e")),)

        return span(self.hidden, self.lanes, 1, block, self._name("x"))

    def _product(self, state: Buffer, first: int, last: int, start: _Start) -> tuple[Stmt, ...]:
        """pre[j] = start(j) + sum over k of state[k] R[j, k], for gate columns first..last-1."""
        weights = self.inputs[1]

        def block(at: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
            acc = Buffer(self._name("acc"), self.dtype, lanes * unroll, Scope.REGISTER)
            k = var(self._name("k"), self.hidden)
            at = ix.add(at, const(first))

            def begin(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                return (Store(acc, register, start(point)),)

            def add(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                r = self._get(weights, ix.add(ix.mul(k, self.width), point))
                product = call("mul", load(state, (k,), self.dtype), r)
                return (Store(acc, register, call("add", load(acc, (register,), self.dtype), product)),)

            def finish(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                return (Store(self.pre, point, load(acc, (register,), self.dtype)),)

            stmts = (
                Alloc(acc),
                lanewise(at, lanes, unroll, begin, self._name("b")),
                loop(k, LoopKind.SERIAL, lanewise(at, lanes, unroll, add, self._name("a"))),
                lanewise(at, lanes, unroll, finish, self._name("f")),
            )
            return (loop(var(self._name("s"), 1), LoopKind.SERIAL, *stmts),)

        return span(last - first, self.lanes, self.unroll, block, self._name("x"))

    def _step(self, gx: Expr, y: Expr) -> tuple[Stmt, ...]:
        n = self.hidden

        def given(j: Expr) -> Expr:
            return self._get(self.inputs[0], ix.add(gx, j))

        def pre(j: Expr, gate: int) -> Expr:
            return load(self.pre, (ix.add(j, const(gate * n)),), self.dtype)

        def deliver(j: Expr, h: Expr) -> tuple[Stmt, ...]:
            new = var(self._name("new"), None, self.dtype)
            return (Let(new, h), Store(self.h, j, new), Store(self.binding.outputs[0].buffer, ix.add(y, j), new))

        if self.scan.cell == "RNN":
            product = self._product(self.h, 0, n, given)
            return (*product, *self._each(lambda j: deliver(j, call("tanh", pre(j, 0)))))
        if self.scan.cell == "LSTM":
            return (*self._product(self.h, 0, self.width, given), *self._each(lambda j: self._lstm(j, pre, deliver)))
        if self.linear:
            zero = const(0, self.dtype)
            product = (*self._product(self.h, 0, 2 * n, given), *self._product(self.h, 2 * n, 3 * n, lambda j: zero))

            def linear_candidate(j: Expr) -> Expr:
                inner = call("add", pre(j, 2), self._get(self.inputs[3], j))
                return call("add", given(ix.add(j, const(2 * n))), call("mul", sigmoid(pre(j, 1)), inner))

            return (*product, *self._each(lambda j: self._gru(j, pre, linear_candidate(j), deliver)))
        reset = self._each(lambda j: Store(self.rh, j, call("mul", sigmoid(pre(j, 1)), load(self.h, (j,), self.dtype))))
        return (
            *self._product(self.h, 0, 2 * n, given),
            *reset,
            *self._product(self.rh, 2 * n, 3 * n, given),
            *self._each(lambda j: self._gru(j, pre, pre(j, 2), deliver)),
        )

    def _lstm(self, j: Expr, pre: _Pre, deliver: _Deliver) -> tuple[Stmt, ...]:
        old = load(self.c, (j,), self.dtype)
        kept = call("mul", sigmoid(pre(j, 2)), old)
        cell = var(self._name("cell"), None, self.dtype)
        value = call("add", kept, call("mul", sigmoid(pre(j, 0)), call("tanh", pre(j, 3))))
        h = call("mul", sigmoid(pre(j, 1)), call("tanh", cell))
        return (Let(cell, value), Store(self.c, j, cell), *deliver(j, h))

    def _gru(self, j: Expr, pre: _Pre, candidate: Expr, deliver: _Deliver) -> tuple[Stmt, ...]:
        z = sigmoid(pre(j, 0))
        old = load(self.h, (j,), self.dtype)
        new = call("mul", call("sub", const(1, self.dtype), z), call("tanh", candidate))
        return deliver(j, call("add", new, call("mul", z, old)))
