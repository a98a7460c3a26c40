"""Partitions: how a graph falls into regions, from one a node to as few as the rules allow."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from autofuse.errors import VerificationError
from autofuse.fusion.chain import pays
from autofuse.fusion.legality import PLACE_RULES, PROGRAM_RULES, check
from autofuse.fusion.region import YES, Region, Verdict
from autofuse.fusion.structure import Key, Structures
from autofuse.fusion.views import is_join
from autofuse.ir.graph import Graph, Node, NodeId, ValueId
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target

MAX_CLOSURE = 12
"""How many nodes between two regions may be drawn in to merge them."""

MAX_WALK = 40
"""How many nodes before a contraction are looked at for another one that it may share a kernel with."""


@dataclass(frozen=True)
class Edge:
    """A contested edge: `value` made by node `producer` and read by node `consumer`."""

    producer: NodeId
    consumer: NodeId
    value: ValueId


@dataclass(frozen=True)
class Partition:
    """Regions in an order in which each can run after those before it. Together they make every graph output."""

    regions: tuple[Region, ...]
    refusals: Mapping[Edge, Verdict] = field(default_factory=dict, compare=False)
    """Why edges that were asked to fuse did not."""

    @property
    def key(self) -> tuple[tuple[NodeId, ...], ...]:
        return tuple(sorted(r.nodes for r in self.regions))


def edges_of(graph: Graph) -> tuple[Edge, ...]:
    """Every edge between two nodes that have kernels, in topological order of its producer."""
    found: list[Edge] = []
    for n in graph.nodes:
        if not n.kind.has_kernel:
            continue
        for v in n.outputs:
            for m in graph.consumers.get(v, ()):
                if m.kind.has_kernel:
                    found.append(Edge(n.id, m.id, v))
    return tuple(found)


class Partitioner:
    """Decodes choices of edges into legal partitions; verdicts are remembered by the set of nodes, and by structure for equal layers."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph = graph
        self.target = target
        self.edges = edges_of(graph)
        self.structures = Structures(graph)
        self._verdicts: dict[frozenset[NodeId], Verdict] = {}
        self._by_structure: dict[Key, tuple[Verdict, tuple[NodeId, ...]]] = {}

    def verdict(self, nodes: frozenset[NodeId]) -> Verdict:
        """Whether these nodes may be one region."""
        found = self._verdicts.get(nodes)
        if found is None:
            found = self._verdicts[nodes] = self.allowed(Region.of(self.graph, nodes))
        return found

    def allowed(self, region: Region) -> Verdict:
        """Whether a region may be one kernel. It may deliver less than all that is read outside; what it leaves out another one must make."""
        if len(region.nodes) == 1:
            return YES
        placed = check(self.graph, region, self.target, PLACE_RULES)
        if not placed:
            return placed
        key = self.structures.key(region)
        found = self._by_structure.get(key)
        if found is None:
            found = check(self.graph, region, self.target, PROGRAM_RULES), region.nodes
            self._by_structure[key] = found
        verdict, asked = found
        if asked == region.nodes or not verdict.nodes:
            return verdict
        at = {n: k for k, n in enumerate(asked)}
        return replace(verdict, nodes=tuple(region.nodes[at[n]] for n in verdict.nodes))

    def closed(self, nodes: Iterable[NodeId]) -> frozenset[NodeId]:
        """The nodes with all that lie on a path between two of them."""
        wanted = frozenset(nodes)
        return self._closure(wanted, self._singles) | wanted

    @cached_property
    def _singles(self) -> Mapping[NodeId, frozenset[NodeId]]:
        return {n.id: frozenset({n.id}) for n in self.graph.nodes}

    def merge(self, wanted: Iterable[Edge], whole: Iterable[frozenset[NodeId]] = ()) -> Partition:
        """Fuse the wanted edges one after the other, skipping those that a rule or a cycle among regions forbids. Each of the sets in `whole` is
        fused before, where that is possible."""
        group: dict[NodeId, frozenset[NodeId]] = {n.id: frozenset({n.id}) for n in self.graph.nodes}
        refusals: dict[Edge, Verdict] = {}
        for nodes in whole:
            if all(len(group[n]) == 1 for n in nodes) and self._fits(nodes, group):
                group.update(dict.fromkeys(nodes, nodes))
        for e in wanted:
            a, b = group[e.producer], group[e.consumer]
            if a is b:
                continue
            union = a | b
            verdict = self._fits(union, group)
            if not verdict and verdict.rule in ("convexity", "cycle"):
                # What lies between the two may join them: x -> sigmoid -> x * sigmoid is one kernel or none.
                wider = self._closure(union, group)
                if len(wider) <= MAX_CLOSURE + len(union) and self._fits(wider, group):
                    union, verdict = wider, YES
            if not verdict:
                refusals[e] = verdict
                continue
            for n in union:
                group[n] = union
        return self._ordered(set(group.values()), refusals)

    def _fits(self, union: frozenset[NodeId], group: Mapping[NodeId, frozenset[NodeId]]) -> Verdict:
        verdict = self.verdict(union)
        return self._acyclic(union, group) if verdict else verdict

    def _closure(self, union: frozenset[NodeId], group: Mapping[NodeId, frozenset[NodeId]]) -> frozenset[NodeId]:
        """The union with the groups of all nodes on paths that leave it and come back."""
        first, last = min(union), max(union)
        below = set(union)
        for n in range(first, last + 1):
            sources = [self.graph.producer[v].id for v in self.graph.nodes[n].inputs if v in self.graph.producer]
            if any(s in below for s in sources):
                below.add(n)
        above = set(union)
        for n in range(last, first - 1, -1):
            readers = [c.id for v in self.graph.nodes[n].outputs for c in self.graph.consumers.get(v, ())]
            if any(c in above for c in readers):
                above.add(n)
        return frozenset(m for n in below & above for m in group[n])

    def _acyclic(self, union: frozenset[NodeId], group: Mapping[NodeId, frozenset[NodeId]]) -> Verdict:
        """Merging must not make two regions wait for each other."""
        lowest = min(union)
        highest = max(union)
        start = {
            c.id for n in union for v in self.graph.nodes[n].outputs for c in self.graph.consumers.get(v, ())
        } - union
        seen: set[NodeId] = set()
        stack = list(start)
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            members = group[n]
            seen |= members
            for m in members:
                for v in self.graph.nodes[m].outputs:
                    for c in self.graph.consumers.get(v, ()):
                        if c.id in union:
                            return Verdict(
                                False, "cycle", "another region would have to run both before and after it", (m, c.id)
                            )
                        if c.id not in seen and lowest <= c.id and (c.id < highest or min(group[c.id]) < highest):
                            stack.append(c.id)
        return YES

    def _ordered(self, groups: set[frozenset[NodeId]], refusals: dict[Edge, Verdict]) -> Partition:
        order = _topological(self.graph, groups)
        return Partition(tuple(Region.of(self.graph, g) for g in order), refusals)

    # ---- two contractions in one kernel

    @cached_property
    def chains(self) -> tuple[frozenset[NodeId], ...]:
        """The least regions that hold two contractions, the legal ones.

        No part of such a region but the whole may be a kernel, so that none grows by single nodes.
        """
        return tuple(nodes for nodes, verdict in self._chains.items() if verdict)

    @cached_property
    def _chains(self) -> Mapping[frozenset[NodeId], Verdict]:
        """All that lies between a contraction and the next one that reads, over maps and reductions, what it gives."""
        found: dict[frozenset[NodeId], Verdict] = {}
        for n in self.graph.nodes:
            if n.kind is Kind.CONTRACT:
                for first in self._products_before(n):
                    union = self.closed((first, n.id))
                    found.setdefault(union, self.verdict(union))
        return found

    def _explained(self, refusals: Mapping[Edge, Verdict]) -> dict[Edge, Verdict]:
        """Refusals of edges that only a kernel of two contractions could fuse: what forbids that one, none where it is allowed."""
        out = dict(refusals)
        for e, verdict in refusals.items():
            around = [v for nodes, v in self._chains.items() if {e.producer, e.consumer} <= nodes]
            if verdict.rule != "contractions" or not around:
                continue
            if any(around):
                del out[e]
            else:
                out[e] = around[0]
        return out

    def _products_before(self, node: Node) -> Iterator[NodeId]:
        """The contractions from which maps and reductions, at least one of these, lead to an operand of a contraction."""
        stack = [(v, False) for v in node.inputs]
        seen: set[tuple[NodeId, bool]] = set()
        while stack:
            v, reduced = stack.pop()
            source = self.graph.producer.get(v)
            if source is None or (source.id, reduced) in seen or len(seen) > MAX_WALK:
                continue
            seen.add((source.id, reduced))
            if source.kind is Kind.CONTRACT and reduced:
                yield source.id
            elif source.kind in (Kind.MAP, Kind.REDUCE):
                stack += [(u, reduced or source.kind is Kind.REDUCE) for u in source.inputs]

    # ---- the landmarks

    def unfused(self) -> Partition:
        """One region for every ONNX node: what was one operator of the model stays one where the rules allow."""
        same = [e for e in self.edges if self.graph.nodes[e.producer].origin == self.graph.nodes[e.consumer].origin]
        return self.merge(same)

    def greedy(self) -> Partition:
        """Fuse every edge that may be, but for joins (Concat): their parts are written in place, which costs nothing."""
        joins = {n.id for n in self.graph.nodes if is_join(self.graph, n)}
        edges = [e for e in self.edges if e.producer not in joins and e.consumer not in joins]
        found = self.merge(sorted(edges, key=self._rank), [c for c in self.chains if pays(self.graph, c, self.target)])
        return replace(found, refusals=self._explained(found.refusals))

    def _rank(self, e: Edge) -> tuple[int, int, int]:
        producer, consumer = self.graph.nodes[e.producer], self.graph.nodes[e.consumer]
        return (_priority(producer, consumer), e.consumer, e.producer)

    def chosen(self, choice: Callable[[Edge], bool]) -> Partition:
        """Fuse the edges that `choice` picks (as far as legal)."""
        return self.merge(sorted((e for e in self.edges if choice(e)), key=self._rank))

    def enumerate(self) -> Iterator[Partition]:
        """Distinct legal partitions, lazily: unfused, greedy, then with ever more edges of the greedy one cut."""
        seen: set[tuple[tuple[NodeId, ...], ...]] = set()

        def new(p: Partition) -> bool:
            fresh = p.key not in seen
            seen.add(p.key)
            return fresh

        for p in (self.unfused(), self.greedy()):
            if new(p):
                yield p
        ordered = sorted(self.edges, key=self._rank)
        frontier: list[frozenset[Edge]] = [frozenset()]
        while frontier:
            following: list[frozenset[Edge]] = []
            for cut in frontier:
                least = max((ordered.index(e) for e in cut), default=-1)
                for k in range(least + 1, len(ordered)):
                    wider = cut | {ordered[k]}
                    p = self.merge([e for e in ordered if e not in wider])
                    following.append(wider)
                    if new(p):
                        yield p
            frontier = following


