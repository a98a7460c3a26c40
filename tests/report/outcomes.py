"""Outcomes of tunes that never ran: real graphs and plans, made-up times. What the report is tested on without a device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from onnx import ModelProto

from autofuse.engine.assign import assign
from autofuse.engine.options import heuristic_options
from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Partition, Partitioner
from autofuse.importer.importing import import_model
from autofuse.importer.samples.basic import mlp
from autofuse.importer.samples.transformers import bert_block
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.measure.oracle import graph_flops
from autofuse.report import structure
from autofuse.search.outcome import Calibration, KernelRow, PlanRow, TuneOutcome
from autofuse.search.rows import boundary_bytes, floor_ns

TARGET = Target(
    kind="cpu",
    dialect="cpp",
    arch="x86-64-avx512",
    name="a CPU <of> tests",
    vector_bytes=64,
    vector_registers=32,
    cores=2,
    max_threads_per_block=1,
    warp=1,
    shared_memory=0,
    registers_per_thread=32,
    l1=32 << 10,
    l2=1 << 20,
    l3=32 << 20,
    max_parameters=256,
)
RATES = Calibration(3e10, 2e11, 1e-6)
NS = 1e9


def plan_of(graph: Graph, partition: Partition, origin: str) -> Plan:
    return assign(graph, partition, TARGET, 2, "default", heuristic_options(TARGET, 2), origin)


def plan_row(graph: Graph, plan: Plan, trial: int, step: str, scale: float, **changes: object) -> PlanRow:
    """A plan that takes `scale` times its floor, with some noise."""
    rng = np.random.default_rng(trial)
    costs = [structure.cost_of(graph, r, TARGET) for r in plan.regions]
    floors = [floor_ns(c.bytes, c.flops, RATES) + 1e9 * c.launches * RATES.launch for c in costs]
    total = scale * sum(floors)
    samples = tuple(int(total * x) for x in 1 + np.abs(rng.normal(0, 0.06, 30)))
    fields: dict[str, object] = {
        "plan": plan,
        "trial": trial,
        "step": step,
        "status": "ok",
        "reason": "",
        "samples_ns": samples,
        "launches": sum(c.launches for c in costs),
        "bytes_model": sum(c.bytes for c in costs),
        "flops": sum(c.flops for c in costs),
        "floor_ns": floor_ns(boundary_bytes(graph), graph_flops(graph), RATES),
        "bound": "memory",
        "peak_bytes": 1 << (20 + trial % 3),
        "compile_seconds": 1.5,
        "error": 2e-6 * (1 + trial),
        "estimate_ns": 0.9 * total,
        "whole_ns": (1.0 if trial % 2 else 1.05) * total,
        "off": 0.9 / (1.0 if trial % 2 else 1.05) - 1,
        "again": trial % 2 == 0,
        "elapsed_seconds": 3.0 * (trial + 1),
        "region_ns": tuple(scale * f for f in floors),
    }
    return PlanRow(**{**fields, **changes})  # type: ignore[arg-type]


def kernel_row(k: int, **changes: object) -> KernelRow:
    fields: dict[str, object] = {
        "signature": f"{k:024x}",
        "family": "map_host",
        "algorithm": "vector",
        "layouts": "ab,ab->ab",
        "schedule": f"task={1024 << k} unroll=2",
        "key": f"{k:064x}",
        "status": "ok",
        "reason": "",
        "samples_ns": tuple(range(10_000 + 100 * k, 10_000 + 100 * k + 20)),
        "flops": 1 << 20,
        "bytes_model": 1 << 18,
        "floor_ns": 8_000.0,
        "bound": "memory",
        "error": 1e-7,
        "compile_seconds": 0.1,
        "registers": 0,
        "spill_bytes": 0,
        "shared_bytes": 0,
        "cached": k % 2 == 0,
        "study": "open: 3 candidates tried",
    }
    return KernelRow(**{**fields, **changes})  # type: ignore[arg-type]


def outcome_of(model: ModelProto, name: str, **changes: object) -> TuneOutcome:
    """A tune of unfused, tuned, fused and two failed plans."""
    graph = import_model(model)
    partitioner = Partitioner(graph, TARGET)
    unfused = plan_of(graph, partitioner.unfused(), "unfused")
    greedy_partition = partitioner.greedy()
    greedy = plan_of(graph, greedy_partition, "greedy")
    some = partitioner.chosen(lambda e: e.consumer % 3 != 0)
    middle = plan_of(graph, some, "trial 3")
    rows = (
        plan_row(graph, unfused, 0, "unfused", 2.6),
        plan_row(graph, unfused, 1, "tuned", 2.1),
        plan_row(graph, middle, 2, "fused", 1.9),
        plan_row(graph, greedy, 3, "fused", 1.5),
        plan_row(graph, greedy, 4, "other-algorithm", 1.4, error=3e-5),
        plan_row(
            graph,
            middle,
            5,
            "fused",
            1.0,
            status="wrong",
            reason="output 'y' differs by 3e-2\nat [0, 1]",
            samples_ns=(),
            error=3e-2,
            region_ns=(),
        ),
    )
    fields: dict[str, object] = {
        "graph": graph,
        "model": name,
        "shapes": {graph.values[v].name: graph.values[v].dims for v in graph.inputs},
        "target": TARGET,
        "threads": 2,
        "accuracy": "default",
        "seed": 0,
        "command": f"autofuse tune {name} --budget 60s",
        "best": greedy,
        "best_text": {"ab" * 32: "void kernel() {}\n"},
        "plans": rows,
        "kernels": (
            *(kernel_row(k) for k in range(4)),
            kernel_row(4, status="crashed", reason="signal 11", samples_ns=()),
        ),
        "refusals": dict(greedy_partition.refusals),
        "calibration": RATES,
        "baselines": {"onnxruntime": tuple(int(x) for x in np.linspace(1.0e6, 1.3e6, 12))},
        "seconds": 61.0,
        "interrupted": False,
        "notes": ("a note",),
        "inputs": {},
    }
    return TuneOutcome(**{**fields, **changes})  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def small() -> TuneOutcome:
    return outcome_of(mlp(4, (32, 16, 16, 8)), "models/my mlp.onnx")


@lru_cache(maxsize=1)
def transformer() -> TuneOutcome:
    return outcome_of(bert_block(), "sample:bert_block")
