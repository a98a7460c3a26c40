"""A bench that answers from a recording, on a clock of its own: searches are compared without a device, and repeated exactly.

A kernel costs what was recorded; a plan costs the sum of its kernels. What is not in the recording is refused with that as the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autofuse.engine.build import Segment, segments
from autofuse.engine.lowering import plainly, variant_of
from autofuse.engine.plan import Plan, PlannedRegion
from autofuse.errors import PlanError
from autofuse.fusion.region import RegionProgram
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.measure.bench import Choice, layouts_text
from autofuse.measure.calibrate import Reached
from autofuse.measure.programs import region_bytes
from autofuse.measure.recording import Recording
from autofuse.measure.result import Measurement, Opened, Status

MISSING = "it is not in the recording"
KERNEL_SECONDS = 0.1
"""What a candidate takes on the bench's clock, whatever it is; a run takes as long as the recording says."""
LOOK_SECONDS = 1e-4
_SAMPLES = 12
"""Equal samples of a kernel: enough for a comparison to be sure."""


class ReplayClock:
    """Seconds that pass where something is looked up; asking takes a moment itself, so that a search that finds nothing to look up ends."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += LOOK_SECONDS
        return self.now


class ReplayBench:
    """A Bench over a recording. `sizes`: whether plans are laid out in memory as well, to know what they need (it takes a moment each)."""

    checks_first_plan = False

    def __init__(
        self,
        graph: Graph,
        recording: Recording,
        *,
        sizes: bool = True,
        remembered: bool = False,
        told: Callable[[Plan, float], None] | None = None,
    ) -> None:
        """`remembered`: all of the recording is known from the start. `told` is called with each plan that is run, and its nanoseconds."""
        self.graph = graph
        self.recording = recording
        self.clock = ReplayClock()
        self.oracle = ""
        self.seen: dict[str, None] = {}
        """The keys of the kernel texts that were asked for, alone or in a plan."""
        self._sizes = sizes
        self._remembered = remembered
        self._told = told
        self._plans: dict[int, tuple[float, tuple[float, ...]]] = {}
        self._count = 0

    @property
    def target(self) -> Target:
        return self.recording.target

    @property
    def threads(self) -> int:
        return self.recording.threads

    def schedules(self, variant: Variant) -> Sequence[Schedule]:
        """What a search may propose of a variant: what was recorded."""
        return self.recording.schedules(variant)

    def prepare(self) -> None:
        """See Bench. Numbers were compared when the recording was made."""

    def kernels(
        self,
        program: RegionProgram,
        constants: Mapping[int, np.ndarray],
        choices: Sequence[Choice],
        deadline: float,
        again: int = 0,
    ) -> list[Measurement]:
        """See Bench. A kernel text that was asked for before takes no time."""
        del constants, again
        return [self._kernel(program, v, s, deadline) for v, s in choices]

    def _kernel(self, program: RegionProgram, v: Variant, s: Schedule, deadline: float) -> Measurement:
        blank = Measurement(
            "",
            program.signature,
            v.family,
            v.algorithm,
            layouts_text(v),
            s.text(),
            Status.SKIPPED,
            flops=program.flops,
            bytes_model=region_bytes(v),
        )
        found = self.recording.find(v, s)
        if found is None:
            return replace(blank, reason=MISSING)
        if found.key not in self.seen:
            if self.clock.now >= deadline:
                return blank
            self._look(found)
        samples = (round(1e9 * found.seconds),) * _SAMPLES if found.ok else ()
        return replace(blank, key=found.key, status=found.status, reason=found.reason, samples_ns=samples)

    def _look(self, m: Measurement) -> None:
        if m.key not in self.seen:
            self.seen[m.key] = None
            self.clock.now += KERNEL_SECONDS

    def compile(self, choices: Sequence[Choice]) -> None:
        """See Bench."""

    def known(self, signature: str) -> list[Measurement]:
        """See Bench."""
        return list(self.recording.of_signature(signature)) if self._remembered else []

    def seeds(self, program: RegionProgram) -> list[Measurement]:
        """See Bench."""
        del program
        return []

    def reached(self, deadline: float) -> Reached:
        """See Bench."""
        del deadline
        return self.recording.reached

    # ---- plans

    def price(self, plan: Plan) -> tuple[tuple[PlannedRegion, Variant, Measurement], ...] | Opened:
        """The regions of a plan that have kernels, as they were recorded; or why the plan cannot be run."""
        out = []
        for r in plan.regions:
            if not r.has_kernels:
                continue
            try:
                v = variant_of(self.graph, r, self.target)
            except PlanError as e:
                return Opened(Status.COMPILE_FAILED, str(e))
            if v.family == "view":
                continue
            found = self.recording.find(v, r.schedule)
            if found is None:
                return Opened(Status.SKIPPED, f"{r.label or 'a reorder'} ({v.family}, {r.schedule.text()}): {MISSING}")
            if not found.ok:
                return Opened(found.status, f"{r.label or 'a reorder'}: {found.reason}")
            out.append((r, v, found))
        return tuple(out)

    def open(self, plan: Plan) -> tuple[int, Opened]:
        """See Bench."""
        start = self.clock.now
        priced = self.price(plan)
        if isinstance(priced, Opened):
            return -1, priced
        for _, _, m in priced:
            self._look(m)
        self.clock.now += KERNEL_SECONDS
        each = tuple(1e9 * m.seconds for _, _, m in priced)
        position = {id(r): k for k, r in enumerate(plan.regions)}
        opened = Opened(
            Status.OK,
            seconds=self.clock.now - start,
            launches=len(each),
            bytes_model=sum(region_bytes(v) for _, v, _ in priced),
            flops=sum(v.program.flops for _, v, _ in priced),
            region_of_launch=tuple(position[id(r)] for r, _, _ in priced),
        )
        if self._sizes:
            parts = [
                s for s in segments(self.graph, plan, plainly(self.target), constants=False) if isinstance(s, Segment)
            ]
            opened = replace(
                opened,
                launches=sum(len(s.program.launches) for s in parts),
                peak_bytes=max((s.program.arena_bytes for s in parts), default=0),
            )
        self._count += 1
        self._plans[self._count] = (sum(each), each)
        if self._told is not None:
            self._told(plan, sum(each))
        return self._count, opened

    def open_peer(self, name: str, model: bytes | str) -> tuple[int, Opened]:
        """See Bench."""
        del model
        return -1, Opened(Status.SKIPPED, f"a replay runs nothing, {name} neither")

    def shoot(self, handles: Sequence[int], rounds: int, repeats: int) -> dict[int, list[int]]:
        """See Bench."""
        return {h: [max(1, round(self._plans[h][0]))] * (rounds * repeats) for h in handles if h in self._plans}

    def failure(self, handle: int) -> tuple[Status, str] | None:
        """See Bench."""
        return None if handle in self._plans else (Status.SKIPPED, MISSING)

    def stamps(self, handle: int, repeats: int) -> np.ndarray | None:
        """See Bench. Kernels take in a plan what they take alone."""
        found = self._plans.get(handle)
        return None if found is None else np.tile(np.asarray(found[1]), (repeats, 1))

    def exchange(self) -> int:
        """Nothing is known of the cores."""
        return 0

    def release(self, handle: int) -> None:
        """See Bench."""
        self._plans.pop(handle, None)

    def close(self) -> None:
        """See Bench."""
        self._plans.clear()
