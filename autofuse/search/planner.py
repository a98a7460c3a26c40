"""From partitions to plans with costs, and which kernels a plan still needs to have measured."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from autofuse.engine.assign import assign
from autofuse.engine.lowering import variant_of
from autofuse.engine.options import OptionSource, estimate
from autofuse.engine.plan import Plan, PlannedRegion
from autofuse.errors import PlanError, VerificationError
from autofuse.fusion.partition import Partition, Partitioner
from autofuse.fusion.region import Region, RegionProgram
from autofuse.ir.graph import Graph
from autofuse.kernels.base import Schedule, Variant
from autofuse.measure.bench import Bench
from autofuse.search.kernel_study import KernelStudies


class Planner:
    """Assigns options to partitions and prices the result."""

    def __init__(
        self, graph: Graph, bench: Bench, partitioner: Partitioner, studies: KernelStudies, accuracy: str
    ) -> None:
        self.graph = graph
        self.bench = bench
        self.partitioner = partitioner
        self.studies = studies
        self.accuracy = accuracy
        self._first: dict[str, Region] = {}

    def constants(self, program: RegionProgram) -> Mapping[int, np.ndarray]:
        """The model's own constants for a region program: those of the first region that has it."""
        region = self._first.get(program.signature)
        if region is None:
            return {}
        return {k: self.graph.constants[v] for k, v in enumerate(region.inputs) if v in self.graph.constants}

    def program(self, region: Region) -> RegionProgram:
        """The program of a region, shared by equal ones and remembered."""
        found = self.partitioner.structures.program(region)
        self._first.setdefault(found.signature, region)
        return found

    def plan(self, partition: Partition, origin: str, direct: bool = False, known: bool = False) -> Plan | None:
        """The cheapest assignment by what is known now; None where a region has no option left.

        `direct` leaves out algorithms that round more (Winograd), so that what fusion and tuning gain can be told from what they gain.
        `known` keeps to kernels that were timed, where a region has some: such a plan is compiled already.
        """
        options = self.studies.chosen_options(direct, known) if direct or known else self.studies.options
        return self.plan_with(partition, origin, options)

    def plan_with(self, partition: Partition, origin: str, options: OptionSource) -> Plan | None:
        """The cheapest assignment of some options; None where a region has none."""
        try:
            return assign(
                self.graph,
                partition,
                self.bench.target,
                self.bench.threads,
                self.accuracy,
                options,
                origin,
            )
        except VerificationError:
            return None

    def kernels(self, plan: Plan) -> list[tuple[PlannedRegion, RegionProgram]]:
        """The planned regions that have kernels of their own: no Host regions, reorders or views."""
        return [(r, self.program(r.region)) for r in plan.regions if r.region.nodes and r.has_kernels]

    def weights(self, plan: Plan) -> dict[str, tuple[RegionProgram, float]]:
        """For each signature of a plan its program and the seconds that it holds in all its places."""
        count: Counter[str] = Counter()
        programs: dict[str, RegionProgram] = {}
        each: dict[str, float] = {}
        for r, program in self.kernels(plan):
            count[program.signature] += 1
            programs[program.signature] = program
            each[program.signature] = self.cost(r, program)[0]
        return {s: (programs[s], n * each[s]) for s, n in count.items()}

    def cost(self, r: PlannedRegion, program: RegionProgram) -> tuple[float, bool]:
        """The seconds of a planned region, and whether they were measured."""
        for o in self.studies.options(program):
            v = o.variant
            if (v.family, v.algorithm, v.input_layouts, v.output_layouts) == (
                r.family,
                r.algorithm,
                r.input_layouts,
                r.output_layouts,
            ):
                return o.seconds, o.measured
        return math.inf, False

    def error(self, r: PlannedRegion, program: RegionProgram, direct: float, tolerant: float) -> float:
        """The relative error of a planned region's kernel as measured; where it was not, one of two figures by its algorithm."""
        study = self.studies.of(program)
        for v in study.variants:
            if (v.family, v.algorithm, v.input_layouts, v.output_layouts) != (
                r.family,
                r.algorithm,
                r.input_layouts,
                r.output_layouts,
            ):
                continue
            found = study.tried.get((study.key(v), r.schedule.text()))
            if found is not None and found.measurement.ok and math.isfinite(found.measurement.error):
                return found.measurement.error
            return tolerant if v.tolerant else direct
        return direct

    def seconds(self, plan: Plan) -> float:
        """The sum of the plan's kernels and reorders."""
        total = 0.0
        for r in plan.regions:
            if not r.has_kernels:
                continue
            if r.region.nodes:
                total += self.cost(r, self.program(r.region))[0]
            else:
                total += self._copy(r)
        return total

    def _copy(self, r: PlannedRegion) -> float:
        """The seconds of a reorder: as measured, else as estimated."""
        variant = variant_of(self.graph, r, self.bench.target)
        if variant.program.signature in self.studies.studies:
            seconds, measured = self.cost(r, variant.program)
            if measured:
                return seconds
        return estimate(variant, self.bench.target, self.bench.threads)

    def placed(self, plan: Plan, region_ns: Sequence[float]) -> list[tuple[Variant, Schedule, float]]:
        """The kernels of a plan with the seconds that their regions took in place: the median over equal ones."""
        found: dict[tuple[str, Schedule], tuple[Variant, list[float]]] = {}
        for r, ns in zip(plan.regions, region_ns, strict=True):
            if not r.region.nodes or not r.has_kernels or ns <= 0:
                continue
            v = variant_of(self.graph, r, self.bench.target)
            found.setdefault((v.key, r.schedule), (v, []))[1].append(ns * 1e-9)
        return [(v, schedule, statistics.median(ns)) for (_, schedule), (v, ns) in found.items()]

    def open_kernels(self, plan: Plan) -> list[tuple[Variant, float]]:
        """The variants of a plan that were not measured, with the seconds that they hold by their estimates, the heaviest first."""
        found: dict[str, tuple[Variant, float]] = {}
        for r, program in self.kernels(plan):
            seconds, measured = self.cost(r, program)
            if measured:
                continue
            try:
                v = variant_of(self.graph, r, self.bench.target)
            except PlanError:
                continue
            found[v.key] = (v, found[v.key][1] + seconds if v.key in found else seconds)
        return sorted(found.values(), key=lambda f: -f[1])
