"""From regions and their ways to columns: layouts as numbers, levels between Host steps, views where memory can be shared."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autofuse.engine.assign import reorder_program
from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import Region, RegionProgram
from autofuse.ir.graph import Graph, NodeId, ValueId
from autofuse.ir.layout import Layout
from autofuse.kernels.layouts import same_memory
from autofuse.search.exact.bounds import Interval
from autofuse.search.exact.costs import Price, Pricing, Way
from autofuse.search.exact.problem import PLAIN, Column, Costs, Problem
from autofuse.search.exact.regions import Enumerated, is_cheap

Part = Callable[[Interval], float]
"""Which end of an interval a solution is to be cheapest in."""


@dataclass(frozen=True)
class Choice:
    """A region with a way to run it; a Host or Control region has none."""

    region: Region
    program: RegionProgram | None
    way: Way | None


class Layouts:
    """Layouts of values as numbers: equal memory is one layout, and the plain one is 0."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._of: dict[ValueId, list[Layout]] = {}
        self._known: dict[tuple[ValueId, Layout], int] = {}

    def number(self, v: ValueId, layout: Layout) -> int:
        """The number of a value's layout."""
        found = self._known.get((v, layout))
        if found is None:
            shape = self._graph.values[v].dims
            mine = self._of.setdefault(v, [Layout.plain(len(shape))])
            found = next((k for k, other in enumerate(mine) if same_memory(layout, other, shape)), len(mine))
            if found == len(mine):
                mine.append(layout)
            self._known[(v, layout)] = found
        return found

    def layout(self, v: ValueId, number: int) -> Layout:
        """The layout that a number stands for."""
        if v not in self._of:
            return Layout.plain(len(self._graph.values[v].dims))
        return self._of[v][number]

    def others(self, v: ValueId) -> list[Layout]:
        """The layouts of a value besides the plain one."""
        return self._of.get(v, [])[1:]


