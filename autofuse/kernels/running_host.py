"""Running sums and products on the host: an accumulator a row, vectors of neighbouring rows where the axis is not the last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, load, var
from autofuse.ir.stage import Running
from autofuse.ir.target import Target
from autofuse.kernels.alone import Rows, one_of, only, operands_of, read, variant_for
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.launches import region_launch
from autofuse.kernels.running import COMBINES, identity, step
from autofuse.kernels.spans import lanewise, tasks
from autofuse.loops.ir import Alloc, Buffer, LoopKind, Scope, Stmt, Store, loop


class RunningHost:
    """One pass over every row, in order."""

    name = "running_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """One variant."""
        if not target.is_cuda and only(program, Running) is not None:
            yield variant_for(self.name, "rows", program)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`rows`; `inner` neighbouring rows lie side by side; `length` of a row; `cores`."""
        r = _rows(variant)
        return {"rows": r.count, "inner": r.inner, "length": r.length, "cores": target.cores}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """As many rows a task as make 16 Ki elements, fewer where cores would go without."""
        r = _rows(variant)
        task = 1024
        while task > 1 and (task * r.length > 16384 or r.count // task < 2 * target.cores):
            task //= 4
        return Schedule.of({"task": task, "unroll": 2 if r.inner > 1 else 1})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel; none where the output is empty."""
        running, r = one_of(variant, Running), _rows(variant)
        if not r.count or not r.length:
            return Lowered(())
        operands = operands_of(variant)
        (x,), y = operands.inputs, operands.outputs[0]
        carried = running.dtype.compute
        outer = var("o", r.outer)
        names = iter(range(1 << 30))

        def block(where: dict[Expr, Expr], start: Expr, lanes: int, unroll: int) -> tuple[Stmt, ...]:
            k = next(names)
            acc = Buffer(f"acc{k}", carried, lanes * unroll, Scope.REGISTER)
            t = var(f"t{k}", r.length)
            at = ix.add(ix.mul(where[outer], r.length * r.inner), ix.mul(step(running, t), r.inner))

            def begin(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                return (Store(acc, register, identity(running)),)

            def advance(point: Expr, register: Expr) -> tuple[Stmt, ...]:
                offset = ix.add(at, point)
                before = load(acc, (register,), carried)
                deliver = Store(y, offset, before)
                move = Store(acc, register, call(COMBINES[running.combine], before, read(x, offset)))
                return (deliver, move) if running.exclusive else (move, deliver)

            body = (
                Alloc(acc),
                lanewise(start, lanes, unroll, begin, f"b{k}"),
                loop(t, LoopKind.SERIAL, lanewise(start, lanes, unroll, advance, f"a{k}")),
            )
            return (loop(var(f"s{k}", 1), LoopKind.SERIAL, *body),)

        lanes = target.lanes(carried.itemsize)
        body = tasks((outer,), r.inner, lanes, schedule.integer("unroll"), schedule.integer("task"), block)
        return Lowered((region_launch("running", body, 1, running.flops, operands.binding),))


def _rows(variant: Variant) -> Rows:
    running = one_of(variant, Running)
    return Rows.along(running.shape, running.axis)
