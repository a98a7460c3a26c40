"""Which regions there are: grown from every node over producers, consumers and siblings while the rules of fusion allow it.

What lies between two parts joins them (a region must not wait for itself). A region delivers all that is read outside, or leaves out
values of cheap maps, which other regions then compute again. All caps are counted: they belong to the scope of what is proven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from autofuse.fusion.inline import is_expensive
from autofuse.fusion.partition import Partition, Partitioner
from autofuse.fusion.region import Region
from autofuse.ir.expr import walk
from autofuse.ir.graph import Graph, NodeId
from autofuse.ir.stage import Kind, Stage

SOFT_RULES = frozenset({"outputs", "shapes", "arguments"})
"""Refusals that more nodes can cure: a value that can't be delivered may be used up inside."""


@dataclass(frozen=True)
class Limits:
    """`size`: nodes in a region; `count`: regions with the same first node; `siblings`: readers of one value that are tried together;
    `ahead`: how many refused regions in a row growth passes through; `dropped`: values that one region may leave out;
    `whole`: from how many nodes on the parts of one ONNX operator are grown over as one."""

    size: int = 32
    count: int = 160
    siblings: int = 4
    ahead: int = 2
    dropped: int = 2
    whole: int = 24


@dataclass(frozen=True)
class Enumerated:
    """`full` are first nodes at which `count` ended the growth, `large` regions that were not grown beyond `size`, `unfinished` those
    that time did not allow to grow. `refused` counts refusals by rule."""

    regions: tuple[Region, ...]
    asked: int
    refused: Mapping[str, int]
    full: int
    large: int
    unfinished: int

    def scope(self) -> str:
        """In words: what was enumerated, and where it ended."""
        text = f"{len(self.regions):,} regions enumerated ({self.asked:,} asked for)"
        ends = []
        if self.full:
            ends.append(f"growth from {self.full} nodes ended at the cap of regions a node")
        if self.large:
            ends.append(f"{self.large:,} larger ones not looked at")
        if self.unfinished:
            ends.append(f"{self.unfinished:,} not grown further for lack of time")
        return "; ".join([text, *ends])


def is_cheap(graph: Graph, n: NodeId) -> bool:
    """Whether a node may be computed again where it is read: a map without functions that take many instructions."""
    compute = graph.nodes[n].compute
    if not isinstance(compute, Stage) or compute.kind is not Kind.MAP:
        return False
    return not any(is_expensive(e) for e in walk(compute.body))


