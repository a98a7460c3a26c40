"""`Results.what_if`: a result folder is searched again with a fusion forced or forbidden, by the kernels that its tune measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd

from autofuse.devices.cpuinfo import host_target
from autofuse.devices.cuda_targets import cuda_target
from autofuse.engine.plan import Plan
from autofuse.errors import PlanError, UsageError
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.space import load_spaces
from autofuse.measure.bench import Bench
from autofuse.measure.calibrate import Reached
from autofuse.measure.result import Measurement, Status
from autofuse.render.cpp import render_cpp
from autofuse.render.cuda import render_cuda
from autofuse.report import explain
from autofuse.search.exact.sampler import ExactPlanSampler
from autofuse.search.exact.what_if import WhatIf, kernels_of, what_if
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.planner import Planner


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a wish costs, with the kernel text of the regions concerned, as they are and as they would be."""

    result: WhatIf
    texts: tuple[tuple[str, ...], tuple[str, ...]]

    def __str__(self) -> str:
        return self.result.text()


@dataclasses.dataclass(frozen=True)
class _Recorded:
    """A bench that knows what a result folder holds, and measures nothing."""

    target: Target
    threads: int
    rows: Mapping[str, Sequence[Measurement]]

    def known(self, signature: str) -> list[Measurement]:
        """See Bench."""
        return list(self.rows.get(signature, ()))


class Asker:
    """Answers for one result folder; it is set up once. `model` is the model file, by default the one that was tuned."""

    def __init__(self, run: Mapping[str, Any], plan: Plan, kernels: pd.DataFrame, model: str | None = None) -> None:
        self.graph = _graph(run, plan, model or str(run["model"]))
        self.target = _target(run)
        bench = cast(Bench, _Recorded(self.target, int(run["threads"]), _measurements(kernels)))
        spaces = load_spaces(self.target.kind)
        studies = KernelStudies(bench, spaces, str(run["accuracy"]))
        planner = Planner(self.graph, bench, Partitioner(self.graph, self.target), studies, str(run["accuracy"]))
        c = run["calibration"]
        self.sampler = ExactPlanSampler(planner, _reached(c))
        self.sampler.recall()

    def ask(self, edges: pd.DataFrame, names: Sequence[str], apart: bool) -> Answer:
        """Names are those of `explain`: an edge, a value, or two nodes or values with all that lies between them."""
        rows = explain.chosen(edges, names)
        nodes = {int(n) for side in ("producer", "consumer") for n in rows[side]}
        if len(nodes) < 2:
            raise UsageError(
                f"nothing flows between {' and '.join(map(repr, names))}: name an edge, a value, or two nodes on one way"
            )
        result = what_if(self.sampler, nodes, apart, tuple(names))
        return Answer(result, (self._texts(result, result.best_plan), self._texts(result, result.plan)))

    def _texts(self, result: WhatIf, plan: Plan | None) -> tuple[str, ...]:
        kernels = [
            x.kernel for r in result.regions(plan) if r.has_kernels for x in kernels_of(self.sampler, r).launches
        ]
        if self.target.is_cuda:
            return tuple(render_cuda(k) for k in kernels)
        return tuple(render_cpp(k, self.target.vector_bytes) for k in kernels)


def _graph(run: Mapping[str, Any], plan: Plan, model: str) -> Graph:
    shapes = {name: tuple(dims) for name, dims in run["shapes"].items()}
    graph = import_model(load_model(model), shapes)
    if graph.structural_hash != plan.graph:
        raise PlanError(f"{model} is not the model that was tuned (its structure differs); give that one as model=...")
    return graph


def _target(run: Mapping[str, Any]) -> Target:
    device = run["device"]
    target = host_target(int(run["threads"])) if device["kind"] == "cpu" else cuda_target(device["arch"])
    if target.arch != device["arch"]:
        raise UsageError(
            f"the result was measured on {device['arch']}, this machine is {target.arch}: ask on a machine of that architecture"
        )
    known = {f.name for f in dataclasses.fields(Target)}
    return dataclasses.replace(target, **{k: v for k, v in device.items() if k in known})


def _measurements(kernels: pd.DataFrame) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for r in kernels.itertuples(index=False):
        row = Measurement(
            str(r.key),
            str(r.signature),
            str(r.family),
            str(r.algorithm),
            str(r.layouts),
            str(r.schedule),
            Status(str(r.status)),
            str(r.reason),
            tuple(int(ns) for ns in cast(Sequence[int], r.samples_ns)),
            cached=True,
        )
        found.setdefault(row.signature, []).append(row)
    return found


def _reached(c: Mapping[str, Any]) -> Reached:
    """The calibration of a result folder; older ones don't have the caches."""
    rates = (float(c["bandwidth"]), float(c["flops"]), float(c["launch"]))
    return Reached(*rates, True, float(c.get("cached", 0.0)), float(c.get("shared", 0.0)))
