"""Contested edges, grouped: edges between equal producers and equal consumers share one decision, as equal layers should."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autofuse.fusion.partition import Edge, Partition, Partitioner
from autofuse.fusion.region import Region, program_of
from autofuse.ir.graph import NodeId


@dataclass(frozen=True)
class EdgeClass:
    """Edges that are decided together. `default` is what the unfused partition does; `name` is stable for the graph."""

    name: str
    edges: tuple[Edge, ...]
    default: bool


def contested_classes(partitioner: Partitioner) -> tuple[EdgeClass, ...]:
    """The classes of all edges that a partition may fuse: legal as a pair, or fused by the greedy partition."""
    graph = partitioner.graph
    greedy = _group_of(partitioner.greedy())
    signatures: dict[NodeId, str] = {}

    def signature(n: NodeId) -> str:
        if n not in signatures:
            signatures[n] = program_of(graph, Region.of(graph, [n])).signature
        return signatures[n]

    found: dict[tuple[str, str, int, bool], list[Edge]] = {}
    for e in partitioner.edges:
        together = greedy[e.producer] == greedy[e.consumer]
        if not together and not partitioner.verdict(frozenset((e.producer, e.consumer))):
            continue
        same = graph.nodes[e.producer].origin == graph.nodes[e.consumer].origin
        slot = graph.nodes[e.consumer].inputs.index(e.value)
        found.setdefault((signature(e.producer), signature(e.consumer), slot, same), []).append(e)
    return tuple(
        EdgeClass(f"e{k}:{producer[:6]}-{consumer[:6]}.{slot}", tuple(edges), same)
        for k, ((producer, consumer, slot, same), edges) in enumerate(found.items())
    )


def _group_of(partition: Partition) -> Mapping[NodeId, int]:
    return {n: k for k, r in enumerate(partition.regions) for n in r.nodes}


def decode(partitioner: Partitioner, chosen: Mapping[str, bool], classes: tuple[EdgeClass, ...]) -> Partition:
    """The partition of a choice by class name; what is not legal together is left apart."""
    wanted = {e for c in classes if chosen.get(c.name, c.default) for e in c.edges}
    return partitioner.chosen(lambda e: e in wanted)
