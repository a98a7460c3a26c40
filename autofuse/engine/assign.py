"""Assignment: an option for every region, in layouts that fit together, with reorders where they do not.

The total to be kept small is the sum of the options' costs and of the reorders between them. Each value is reordered once per layout that its
readers want and its producer does not give. Coordinate descent from several starts; the exact program takes its place later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autofuse.engine.options import Option, OptionSource, heuristic_options, rates
from autofuse.engine.plan import Plan, PlannedRegion
from autofuse.errors import VerificationError
from autofuse.fusion.partition import Partition, Partitioner
from autofuse.fusion.region import Region, RegionProgram, Step, Tensor, program_of
from autofuse.fusion.views import alias_of
from autofuse.ir.dtype import DType
from autofuse.ir.expr import load
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Control, Stage, axes_of
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import family
from autofuse.kernels.layouts import same_memory


def stands_apart(graph: Graph, region: Region) -> bool:
    """Whether a region is a Host or Control operator: kernels run before and after it."""
    return any(not graph.nodes[n].kind.has_kernel for n in region.nodes)


def reorder_program(dtype: DType, shape: tuple[int, ...]) -> RegionProgram:
    """The program that copies a tensor from one layout to another."""
    axes = axes_of(shape)
    stage = Stage(axes, load(0, axes, dtype), dtype)
    return RegionProgram((Tensor(dtype, shape, False),), (Step(stage, (0,)),), (1,))


def reorder_variant(program: RegionProgram, target: Target, given: Layout, wanted: Layout) -> Variant:
    """How a target copies a tensor between two layouts."""
    name, algorithm = ("map_cuda", "flat") if target.is_cuda else ("map_host", "vector")
    return Variant(name, algorithm, program, (given,), (wanted,))


@dataclass(frozen=True)
class _Slot:
    """A kernel region with its options, cheapest per layout combination."""

    region: Region
    program: RegionProgram
    options: tuple[Option, ...]


def assign(
    graph: Graph,
    partition: Partition,
    target: Target,
    threads: int,
    accuracy: str,
    options: OptionSource,
    origin: str = "",
) -> Plan:
    """The plan of a partition. VerificationError where a region has no option at all."""
    problem = _Problem(graph, partition, target, threads, options, accuracy)
    choice = problem.solve()
    return Plan(
        graph.structural_hash,
        target.kind,
        target.arch,
        threads,
        accuracy,
        problem.planned(choice),
        origin,
    )


def heuristic_plan(graph: Graph, target: Target, threads: int, accuracy: str = "default") -> Plan:
    """The plan without measuring: all fused that may be, with heuristic schedules."""
    partition = Partitioner(graph, target).greedy()
    options = heuristic_options(target, threads, accuracy)
    return assign(graph, partition, target, threads, accuracy, options, "heuristic")


def estimate_plan(graph: Graph, partition: Partition, target: Target, threads: int, options: OptionSource) -> float:
    """The summed cost, in seconds, of the best assignment of a partition."""
    problem = _Problem(graph, partition, target, threads, options)
    return problem.total(problem.solve())


def _planned(region: Region, o: Option) -> PlannedRegion:
    v = o.variant
    return PlannedRegion(region, v.family, v.algorithm, v.input_layouts, v.output_layouts, o.schedule)


def _segments(graph: Graph, regions: Sequence[Region]) -> list[int]:
    """For each region, the number of Host and Control regions before it."""
    out: list[int] = []
    count = 0
    for r in regions:
        count += stands_apart(graph, r)
        out.append(count)
    return out


def apart_region(graph: Graph, region: Region, target: Target, threads: int, accuracy: str) -> PlannedRegion:
    """A Host region, or a Control region with heuristic plans for the graphs in it."""

    def plain(v: ValueId) -> Layout:
        shape = graph.values[v].shape
        return Layout.plain(len(shape)) if shape is not None else Layout(())

    ins, outs = tuple(map(plain, region.inputs)), tuple(map(plain, region.outputs))
    compute = graph.nodes[region.nodes[0]].compute
    if not isinstance(compute, Control):
        return PlannedRegion(region, "host", "reference", ins, outs, Schedule(()))
    inside = tuple(
        None if b.graph is None else heuristic_plan(b.graph, target, threads, accuracy) for b in compute.bodies
    )
    return PlannedRegion(region, "control", compute.operator.lower(), ins, outs, Schedule(()), inside)


class _Problem:
    def __init__(
        self,
        graph: Graph,
        partition: Partition,
        target: Target,
        threads: int,
        options: OptionSource,
        accuracy: str = "default",
    ) -> None:
        self.graph = graph
        self.target = target
        self.threads = threads
        self.accuracy = accuracy
        self.rates = rates(target, threads)
        self.regions = partition.regions
        self.slots: list[_Slot | None] = []
        self.segment = _segments(graph, partition.regions)
        self.crossing = self._crossing()
        self.maker: dict[ValueId, tuple[int, int]] = {}
        self.readers: dict[ValueId, list[tuple[int, int]]] = {}
        for k, region in enumerate(partition.regions):
            if stands_apart(graph, region):
                self.slots.append(None)
                continue
            program = program_of(graph, region)
            found = self._cheapest(k, region, options(program))
            if not found:
                ops = ", ".join(graph.nodes[n].op for n in region.nodes)
                raise VerificationError(f"no kernel family implements the region of nodes {region.nodes} ({ops})")
            self.slots.append(_Slot(region, program, found))
            for j, v in enumerate(region.outputs):
                self.maker[v] = (k, j)
            for j, v in enumerate(region.inputs):
                if v not in graph.constants:
                    self.readers.setdefault(v, []).append((k, j))

    def _crossing(self) -> dict[ValueId, int]:
        """Values that pass from one run of kernels to another over a Host or Control region: they pass in plain layout."""
        made: dict[ValueId, int] = dict.fromkeys(self.graph.inputs, 0)
        for k, region in enumerate(self.regions):
            made.update(dict.fromkeys(region.outputs, self.segment[k]))
        return {
            v: made[v]
            for k, region in enumerate(self.regions)
            for v in region.inputs
            if v in made and (made[v] != self.segment[k] or stands_apart(self.graph, region))
        }

    def _plain_crossings(self, k: int, o: Option) -> bool:
        """Whether an option takes what comes from another run of kernels as it comes."""
        return all(
            same_memory(layout, Layout.plain(layout.rank), self.graph.values[v].dims)
            for v, layout in zip(self.regions[k].inputs, o.variant.input_layouts, strict=True)
            if self.crossing.get(v, self.segment[k]) != self.segment[k]
        )

    def _cheapest(self, k: int, region: Region, options: Sequence[Option]) -> tuple[Option, ...]:
        best: dict[object, Option] = {}
        for o in options:
            if not self._plain_crossings(k, o):
                continue
            if o.variant.family == "view" and not self._may_view(region, o.variant.algorithm):
                continue
            key = (o.variant.input_layouts, o.variant.output_layouts, o.variant.family == "view")
            if key not in best or o.seconds < best[key].seconds:
                best[key] = o
        return tuple(sorted(best.values(), key=lambda o: o.seconds))

    def _may_view(self, region: Region, algorithm: str) -> bool:
        """Memory can be shared only between values that the engine itself owns."""
        graph = self.graph
        if algorithm == "alias":
            own = all(v not in graph.output_set and v not in self.crossing for v in region.outputs)
            return own and all(v not in graph.constants for v in region.inputs)
        return all(
            v not in graph.output_set and v not in graph.inputs and v in graph.producer and v not in self.crossing
            for v in region.inputs
        )

    # ---- costs

    def _given(self, v: ValueId, choice: Sequence[int]) -> Layout:
        made = self.maker.get(v)
        slot = self.slots[made[0]] if made is not None else None
        if made is None or slot is None:
            return Layout.plain(len(self.graph.values[v].dims))
        return slot.options[choice[made[0]]].variant.output_layouts[made[1]]

    def _wanted(self, v: ValueId, choice: Sequence[int]) -> list[Layout]:
        """The layouts, besides the one that is given, in which a value is wanted."""
        shape = self.graph.values[v].dims
        have = [self._given(v, choice)]
        extra: list[Layout] = []
        wants = []
        for k, j in self.readers.get(v, ()):
            slot = self.slots[k]
            assert slot is not None
            wants.append(slot.options[choice[k]].variant.input_layouts[j])
        if v in self.graph.output_set or v in self.crossing:
            wants.append(Layout.plain(len(shape)))
        for w in wants:
            if not any(same_memory(w, h, shape) for h in (*have, *extra)):
                extra.append(w)
        return extra

    def _reorders(self, v: ValueId, choice: Sequence[int]) -> float:
        if v in self.graph.constants or self.graph.values[v].shape is None:
            return 0.0
        value = self.graph.values[v]
        return len(self._wanted(v, choice)) * (2 * value.nbytes / self.rates.bytes + self.rates.launch)

    def _local(self, k: int, choice: Sequence[int]) -> float:
        slot = self.slots[k]
        assert slot is not None
        values = dict.fromkeys((*slot.region.inputs, *slot.region.outputs))
        return slot.options[choice[k]].seconds + sum(self._reorders(v, choice) for v in values)

    def total(self, choice: Sequence[int]) -> float:
        """Seconds of a complete choice."""
        cost = sum(s.options[c].seconds for s, c in zip(self.slots, choice, strict=True) if s is not None)
        return cost + sum(self._reorders(v, choice) for v in {*self.maker, *self.graph.inputs})

    def solve(self) -> list[int]:
        """The best of several descents."""
        starts = [
            [0 for _ in self.slots],
            [self._prefer(s, blocked=True) for s in self.slots],
            [self._prefer(s, blocked=False) for s in self.slots],
        ]
        return self._settle_in_place(min((self._descend(s) for s in starts), key=self.total))

    def _settle_in_place(self, choice: list[int]) -> list[int]:
        """A value can lie in only one larger tensor: of several in-place joins of it, the first stays."""
        placed: set[ValueId] = set()
        for k, slot in enumerate(self.slots):
            if slot is None:
                continue
            variant = slot.options[choice[k]].variant
            if variant.family != "view" or variant.algorithm != "in_place":
                continue
            owners = [self._owner(v, choice) for v in slot.region.inputs]
            if placed & set(owners) or not self._movable(slot.region.inputs, owners):
                choice[k] = next(
                    c
                    for c, o in enumerate(slot.options)
                    if o.variant.family != "view" and o.variant.output_layouts == variant.output_layouts
                )
            else:
                placed |= set(owners)
        return choice

    def _owner(self, v: ValueId, choice: Sequence[int]) -> ValueId:
        """The value whose memory a value lies in, through the views that are chosen."""
        while v in self.maker:
            k, _ = self.maker[v]
            slot = self.slots[k]
            assert slot is not None
            variant = slot.options[choice[k]].variant
            if variant.family != "view" or variant.algorithm != "alias":
                break
            piece = alias_of(slot.program, variant.input_layouts, variant.output_layouts[0])
            assert piece is not None
            v = slot.region.inputs[piece.input]
        return v

    def _movable(self, parts: Sequence[ValueId], owners: Sequence[ValueId]) -> bool:
        """Whether the memory of each part can be laid into a join: it is the part's alone, and the engine's own."""
        graph = self.graph
        return len(set(owners)) == len(owners) and all(
            o in graph.producer
            and o not in graph.output_set
            and o not in self.crossing
            and graph.values[o].nbytes == graph.values[v].nbytes
            for v, o in zip(parts, owners, strict=True)
        )

    @staticmethod
    def _prefer(slot: _Slot | None, blocked: bool) -> int:
        if slot is None:
            return 0

        def score(k: int) -> tuple[int, float]:
            v = slot.options[k].variant
            activations = [l for l, t in zip(v.input_layouts, v.program.inputs, strict=True) if not t.constant]
            plain = sum(l.is_plain for l in (*activations, *v.output_layouts))
            return (plain if blocked else -plain, slot.options[k].seconds)

        return min(range(len(slot.options)), key=score)

    def _descend(self, choice: list[int]) -> list[int]:
        for _ in range(8):
            changed = False
            for k, slot in enumerate(self.slots):
                if slot is None or len(slot.options) == 1:
                    continue
                now, best = choice[k], self._local(k, choice)
                for c in range(len(slot.options)):
                    if c == now:
                        continue
                    kept, choice[k] = choice[k], c
                    cost = self._local(k, choice)
                    if cost < best * (1 - 1e-9):
                        best, changed = cost, True
                    else:
                        choice[k] = kept
            if not changed:
                break
        return choice

    # ---- the plan

    def planned(self, choice: Sequence[int]) -> tuple[PlannedRegion, ...]:
        """The regions in order, each followed by the reorders of what it makes."""
        out: list[PlannedRegion] = []
        for v in self.graph.inputs:
            out += self._reorder_regions(v, choice)
        for k, region in enumerate(self.regions):
            slot = self.slots[k]
            if slot is None:
                out.append(apart_region(self.graph, region, self.target, self.threads, self.accuracy))
            else:
                out.append(_planned(region, slot.options[choice[k]]))
            for value in region.outputs:
                out += self._reorder_regions(value, choice)
        return tuple(out)

    def _reorder_regions(self, v: ValueId, choice: Sequence[int]) -> list[PlannedRegion]:
        value = self.graph.values[v]
        if v in self.graph.constants or value.shape is None:
            return []
        given = self._given(v, choice)
        found = []
        for wanted in self._wanted(v, choice):
            variant = reorder_variant(reorder_program(value.dtype, value.dims), self.target, given, wanted)
            schedule = family(variant.family).heuristic(variant, self.target)
            found.append(_planned(Region((), (v,), (v,)), Option(variant, schedule, 0.0)))
        return found
