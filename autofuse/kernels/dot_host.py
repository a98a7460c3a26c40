"""Products of 8-bit integers on the host with dot instructions (vpdpbusd, or what computes the same)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir.target import Target
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.dot_loops import DotKernel
from autofuse.kernels.dot_problem import DotProblem, dot_problem, dot_variants
from autofuse.kernels.dot_roles import QUAD
from autofuse.loops.ir import Kernel
from autofuse.loops.verify import verify_kernel


class DotHost:
    """Register tiles of dot products of bytes."""

    name = "dot_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """Along one vector axis, on row-major tensors and on channel blocks."""
        return dot_variants(self.name, program, target)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`rows_extent`, `vectors_extent`: the tile's axes; `row_bytes`: a row in scratch memory; limits of the target."""
        p = dot_problem(variant, target)
        return {
            "rows_extent": p.row_extent,
            "vectors_extent": p.vectors,
            "row_bytes": p.depth,
            "vector_registers": target.vector_registers,
            "cores": target.cores,
            "l2": target.l2,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """The tile with the fewest loads for a product, blocks of rows that fit half of the second-level cache, tasks enough for the cores."""
        p = dot_problem(variant, target)
        rows, vectors = _best_tile(p, target.vector_registers)
        tiles, panels = -(-p.row_extent // rows), -(-p.vectors // vectors)
        others = math.prod(a.extent or 1 for a in p.grid)
        task_tiles, task_panels = (min(1 << (n - 1).bit_length(), most) for n, most in ((tiles, 32), (panels, 64)))
        while task_tiles > 1 and task_tiles * rows * p.depth > target.l2 // 2:
            task_tiles //= 2
        # rows are brought into bytes once for each task along the panels: rows are shared out first
        while task_tiles > 1 and others * -(-tiles // task_tiles) < 4 * target.cores:
            task_tiles //= 2
        while task_panels > 1 and others * -(-tiles // task_tiles) * -(-panels // task_panels) < 2 * target.cores:
            task_panels //= 2
        return Schedule.of(
            {"rows": rows, "vectors": vectors, "unroll": 4, "task_tiles": task_tiles, "task_panels": task_panels}
        )

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        p = dot_problem(variant, target)
        body = DotKernel(p, schedule, target.vector_bytes).grid()
        # four products of bytes count as one of float32, which they take the time of: peaks are measured with those
        flops = 2 * p.products // QUAD
        kernel = Kernel("dot", p.binding.parameters, body, body.var.extent or 0, flops=flops, bytes=p.binding.nbytes)
        return Lowered((RegionLaunch(verify_kernel(kernel), p.binding.arguments),))


def _best_tile(p: DotProblem, registers: int) -> tuple[int, int]:
    """Rows and vectors of the tile: fewest loads for a product, points past the ends counted as waste."""
    best: tuple[float, int, int] = (math.inf, 1, 1)
    for vectors in (1, 2, 3, 4, 6, 8):
        for rows in range(1, min(14, p.row_extent) + 1):
            if vectors > p.vectors or rows * vectors + vectors + 1 > registers:
                continue
            waste = (-(-p.row_extent // rows) * rows / p.row_extent) * (-(-p.vectors // vectors) * vectors / p.vectors)
            count = rows * vectors
            fetched = (vectors + rows) / count
            best = min(best, (waste * (max(1.0, 8 / count, fetched) + 0.3 * fetched), rows, vectors))
    return best[1], best[2]
