"""An ONNX model without what its export left behind: nodes that compute nothing, and transposes that undo each other.

Only the graph itself is cleaned; branches and bodies, and functions of the model, are left alone. Every removal is exact: no value that
stays is changed, but for the order of its elements between two transposes that cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto

from autofuse.importer.cancelling import cancel, cluster_before
from autofuse.importer.idle import MOVES, idle
from autofuse.importer.proto import domain_of
from autofuse.importer.rewiring import Kept, Rewiring, node_text

_FED = frozenset({*MOVES, "Constant"})
"""What goes with its only reader."""


@dataclass(frozen=True)
class Leftover:
    """What can go: `key` is the value whose readers take another one, `nodes` the ONNX nodes concerned (operator and name), `before` and
    `after` what stands around them, `labels` what the graph's nodes made from them are called."""

    key: str
    kind: str
    nodes: tuple[str, ...]
    reason: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Cleaned:
    """`kept` are nodes that look like leftovers, each with why it has to stay."""

    model: ModelProto
    removed: tuple[Leftover, ...]
    kept: tuple[tuple[str, str], ...]


def clean(model: ModelProto, only: Collection[str] | None = None) -> Cleaned:
    """The cleaned model; the given one is not changed. `only` names leftovers by their keys, the others stay."""
    return _Cleaner(model, only).run()


class _Cleaner:
    def __init__(self, model: ModelProto, only: Collection[str] | None) -> None:
        self.only = only
        self.graph = Rewiring(model)
        self.removed: list[Leftover] = []
        self.kept: dict[str, str] = {}

    def run(self) -> Cleaned:
        changed = True
        while changed:
            changed = False
            for n in list(self.graph.nodes):
                if any(n is m for m in self.graph.nodes) and not domain_of(n):
                    changed |= self._try(n)
        self.graph.finish()
        return Cleaned(self.graph.model, tuple(self.removed), tuple(self.kept.items()))

    def _try(self, n: NodeProto) -> bool:
        try:
            return self._remove(n) or (n.op_type == "Transpose" and self._cancel(n))
        except Kept as why:
            self.kept[node_text(n)] = str(why)
            return False

    def _wanted(self, key: str) -> bool:
        return self.only is None or key in self.only

    def _remove(self, n: NodeProto) -> bool:
        """Let the readers of a node that computes nothing do without it."""
        found = idle(self.graph, n)
        if found is None or not self._wanted(n.output[0]):
            return False
        x, y = found.value, n.output[0]
        self.graph.check(y, x)
        self._note(y, found.kind, (*found.also, n), found.reason, [x], [y])
        self.graph.alias(y, x)
        self.graph.sweep([n], _FED)
        return True

    def _cancel(self, last: NodeProto) -> bool:
        """Let element-wise operators before a Transpose do without it and those that it undoes."""
        found = cluster_before(self.graph, last) if self._wanted(last.output[0]) else None
        if found is None:
            return False
        for e in found.exits:
            self.graph.check(e.output[0], e.input[0])
        sources = [e.input[0] for e in found.entries]
        ends = [e.output[0] for e in found.exits]
        kind = "Transposes around element-wise operators"
        self._note(last.output[0], kind, found.transposes, found.reason, sources, ends)
        cancel(self.graph, found)
        self.graph.sweep(found.transposes, _FED)
        return True

    def _note(
        self, key: str, kind: str, nodes: Sequence[NodeProto], reason: str, sources: Sequence[str], ends: Sequence[str]
    ) -> None:
        names = {id(n) for n in nodes}
        before = dict.fromkeys(node_text(self.graph.maker[x]) for x in sources if x in self.graph.maker)
        readers = [r for y in ends for r in self.graph.readers.get(y, ()) if id(r) not in names]
        self.removed.append(
            Leftover(
                key,
                kind,
                tuple(node_text(n) for n in nodes),
                reason,
                tuple(before),
                tuple(dict.fromkeys(node_text(r) for r in readers)),
                tuple(n.name or f"#{self.graph.position[id(n)]}" for n in nodes),
            )
        )
        for n in nodes:
            self.kept.pop(node_text(n), None)
