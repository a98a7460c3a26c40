"""Reductions on the host: whole softmaxes and normalisations, column sums, windows, and any contraction without a tile.

`inner` runs its vectors along the reduced axis (rows lie contiguous in memory); `outer` and `window` run them along a row axis, each lane
reducing a row of its own. `window` is for a single pass (columns, pooling windows, depthwise convolutions), `outer` for several.
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
from autofuse.kernels.window_loops import best_block, constant_layouts, is_window, window_loops
from autofuse.loops.ir import Kernel
from autofuse.loops.verify import verify_kernel


class ReduceHost:
    """Regions with reductions (or a contraction, slowly) over one domain."""

    name = "reduce_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """The algorithms whose vectors have an axis to run along, the likeliest first, for each combination of layouts."""
        form = analyse(program)
        if not isinstance(form, Form) or form.kind not in (Kind.REDUCE, Kind.CONTRACT) or target.is_cuda:
            return
        row_shaped = all(not o.full for o in form.outputs)
        layouts = map_layouts(program, target) if row_shaped else map_layouts(program, target)[:1]
        for plain, outs in layouts:
            ins = constant_layouts(form, plain, outs)
            nest = nest_of(Variant(self.name, "outer", program, ins, outs), form)
            along_row = stride(nest, nest.rows[-1] if nest.rows else None)
            along_reduced = stride(nest, nest.reduced[-1] if nest.reduced else None)
            padded = nest.valid is not ix.TRUE
            window = is_window(nest)
            short = bool(nest.reduced) and (nest.reduced[-1].extent or 0) < target.lanes(4)
            found: list[str] = []
            if nest.reduced and not padded and along_reduced >= along_row:
                found.append("inner")
            if padded or not nest.reduced or along_row >= along_reduced or (short and window):
                found.insert(0 if short and window else len(found), "window" if window else "outer")
            for algorithm in found:
                yield Variant(self.name, algorithm, program, ins, outs)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`rows`, `reduced`: points of the domain; `inner`, `window`: 1 for that algorithm; `bytes`: of all operands; limits of the target."""
        form = _form(variant)
        return {
            "rows": form.row_points,
            "reduced": form.reduced_points,
            "inner": int(variant.algorithm == "inner"),
            "window": int(variant.algorithm == "window"),
            "cores": target.cores,
            "bytes": bind(variant).nbytes,
            "l2": target.l2,
            "l3": target.l3,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Four accumulators a row, tasks of 16 Ki points, expensive values kept; short rows in pairs, the next ones fetched ahead."""
        form = _form(variant)
        each = max(form.reduced_points, 1)
        task = 16384
        while task > each and form.row_points * each // task < 4 * target.cores:
            task //= 2
        unroll = {"inner": 4, "outer": 1, "window": best_block(nest_of(variant, form), target)}[variant.algorithm]
        nbytes = bind(variant).nbytes
        inner = variant.algorithm == "inner"
        return Schedule.of(
            {
                "unroll": unroll,
                "task": task,
                "cache": "keep",
                "stream": int(streams(nbytes, target)),
                "together": 2 if inner and each <= 512 else 1,
                "ahead": int(inner and nbytes > target.l2 and 8 * each <= target.l2),
            }
        )

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        form = _form(variant)
        nest = nest_of(variant, form)
        write = {"inner": inner_loops, "outer": outer_loops, "window": window_loops}[variant.algorithm]
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
