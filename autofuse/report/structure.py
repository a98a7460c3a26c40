"""Tables of a plan's structure: its regions, the graph's values, and what each region costs by the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from autofuse.engine.lowering import made_before, variant_of
from autofuse.engine.plan import Plan, PlannedRegion
from autofuse.errors import PlanError
from autofuse.ir.graph import Graph, NodeId, ValueId
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.families import lower
from autofuse.report.frame import columns, typed
from autofuse.report.naming import value_name
from autofuse.search.outcome import Calibration
from autofuse.search.rows import bound, floor_ns

REGION_COLUMNS = columns(
    "region:i nodes operators kind outputs family algorithm schedule layouts launches:i bytes_model:i flops:i floor_us:f "
    "bound time_us:f time_share:f share_of_floor:f"
)
VALUE_COLUMNS = columns("value:i name dtype shape bytes:i role producer:i readers materialised:b")


@dataclass(frozen=True)
class Cost:
    """What a region costs by the model: launches, bytes that its launches read and write, floating-point operations."""

    launches: int
    bytes: int
    flops: int


def cost_of(graph: Graph, planned: PlannedRegion, target: Target) -> Cost:
    """The cost of a planned region, from the kernels that it lowers to.

    A Host or Control region and one of another version of autofuse have no kernels here: their bytes are those of their plain inputs
    and outputs.
    """
    plain = sum(graph.values[v].nbytes for v in (*planned.region.inputs, *planned.region.outputs))
    flops = sum(graph.nodes[n].compute.flops for n in planned.region.nodes)
    if planned.family in ("host", "control"):
        return Cost(0, plain, flops)
    known = made_before(graph, planned, target)
    if known is not None:
        kernels = [kernel for kernel, _ in known.launches]
    else:
        try:
            variant = variant_of(graph, planned, target)
        except PlanError:
            return Cost(1, plain, flops)
        kernels = [x.kernel for x in lower(variant, planned.schedule, target).launches]
    return Cost(len(kernels), sum(k.bytes for k in kernels), sum(k.flops for k in kernels))


def plan_cost(graph: Graph, plan: Plan, target: Target) -> Cost:
    """The cost of a whole plan."""
    costs = [cost_of(graph, r, target) for r in plan.regions]
    return Cost(sum(c.launches for c in costs), sum(c.bytes for c in costs), sum(c.flops for c in costs))


def operators_text(graph: Graph, nodes: Sequence[NodeId], most: int = 6) -> str:
    """The ONNX operators of some nodes, those of one ONNX node once: "Conv + Relu + Add". No nodes at all are a reorder."""
    if not nodes:
        return "reorder"
    seen: dict[int, str] = {}
    for n in nodes:
        node = graph.nodes[n]
        seen.setdefault(node.origin if node.origin >= 0 else -2 - n, node.op)
    ops = list(seen.values())
    shown = " + ".join(ops[:most])
    return shown if len(ops) <= most else f"{shown} + {len(ops) - most} more"


def kind_of(graph: Graph, nodes: Sequence[NodeId]) -> str:
    """The heaviest kind of work among some nodes."""
    order = (Kind.HOST, Kind.CONTROL, Kind.SCAN, Kind.SORT, Kind.SCATTER, Kind.CONTRACT, Kind.REDUCE, Kind.MAP)
    kinds = {graph.nodes[n].kind for n in nodes}
    return next((k.value for k in order if k in kinds), Kind.MAP.value)


def region_table(
    graph: Graph, plan: Plan, target: Target, rates: Calibration, region_ns: Sequence[float] = ()
) -> pd.DataFrame:
    """A row per region of a plan, in the order of running. Times are NaN where the plan was not profiled."""
    total = sum(region_ns)
    rows: list[dict[str, object]] = []
    for k, p in enumerate(plan.regions):
        cost = cost_of(graph, p, target)
        floor = floor_ns(cost.bytes, cost.flops, rates)
        ns = float(region_ns[k]) if k < len(region_ns) else float("nan")
        rows.append(
            {
                "region": k,
                "nodes": list(p.region.nodes),
                "operators": operators_text(graph, p.region.nodes),
                "kind": kind_of(graph, p.region.nodes),
                "outputs": ", ".join(value_name(graph, v) for v in p.region.outputs),
                "family": p.family,
                "algorithm": p.algorithm,
                "schedule": p.schedule.text(),
                "layouts": _layouts(p),
                "launches": cost.launches,
                "bytes_model": cost.bytes,
                "flops": cost.flops,
                "floor_us": floor / 1000,
                "bound": _bound_name(p, cost, rates),
                "time_us": ns / 1000,
                "time_share": ns / total if total else float("nan"),
                "share_of_floor": floor / ns if ns else float("nan"),
            }
        )
    return typed(rows, REGION_COLUMNS)


def _bound_name(p: PlannedRegion, cost: Cost, rates: Calibration) -> str:
    if p.family in ("host", "control"):
        return p.family
    return bound(cost.bytes, cost.flops, cost.launches, rates) if cost.launches else "none"


def _layouts(p: PlannedRegion) -> str:
    ins = ",".join(layout.text() for layout in p.input_layouts)
    return f"{ins} -> {','.join(layout.text() for layout in p.output_layouts)}"


def materialised(plan: Plan) -> frozenset[ValueId]:
    """The values that a plan's regions write to memory, outputs of the model included; views write nothing."""
    return frozenset(v for r in plan.regions if r.family != "view" for v in r.region.outputs)


def value_table(graph: Graph, plan: Plan) -> pd.DataFrame:
    """A row per value of the graph, and whether the plan stores it."""
    stored = materialised(plan)
    rows: list[dict[str, object]] = []
    for v in graph.values:
        maker = graph.producer.get(v.id)
        rows.append(
            {
                "value": v.id,
                "name": value_name(graph, v.id),
                "dtype": v.dtype.value,
                "shape": "?" if v.shape is None else "x".join(map(str, v.shape)) or "scalar",
                "bytes": v.nbytes,
                "role": _role(graph, v.id),
                "producer": -1 if maker is None else maker.id,
                "readers": [n.id for n in graph.consumers.get(v.id, ())],
                "materialised": v.id in stored,
            }
        )
    return typed(rows, VALUE_COLUMNS)


def _role(graph: Graph, v: ValueId) -> str:
    if v in graph.output_set:
        return "output"
    if v in graph.inputs:
        return "input"
    return "constant" if v in graph.constants else "intermediate"
