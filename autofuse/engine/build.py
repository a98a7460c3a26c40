"""From a plan to programs: memory for every value, prepared constants, and the launches in order."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from autofuse.devices.base import BufferRef, Launch, Port, Program
from autofuse.devices.cpuinfo import usable_cores
from autofuse.devices.memory import aligned_copy, is_aligned, together
from autofuse.engine.lowering import Lowering, Ready
from autofuse.engine.plan import Plan, PlannedRegion
from autofuse.engine.storage import Interval, Sharing, place
from autofuse.errors import PlanError
from autofuse.fusion.region import program_of
from autofuse.fusion.views import alias_of, pieces_of
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Control
from autofuse.kernels.base import Variant
from autofuse.kernels.layouts import same_memory


@dataclass(frozen=True)
class Segment:
    """Consecutive kernel regions as one device program. `inputs` and `outputs` are values, in the order of the program's ports."""

    program: Program
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]
    regions: tuple[int, ...]
    """For each launch, the position of its region in the plan."""
    weight_bytes: int
    """Bytes of the prepared constants, whether they were prepared or not."""


@dataclass(frozen=True)
class HostCall:
    """A region that runs in onnx's reference evaluator."""

    region: PlannedRegion
    position: int


@dataclass(frozen=True)
class ControlCall:
    """A region that runs graphs of its own."""

    region: PlannedRegion
    position: int


Step = Segment | HostCall | ControlCall


_FEW_BYTES = 4 << 20
"""Fewer bytes of constants are packed by one thread."""


@dataclass
class _Storage:
    value: ValueId
    layout: Layout
    nbytes: int
    first: int = -1
    last: int = -1
    place: str = "arena"
    index: int = 0


@dataclass
class _Job:
    """A region of a segment with its lowering and its storages."""

    position: int
    planned: PlannedRegion
    ready: Ready
    reads: list[int | None]
    writes: list[int]
    scratch: list[int] = field(default_factory=list)


def _pack(variant: Variant, k: int, array: np.ndarray) -> np.ndarray:
    """Constant k of a variant as it lies in memory."""
    if k in dict(variant.prepared):
        return variant.pack(k, array)
    view = variant.input_layouts[k].view(array)
    return view if view.flags.c_contiguous and is_aligned(view) else aligned_copy(view)


def segments(graph: Graph, plan: Plan, lowering: Lowering, constants: bool = True) -> list[Step]:
    """The steps of an engine: device programs, split at Host and Control regions. PlanError where a region cannot be lowered as planned.

    Without `constants` nothing is packed: the programs tell sizes and launches, but cannot run.
    """
    out: list[Step] = []
    run: list[tuple[int, PlannedRegion]] = []
    for position, planned in enumerate(plan.regions):
        if planned.family in ("host", "control"):
            if run:
                out.append(_segment(graph, plan, run, lowering, constants))
                run = []
            out.append((HostCall if planned.family == "host" else ControlCall)(planned, position))
        else:
            run.append((position, planned))
    if run:
        out.append(_segment(graph, plan, run, lowering, constants))
    return out


@dataclass(frozen=True)
class Needs:
    """What an engine needs, in bytes: activations with scratch memory, and prepared constants."""

    memory: int
    weights: int


def planned_needs(graph: Graph, plan: Plan, lowering: Lowering, threads: int) -> Needs:
    """What an engine of this plan would need, without making one (`threads` of the host's; 0 on a GPU).

    What graphs inside of control-flow nodes need counts where they are known.
    """
    memory = weights = shared = 0
    for step in segments(graph, plan, lowering, constants=False):
        if isinstance(step, Segment):
            memory += step.program.arena_bytes
            weights += step.weight_bytes
            shared = max((shared, *(l.kernel.shared_bytes for l in step.program.launches)))
        elif isinstance(step, ControlCall):
            compute = graph.nodes[step.region.region.nodes[0]].compute
            bodies = compute.bodies if isinstance(compute, Control) else ()
            for body, inside in zip(bodies, step.region.bodies, strict=False):
                if body.graph is not None and inside is not None:
                    found = planned_needs(body.graph, inside, lowering, threads)
                    memory, weights = memory + found.memory, weights + found.weights
    return Needs(memory + threads * shared, weights)


