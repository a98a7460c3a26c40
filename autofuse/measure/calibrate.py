"""What the device reaches: the bandwidth of a copy, the arithmetic of a register-tiled product, the cost of a launch.

These are kernels like any other: checked, timed, and remembered in the records, so that they are measured once per device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from autofuse.engine.options import estimate, rates
from autofuse.fusion.region import RegionProgram, Step, Tensor
from autofuse.ir.dtype import DType
from autofuse.ir.expr import call, load, var
from autofuse.ir.stage import Combine, Stage, axes_of
from autofuse.kernels.families import family, variants
from autofuse.measure.bench import Bench

_PRODUCT = 768
_COPY_ROW = 1024


@dataclass(frozen=True)
class Reached:
    """Bytes a second, FLOPs a second, seconds a launch; `measured` is False where a rough assumption stands in."""

    bandwidth: float
    flops: float
    launch: float
    measured: bool


def copy_program(elements: int) -> RegionProgram:
    """out = in * 1 over a number of float32 elements (a plain copy would be no kernel at all)."""
    axes = axes_of((elements // _COPY_ROW, _COPY_ROW) if elements >= _COPY_ROW else (elements,))
    body = call("neg", load(0, axes, DType.FLOAT32))
    stage = Stage(axes, body, DType.FLOAT32)
    return RegionProgram((Tensor(DType.FLOAT32, stage.shape, False),), (Step(stage, (0,)),), (1,))


def product_program(n: int) -> RegionProgram:
    """A square matrix product in float32; the second operand is a constant, as weights are."""
    i, j = axes_of((n, n))
    k = var("r0", n)
    body = call("mul", load(0, (i, k), DType.FLOAT32), load(1, (k, j), DType.FLOAT32))
    stage = Stage((i, j), body, DType.FLOAT32, (k,), Combine.SUM)
    tensors = (Tensor(DType.FLOAT32, (n, n), False), Tensor(DType.FLOAT32, (n, n), True))
    return RegionProgram(tensors, (Step(stage, (0, 1)),), (2,))


def calibrate(bench: Bench, deadline: float, clock: Callable[[], float] = time.monotonic) -> Reached:
    """Measure the three, or take the usual rates of such a device for what can't be measured by the deadline."""
    assumed = rates(bench.target, bench.threads)
    # Four times the last cache, so that neither side of the copy stays in it.
    size = max(1 << 22, 2 * bench.target.l3 // 4)
    size -= size % _COPY_ROW

    def seconds(program: RegionProgram) -> float:
        if clock() >= deadline:
            return math.inf
        found = sorted(variants(program, bench.target), key=lambda v: estimate(v, bench.target, bench.threads))
        choices = [
            (v, family(v.family).heuristic(v, bench.target)) for v in found if v.family != "view" and not v.tolerant
        ]
        rows = bench.kernels(program, {}, choices[:2], deadline)
        return min((m.seconds for m in rows if m.ok), default=math.inf)

    copy, product, launch = (
        seconds(copy_program(size)),
        seconds(product_program(_PRODUCT)),
        seconds(copy_program(16)),
    )
    measured = all(math.isfinite(x) for x in (copy, product, launch))
    return Reached(
        8 * size / copy if math.isfinite(copy) else assumed.bytes,
        2 * _PRODUCT**3 / product if math.isfinite(product) else assumed.flops,
        launch if math.isfinite(launch) else assumed.launch,
        measured,
    )
