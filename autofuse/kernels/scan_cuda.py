"""Recurrences on the GPU: one block a batch row, the state in shared memory, a thread a gate column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, const, load, var
from autofuse.ir.target import Target
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.scan_loops import Make, Start, Writer, scan_of, scan_variants
from autofuse.loops.ir import Alloc, Barrier, Buffer, If, Kernel, Level, LoopKind, Scope, Stmt, Store, loop
from autofuse.loops.verify import verify_kernel


class ScanCuda:
    """LSTM, GRU and RNN recurrences (their meaning: autofuse.ops.recurrent)."""

    name = "scan_cuda"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """One variant, with transposed recurrent weights, so that neighbouring threads read neighbouring elements."""
        return () if not target.is_cuda else scan_variants(self.name, program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`hidden`: elements of the state."""
        del target
        return {"hidden": scan_of(variant).shapes[0][2]}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """A thread for each element of the state, within what a block may have."""
        hidden = scan_of(variant).shapes[0][2]
        threads = 32
        while threads < min(hidden, 256):
            threads *= 2
        return Schedule.of({"threads": min(threads, target.max_threads_per_block)})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        del target
        threads = schedule.integer("threads")
        writer = _CudaWriter(variant, threads)
        body = writer.grid()
        kernel = Kernel(
            "scan",
            writer.binding.parameters,
            body,
            body.var.extent or 0,
            threads,
            flops=scan_of(variant).flops,
            bytes=writer.binding.nbytes,
        )
        return Lowered((RegionLaunch(verify_kernel(kernel), writer.binding.arguments),))


class _CudaWriter(Writer):
    def __init__(self, variant: Variant, threads: int) -> None:
        super().__init__(variant)
        self.threads = threads

    def _dealt(self, n: int, make: Make) -> tuple[Stmt, ...]:
        """`make` for 0..n-1, dealt out to the threads; a barrier makes the results visible."""
        t = var(self.fresh("t"), self.threads)
        rounds = -(-n // self.threads)
        r = var(self.fresh("r"), rounds)
        point = ix.add(ix.mul(r, self.threads), t)
        made = make(point)
        body: tuple[Stmt, ...] = made if isinstance(made, tuple) else (made,)
        inside = ix.less(point, const(n))
        if inside is not ix.TRUE:
            body = (If(inside, body),)
        if rounds > 1:
            body = (loop(r, LoopKind.SERIAL, *body),)
        else:
            body = (loop(r, LoopKind.UNROLL, *body),)
        return (loop(t, LoopKind.THREAD, *body), Barrier(Level.BLOCK))

    def each(self, make: Make) -> tuple[Stmt, ...]:
        """A thread an element of the state."""
        return self._dealt(self.hidden, make)

    def product(self, state: Buffer, first: int, last: int, start: Start) -> tuple[Stmt, ...]:
        """A thread a gate column."""
        weights = self.inputs[1]

        def column(j: Expr) -> tuple[Stmt, ...]:
            at = ix.add(j, const(first))
            acc = Buffer(self.fresh("acc"), self.dtype, 1, Scope.REGISTER)
            k = var(self.fresh("k"), self.hidden)
            total = load(acc, (const(0),), self.dtype)
            r = self.get(weights, ix.add(ix.mul(k, self.width), at))
            add = Store(acc, const(0), call("add", total, call("mul", load(state, (k,), self.dtype), r)))
            return (
                Alloc(acc),
                Store(acc, const(0), start(at)),
                loop(k, LoopKind.SERIAL, add),
                Store(self.pre, at, total),
            )

        return self._dealt(last - first, column)