def enumerate_regions(
    partitioner: Partitioner,
    landmarks: Iterable[Partition] = (),
    limits: Limits | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Enumerated:
    """All legal regions within the limits, those of the landmarks in any case, in the order of their nodes."""
    return _Growth(partitioner, limits or Limits(), out_of_time).run(landmarks)


class _Growth:
    def __init__(self, partitioner: Partitioner, limits: Limits, out_of_time: Callable[[], bool]) -> None:
        self.partitioner = partitioner
        self.graph = partitioner.graph
        self.limits = limits
        self.out_of_time = out_of_time
        self.kernels = [n.id for n in self.graph.nodes if n.kind.has_kernel]
        self.below, self.above = self._reach()
        self.accepted: dict[Region, None] = {}
        self.by_first: Counter[NodeId] = Counter()
        self.full: set[NodeId] = set()
        self.refused: Counter[str] = Counter()
        self.asked = self.large = self.unfinished = 0
        self.cheap = {n for n in self.kernels if is_cheap(self.graph, n)}

    # ---- the graph

    def _reach(self) -> tuple[list[int], list[int]]:
        """For each node a bit set of itself and all nodes after it, and before it."""
        count = len(self.graph.nodes)
        above, below = [0] * count, [0] * count
        for n in self.graph.nodes:
            mask = 1 << n.id
            for v in n.inputs:
                source = self.graph.producer.get(v)
                if source is not None:
                    mask |= above[source.id]
            above[n.id] = mask
        for n in reversed(self.graph.nodes):
            mask = 1 << n.id
            for v in n.outputs:
                for reader in self.graph.consumers.get(v, ()):
                    mask |= below[reader.id]
            below[n.id] = mask
        return below, above

    def _atoms(self) -> list[int]:
        """What regions grow by, as a bit set for each node: itself, or in larger graphs the parts of its ONNX operator."""
        atoms = [1 << n.id for n in self.graph.nodes]
        if len(self.kernels) >= self.limits.whole:
            for region in self.partitioner.unfused().regions:
                mask = sum(1 << n for n in region.nodes)
                for n in region.nodes:
                    atoms[n] = mask
        return atoms

    def _near(self) -> list[int]:
        """For each node its producers, its readers, and nodes that read the same value, as a bit set."""
        near = [0] * len(self.graph.nodes)
        for v, readers in self.graph.consumers.items():
            ids = [r.id for r in readers if r.kind.has_kernel]
            source = self.graph.producer.get(v)
            if source is not None and source.kind.has_kernel:
                for r in ids:
                    near[r] |= 1 << source.id
                    near[source.id] |= 1 << r
            if v in self.graph.constants:
                continue
            for k, r in enumerate(ids):
                for s in ids[k + 1 : k + self.limits.siblings]:
                    near[r] |= 1 << s
                    near[s] |= 1 << r
        return near

    def _closed(self, nodes: int) -> int:
        """The nodes with all that lie on a path between two of them."""
        below = above = 0
        for n in bits(nodes):
            below |= self.below[n]
            above |= self.above[n]
        return nodes | (below & above)

    # ---- growing

    def run(self, landmarks: Iterable[Partition]) -> Enumerated:
        atoms, near = self._atoms(), self._near()
        hosts = sum(1 << n.id for n in self.graph.nodes if not n.kind.has_kernel)
        seen: set[int] = set()
        levels: dict[int, list[tuple[int, int]]] = {}

        def push(nodes: int, misses: int) -> None:
            levels.setdefault(nodes.bit_count(), []).append((nodes, misses))

        starts = [1 << n for n in self.kernels]
        starts += [sum(1 << n for n in r.nodes) for p in landmarks for r in p.regions]
        starts += [sum(1 << n for n in nodes) for nodes in self.partitioner.chains]
        for nodes in [*starts, *(atoms[n] for n in self.kernels)]:
            if nodes not in seen and not nodes & hosts:
                seen.add(nodes)
                if self._accept(nodes, keep=True):
                    push(nodes, 0)
        size = 1
        while size <= self.limits.size:
            for nodes, misses in levels.pop(size, ()):
                if self.out_of_time():
                    self.unfinished += 1
                    continue
                around = 0
                for n in bits(nodes):
                    around |= near[n]
                for m in bits(around & ~nodes):
                    wider = self._closed(nodes | atoms[m])
                    if wider in seen or wider & hosts:
                        continue
                    seen.add(wider)
                    if wider.bit_count() > self.limits.size:
                        self.large += 1
                    elif self._accept(wider):
                        push(wider, 0)
                    elif misses < self.limits.ahead and self.soft:
                        push(wider, misses + 1)
            size += 1
        regions = tuple(sorted(self.accepted, key=lambda r: (r.nodes, r.outputs)))
        return Enumerated(regions, self.asked, dict(self.refused), len(self.full), self.large, self.unfinished)

    def _accept(self, nodes: int, keep: bool = False) -> bool:
        """Take in what is legal of a set of nodes, with all that it may leave out; `keep` even beyond the cap."""
        members = tuple(bits(nodes))
        self.soft = False
        if self.by_first[members[0]] >= self.limits.count and not keep:
            self.full.add(members[0])
            return False
        found = False
        for region in self._deliveries(members):
            self.asked += 1
            verdict = self.partitioner.allowed(region)
            if verdict:
                found = True
                if region not in self.accepted:
                    self.accepted[region] = None
                    self.by_first[members[0]] += 1
            else:
                self.refused[verdict.rule] += 1
                self.soft = self.soft or verdict.rule in SOFT_RULES
        return found

    def _deliveries(self, members: tuple[NodeId, ...]) -> Iterator[Region]:
        """The region of some nodes with all its outputs, then without values of cheap maps that are read inside as well."""
        region = Region.of(self.graph, members)
        yield region
        if len(members) == 1 or len(region.outputs) == 1:
            return
        inside = {v for n in members for v in self.graph.nodes[n].inputs}
        may = [v for v in region.outputs if v in inside and self.graph.producer[v].id in self.cheap]
        for count in range(1, min(self.limits.dropped, len(may)) + 1):
            for dropped in combinations(may, count):
                left = [v for v in region.outputs if v not in dropped]
                if left:
                    yield Region(region.nodes, region.inputs, tuple(left))


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