def _priority(producer: Node, consumer: Node) -> int:
    """Edges in the order in which they are best fused: within one operator, epilogues, then the rest."""
    if producer.origin == consumer.origin:
        return 0
    if producer.kind in (Kind.CONTRACT, Kind.REDUCE):
        return 1
    return 2 if consumer.kind is Kind.MAP else 3


def _topological(graph: Graph, groups: set[frozenset[NodeId]]) -> list[frozenset[NodeId]]:
    """Regions ordered so that suppliers come first; among the free ones the one with the earliest node."""
    of = {n: g for g in groups for n in g}
    needs: dict[frozenset[NodeId], set[frozenset[NodeId]]] = {g: set() for g in groups}
    feeds: dict[frozenset[NodeId], set[frozenset[NodeId]]] = {g: set() for g in groups}
    for g in groups:
        for n in g:
            for v in graph.nodes[n].inputs:
                source = graph.producer.get(v)
                if source is not None and of[source.id] is not g:
                    needs[g].add(of[source.id])
                    feeds[of[source.id]].add(g)
    ready = [(min(g), g) for g in groups if not needs[g]]
    heapq.heapify(ready)
    out: list[frozenset[NodeId]] = []
    while ready:
        _, g = heapq.heappop(ready)
        out.append(g)
        for f in feeds[g]:
            needs[f].discard(g)
            if not needs[f]:
                heapq.heappush(ready, (min(f), f))
    if len(out) != len(groups):
        raise VerificationError("the regions of a partition wait for each other in a cycle")
    return out


def verify_partition(graph: Graph, partition: Partition, target: Target) -> Partition:
    """Check every rule of a partition and give it back: each region legal, every value supplied before it is read."""
    made: set[ValueId] = set(graph.inputs) | set(graph.constants)
    for region in partition.regions:
        missing = [v for v in region.inputs if v not in made]
        if missing:
            raise VerificationError(f"region {region.nodes} reads value {missing[0]} before any region delivers it")
        verdict: Verdict = YES if len(region.nodes) == 1 else check(graph, region, target)
        if not verdict:
            raise VerificationError(f"region {region.nodes} is illegal: {verdict.reason}")
        made |= set(region.outputs)
    lost = [v for v in graph.outputs if v not in made]
    if lost:
        raise VerificationError(f"graph output {lost[0]} is delivered by no region")
    return partition
