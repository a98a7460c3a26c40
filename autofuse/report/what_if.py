"""`Results.what_if`: a result folder is searched again with a fusion forced or forbidden, by the kernels that its tune measured."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd

from autofuse.devices.base import Device
from autofuse.devices.cpu import CpuDevice
from autofuse.devices.cpuinfo import host_target
from autofuse.devices.cuda import CudaDevice
from autofuse.devices.cuda_targets import cuda_target
from autofuse.engine.plan import Plan, plan_from_json
from autofuse.errors import PlanError, UsageError
from autofuse.fusion.partition import Edge, Partition, Partitioner
from autofuse.fusion.region import RegionProgram
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.space import load_spaces
from autofuse.measure.bench import Bench, Choice
from autofuse.measure.calibrate import Reached
from autofuse.measure.device_bench import DeviceBench
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.result import Measurement, Status
from autofuse.render.cpp import render_cpp
from autofuse.render.cuda import render_cuda
from autofuse.report import explain
from autofuse.report.units import milliseconds_text
from autofuse.search.exact.reasons import EdgeJudge, Reason, limit_text
from autofuse.search.exact.sampler import ExactPlanSampler
from autofuse.search.exact.what_if import WhatIf, kernels_of, what_if
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.planner import Planner
from autofuse.search.tune import factory_of

SETTING_UP = 30.0
"""Seconds after which no more regions are enumerated and priced for a question."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a wish costs, with the kernel text of the regions concerned, as they are and as they would be. `reason` is the class of the edge,
    asked anew, where the wish is about one edge."""

    result: WhatIf
    texts: tuple[tuple[str, ...], tuple[str, ...]]
    reason: Reason | None = None

    def __str__(self) -> str:
        return self.result.text()

    def detail(self, width: int = 160) -> str:
        """The answer with its figures, and the kernels side by side where both are known."""
        r = self.result
        lines = [r.text(), ""]
        lines += [
            f"  {'':<28}{'now':>14}{'then':>14}{'price':>14}",
            f"  {'kernels, likely':<28}{_ms(r.best):>14}{_ms(r.seconds):>14}{_us(r.price):>14}",
            f"  {'kernels, measured alone':<28}{_ms(r.best_measured):>14}{_ms(r.measured):>14}{_us(r.measured_price):>14}",
            f"  {'kernels by estimate':<28}{r.best_open:>14}{r.open if math.isfinite(r.seconds) else '-':>14}",
            f"  {'launches of these nodes':<28}{len(self.texts[0]):>14}{len(self.texts[1]) or '-':>14}",
        ]
        verdict = "allowed" if r.verdict else f"refused [{r.verdict.rule}]: {limit_text(r.verdict)}"
        lines.append(f"  all of it in one kernel: {verdict} by the rules")
        if self.reason is not None:
            rule = f" [{self.reason.rule}]" if self.reason.rule else ""
            lines.append(f"  the edge: {self.reason.state}{rule}{': ' if self.reason.text else ''}{self.reason.text}")
        now, then = self.texts
        if now and then and now != then:
            lines += [
                "",
                explain.side_by_side("\n\n".join(now), "\n\n".join(then), ("as it is", "as it would be"), width),
            ]
        elif now:
            lines += ["", *("\n\n".join(now).splitlines())]
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """The same for machines."""
        r = self.result
        return {
            "wish": r.wish,
            "nodes": list(r.nodes),
            "allowed": bool(r.verdict),
            "rule": r.verdict.rule,
            "reason": r.verdict.reason,
            "seconds": r.seconds,
            "best_seconds": r.best,
            "price_seconds": r.price,
            "measured_seconds": r.measured,
            "best_measured_seconds": r.best_measured,
            "measured_price_seconds": r.measured_price,
            "kernels_by_estimate": r.open,
            "verdict": r.text(),
            "state": None if self.reason is None else self.reason.state,
            "texts_now": list(self.texts[0]),
            "texts_then": list(self.texts[1]),
        }


def _ms(seconds: float) -> str:
    return milliseconds_text(seconds * 1e3) if math.isfinite(seconds) else "-"


def _us(seconds: float) -> str:
    return explain.signed(seconds * 1e6) if math.isfinite(seconds) else "-"


@dataclasses.dataclass
class _Recorded:
    """A bench that knows what a result folder holds. It measures nothing unless it has a `live` one to do so."""

    target: Target
    threads: int
    rows: Mapping[str, Sequence[Measurement]]
    live: DeviceBench | None = None

    def known(self, signature: str) -> list[Measurement]:
        """See Bench."""
        return list(self.rows.get(signature, ()))

    def seeds(self, program: RegionProgram) -> list[Measurement]:
        """See Bench."""
        del program
        return []

    def kernels(
        self,
        program: RegionProgram,
        constants: Mapping[int, np.ndarray],
        choices: Sequence[Choice],
        deadline: float,
        again: int = 0,
    ) -> list[Measurement]:
        """See Bench. Only asked for while there is a live one."""
        assert self.live is not None
        return self.live.kernels(program, constants, choices, deadline, again)


class Asker:
    """Answers for one result folder; it is set up once. `model` is the model file, by default the one that was tuned."""

    def __init__(
        self,
        run: Mapping[str, Any],
        plan: Plan,
        kernels: pd.DataFrame,
        trade_offs: pd.DataFrame,
        model: str | None = None,
    ) -> None:
        self.plan = plan
        self.graph = _graph(run, plan, model or str(run["model"]))
        self.target = target_of(run)
        self._bench = _Recorded(self.target, int(run["threads"]), _measurements(kernels))
        bench = cast(Bench, self._bench)
        spaces = load_spaces(self.target.kind)
        studies = KernelStudies(bench, spaces, str(run["accuracy"]))
        planner = Planner(self.graph, bench, Partitioner(self.graph, self.target), studies, str(run["accuracy"]))
        studies.constants = planner.constants
        c = run["calibration"]
        rates = _reached(c)
        end = time.monotonic() + SETTING_UP
        known = Partition(tuple(r.region for r in plan.regions if r.region.nodes))
        self.sampler = ExactPlanSampler(planner, rates, enough=lambda: time.monotonic() > end, known=(known,))
        self.sampler.recall()
        self._recall_in_place(planner, studies, trade_offs)

    def _recall_in_place(self, planner: Planner, studies: KernelStudies, trade_offs: pd.DataFrame) -> None:
        """What the tune timed inside engines, in the order in which it did."""
        rows = trade_offs[trade_offs["status"] == "ok"]
        for text, region_ns in zip(rows["plan_json"], rows["region_ns"], strict=True):
            if region_ns is None or not len(region_ns):
                continue
            try:
                studies.observe_in_place(planner.placed(plan_from_json(json.loads(text), "a result"), list(region_ns)))
            except PlanError:
                continue  # a plan of another version of autofuse

    @cached_property
    def judge(self) -> EdgeJudge:
        """Judges single edges."""
        return EdgeJudge(self.sampler, self.plan)

    def ask(self, edges: pd.DataFrame, names: Sequence[str], apart: bool, seconds: float = 0.0) -> Answer:
        """Names are those of `explain`: an edge, a value, or two nodes or values with all that lies between them. `seconds`: how long
        kernels that the answer has by estimate may be measured, on the device of the tune."""
        rows = explain.chosen(edges, names)
        nodes = {int(n) for side in ("producer", "consumer") for n in rows[side]}
        if len(nodes) < 2:
            raise UsageError(
                f"nothing flows between {' and '.join(map(repr, names))}: name an edge, a value, or two nodes on one way"
            )
        result = what_if(self.sampler, nodes, apart, tuple(names))
        if seconds > 0 and result.open + result.best_open:
            result = self._measured(nodes, apart, tuple(names), seconds)
        self.__dict__.pop("judge", None)  # of regions and times as they were
        reason = None
        if len(rows) == 1:
            row = rows.iloc[0]
            reason = self.judge.judge(Edge(int(row["producer"]), int(row["consumer"]), int(row["value"])))
        return Answer(result, (self._texts(result, result.best_plan), self._texts(result, result.plan)), reason)

    def _measured(self, nodes: Collection[int], apart: bool, names: tuple[str, ...], seconds: float) -> WhatIf:
        """The same question once what was open in its two plans is measured, as far as time allows."""
        deadline = time.monotonic() + seconds
        cuda = self.target.is_cuda
        device: Device = CudaDevice() if cuda else CpuDevice(threads=self._bench.threads)
        live = DeviceBench(device, factory_of(device), self.graph, graph_inputs(self.graph), None)
        self._bench.live = live
        planner, studies = self.sampler.planner, self.sampler.planner.studies
        try:
            while True:
                result = what_if(self.sampler, nodes, apart, names)
                plans = [p for p in (result.plan, result.best_plan) if p is not None]
                lacking = {v.key: v for p in plans for v, _ in planner.open_kernels(p)}
                before = len(lacking)
                for v in lacking.values():
                    if time.monotonic() >= deadline:
                        return what_if(self.sampler, nodes, apart, names)
                    before -= not studies.step(v.program, deadline, only=[v])
                if not before:  # nothing is open, or nothing of it can be measured
                    return what_if(self.sampler, nodes, apart, names)
        finally:
            self._bench.live = None
            live.close()

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


def target_of(run: Mapping[str, Any]) -> Target:
    device = run["device"]
    target = host_target(int(run["threads"])) if device["kind"] == "cpu" else cuda_target(device["arch"])
    if target.arch != device["arch"]:
        raise UsageError(
            f"the result was measured on {device['arch']}, this machine is {target.arch}: ask on a machine of that architecture"
        )
    known = {f.name for f in dataclasses.fields(Target)}
    return dataclasses.replace(target, **{k: v for k, v in device.items() if k in known})


def measured_alone(kernels: pd.DataFrame) -> Iterator[Measurement]:
    """The rows of kernels.parquet as measurements."""
    for r in kernels.itertuples(index=False):
        yield Measurement(
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


def _measurements(kernels: pd.DataFrame) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for row in measured_alone(kernels):
        found.setdefault(row.signature, []).append(row)
    return found


def _reached(c: Mapping[str, Any]) -> Reached:
    """The calibration of a result folder; older ones don't have the caches."""
    rates = (float(c["bandwidth"]), float(c["flops"]), float(c["launch"]))
    return Reached(*rates, True, float(c.get("cached", 0.0)), float(c.get("shared", 0.0)))
