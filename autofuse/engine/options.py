"""Options: ways to implement a region, each with what it is known or estimated to cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir.expr import variables
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.attention_host import whole_products
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.contract_roles import contraction
from autofuse.kernels.dot_roles import integer_product
from autofuse.kernels.families import family, variants
from autofuse.kernels.irregular import irregular
from autofuse.kernels.layouts import can_block, channel_block


@dataclass(frozen=True)
class Option:
    """A variant with a schedule and its cost in seconds; `measured` tells a confirmed figure from an estimate."""

    variant: Variant
    schedule: Schedule
    seconds: float
    measured: bool = False


OptionSource = Callable[[RegionProgram], Sequence[Option]]
"""The options of a region program, none when nothing can run it. Every layout combination that is worth having appears."""


@dataclass(frozen=True)
class Rates:
    """Rough rates of a device, for estimates before anything is measured: per second, all threads together."""

    flops: float
    bytes: float
    launch: float


HOST_RATES = Rates(9e10, 1.6e10, 1e-6)
CUDA_RATES = Rates(2e13, 1.5e12, 3e-6)
SLOW_CONTRACTION = 12.0
"""How many times slower a contraction without register tiles runs."""

DOT_PRODUCTS = 1.25
"""Terms of a product of bytes for an operation in float32, by time (measured): of integers only the sums are counted."""

PLAIN_CHANNELS = 1.25
"""How many times longer a contraction takes whose activations could be blocked by channels and are not (measured on convolutions)."""


def _plain_channels(variant: Variant, target: Target) -> bool:
    block = channel_block(target)
    program = variant.program
    ins = zip(variant.input_layouts, program.inputs, strict=True)
    outs = zip(variant.output_layouts, (program.tensor(n) for n in program.outputs), strict=True)
    return any(l.is_plain and can_block(t, block) and math.prod(t.shape[2:]) > 1 for l, t in (*ins, *outs))


STRIDED_SECONDS = 4e-10
SCATTERED_SECONDS = 1.3e-9
"""What an element costs that a thread of the host reads or writes on its own, at a fixed distance from the last or anywhere (measured)."""


def rates(target: Target, threads: int) -> Rates:
    """The rates assumed for a target."""
    if target.is_cuda:
        return CUDA_RATES
    scale = max(1, threads)
    width = target.vector_bytes / 64
    return Rates(HOST_RATES.flops * scale * width, HOST_RATES.bytes * scale, HOST_RATES.launch)


def estimate(variant: Variant, target: Target, threads: int, known: Rates | None = None) -> float:
    """Seconds that a variant would take by its arithmetic, its bytes and a launch, at the usual rates of such a device or at `known` ones; no
    measurement of the kernel is behind it."""
    if variant.family == "view":
        return 0.0
    r = known or rates(target, threads)
    program = variant.program
    nbytes = sum(
        layout.size(t.shape) * t.dtype.itemsize for t, layout in zip(program.inputs, variant.input_layouts, strict=True)
    )
    for n, layout in zip(program.outputs, variant.output_layouts, strict=True):
        t = program.tensor(n)
        nbytes += layout.size(t.shape) * t.dtype.itemsize
    flops = float(program.flops)
    form = analyse(program)
    if isinstance(form, Form) and variant.family.startswith("reduce"):
        if form.kind is Kind.CONTRACT:
            flops *= _without_tiles(form)
        elif integer_product(program) is not None:
            flops *= SLOW_CONTRACTION
    if variant.family == "dot_host":
        flops /= DOT_PRODUCTS
    if variant.family == "attention_host":
        products = sum(s.stage.flops for s in program.steps if s.kind is Kind.CONTRACT)
        flops += whole_products(variant, target) - products
    if not target.is_cuda and not variant.family.startswith("map") and _plain_channels(variant, target):
        flops *= PLAIN_CHANNELS
    for k, how in variant.prepared:
        # transforms take about half of what is saved
        flops /= max(1.0, how.saving(program.inputs[k].shape) / 2)
    seconds = max(flops / r.flops, nbytes / r.bytes) + r.launch
    if not target.is_cuda:
        found = irregular(variant, target)
        seconds += (found.strided * STRIDED_SECONDS + found.scattered * SCATTERED_SECONDS) / max(1, threads)
    return seconds


def _without_tiles(form: Form) -> float:
    """How many times slower a contraction is as a reduction: a depthwise one, where no factor is used again, hardly."""
    found = contraction(form.program)
    if found is not None and found.rows and any(variables(f) >= set(found.rows) for f in found.factors):
        if not any(found.only(side) == found.rows for side in (0, 1)):
            return 1.0
    return SLOW_CONTRACTION if form.reduced_points > 32 else SLOW_CONTRACTION / 3


def heuristic_options(target: Target, threads: int, accuracy: str = "default") -> OptionSource:
    """Every variant with its heuristic schedule and estimated cost. `exact` leaves tolerant variants out."""

    def source(program: RegionProgram) -> Sequence[Option]:
        return [
            Option(v, family(v.family).heuristic(v, target), estimate(v, target, threads))
            for v in variants(program, target)
            if v.suits(accuracy)
        ]

    return source
