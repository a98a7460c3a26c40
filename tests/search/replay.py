"""A bench that answers from functions, on a clock of its own: searches are tested without a device, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autofuse.engine.lowering import variant_of
from autofuse.engine.plan import Plan
from autofuse.fusion.region import RegionProgram
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.measure.bench import Choice, layouts_text
from autofuse.measure.calibrate import Reached
from autofuse.measure.result import Measurement, Opened, Status

HOST = Target("cpu", "cpp", "test-avx512", "test", 64, 32, 2, 1, 1, 0, 0, 32768, 1 << 20, 32 << 20, 64)

Cost = Callable[[Variant, Schedule], float]
Fault = Callable[[Variant, Schedule], Status]


def fine(variant: Variant, schedule: Schedule) -> Status:
    del variant, schedule
    return Status.OK


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ReplayBench:
    """`cost` gives nanoseconds of a kernel, `fault` its status. `seconds` pass for each kernel and plan that is tried."""

    target = HOST
    threads = 2
    oracle = "a table"

    def __init__(
        self,
        graph: Graph,
        cost: Cost,
        fault: Fault = fine,
        *,
        noise: float = 0.0,
        seconds: float = 0.1,
        plan_fault: Callable[[Plan], Status] = lambda plan: Status.OK,
        interrupt_after: float = float("inf"),
        in_engine: Cost | None = None,
        needs: Callable[[Plan], tuple[int, int]] = lambda plan: (0, 0),
        error: Callable[[Variant], float] = lambda variant: 0.0,
    ) -> None:
        """`in_engine` is what a kernel takes in a plan where that differs; launches are stamped then."""
        self.graph = graph
        self.cost = cost
        self.fault = fault
        self.plan_fault = plan_fault
        self.clock = Clock()
        self.seconds = seconds
        self.interrupt_after = self.clock.now + interrupt_after
        self.generator = np.random.default_rng(0)
        self.noise = noise
        self.needs = needs
        self.error = error
        self.asked: list[Choice] = []
        self.plans: list[Plan] = []
        self.in_engine = in_engine
        self.launches: dict[int, list[float]] = {}
        self.past: dict[str, list[Measurement]] = {}
        self.kin: list[Measurement] = []
        self.open_handles: dict[int, float] = {}
        self.most_open = 0
        self.closed = False
        self.checks_first_plan = False

    def seeds(self, program: RegionProgram) -> list[Measurement]:
        return list(self.kin)

    def prepare(self) -> None:
        self.prepared = True

    def _pass(self, seconds: float) -> None:
        self.clock.now += seconds
        if self.clock.now > self.interrupt_after:
            self.interrupt_after = float("inf")
            raise KeyboardInterrupt

    def kernels(
        self,
        program: RegionProgram,
        constants: Mapping[int, np.ndarray],
        choices: Sequence[Choice],
        deadline: float,
        again: int = 0,
    ) -> list[Measurement]:
        out = []
        for k, (v, s) in enumerate(choices):
            self.asked.append((v, s))
            m = Measurement(
                f"{v.key} {s.text()}",
                program.signature,
                v.family,
                v.algorithm,
                layouts_text(v),
                s.text(),
                self.fault(v, s),
                flops=program.flops,
                bytes_model=1000,
            )
            known = [x for x in self.past.get(program.signature, ()) if x.key == m.key]
            if known and k >= again:
                out.append(replace(known[0], cached=True))
                continue
            self._pass(self.seconds)
            if self.clock.now > deadline:
                out.append(replace(m, status=Status.SKIPPED))
                continue
            if m.status is Status.OK:
                m = replace(m, samples_ns=tuple(self._noisy(self.cost(v, s), 12)), error=self.error(v))
            else:
                m = replace(m, reason="as told")
            self.past.setdefault(program.signature, []).append(m)
            out.append(m)
        return out

    def _noisy(self, ns: float, count: int) -> list[int]:
        factors = np.exp(self.generator.normal(0, self.noise, count)) if self.noise else np.ones(count)
        return [max(1, round(ns * f)) for f in factors]

    def compile(self, choices: Sequence[Choice]) -> None:
        pass

    def known(self, signature: str) -> list[Measurement]:
        return list(self.past.get(signature, ()))

    def reached(self, deadline: float) -> Reached:
        return Reached(1e10, 1e11, 1e-7, True)

    def open(self, plan: Plan) -> tuple[int, Opened]:
        self._pass(self.seconds)
        self.plans.append(plan)
        status = self.plan_fault(plan)
        error = 0.0
        times: list[float] = []
        regions: list[int] = []
        for k, r in enumerate(plan.regions):
            if not r.has_kernels:
                continue
            v = variant_of(self.graph, r, self.target)
            if self.fault(v, r.schedule) is not Status.OK:
                status = self.fault(v, r.schedule)
            error = max(error, self.error(v))
            times.append((self.in_engine or self.cost)(v, r.schedule))
            regions.append(k)
        handle, launches = len(self.plans), len(times)
        reason = "" if status is Status.OK else "as told"
        sizes = self.needs(plan)
        opened = Opened(status, reason, error, 0.1, launches, 1000 * launches, 100, *sizes, tuple(regions))
        if opened.ok:
            self.open_handles[handle] = sum(times)
            self.launches[handle] = times
            self.most_open = max(self.most_open, len(self.open_handles))
        return handle, opened

    def open_peer(self, name: str, model: bytes | str) -> tuple[int, Opened]:
        self.open_handles[10_000] = 5000.0
        return 10_000, Opened(Status.OK)

    def shoot(self, handles: Sequence[int], rounds: int, repeats: int) -> dict[int, list[int]]:
        self._pass(0.001 * rounds * repeats)
        return {h: self._noisy(self.open_handles[h], rounds * repeats) for h in handles}

    def failure(self, handle: int) -> tuple[Status, str] | None:
        return None

    def stamps(self, handle: int, repeats: int) -> np.ndarray | None:
        if self.in_engine is None:
            return None
        self._pass(0.001 * repeats)
        return np.asarray([self._noisy(ns, repeats) for ns in self.launches[handle]], np.int64).T

    def exchange(self) -> int:
        return 0

    def release(self, handle: int) -> None:
        self.open_handles.pop(handle, None)

    def close(self) -> None:
        self.closed = True
