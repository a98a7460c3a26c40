"""The search below a region: which variant and schedule implement it fastest.

There is one study per kernel signature, device and version of the search space. Every variant is tried with its heuristic schedule and
with what earlier tunes found; small spaces are then tried whole, larger ones by Optuna. Each batch is timed
together with the incumbent, so that a challenger wins in a paired comparison or not at all.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autofuse.engine.options import Option, OptionSource, estimate
from autofuse.fusion.region import RegionProgram
from autofuse.ir.stage import Kind
from autofuse.kernels.base import Choice as Value
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import family, schedules, variants
from autofuse.kernels.space import Spaces
from autofuse.measure.bench import Bench, Choice, layouts_text
from autofuse.measure.racing import compare
from autofuse.measure.result import Measurement, Status
from autofuse.search.budget import Clock, Pace
from autofuse.search.schedule_sampler import ScheduleSampler
from autofuse.search.tables import Legal, Table

SMALL_SPACE = 24
"""Spaces up to this many candidates are tried whole."""
MOST_SCHEDULES = 20_000
"""Schedules of one variant that are looked at."""
BATCH = 6
_FIRST_BATCH = 2
IN_PLACE = 0.1
"""Beyond this relative difference a kernel's time inside an engine replaces its time alone."""
OTHER_CLASS = 24
"""Candidates of the slower of the two classes, direct and tolerant algorithms, that are searched: baselines are tuned, too."""
PATIENCE = 4
"""Failures of a variant, without a success, after which it is given up."""
_DEADLY = (Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY)
NEAR = 1.5
"""Schedules are searched for variants within this factor of the best."""
HOPELESS = 4.0
"""A variant whose estimate is this many times the best measured time is left out."""
CONFIRMED = 3
"""Candidates that records put first are measured again, so many of a signature."""
MOST_TRIALS = 160
"""Candidates of one signature: beyond, time is better spent elsewhere."""


@dataclass(frozen=True)
class Tried:
    """One candidate and what came of it."""

    choice: Choice
    measurement: Measurement


@dataclass
class KernelStudy:
    """What is known of one signature."""

    program: RegionProgram
    constants: Mapping[int, np.ndarray]
    variants: tuple[Variant, ...]
    tables: dict[str, Table] = field(default_factory=dict)
    tried: dict[tuple[str, str], Tried] = field(default_factory=dict)
    best: dict[str, Tried] = field(default_factory=dict)
    """The best of each variant, by its key."""
    leader: Tried | None = None
    keys: dict[int, tuple[Variant, str]] = field(default_factory=dict)
    in_place: dict[str, tuple[Schedule, float]] = field(default_factory=dict)
    """What a variant took inside an engine, in seconds, by its key."""
    batches: int = 0
    closed: bool = False
    settled: bool = False
    """An earlier tune studied it, on a machine that was steady: it is left as it is until nothing else is left to study."""
    seeds: list[Choice] | None = None
    sampler: ScheduleSampler | None = None

    @property
    def seconds(self) -> float:
        """The best measured time; infinity before there is one."""
        return self.leader.measurement.seconds if self.leader is not None else float("inf")

    def has(self, choice: Choice) -> bool:
        return self.identity(choice) in self.tried

    def key(self, v: Variant) -> str:
        """The variant's key, remembered by identity: it is a long text, and asked for often."""
        found = self.keys.get(id(v))
        if found is not None and found[0] is v:
            return found[1]
        self.keys[id(v)] = (v, v.key)
        return v.key

    def identity(self, choice: Choice) -> tuple[str, str]:
        """What tells a candidate from the others of its study."""
        return self.key(choice[0]), choice[1].text()


def _kind(program: RegionProgram) -> str:
    """Kernels that take about equally long to compile."""
    return "contract" if any(s.kind is Kind.CONTRACT for s in program.steps) else "other"


