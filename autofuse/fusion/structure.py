"""Equal regions: a key that costs a few integers, so that of equal layers only one program is made, checked and priced."""

from __future__ import annotations

from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.ir.dtype import DType
from autofuse.ir.graph import Graph, NodeId, ValueId

Key = tuple[tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...], tuple[int, ...]]
"""Classes of the inputs; for each node its class and its operands as local numbers; the outputs as local numbers."""


class Structures:
    """Regions of one graph by structure. Two regions have the same key just when their programs are equal."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._node: dict[NodeId, int] = {}
        self._tensor: dict[ValueId, int] = {}
        self._texts: dict[str, int] = {}
        self._types: dict[tuple[DType, tuple[int, ...] | None, bool], int] = {}
        self._programs: dict[Key, RegionProgram] = {}

    def node_class(self, n: NodeId) -> int:
        """A number that nodes of equal computation share."""
        found = self._node.get(n)
        if found is None:
            text = self._graph.nodes[n].compute.text()
            found = self._node[n] = self._texts.setdefault(text, len(self._texts))
        return found

    def tensor_class(self, v: ValueId) -> int:
        """A number that values of equal type, shape and constness share."""
        found = self._tensor.get(v)
        if found is None:
            value = self._graph.values[v]
            kind = (value.dtype, value.shape, v in self._graph.constants)
            found = self._tensor[v] = self._types.setdefault(kind, len(self._types))
        return found

    def key(self, region: Region) -> Key:
        """What decides a region's program."""
        local = {v: k for k, v in enumerate(region.inputs)}
        number = len(local)
        steps: list[tuple[int, tuple[int, ...]]] = []
        for n in region.nodes:
            node = self._graph.nodes[n]
            steps.append((self.node_class(n), tuple(local[v] for v in node.inputs)))
            for v in node.outputs:
                local[v] = number
                number += 1
        inputs = tuple(self.tensor_class(v) for v in region.inputs)
        return inputs, tuple(steps), tuple(local[v] for v in region.outputs)

    def program(self, region: Region) -> RegionProgram:
        """The program of a region, shared by all equal ones. TypeError where a node has no kernel."""
        key = self.key(region)
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = program_of(self._graph, region)
        return found
