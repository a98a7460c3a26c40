"""Lower bounds of kernels: no variant is faster than its own arithmetic at the device's peak, or its bytes at the rate of the fastest memory
that can hold them, and a launch.

The rates are the device's calibration with a little slack, since it was itself a measurement. A kernel that is faster than its bound shows
that the calibration was wrong: it is corrected, and whatever was proven with it is void.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir.dtype import DType
from autofuse.ir.expr import loads
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.base import Variant
from autofuse.measure.calibrate import CACHED, Reached

SLACK = 1.1
"""By how much a kernel may exceed the calibrated rates."""
_NARROW = {True: 16.0, False: 4.0}
"""How many times faster than float32 products of narrower types may be, on CUDA (matrix units) and on the host (dot instructions)."""


@dataclass(frozen=True)
class Bounds:
    """Rates that are not exceeded: FLOPs and bytes a second, seconds a launch, the bytes that the caches hold."""

    flops: float
    memory: float
    cached: float
    launch: float
    cache_bytes: int
    is_cuda: bool = False
    corrections: int = 0
    """How often a kernel was faster than its bound."""

    @staticmethod
    def of(reached: Reached, target: Target) -> Bounds:
        """The bounds of a calibrated device."""
        cached = reached.cached or CACHED * reached.bandwidth
        return Bounds(
            SLACK * reached.flops,
            SLACK * reached.bandwidth,
            SLACK * max(cached, reached.bandwidth),
            reached.launch / SLACK,
            target.l2 if target.is_cuda else target.l3 + target.cores * target.l2,
            target.is_cuda,
        )

    def parts(self, variant: Variant) -> tuple[float, float]:
        """Seconds by arithmetic and by bytes."""
        inputs = variant.program.inputs
        saving = math.prod(how.saving(inputs[k].shape) for k, how in variant.prepared)
        return products(variant.program, self.is_cuda) / saving / self.flops, self.traffic(least_bytes(variant))

    def traffic(self, nbytes: int) -> float:
        """Seconds to move bytes: what the caches hold at their rate, the rest at the memory's."""
        held = min(nbytes, self.cache_bytes)
        return held / self.cached + (nbytes - held) / self.memory

    def lower(self, variant: Variant) -> float:
        """Seconds that the variant takes at least. A view takes none."""
        return 0.0 if variant.family == "view" else max(self.parts(variant)) + self.launch

    def corrected(self, variant: Variant, seconds: float) -> Bounds:
        """The bounds after a measurement: the same, or with the rate that it beat raised so that it does so no more."""
        if seconds >= self.lower(variant):
            return self
        arithmetic, traffic = self.parts(variant)
        launch = min(self.launch, seconds / 2)
        rest = seconds - launch
        flops = self.flops * max(1.0, 1.01 * arithmetic / rest)
        faster = max(1.0, 1.01 * traffic / rest)
        return replace(
            self,
            flops=flops,
            memory=self.memory * faster,
            cached=self.cached * faster,
            launch=launch,
            corrections=self.corrections + 1,
        )


def products(program: RegionProgram, is_cuda: bool) -> float:
    """The arithmetic of a program's contractions in float32 operations. Other arithmetic is not
    counted: the weights of exp and its like are rough."""
    total = 0.0
    for step in program.steps:
        if step.kind is Kind.CONTRACT:
            wide = all(program.tensor(o).dtype in (DType.FLOAT32, DType.FLOAT64) for o in step.operands)
            total += step.stage.flops / (1.0 if wide else _NARROW[is_cuda])
    return total


def least_bytes(variant: Variant) -> int:
    """The bytes that a region must read and write: its outputs, and of each input no more than its points ask for (a Gather reads few rows)."""
    program = variant.program
    pairs = zip(program.inputs, variant.input_layouts, _asked(program), strict=True)
    total = sum(min(layout.size(t.shape), asked) * t.dtype.itemsize for t, layout, asked in pairs)
    for n, layout in zip(program.outputs, variant.output_layouts, strict=True):
        t = program.tensor(n)
        total += layout.size(t.shape) * t.dtype.itemsize
    return int(total)


@lru_cache(maxsize=1 << 14)
def _asked(program: RegionProgram) -> tuple[float, ...]:
    """How many elements of each input are read at most, each time counted; infinity where that is not known."""
    form = analyse(program)
    if not isinstance(form, Form) or not (form.anchors or form.outputs):
        return (math.inf,) * len(program.inputs)
    asked = [0.0] * len(program.inputs)
    every = form.row_points * form.reduced_points
    bodies = [(a.body, every) for a in form.anchors]
    bodies += [(o.value, every if o.full else form.row_points) for o in form.outputs]
    for body, points in bodies:
        for ld in loads(body):
            if isinstance(ld.source, int):
                asked[ld.source] += points
    return tuple(asked)


@dataclass(frozen=True)
class Interval:
    """What a way to run a region costs, in seconds: at least, as far as can be guessed, at most by what was measured (infinity)."""

    lower: float
    guess: float
    upper: float

    @property
    def open(self) -> bool:
        """Whether a measurement could still change it."""
        return self.lower < self.upper

    @staticmethod
    def never() -> Interval:
        """What can't be run."""
        return Interval(math.inf, math.inf, math.inf)