def _schedule(text: str) -> Schedule:
    """The schedule that was written as text."""
    pairs = (part.split("=", 1) for part in text.split(" ") if "=" in part)
    return Schedule.of({k: int(v) if v.lstrip("-").isdigit() else v for k, v in pairs})


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
    ) -> None:
        self.bench = bench
        self.target = bench.target
        self.spaces = spaces
        self.accuracy = accuracy
        self.seed = seed
        self.constants = constants if constants is not None else _no_constants
        self._sampler = sampler
        self.is_steady: Callable[[str], bool] = lambda tune: False
        """Whether a tune's measurements can be relied on: it ended, and no neighbour was busy."""
        self._reopened = False
        self._pace = Pace(clock)
        self._legal: dict[tuple[str, tuple[tuple[str, Value], ...]], Legal] = {}
        self.studies: dict[str, KernelStudy] = {}
        self._options: dict[str, list[Option]] = {}
        self._estimates: dict[int, tuple[Variant, float]] = {}

    # ---- what assignments see

    def of(self, program: RegionProgram) -> KernelStudy:
        """The study of a region program."""
        found = self.studies.get(program.signature)
        if found is None:
            allowed = tuple(
                v
                for v in variants(program, self.target)
                if v.family != "view" and not (v.tolerant and self.accuracy == "exact")
            )
            found = KernelStudy(program, self.constants(program), allowed)
            self.studies[program.signature] = found
        return found

    def options(self, program: RegionProgram) -> Sequence[Option]:
        """Every variant that may be used: measured ones with their best schedule, others with an estimate on the scale of what was measured."""
        found = self._options.get(program.signature)
        if found is None:
            found = self._options[program.signature] = self._make_options(program)
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

    def observe_in_place(self, seen: Sequence[tuple[Variant, Schedule, float]]) -> None:
        """Kernels as they were timed inside an engine, in seconds.

        They price variants that were not measured alone. Where both are known they are put on one scale first, by the ratio over all of the
        engine's kernels, because the machine's speed drifts; what still differs by more than a tenth is worth more than a timing alone.
        """
        alone = {}
        for k, (v, schedule, _) in enumerate(seen):
            best = self.of(v.program).best.get(self.of(v.program).key(v))
            if best is not None and best.choice[1] == schedule:
                alone[k] = best.measurement.seconds
        together = sum(seen[k][2] for k in alone)
        scale = sum(alone.values()) / together if together > 0 else 1.0
        for k, (v, schedule, seconds) in enumerate(seen):
            study = self.of(v.program)
            scaled = seconds * scale
            if k in alone and abs(scaled / alone[k] - 1) <= IN_PLACE:
                study.in_place.pop(study.key(v), None)
            else:
                study.in_place[study.key(v)] = (schedule, scaled)
            self._options.pop(v.program.signature, None)

    def _make_options(self, program: RegionProgram) -> list[Option]:
        study = self.of(program)
        out = [Option(v, Schedule(()), 0.0, True) for v in variants(program, self.target) if v.family == "view"]
        ratios: dict[tuple[str, str], float] = {}
        for v, seconds in self._timed(study):
            ratio = seconds / self.estimate(v)
            name = (v.family, v.algorithm)
            ratios[name] = min(ratio, ratios.get(name, ratio))
        failed = {key for (key, _), t in study.tried.items() if t.measurement.status is not Status.SKIPPED}
        # An algorithm that failed wherever it was tried is not trusted in other layouts while there is one that works.
        working = {(t.choice[0].family, t.choice[0].algorithm) for t in study.best.values()}
        tried = {(t.choice[0].family, t.choice[0].algorithm) for t in study.tried.values()}
        suspect = tried - working if working else set()
        for v in study.variants:
            if (v.family, v.algorithm) in suspect:
                continue
            best = study.best.get(study.key(v))
            placed = study.in_place.get(study.key(v))
            if best is not None:
                same = placed is not None and placed[0] == best.choice[1]
                seconds = placed[1] if placed is not None and same else best.measurement.seconds
                out.append(Option(v, best.choice[1], seconds, True))
            elif placed is not None and study.key(v) not in failed:
                out.append(Option(v, placed[0], placed[1], True))
            elif study.key(v) not in failed:
                # Estimates are hopeful. Unscaled, whatever was not measured would look better than what was.
                scale = ratios.get((v.family, v.algorithm), max(1.0, self._usual(v.family, v.algorithm)))
                out.append(Option(v, self._heuristic(v), self.estimate(v) * scale))
        return out

    @staticmethod
    def _is_broken(study: KernelStudy, key: str) -> bool:
        """Whether a variant failed so often that it is given up. What took the process down with it counts twice: it costs the most time."""
        mine = [t.measurement.status for (k, _), t in study.tried.items() if k == key]
        failures = [2 if s in _DEADLY else 1 for s in mine if s not in (Status.OK, Status.SKIPPED)]
        return Status.OK not in mine and sum(failures) >= PATIENCE

    @staticmethod
    def _timed(study: KernelStudy) -> list[tuple[Variant, float]]:
        """The variants whose time is known, alone or in place."""
        alone = [(t.choice[0], t.measurement.seconds) for t in study.best.values()]
        placed = [
            (v, study.in_place[study.key(v)][1])
            for v in study.variants
            if study.key(v) in study.in_place and study.key(v) not in study.best
        ]
        return alone + placed

    def _usual(self, name: str, algorithm: str) -> float:
        """By how much measurements exceed estimates for an algorithm, over all studies."""
        ratios = [
            seconds / self.estimate(v)
            for s in self.studies.values()
            for v, seconds in self._timed(s)
            if (v.family, v.algorithm) == (name, algorithm)
        ]
        return statistics.median(ratios) if ratios else 1.0

    def estimate(self, v: Variant) -> float:
        """Seconds by arithmetic, bytes and a launch."""
        found = self._estimates.get(id(v))
        if found is None or found[0] is not v:
            found = self._estimates[id(v)] = (v, max(estimate(v, self.target, self.bench.threads), 1e-9))
        return found[1]

    def _heuristic(self, v: Variant) -> Schedule:
        return family(v.family).heuristic(v, self.target)

    def effort(self, v: Variant) -> tuple[int, bool]:
        """How many schedules of a variant were tried, and whether any are left as far as is known (they are listed when first needed)."""
        study = self.of(v.program)
        key = study.key(v)
        table = study.tables.get(key)
        return sum(1 for k, _ in study.tried if k == key), table is None or table.left > 0

    def recall(self, program: RegionProgram) -> None:
        """Take what the bench knows of a program for measured, without measuring it again: costs of earlier tunes are asked about."""
        study = self.of(program)
        for m in self.bench.known(program.signature):
            for v in study.variants:
                if (v.family, v.algorithm, layouts_text(v)) == (m.family, m.algorithm, m.layouts):
                    self._keep(study, Tried((v, _schedule(m.schedule)), m))
        study.leader = min(study.best.values(), key=lambda t: t.measurement.seconds, default=None)
        self._options.pop(program.signature, None)

    # ---- measuring

    def room(self, program: RegionProgram, deadline: float) -> int:
        """How many candidates of a kernel can be compiled and measured by the deadline, by what such kernels took so far."""
        return self._pace.room(_kind(program), deadline, _FIRST_BATCH)

    def compile(self, wanted: Sequence[Variant]) -> None:
        """Compile variants that were not measured and soon will be, all side by side."""
        fresh = [(v, self._heuristic(v)) for v in wanted]
        self.bench.compile([c for c in fresh if not self.of(c[0].program).has(c)])

    def step(self, program: RegionProgram, deadline: float, batch: int = BATCH, only: Sequence[Variant] = ()) -> bool:
        """Measure the next few candidates of a signature (of some variants, if given); False where there is none left."""
        study = self.of(program)
        if self._settle(study, deadline):
            return True
        if study.settled:
            return False
        choices = self._next(study, batch, only)
        if not choices:
            if not only:
                study.closed = True
            return False
        study.batches += 1
        leader = study.leader
        again = [leader.choice] if leader is not None else []
        with self._pace.timed(_kind(program), len(again) + len(choices)):
            rows = self.bench.kernels(program, study.constants, [*again, *choices], deadline, len(again))
        if leader is not None and rows[0].ok:
            # The incumbent's new samples were taken beside the challengers'; the older ones were not.
            leader = Tried(leader.choice, replace(rows[0], compile_seconds=leader.measurement.compile_seconds))
            self._keep(study, leader)
            study.leader = leader
        for choice, row in zip(choices, rows[len(again) :], strict=True):
            if row.status is Status.SKIPPED and not row.reason:
                continue
            tried = Tried(choice, row)
            self._keep(study, tried)
            if row.ok and self._beats(tried, study.leader):
                study.leader = tried
            if study.sampler is not None:
                study.sampler.tell(choice, row.seconds)
        self._confirm(study, deadline)
        self._options.pop(program.signature, None)
        return True

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
        seeds = self._seeds(study)
        if not best or not seeds or not all(self.is_steady(m.tune) for m in best):
            return False
        rows = self.bench.kernels(study.program, study.constants, seeds, deadline)
        study.batches += 1
        for choice, row in zip(seeds, rows, strict=True):
            if row.status is not Status.SKIPPED or row.reason:
                self._keep(study, Tried(choice, row))
        study.settled = all(row.cached for row in rows)
        if study.settled:
            for m in known.values():
                for v in study.variants if m.ok else ():
                    choice = (v, _schedule(m.schedule))
                    if (v.family, v.algorithm, layouts_text(v)) == (m.family, m.algorithm, m.layouts):
                        if not study.has(choice):
                            self._keep(study, Tried(choice, m))
        study.leader = min(study.best.values(), key=lambda t: t.measurement.seconds, default=None)
        self._confirm(study, deadline)
        self._options.pop(study.program.signature, None)
        return True

    def _confirm(self, study: KernelStudy, deadline: float) -> None:
        """Measure again what leads by a record alone: the machine may have been busy, or quieter, when that was made.

        The few best go side by side, so that what they are compared by was taken at one time. Those of one tune on a steady machine were.
        """
        if study.leader is None or not study.leader.measurement.cached:
            return
        near = [t for t in study.best.values() if t.measurement.seconds <= NEAR * study.seconds]
        tunes = {t.measurement.tune if t.measurement.cached else "" for t in near}
        if len(tunes) == 1 and all(self.is_steady(t) for t in tunes):
            return
        again = sorted(near, key=lambda t: t.measurement.seconds)[:CONFIRMED]
        rows = self.bench.kernels(study.program, study.constants, [t.choice for t in again], deadline, len(again))
        fresh = [Tried(t.choice, row) for t, row in zip(again, rows, strict=True) if row.ok and not row.cached]
        for tried in fresh:
            self._keep(study, tried)
        if fresh:
            study.leader = min(fresh, key=lambda t: t.measurement.seconds)

    def _keep(self, study: KernelStudy, tried: Tried) -> None:
        study.tried[study.identity(tried.choice)] = tried
        table = study.tables.get(study.key(tried.choice[0]))
        if table is not None:
            table.close(tried.choice[1])
        if not tried.measurement.ok:
            return
        key = study.key(tried.choice[0])
        old = study.best.get(key)
        if old is None or old.choice == tried.choice or tried.measurement.seconds < old.measurement.seconds:
            study.best[key] = tried

    @staticmethod
    def _beats(tried: Tried, leader: Tried | None) -> bool:
        if leader is None:
            return True
        if tried.measurement.cached or leader.measurement.cached:
            return tried.measurement.seconds < leader.measurement.seconds
        a, b = tried.measurement.samples_ns, leader.measurement.samples_ns
        if len(a) < len(b):
            return False  # it was dropped on the way
        result = compare(a, b, level=0.1)
        return result.winner == "a" or (result.tie and result.ratio < 0.97)

    # ---- which ones

    def _next(self, study: KernelStudy, batch: int, only: Sequence[Variant]) -> list[Choice]:
        out: list[Choice] = []

        def add(choice: Choice) -> None:
            if len(out) < batch and not study.has(choice) and choice not in out:
                if not only or choice[0] in only:
                    out.append(choice)

        for choice in self._seeds(study):
            add(choice)
        asked = [v for v in only if not self._is_broken(study, study.key(v))]
        for v in asked if only else self._worthwhile(study):
            add((v, self._heuristic(v)))
        if len(out) == batch or len(study.tried) >= MOST_TRIALS or (only and out):
            return out
        tables = self._near(study, only)
        for v, schedule in out:
            self._table(study, v).close(schedule)
        if sum(t.left for t in tables) <= SMALL_SPACE:
            rest = [(t.variant, s) for t in tables for s in t.untried()]
            return out + rest[: batch - len(out)]
        return self._sampled(study, tables, out, batch)

    def _seeds(self, study: KernelStudy) -> list[Choice]:
        """What earlier tunes found to be fastest, the best first."""
        if study.seeds is None:
            known = sorted((m for m in self.bench.known(study.program.signature) if m.ok), key=lambda m: m.seconds)
            study.seeds = []
            for m in known[:BATCH]:
                for v in study.variants:
                    if (v.family, v.algorithm, layouts_text(v)) == (m.family, m.algorithm, m.layouts):
                        schedule = self._table(study, v).named(m.schedule)
                        if schedule is not None:
                            study.seeds.append((v, schedule))
        return study.seeds

    def _worthwhile(self, study: KernelStudy) -> list[Variant]:
        """The variants that may still win, the likeliest first."""
        limit = HOPELESS * study.seconds
        usable = [v for v in study.variants if self.estimate(v) <= limit and not self._is_broken(study, study.key(v))]
        return sorted(usable, key=lambda v: (self._guess(study, v), study.key(v)))

    def _guess(self, study: KernelStudy, v: Variant) -> float:
        best = study.best.get(study.key(v))
        return best.measurement.seconds if best is not None else self.estimate(v)

    def _legal_for(self, v: Variant) -> Legal:
        facts = family(v.family).facts(v, self.target)
        key = (v.family, tuple(sorted(facts.items())))
        found = self._legal.get(key)
        if found is None:
            every = itertools.islice(schedules(v, self.target, self.spaces), MOST_SCHEDULES)
            found = self._legal[key] = Legal(tuple(every), self.spaces.of(v.family).choices)
        return found

    def _table(self, study: KernelStudy, v: Variant) -> Table:
        key = study.key(v)
        found = study.tables.get(key)
        if found is None:
            found = study.tables[key] = Table(v, self._legal_for(v))
            for tried in study.tried.values():
                if tried.choice[0] is v or tried.choice[0] == v:
                    found.close(tried.choice[1])
        return found

    def _near(self, study: KernelStudy, only: Sequence[Variant]) -> list[Table]:
        """The candidates of the variants that are near the best, the best variant first; or of those that are asked for."""
        if only:
            return [self._table(study, v) for v in only]
        near: list[Variant] = []
        for tolerant in (False, True):
            mine = [v for v in self._worthwhile(study) if v.tolerant is tolerant]
            best = min((self._guess(study, v) for v in mine), default=float("inf"))
            spent = sum(1 for t in study.tried.values() if t.choice[0].tolerant is tolerant)
            if best <= NEAR * study.seconds or spent < OTHER_CLASS:
                near += [v for v in mine if self._guess(study, v) <= NEAR * best]
        near.sort(key=lambda v: self._guess(study, v))
        return [self._table(study, v) for v in near]

    def _sampled(self, study: KernelStudy, tables: list[Table], out: list[Choice], batch: int) -> list[Choice]:
        """Fill the batch with what Optuna proposes."""
        if study.sampler is None:
            study.sampler = ScheduleSampler(study.variants, self.spaces, self._sampler, self.seed)
            for tried in study.tried.values():
                study.sampler.tell(tried.choice, tried.measurement.seconds)
        return out + study.sampler.ask(tables, batch - len(out))
