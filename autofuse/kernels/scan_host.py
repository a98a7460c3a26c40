"""Recurrences on the host: one task a batch row, the state in scratch memory, vectors along the gates.

The recurrent weights are kept transposed, so that for each element of the state one row of them is read with unit stride.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, const, load, var
from autofuse.ir.target import Target
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.scan_loops import Make, Start, Writer, scan_of, scan_variants
from autofuse.kernels.spans import lanewise, span
from autofuse.loops.ir import Alloc, Buffer, Kernel, LoopKind, Scope, Stmt, Store, loop
from autofuse.loops.verify import verify_kernel


class ScanHost:
    """LSTM, GRU and RNN recurrences (their meaning: autofuse.ops.recurrent)."""

    name = "scan_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """One variant, with transposed recurrent weights."""
        return () if target.is_cuda else scan_variants(self.name, program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`hidden`: elements of the state."""
        del target
        return {"hidden": scan_of(variant).shapes[0][2]}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """As many accumulators as hide the latency of a multiply-add."""
        del variant, target
        return Schedule.of({"unroll": 8})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        writer = _HostWriter(variant, schedule, target)
        body = writer.grid()
        kernel = Kernel(
            "scan",
            writer.binding.parameters,
            body,
            body.var.extent or 0,
            flops=scan_of(variant).flops,
            bytes=writer.binding.nbytes,
        )
        return Lowered((RegionLaunch(verify_kernel(kernel), writer.binding.arguments),))


class _HostWriter(Writer):
    def __init__(self, variant: Variant, schedule: Schedule, target: Target) -> None:
        super().__init__(variant)
        self.unroll = schedule.integer("unroll")
        self.lanes = target.lanes(self.dtype.itemsize)

    def each(self, make: Make) -> tuple[Stmt, ...]:
        """A vectorised loop over the state."""

        def block(start: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
            def lane(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                del register
                made = make(point)
                return made if isinstance(made, tuple) else (made,)

            return (lanewise(start, lanes, unroll, lane, self.fresh("e")),)

        return span(self.hidden, self.lanes, 1, block, self.fresh("x"))

    def product(self, state: Buffer, first: int, last: int, start: Start) -> tuple[Stmt, ...]:
        """pre[j] = start(j) + sum over k of state[k] R[j, k], for gate columns first..last-1."""
        weights = self.inputs[1]

        def block(at: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
            acc = Buffer(self.fresh("acc"), self.dtype, lanes * unroll, Scope.REGISTER)
            k = var(self.fresh("k"), self.hidden)
            at = ix.add(at, const(first))

            def begin(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                return (Store(acc, register, start(point)),)

            def add(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                r = self.get(weights, ix.add(ix.mul(k, self.width), point))
                product = call("mul", load(state, (k,), self.dtype), r)
                return (Store(acc, register, call("add", load(acc, (register,), self.dtype), product)),)

            def finish(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                return (Store(self.pre, point, load(acc, (register,), self.dtype)),)

            stmts = (
                Alloc(acc),
                lanewise(at, lanes, unroll, begin, self.fresh("b")),
                loop(k, LoopKind.SERIAL, lanewise(at, lanes, unroll, add, self.fresh("a"))),
                lanewise(at, lanes, unroll, finish, self.fresh("f")),
            )
            return (loop(var(self.fresh("s"), 1), LoopKind.SERIAL, *stmts),)

        return span(last - first, self.lanes, self.unroll, block, self.fresh("x"))
