"""Lowering and compiling what is to be measured, in the parent, many kernels side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autofuse.devices.base import Device
from autofuse.devices.cache import content_key
from autofuse.engine.lowering import lowering, ready
from autofuse.engine.plan import Plan, PlannedRegion
from autofuse.errors import AutofuseError
from autofuse.ir.graph import Graph
from autofuse.ir.stage import Control
from autofuse.loops.ir import Kernel, Rendered
from autofuse.measure.bench import Choice, layouts_text
from autofuse.measure.programs import region_bytes
from autofuse.measure.result import Measurement, Opened, Status

LOWERING_ERRORS = (AutofuseError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError)
"""What a lowering that does not fit its schedule raises: the candidate fails, the tune goes on."""


def compile_choices(device: Device, choices: Sequence[Choice]) -> list[Measurement]:
    """Lower and compile; a Measurement each, still without samples ("skipped"), or with the reason of its failure."""
    lowered: list[tuple[Kernel | Rendered, ...] | str] = []

    def made() -> Iterator[Kernel | Rendered]:
        """Kernels as they are made: the first ones are being compiled while the next ones are lowered."""
        for variant, schedule in choices:
            try:
                kernels = tuple(k for k, _ in ready(device, variant, schedule).launches)
            except LOWERING_ERRORS as e:
                lowered.append(f"it could not be lowered: {type(e).__name__}: {e}")
                continue
            lowered.append(kernels)
            yield from kernels

    compiled = iter(device.compile(made()))
    out: list[Measurement] = []
    for (variant, schedule), kernels in zip(choices, lowered, strict=True):
        blank = Measurement(
            "",
            variant.program.signature,
            variant.family,
            variant.algorithm,
            layouts_text(variant),
            schedule.text(),
            Status.SKIPPED,
            flops=variant.program.flops,
            bytes_model=region_bytes(variant),
        )
        if isinstance(kernels, str):
            out.append(replace(blank, status=Status.COMPILE_FAILED, reason=kernels))
            continue
        results = [next(compiled) for _ in kernels]
        failed = next((r for r in results if isinstance(r, Exception)), None)
        good = [r for r in results if not isinstance(r, Exception)]
        if failed is not None:
            out.append(replace(blank, status=Status.COMPILE_FAILED, reason=str(failed)))
            continue
        out.append(
            replace(
                blank,
                key=good[0].key if len(good) == 1 else content_key(*(g.key for g in good)),
                compile_seconds=sum(g.resources.seconds for g in good),
                registers=max((g.resources.registers for g in good), default=0),
                spill_bytes=sum(g.resources.spill_bytes for g in good),
                shared_bytes=max((g.resources.shared_bytes for g in good), default=0),
            )
        )
    return out


def compile_plan(device: Device, graph: Graph, plan: Plan) -> Opened | None:
    """Compile a plan's kernels side by side; what failed, or None."""
    for r in plan.regions:
        failed = _compile_bodies(device, graph, r) if r.family == "control" else None
        if failed is not None:
            return failed
    make = lowering(device)
    labels: list[str] = []
    refused: list[Opened] = []

    def made() -> Iterator[Kernel | Rendered]:
        """Kernels as they are made: the first ones are being compiled while the next ones are lowered."""
        for r in plan.regions:
            if r.family in ("host", "control"):
                continue
            try:
                launches = make(graph, r).launches
            except LOWERING_ERRORS as e:
                why = f"{r.label} could not be lowered: {type(e).__name__}: {e}"
                refused.append(Opened(Status.COMPILE_FAILED, why))
                return
            for kernel, _ in launches:
                labels.append(r.label)
                yield kernel

    for label, result in zip(labels, device.compile(made()), strict=True):
        if isinstance(result, Exception):
            return Opened(Status.COMPILE_FAILED, f"{label}: {result}")
    return refused[0] if refused else None


def _compile_bodies(device: Device, graph: Graph, r: PlannedRegion) -> Opened | None:
    """Compile the plans of the graphs inside a node; what failed, or None."""
    compute = graph.nodes[r.region.nodes[0]].compute
    for body, plan in zip(compute.bodies if isinstance(compute, Control) else (), r.bodies, strict=True):
        failed = compile_plan(device, body.graph, plan) if body.graph is not None and plan is not None else None
        if failed is not None:
            return failed
    return None
