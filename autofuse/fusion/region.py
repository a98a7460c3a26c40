"""Regions, and their self-contained form that kernels are made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from autofuse.ir.dtype import DType
from autofuse.ir.graph import Graph, NodeId, ValueId
from autofuse.ir.stage import Alone, Kind, Stage


@dataclass(frozen=True)
class Verdict:
    """Whether something is allowed, and why not. `rule` is a short stable name, `nodes` are those to blame.

    A rule about a quantity says how much there would be (`found`) and how much may be (`allowed`, 0 where it is about something else).
    """

    ok: bool
    rule: str = ""
    reason: str = ""
    nodes: tuple[NodeId, ...] = ()
    found: float = 0.0
    allowed: float = 0.0

    def __bool__(self) -> bool:
        return self.ok


YES = Verdict(True)


@dataclass(frozen=True)
class Region:
    """Nodes computed together (sorted by id, which is topological) and the values that they must deliver.

    `inputs` are the values read from outside, each once, in the order of first use.
    """

    nodes: tuple[NodeId, ...]
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]

    @staticmethod
    def of(graph: Graph, nodes: Iterable[NodeId], needed: Iterable[ValueId] | None = None) -> Region:
        """The region of some nodes. Outputs are `needed`, or else every value that is read outside or is a graph output."""
        inside = sorted(set(nodes))
        members = set(inside)
        made = [v for n in inside for v in graph.nodes[n].outputs]
        if needed is None:
            outputs = [v for v in made if v in graph.output_set or _read_outside(graph, v, members)]
        else:
            wanted = set(needed)
            outputs = [v for v in made if v in wanted]
        reads = dict.fromkeys(v for n in inside for v in graph.nodes[n].inputs)
        return Region(tuple(inside), tuple(v for v in reads if v not in set(made)), tuple(outputs))


def _read_outside(graph: Graph, v: ValueId, members: set[NodeId]) -> bool:
    return any(n.id not in members for n in graph.consumers.get(v, ()))


@dataclass(frozen=True)
class Tensor:
    """What a region knows of a value that it reads: type, shape, and whether it is a constant of the model."""

    dtype: DType
    shape: tuple[int, ...]
    constant: bool

    def text(self) -> str:
        return f"{self.dtype.value}{list(self.shape)}{' constant' if self.constant else ''}"


@dataclass(frozen=True)
class Step:
    """A stage with its operands as local numbers: inputs come first, then the results of the steps, in order."""

    stage: Stage | Alone
    operands: tuple[int, ...]

    @property
    def kind(self) -> Kind:
        return self.stage.kind


@dataclass(frozen=True)
class RegionProgram:
    """A region without its graph: no names, no value numbers, no weights. Equal layers give equal programs.

    Local numbers: 0 .. len(inputs)-1 are the inputs; every step then defines one number per output (a Stage one, others perhaps several).
    """

    inputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @cached_property
    def defined_by(self) -> Mapping[int, tuple[Step, int]]:
        """The step that makes each local number, and which of its outputs it is."""
        found: dict[int, tuple[Step, int]] = {}
        number = len(self.inputs)
        for s in self.steps:
            for k in range(1 if isinstance(s.stage, Stage) else len(s.stage.shapes)):
                found[number] = (s, k)
                number += 1
        return found

    @cached_property
    def first_number(self) -> tuple[int, ...]:
        """The local number of each step's first output."""
        numbers: list[int] = []
        number = len(self.inputs)
        for s in self.steps:
            numbers.append(number)
            number += 1 if isinstance(s.stage, Stage) else len(s.stage.shapes)
        return tuple(numbers)

    def tensor(self, number: int) -> Tensor:
        """Type and shape of any local number."""
        if number < len(self.inputs):
            return self.inputs[number]
        step, k = self.defined_by[number]
        if isinstance(step.stage, Stage):
            return Tensor(step.stage.dtype, step.stage.shape, False)
        return Tensor(step.stage.dtypes[k], step.stage.shapes[k], False)

    @cached_property
    def flops(self) -> int:
        return sum(s.stage.flops for s in self.steps)

    @cached_property
    def text(self) -> str:
        """The canonical text: what a signature hashes."""
        lines = ["inputs " + ", ".join(t.text() for t in self.inputs)]
        lines += [f"{list(s.operands)} {s.stage.text()}" for s in self.steps]
        lines.append(f"outputs {list(self.outputs)}")
        return "\n".join(lines)

    @cached_property
    def signature(self) -> str:
        """SHA-256 (24 hex digits) of the canonical text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:24]


def program_of(graph: Graph, region: Region) -> RegionProgram:
    """The self-contained form of a region."""
    local: dict[ValueId, int] = {v: k for k, v in enumerate(region.inputs)}
    tensors = tuple(Tensor(graph.values[v].dtype, graph.values[v].dims, v in graph.constants) for v in region.inputs)
    steps: list[Step] = []
    number = len(tensors)
    for n in region.nodes:
        node = graph.nodes[n]
        if not isinstance(node.compute, Stage | Alone):
            raise TypeError(f"node {n} ({node.op}) is {node.kind}: it has no kernel")
        steps.append(Step(node.compute, tuple(local[v] for v in node.inputs)))
        for v in node.outputs:
            local[v] = number
            number += 1
    return RegionProgram(tensors, tuple(steps), tuple(local[v] for v in region.outputs))