class Model:
    """The columns of a graph. `program` gives (and remembers) the program of a region.

    Regions are priced here for the first time, which takes the longest; once `out_of_time`, only single nodes and those to be `kept` are still
    taken, and the others counted in `left_out`.
    """

    def __init__(
        self,
        partitioner: Partitioner,
        enumerated: Enumerated,
        pricing: Pricing,
        program: Callable[[Region], RegionProgram],
        kept: Collection[Region] = (),
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> None:
        self.graph = partitioner.graph
        self.pricing = pricing
        self._program = program
        self.layouts = Layouts(self.graph)
        self._node_level, self._value_level = _levels(self.graph)
        self.choices: list[Choice] = []
        self.left_out = 0
        columns: list[Column] = []
        for n in self.graph.nodes:
            if not n.kind.has_kernel:
                region = Region.of(self.graph, [n.id])
                self.choices.append(Choice(region, None, None))
                columns.append(self._apart(region))
        for region in enumerated.regions:
            level = self._node_level[region.nodes[0]]
            if any(self._node_level[n] != level for n in region.nodes):
                continue  # its kernels would run partly before, partly behind a Host step
            if out_of_time() and len(region.nodes) > 1 and region not in kept:
                self.left_out += 1
                continue
            columns += self._taken(region)
        self.problem = self._problem(columns)
        self._reorders = self._reorder_ways()

    def include(self, region: Region) -> bool:
        """Take in a region that was not enumerated; False where there is no way to run it, or a step on the host runs between its nodes."""
        fresh = [] if self.levels_differ(region.nodes) else self._taken(region)
        self.problem = self._problem([*self.problem.columns, *fresh])
        self._reorders = self._reorder_ways()
        return bool(fresh)

    def _taken(self, region: Region) -> list[Column]:
        """The columns of a region, whose choices are taken in."""
        shared = self._program(region)
        self.pricing.prepare(shared)
        found: list[Column] = []
        for way in self.pricing.ways(shared):
            if way.view and not self._may_view(region, way.view):
                continue
            self.choices.append(Choice(region, shared, way))
            found.append(self._column(region, way, 2 * self._node_level[region.nodes[0]]))
        return found

    # ---- columns

    def _reads(self, region: Region, layouts: Sequence[Layout]) -> tuple[tuple[int, int], ...]:
        pairs = zip(region.inputs, layouts, strict=True)
        return tuple((v, self.layouts.number(v, l)) for v, l in pairs if v not in self.graph.constants)

    def _column(self, region: Region, way: Way, level: int) -> Column:
        gives = tuple((v, self.layouts.number(v, l)) for v, l in zip(region.outputs, way.outputs, strict=True))
        return Column(region.nodes, self._reads(region, way.inputs), gives, level, way.view)

    def _apart(self, region: Region) -> Column:
        reads = tuple((v, PLAIN) for v in region.inputs if v not in self.graph.constants)
        gives = tuple((v, PLAIN) for v in self.graph.nodes[region.nodes[0]].outputs)
        return Column(region.nodes, reads, gives, 2 * self._node_level[region.nodes[0]] + 1)

    def _may_view(self, region: Region, algorithm: str) -> bool:
        """Memory can be shared only between values that the engine itself owns, of one run of kernels."""
        graph = self.graph
        if algorithm == "alias":
            own = all(v not in graph.output_set and not self._crosses(v) for v in region.outputs)
            return own and all(v not in graph.constants for v in region.inputs)
        return all(v in graph.producer and v not in graph.output_set and not self._crosses(v) for v in region.inputs)

    def _crosses(self, v: ValueId) -> bool:
        """Whether a value is read behind a Host step, or by one."""
        return any(
            not n.kind.has_kernel or self._node_level[n.id] != self._value_level[v]
            for n in self.graph.consumers.get(v, ())
        )

    def _problem(self, columns: Sequence[Column]) -> Problem:
        graph = self.graph
        once = frozenset(n.id for n in graph.nodes if not is_cheap(graph, n.id))
        outputs = tuple(dict.fromkeys(v for v in graph.outputs if v not in graph.constants))
        readers = {v: tuple(n.id for n in ns) for v, ns in graph.consumers.items() if v not in graph.constants}
        producer = {v: n.id for v, n in graph.producer.items()}
        return Problem(tuple(columns), once, frozenset(graph.inputs), outputs, producer, readers)

    def levels_differ(self, nodes: Iterable[NodeId]) -> bool:
        """Whether a Host step must run between some nodes."""
        return len({self._node_level[n] for n in nodes}) > 1

    # ---- costs

    def _reorder_ways(self) -> dict[ValueId, tuple[RegionProgram, Way]]:
        """For each value that has several layouts, the copy that stands for all its reorders: from plain to the other one."""
        found: dict[ValueId, tuple[RegionProgram, Way]] = {}
        programs: dict[tuple[object, ...], RegionProgram] = {}
        for v in {v for c in self.problem.columns for v, _ in (*c.reads, *c.gives)}:
            others = self.layouts.others(v)
            if others:
                value = self.graph.values[v]
                key = (value.dtype, value.dims)
                shared = programs.setdefault(key, reorder_program(value.dtype, value.dims))
                found[v] = (shared, Way((Layout.plain(len(value.dims)),), (others[0],), ""))
        return found

    def reorder_price(self, v: ValueId) -> Interval:
        """What a reorder of a value costs. One in a layout that no kernel was asked for costs its estimate."""
        if v not in self._reorders:
            return Interval.never()
        program, way = self._reorders[v]
        return self.pricing.price(program, way).interval

    def price(self, k: int) -> Price | None:
        """The price of a column; None for a Host or Control region, which costs the same in all plans."""
        choice = self.choices[k]
        if choice.program is None or choice.way is None:
            return None
        return self.pricing.price(choice.program, choice.way)

    def costs(self, part: Part) -> Costs:
        """The costs of all columns and reorders by one end of their intervals."""
        found: list[float] = []
        for k in range(len(self.choices)):
            price = self.price(k)
            found.append(0.0 if price is None else part(price.interval))
        reorders = {v: _known(part(price), price) for v, price in ((v, self.reorder_price(v)) for v in self._reorders)}
        return Costs(found, reorders)

    def reorder_of(self, v: ValueId) -> tuple[RegionProgram, Way] | None:
        """The copy that stands for a value's reorders."""
        return self._reorders.get(v)

    @property
    def signatures(self) -> int:
        """Distinct kernels among the regions."""
        return len({c.program.signature for c in self.choices if c.program is not None})


def _levels(graph: Graph) -> tuple[Mapping[NodeId, int], Mapping[ValueId, int]]:
    """How many Host steps, one after the other, must have run before each node, and before each value is there."""
    node: dict[NodeId, int] = {}
    value: dict[ValueId, int] = dict.fromkeys((*graph.inputs, *graph.constants), 0)
    for n in graph.nodes:
        node[n.id] = max((value[v] for v in n.inputs), default=0)
        value.update(dict.fromkeys(n.outputs, node[n.id] + (not n.kind.has_kernel)))
    return node, value


def _known(seconds: float, price: Interval) -> float:
    """What a reorder costs: its estimate where it was not measured, as in any plan."""
    return seconds if math.isfinite(seconds) else price.guess


def lower(i: Interval) -> float:
    """What a way costs at least."""
    return i.lower


def guess(i: Interval) -> float:
    """What a way is likely to cost."""
    return i.guess


def upper(i: Interval) -> float:
    """What a way costs at most: infinity where it was not measured."""
    return i.upper
