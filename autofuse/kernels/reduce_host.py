"""Reductions on the host: whole softmaxes and normalisations, column sums, windows, and any contraction without a tile.

`inner` runs its vectors along the reduced axis (rows lie contiguous in memory); `outer` runs them along a row axis, each lane
reducing a row of its own (columns, pooling windows, depthwise convolutions).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.access import bind
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.layouts import map_layouts
from autofuse.kernels.nest import nest_of, streams, stride
from autofuse.kernels.reduce_loops import inner_loops, outer_loops
from autofuse.loops.ir import Kernel
from autofuse.loops.verify import verify_kernel


class ReduceHost:
    """Regions with reductions (or a contraction, slowly) over one domain."""

    name = "reduce_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """`inner` and `outer` where their vectors have an axis to run along, for each combination of layouts."""
        form = analyse(program)
        if not isinstance(form, Form) or form.kind not in (Kind.REDUCE, Kind.CONTRACT) or target.is_cuda:
            return
        row_shaped = all(not o.full for o in form.outputs)
        layouts = map_layouts(program, target) if row_shaped else map_layouts(program, target)[:1]
        for ins, outs in layouts:
            probe = Variant(self.name, "outer", program, ins, outs)
            nest = nest_of(probe, form)
            along_row = stride(nest, nest.rows[-1] if nest.rows else None)
            along_reduced = stride(nest, nest.reduced[-1] if nest.reduced else None)
            padded = nest.valid is not ix.TRUE
            if along_reduced >= along_row and not padded and nest.reduced:
                yield Variant(self.name, "inner", program, ins, outs)
            if along_row >= along_reduced or padded or not nest.reduced:
                yield probe

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`rows`, `reduced`: points of the domain; `inner`: 1 for the inner algorithm; `bytes`: of all operands; limits of the target."""
        form = _form(variant)
        return {
            "rows": form.row_points,
            "reduced": form.reduced_points,
            "inner": int(variant.algorithm == "inner"),
            "cores": target.cores,
            "bytes": bind(variant).nbytes,
            "l3": target.l3,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Four accumulators a row, tasks of 16 Ki points, expensive values kept."""
        form = _form(variant)
        each = max(form.reduced_points, 1)
        task = 16384
        while task > each and form.row_points * each // task < 4 * target.cores:
            task //= 2
        unroll = 4 if variant.algorithm == "inner" else 1
        stream = int(streams(bind(variant).nbytes, target))
        return Schedule.of({"unroll": unroll, "task": task, "cache": "keep", "stream": stream})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        form = _form(variant)
        nest = nest_of(variant, form)
        write = inner_loops if variant.algorithm == "inner" else outer_loops
        body = write(nest, schedule, target)
        kernel = Kernel(
            f"reduce_{variant.algorithm}",
            nest.binding.parameters,
            body,
            body.var.extent or 0,
            flops=form.flops,
            bytes=nest.binding.nbytes,
        )
        return Lowered((RegionLaunch(verify_kernel(kernel), nest.binding.arguments),))


def _form(variant: Variant) -> Form:
    form = analyse(variant.program)
    assert isinstance(form, Form)
    return form
