"""From a solution to a plan: regions in order with the options that were chosen, reorders where they are needed first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofuse.engine.assign import apart_region, reorder_program, reorder_variant
from autofuse.engine.options import Option
from autofuse.engine.plan import Plan, PlannedRegion
from autofuse.fusion.partition import Partition
from autofuse.fusion.region import Region
from autofuse.ir.graph import ValueId
from autofuse.ir.layout import Layout
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import family
from autofuse.search.exact.costs import Price, way_of
from autofuse.search.exact.model import Model
from autofuse.search.exact.problem import PLAIN, Copy, Solution, order_of

Pick = Callable[[Price], Option | None]
"""Which of a way's options a plan takes: the one of the guess, or the measured one."""


@dataclass(frozen=True)
class Setting:
    """What a plan says besides its regions."""

    target: Target
    threads: int
    accuracy: str


def guessed(price: Price) -> Option | None:
    """The option that is likely to be fastest."""
    return price.guessed


def measured(price: Price) -> Option | None:
    """The option that was measured to be fastest; the likely one where none was."""
    return price.measured or price.guessed


def partition_of(model: Model, solution: Solution) -> Partition:
    """The partition of a solution, in an order in which it can run."""
    order = order_of(model.problem, solution.columns)
    assert order is not None
    return Partition(tuple(model.choices[k].region for k in order))


def plan_of(model: Model, solution: Solution, setting: Setting, origin: str, pick: Pick = guessed) -> Plan:
    """The plan of a solution."""
    return Plan(
        model.graph.structural_hash,
        setting.target.kind,
        setting.target.arch,
        setting.threads,
        setting.accuracy,
        _Writer(model, solution, setting, pick).regions(),
        origin,
    )


class _Writer:
    def __init__(self, model: Model, solution: Solution, setting: Setting, pick: Pick) -> None:
        self.model = model
        self.solution = solution
        self.setting = setting
        self.pick = pick
        self.given: dict[ValueId, Layout] = {}
        self.left = set(solution.reorders)
        self.out: list[PlannedRegion] = []

    def regions(self) -> tuple[PlannedRegion, ...]:
        order = order_of(self.model.problem, self.solution.columns)
        assert order is not None
        for v in self.model.graph.inputs:
            if self.model.graph.values[v].shape is not None:
                self.given[v] = Layout.plain(len(self.model.graph.values[v].dims))
        for k in order:
            column = self.model.problem.columns[k]
            # A copy is made where it is read first: memory is taken late, and behind the Host steps that it must not pass.
            for v, layout in column.reads:
                if layout != PLAIN:
                    self._reorder((v, layout, column.level))
            self.out.append(self._planned(k))
            for v, layout in column.gives:
                if self.model.graph.values[v].shape is not None:
                    self.given[v] = self.model.layouts.layout(v, layout)
                    self._reorder((v, PLAIN, 0))
        return tuple(self.out)

    def _planned(self, k: int) -> PlannedRegion:
        choice = self.model.choices[k]
        price = self.model.price(k)
        option = self.pick(price) if price is not None else None
        if option is None:
            s = self.setting
            return apart_region(self.model.graph, choice.region, s.target, s.threads, s.accuracy)
        return _planned(choice.region, option.variant, option.schedule)

    def _reorder(self, copy: Copy) -> None:
        if copy not in self.left:
            return
        self.left.discard(copy)
        v, layout, _ = copy
        value = self.model.graph.values[v]
        program = reorder_program(value.dtype, value.dims)
        wanted = self.model.layouts.layout(v, layout)
        variant = reorder_variant(program, self.setting.target, self.given[v], wanted)
        self.out.append(_planned(Region((), (v,), (v,)), variant, self._schedule(variant)))

    def _schedule(self, variant: Variant) -> Schedule:
        """The best schedule that is known of a copy, else the heuristic one."""
        price = self.model.pricing.price(variant.program, way_of(variant))
        if price.measured is not None and price.measured.variant == variant:
            return price.measured.schedule
        return family(variant.family).heuristic(variant, self.setting.target)


def _planned(region: Region, v: Variant, schedule: Schedule) -> PlannedRegion:
    return PlannedRegion(region, v.family, v.algorithm, v.input_layouts, v.output_layouts, schedule)