def _segment(
    graph: Graph, plan: Plan, run: list[tuple[int, PlannedRegion]], lowering: Lowering, constants: bool
) -> Segment:
    inside = {v for _, r in run for v in r.region.outputs if r.region.nodes}
    positions = {p for p, _ in run}
    outside = {v for p, r in enumerate(plan.regions) if p not in positions for v in r.region.inputs}
    reads = dict.fromkeys(v for _, r in run for v in r.region.inputs)
    inputs = tuple(v for v in reads if v not in inside and v not in graph.constants)
    outputs = tuple(
        v
        for v in dict.fromkeys(v for _, r in run for v in r.region.outputs)
        if v in inside and (v in graph.output_set or v in outside)
    )
    return _SegmentBuilder(graph, lowering, inputs, outputs).build(run, constants)


class _SegmentBuilder:
    def __init__(
        self, graph: Graph, lowering: Lowering, inputs: tuple[ValueId, ...], outputs: tuple[ValueId, ...]
    ) -> None:
        self.graph = graph
        self.lowering = lowering
        self.inputs = inputs
        self.outputs = outputs
        self.storages: list[_Storage] = []
        self.sharing = Sharing()
        self.of: dict[ValueId, list[int]] = {}
        self.packing: list[tuple[Variant, int, np.ndarray]] = []
        self.constant_at: dict[tuple[ValueId, str], int] = {}

    # ---- storages

    def _add(self, v: ValueId, layout: Layout) -> int:
        value = self.graph.values[v]
        nbytes = layout.size(value.dims) * value.dtype.itemsize
        s = self.sharing.add()
        self.storages.append(_Storage(v, layout, nbytes))
        self.of.setdefault(v, []).append(s)
        return s

    def _find(self, v: ValueId, layout: Layout) -> int:
        shape = self.graph.values[v].dims
        for s in self.of.get(v, ()):
            if same_memory(self.storages[s].layout, layout, shape):
                return s
        raise PlanError(f"the plan wants value {v} in layout {layout.text()}, which nothing makes")

    def _scratch(self, nbytes: int) -> int:
        s = self.sharing.add()
        self.storages.append(_Storage(-1, Layout(()), nbytes))
        return s

    def _constant(self, v: ValueId, variant: Variant, k: int) -> int:
        key = (v, variant.preparation(k))
        if key not in self.constant_at:
            self.constant_at[key] = len(self.packing)
            self.packing.append((variant, k, self.graph.constants[v]))
        return self.constant_at[key]

    def _packed(self) -> tuple[np.ndarray, ...]:
        """All constants as the kernels read them, in aligned memory; packing moves bytes, so threads help."""
        if sum(a.nbytes for _, _, a in self.packing) < _FEW_BYTES:
            return tuple(together([_pack(*p) for p in self.packing]))
        with ThreadPoolExecutor(usable_cores()) as pool:
            return tuple(together(list(pool.map(lambda p: _pack(*p), self.packing))))

    # ---- building

    def build(self, run: Sequence[tuple[int, PlannedRegion]], constants: bool) -> Segment:
        graph = self.graph
        for k, v in enumerate(self.inputs):
            s = self._add(v, Layout.plain(len(graph.values[v].dims)))
            self.storages[s].place, self.storages[s].index = "input", k
        jobs = [self._job(position, planned) for position, planned in run]
        self._share(jobs)
        self._claim_outputs()
        self._liveness(jobs)
        roots = [
            s for s in range(len(self.storages)) if self.sharing.root(s)[0] == s and self.storages[s].place == "arena"
        ]
        offsets, arena = place([Interval(r.nbytes, r.first, r.last) for r in (self.storages[s] for s in roots)])
        at = dict(zip(roots, offsets, strict=True))
        launches: list[Launch] = []
        regions: list[int] = []
        for job in jobs:
            for kernel, arguments in job.ready.launches:
                refs = tuple(self._reference(job, kind, k, at) for kind, k in arguments)
                launches.append(Launch(kernel, refs, job.planned.label))
                regions.append(job.position)
        program = Program(
            tuple(launches),
            arena,
            self._packed() if constants else (),
            tuple(self._port(v) for v in self.inputs),
            tuple(self._port(v) for v in self.outputs),
        )
        weights = sum(v.elements(k) * a.itemsize for v, k, a in self.packing)
        return Segment(program, self.inputs, self.outputs, tuple(regions), weights)

    def _port(self, v: ValueId) -> Port:
        value = self.graph.values[v]
        return Port(value.name or f"v{v}", value.dtype, value.dims)

    def _job(self, position: int, planned: PlannedRegion) -> _Job:
        graph = self.graph
        ready = self.lowering(graph, planned)
        reads = [
            None if v in graph.constants else self._find(v, layout)
            for v, layout in zip(planned.region.inputs, planned.input_layouts, strict=True)
        ]
        writes = [
            self._add(v, layout) for v, layout in zip(planned.region.outputs, planned.output_layouts, strict=True)
        ]
        scratch = [self._scratch(n) for n in ready.scratch]
        return _Job(position, planned, ready, reads, writes, scratch)

    def _share(self, jobs: Sequence[_Job]) -> None:
        """Let views share memory: aliases in order, in-place joins from the last to the first, so that nested ones nest."""
        for job in jobs:
            if job.planned.family == "view" and job.planned.algorithm == "alias":
                program = program_of(self.graph, job.planned.region)
                piece = alias_of(program, job.planned.input_layouts, job.planned.output_layouts[0])
                source = job.reads[piece.input] if piece is not None else None
                if piece is None or source is None:
                    raise PlanError(f"the plan takes nodes {job.planned.region.nodes} for a view, which they are not")
                self.sharing.put(
                    job.writes[0], source, piece.offset * program.tensor(program.outputs[0]).dtype.itemsize
                )
        for job in reversed(jobs):
            if job.planned.family == "view" and job.planned.algorithm == "in_place":
                program = program_of(self.graph, job.planned.region)
                pieces = pieces_of(program, job.planned.input_layouts, job.planned.output_layouts[0])
                if pieces is None:
                    raise PlanError(
                        f"the plan takes nodes {job.planned.region.nodes} for a join in place, which they are not"
                    )
                for piece in pieces:
                    source = job.reads[piece.input]
                    assert source is not None
                    root, inside = self.sharing.root(source)
                    size = program.tensor(program.outputs[0]).dtype.itemsize
                    self.sharing.put(root, job.writes[0], piece.offset * size - inside)

    def _claim_outputs(self) -> None:
        for k, v in enumerate(self.outputs):
            s = self._find(v, Layout.plain(len(self.graph.values[v].dims)))
            root, offset = self.sharing.root(s)
            if self.storages[root].place != "arena" or offset or root != s:
                raise PlanError(f"the plan lets output {v} share memory with another value")
            self.storages[s].place, self.storages[s].index = "output", k

    def _liveness(self, jobs: Sequence[_Job]) -> None:
        """Extend each root over every step that touches what lies in it."""
        for step, job in enumerate(jobs):
            for s in (*job.reads, *job.writes, *job.scratch):
                if s is None:
                    continue
                root = self.storages[self.sharing.root(s)[0]]
                root.first = step if root.first < 0 else min(root.first, step)
                root.last = max(root.last, step)

    def _reference(self, job: _Job, kind: str, k: int, at: dict[int, int]) -> BufferRef:
        if kind == "input":
            s = job.reads[k]
            if s is None:
                v = job.planned.region.inputs[k]
                return BufferRef("constant", self._constant(v, job.ready.variant, k))
        elif kind == "output":
            s = job.writes[k]
        else:
            s = job.scratch[k]
        root, offset = self.sharing.root(s)
        storage = self.storages[root]
        if storage.place == "input":
            return BufferRef("input", storage.index, offset)
        if storage.place == "output":
            return BufferRef("output", storage.index, offset)
        return BufferRef("arena", 0, at[root] + offset)
