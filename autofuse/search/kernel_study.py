"""The search below a region: which variant and schedule implement it fastest.

There is one study per kernel signature, device and version of the search space; `study` is its state, `candidates` what it tries next,
`kernel_costs` what assignments see of it. Each batch is timed together with the incumbent, so that a challenger wins in a paired
comparison or not at all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autofuse.engine.options import Option, OptionSource
from autofuse.fusion.region import RegionProgram
from autofuse.ir.stage import Kind
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import variants
from autofuse.kernels.space import Spaces
from autofuse.measure.bench import Bench, layouts_text
from autofuse.measure.result import Measurement, Status
from autofuse.search.budget import Clock, Pace
from autofuse.search.candidates import MOST_TRIALS, NEAR, Candidates
from autofuse.search.gains import Gains
from autofuse.search.kernel_costs import KernelCosts, Recorded, place
from autofuse.search.study import QUIET, KernelStudy, Tried

BATCH = 6
_FIRST_BATCH = 2
_RELEARN = 24
CONFIRMED = 3
"""Candidates that records put first are measured again, so many of a signature."""


def _kind(program: RegionProgram) -> str:
    """Kernels that take about equally long to compile."""
    return "contract" if any(s.kind is Kind.CONTRACT for s in program.steps) else "other"


def _no_constants(program: RegionProgram) -> Mapping[int, np.ndarray]:
    del program
    return {}


class KernelStudies:
    """All studies of a tune, by signature. `options` is what assignments choose from."""

    def __init__(
        self,
        bench: Bench,
        spaces: Spaces,
        accuracy: str = "default",
        seed: int = 0,
        constants: Callable[[RegionProgram], Mapping[int, np.ndarray]] | None = None,
        sampler: str = "tpe",
        clock: Clock = time.monotonic,
        recorded: Recorded | None = None,
    ) -> None:
        """`recorded` gives the only schedules of a variant that may be proposed, where the space is a recording's."""
        self.bench = bench
        self.target = bench.target
        self.spaces = spaces
        self.accuracy = accuracy
        self.constants = constants if constants is not None else _no_constants
        self.studies: dict[str, KernelStudy] = {}
        self._recorded = recorded
        self._costs = KernelCosts(bench.target, bench.threads, recorded)
        self._candidates = Candidates(bench, spaces, self._costs, sampler, seed, recorded)
        self.is_steady: Callable[[str], bool] = lambda tune: False
        """Whether a tune's measurements can be relied on: it ended, and no neighbour was busy."""
        self._reopened = False
        self._pace = Pace(clock)
        self._trials = 0
        self._options: dict[str, list[Option]] = {}
        self.bound: Callable[[Variant], float] = lambda v: 0.0
        """Seconds that a variant takes at least; nothing is known before the device was calibrated."""
        self.gains = Gains()
        """What trials still gain, as of some trials ago."""

    # ---- what assignments see

    def of(self, program: RegionProgram) -> KernelStudy:
        """The study of a region program."""
        found = self.studies.get(program.signature)
        if found is None:
            allowed = tuple(
                v
                for v in variants(program, self.target)
                if v.family != "view" and v.suits(self.accuracy)
                if self._recorded is None or self._recorded(v)
            )
            found = KernelStudy(program, self.constants(program), allowed)
            self.studies[program.signature] = found
        return found

    def options(self, program: RegionProgram) -> Sequence[Option]:
        """Every variant that may be used: measured ones with their best schedule, others with an estimate on the scale of what was measured."""
        found = self._options.get(program.signature)
        if found is None:
            found = self._options[program.signature] = self._costs.options(self.of(program))
        return found

    def chosen_options(self, direct: bool, known: bool) -> OptionSource:
        """Some of the options, or all where that leaves none: without tolerant algorithms, or only those whose time is known."""

        def source(program: RegionProgram) -> Sequence[Option]:
            found = self.options(program)
            if direct:
                found = [o for o in found if not o.variant.tolerant] or found
            if known:
                found = [o for o in found if o.measured] or found
            return found

        return source

    def observe_in_place(self, seen: Sequence[tuple[Variant, Schedule, float]], instead: bool = False) -> None:
        """Kernels as they were timed inside an engine, in seconds; `instead` of their times alone, as they are."""
        place(((self.of(v.program), v, schedule, seconds) for v, schedule, seconds in seen), instead)
        for v, _, _ in seen:
            self._options.pop(v.program.signature, None)

    def effort(self, v: Variant) -> tuple[int, float]:
        """How many schedules of a variant were tried, and how many are left (infinity where they are not listed yet: that is done when needed)."""
        study = self.of(v.program)
        key = study.key(v)
        table = study.tables.get(key) if self._recorded is None else self._candidates.table(study, v)
        return sum(1 for k, _ in study.tried if k == key), math.inf if table is None else table.left

    def recall(self, program: RegionProgram) -> None:
        """Take what the bench knows of a program for measured, without measuring it again: costs of earlier tunes are asked about."""
        study = self.of(program)
        for m in self.bench.known(program.signature):
            for v in study.variants:
                if (v.family, v.algorithm, layouts_text(v)) == (m.family, m.algorithm, m.layouts):
                    study.keep(Tried((v, Schedule.parse(m.schedule)), m))
        study.leader = min(study.best.values(), key=lambda t: t.seconds, default=None)
        self._options.pop(program.signature, None)

    # ---- measuring

    def room(self, program: RegionProgram, deadline: float) -> int:
        """How many candidates of a kernel can be compiled and measured by the deadline, by what such kernels took so far."""
        return self._pace.room(_kind(program), deadline, _FIRST_BATCH)

    def compile(self, wanted: Sequence[Variant]) -> None:
        """Compile variants that were not measured and soon will be, all side by side."""
        fresh = [(v, self._costs.heuristic(v)) for v in wanted]
        self.bench.compile([c for c in fresh if not self.of(c[0].program).has(c)])

    def step(self, program: RegionProgram, deadline: float, batch: int = BATCH, only: Sequence[Variant] = ()) -> bool:
        """Measure the next few candidates of a signature (of some variants, if given); False where there is none left."""
        study = self.of(program)
        if self._settle(study, deadline):
            return True
        if study.settled:
            return False
        if not only and self._close(study):
            self._options.pop(program.signature, None)
            return False
        choices = self._candidates.next(study, batch, only)
        if not choices:
            if not only:
                study.verdict = self._exhausted(study)
                self._options.pop(program.signature, None)
            return False
        study.batches += 1
        leader = study.leader
        again = [leader.choice] if leader is not None else []
        with self._pace.timed(_kind(program), len(again) + len(choices)):
            rows = self.bench.kernels(program, study.constants, [*again, *choices], deadline, len(again))
        if leader is not None and rows[0].ok:
            # The incumbent's new samples were taken beside the challengers'; the older ones were not.
            leader = Tried(leader.choice, replace(rows[0], compile_seconds=leader.measurement.compile_seconds))
            study.keep(leader)
            study.leader = leader
        for choice, row in zip(choices, rows[len(again) :], strict=True):
            if row.status is Status.SKIPPED and not row.reason:
                continue
            tried = Tried(choice, row)
            study.keep(tried)
            if row.ok and study.leads(tried):
                study.leader = tried
            if study.sampler is not None:
                study.sampler.tell(choice, row.seconds)
        self._confirm(study, deadline)
        self._options.pop(program.signature, None)
        self._trials += len(choices)
        if self._trials >= self.gains.trials + _RELEARN:
            self.gains = replace(Gains.of(self.studies.values()), trials=self._trials)
        return True

    def _close(self, study: KernelStudy) -> bool:
        """Whether a study is over, by rules that its verdict states."""
        if study.closed or study.leader is None:
            return study.closed
        bound = self._least(study)
        if study.seconds <= (1 + study.noise) * bound:
            study.verdict = f"its bound of {1e6 * bound:.3g} us is reached, but for the noise of {study.noise:.1%}"
        elif study.sampler is not None and study.quiet() >= QUIET:
            study.verdict = f"{QUIET} trials in a row gained less than the noise of {study.noise:.1%}"
        return study.closed

    @staticmethod
    def _exhausted(study: KernelStudy) -> str:
        if not study.tried:
            return "no kernel can be tried"
        if len(study.tried) >= MOST_TRIALS:
            return f"{MOST_TRIALS} candidates were tried, the most of one signature"
        return f"all candidates of its variants near the best were tried, {len(study.tried)} in all"

    def _least(self, study: KernelStudy) -> float:
        return min((self.bound(v) for v in study.variants), default=0.0)

    def gap(self, program: RegionProgram) -> float:
        """By how much the best kernel of a signature may still be beaten, as far as its bound says: 1 before there is one."""
        study = self.of(program)
        return 1.0 if study.leader is None else max(0.0, 1 - self._least(study) / study.seconds)

    # ---- what earlier tunes settled

    def is_settled(self, program: RegionProgram, deadline: float) -> bool:
        """Whether an earlier tune studied a kernel, so that this one has better things to measure; what it found is taken over."""
        study = self.of(program)
        self._settle(study, deadline)
        return study.settled

    def reopen(self, program: RegionProgram | None = None) -> bool:
        """Go on with a study that was settled, or with all; False where none was."""
        if program is None:
            self._reopened = True
        mine = [s for s in self.studies.values() if s.settled and program in (None, s.program)]
        for study in mine:
            study.settled = False
        return bool(mine)

    def _settle(self, study: KernelStudy, deadline: float) -> bool:
        """Take over what an earlier tune found, where that can be relied on; True where that was done now.

        The best few are compiled, or found to be compiled, which shows whether their texts are still the same: of another compiler,
        driver or version of autofuse records are seeds only.
        """
        if study.batches or study.settled or self._reopened:
            return False
        known = {(m.family, m.algorithm, m.layouts, m.schedule): m for m in self.bench.known(study.program.signature)}
        best = sorted((m for m in known.values() if m.ok), key=lambda m: m.seconds)[:BATCH]
        if not best or not all(self.is_steady(m.tune) for m in best):
            return False
        seeds = self._candidates.seeds(study)
        if not seeds:
            return False
        rows = self.bench.kernels(study.program, study.constants, seeds, deadline)
        study.batches += 1
        for choice, row in zip(seeds, rows, strict=True):
            if row.status is not Status.SKIPPED or row.reason:
                study.keep(Tried(choice, row))
        study.settled = all(row.cached for row in rows)
        if study.settled:
            self._recall_rest(study, known.values())
        study.leader = min(study.best.values(), key=lambda t: t.seconds, default=None)
        self._confirm(study, deadline)
        self._options.pop(study.program.signature, None)
        return True

    @staticmethod
    def _recall_rest(study: KernelStudy, known: Iterable[Measurement]) -> None:
        for m in known:
            for v in study.variants if m.ok else ():
                choice = (v, Schedule.parse(m.schedule))
                if (v.family, v.algorithm, layouts_text(v)) == (m.family, m.algorithm, m.layouts) and not study.has(
                    choice
                ):
                    study.keep(Tried(choice, m))

    def _confirm(self, study: KernelStudy, deadline: float) -> None:
        """Measure again what leads by a record alone: the machine may have been busy, or quieter, when that was made.

        The few best go side by side, so that what they are compared by was taken at one time. Those of one tune on a steady machine were.
        """
        if study.leader is None or not study.leader.measurement.cached:
            return
        near = [t for t in study.best.values() if t.seconds <= NEAR * study.seconds]
        tunes = {t.measurement.tune if t.measurement.cached else "" for t in near}
        if len(tunes) == 1 and all(self.is_steady(t) for t in tunes):
            return
        again = sorted(near, key=lambda t: t.seconds)[:CONFIRMED]
        rows = self.bench.kernels(study.program, study.constants, [t.choice for t in again], deadline, len(again))
        fresh = [Tried(t.choice, row) for t, row in zip(again, rows, strict=True) if row.ok and not row.cached]
        for tried in fresh:
            study.keep(tried)
        if fresh:
            study.leader = min(fresh, key=lambda t: t.seconds)
