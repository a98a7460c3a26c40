"""The rows of a tune's result: plans and kernels with what the roofline says of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autofuse.engine.lowering import variant_of
from autofuse.engine.plan import Plan
from autofuse.errors import PlanError
from autofuse.fusion.partition import Partition
from autofuse.fusion.region import RegionProgram
from autofuse.ir.graph import Graph
from autofuse.ir.stage import Host, Kind
from autofuse.ir.target import Target
from autofuse.measure.oracle import graph_flops
from autofuse.measure.result import Measurement
from autofuse.search.book import Entry
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.outcome import Calibration, KernelRow, PlanRow


def boundary_bytes(graph: Graph) -> int:
    """Bytes that any plan must move: the model's inputs, outputs and the constants that its kernels read, each once."""
    read = {v for n in graph.nodes if not isinstance(n.compute, Host) for v in n.inputs}
    values = {*graph.inputs, *graph.outputs, *(v for v in graph.constants if v in read)}
    return sum(graph.values[v].nbytes for v in values)


def floor_ns(nbytes: float, flops: float, calibration: Calibration) -> float:
    """Nanoseconds below which nothing can go: bytes over the bandwidth, or arithmetic over the peak."""
    return 1e9 * max(nbytes / calibration.bandwidth, flops / calibration.flops)


def bound(nbytes: float, flops: float, launches: int, calibration: Calibration) -> str:
    """What holds most of the time: memory, compute or launch."""
    shares = {
        "memory": nbytes / calibration.bandwidth,
        "compute": flops / calibration.flops,
        "launch": launches * calibration.launch,
    }
    return max(shares, key=lambda k: shares[k])


def corrected(calibration: Calibration, studies: KernelStudies) -> Calibration:
    """The calibration with what a kernel was seen to exceed: a bound that was beaten is none."""
    flops = calibration.flops
    for study in studies.studies.values():
        if not any(s.kind is Kind.CONTRACT for s in study.program.steps):
            continue  # the weights of exp and its like are rough; products are counted exactly
        for t in study.tried.values():
            m = t.measurement
            if m.ok and not t.choice[0].tolerant:
                flops = max(flops, m.flops / (min(m.samples_ns) * 1e-9))
    return replace(calibration, flops=flops)


def step_of(graph: Graph, plan: Plan, unfused: Partition, heuristic: Plan | None, target: Target) -> str:
    """Which kind of gain a plan stands for: unfused, tuned, fused or other-algorithm."""
    if uses_tolerant(graph, plan, target):
        return "other-algorithm"
    nodes = tuple(sorted(r.region.nodes for r in plan.regions if r.region.nodes))
    if nodes != unfused.key:
        return "fused"
    return "unfused" if heuristic is not None and plan.key == heuristic.key else "tuned"


def uses_tolerant(graph: Graph, plan: Plan, target: Target) -> bool:
    """Whether a plan has an algorithm that rounds more than the direct one."""
    for r in plan.regions:
        if not r.has_kernels:
            continue
        try:
            if variant_of(graph, r, target).tolerant:
                return True
        except PlanError:
            continue
    return False


def plan_rows(graph: Graph, entries: Iterable[Entry], calibration: Calibration) -> tuple[PlanRow, ...]:
    """A row for each plan that was tried."""
    floor = floor_ns(boundary_bytes(graph), 0, calibration)
    out = []
    for e in entries:
        o = e.opened
        # The arithmetic of the plan's own algorithms: Winograd has less of it than the graph's count.
        flops = o.flops or graph_flops(graph)
        lowest = max(floor, 1e9 * flops / calibration.flops)
        out.append(
            PlanRow(
                plan=e.plan,
                trial=e.trial,
                step=e.step,
                status=o.status.value,
                reason=o.reason,
                samples_ns=tuple(e.best_samples) if o.ok else (),
                launches=o.launches,
                bytes_model=o.bytes_model,
                flops=o.flops,
                floor_ns=lowest,
                bound=bound(o.bytes_model, flops, o.launches, calibration),
                peak_bytes=o.peak_bytes,
                compile_seconds=o.seconds,
                error=o.error,
                estimate_ns=e.estimate_ns,
                elapsed_seconds=e.elapsed,
                region_ns=e.region_ns,
                whole_ns=e.whole_ns,
                off=e.off,
                again=e.again,
                repeats=e.best_repeats,
                noisy=tuple(e.best_noisy) if o.ok else (),
            )
        )
    return tuple(out)


def kernel_rows(studies: KernelStudies, calibration: Calibration) -> tuple[KernelRow, ...]:
    """A row for each kernel and schedule that was tried."""
    return tuple(
        _kernel_row(study.program, t.measurement, calibration, study.state)
        for study in studies.studies.values()
        for t in study.tried.values()
    )


def _kernel_row(program: RegionProgram, m: Measurement, calibration: Calibration, study: str) -> KernelRow:
    return KernelRow(
        signature=program.signature,
        family=m.family,
        algorithm=m.algorithm,
        layouts=m.layouts,
        schedule=m.schedule,
        key=m.key,
        status=m.status.value,
        reason=m.reason,
        samples_ns=m.samples_ns,
        flops=m.flops,
        bytes_model=m.bytes_model,
        floor_ns=floor_ns(m.bytes_model, m.flops, calibration),
        bound=bound(m.bytes_model, m.flops, 1, calibration),
        error=m.error,
        compile_seconds=m.compile_seconds,
        registers=m.registers,
        spill_bytes=m.spill_bytes,
        shared_bytes=m.shared_bytes,
        cached=m.cached,
        study=study,
        repeats=m.repeats,
        noisy=m.noisy,
    )
