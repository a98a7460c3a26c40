"""Which candidates of a kernel signature are worth trying next.

Every worthwhile variant is tried with its heuristic schedule, with what earlier tunes found, and with what was best for the signatures that
are nearest to it; small spaces are then tried whole, larger ones by Optuna, among the variants near the best.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from autofuse.ir.target import Target
from autofuse.kernels.base import Choice as Value
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import allows, family, schedules
from autofuse.kernels.space import Spaces
from autofuse.measure.bench import Bench, Choice, layouts_text
from autofuse.search.kernel_costs import KernelCosts, Recorded
from autofuse.search.schedule_sampler import ScheduleSampler
from autofuse.search.study import KernelStudy
from autofuse.search.tables import Legal, Table

SMALL_SPACE = 24
"""Spaces up to this many candidates are tried whole."""
MOST_SCHEDULES = 20_000
"""Schedules of one variant that are looked at."""
SEEDS = 6
"""Records of a signature that are tried first."""
KIN = 4
"""Candidates that are taken over from other signatures, or from other compilers, drivers and devices."""
OTHER_CLASS = 24
"""Candidates of the slower of the two classes, direct and tolerant algorithms, that are searched: baselines are tuned, too."""
NEAR = 1.5
"""Schedules are searched for variants within this factor of the best."""
HOPELESS = 4.0
"""A variant whose estimate is this many times the best measured time is left out."""
MOST_TRIALS = 160
"""Candidates of one signature: beyond, time is better spent elsewhere."""


class Candidates:
    """Proposes candidates of studies."""

    def __init__(
        self,
        bench: Bench,
        spaces: Spaces,
        costs: KernelCosts,
        kind: str,
        seed: int,
        recorded: Recorded | None = None,
    ) -> None:
        self._bench = bench
        self._target: Target = bench.target
        self._spaces = spaces
        self._costs = costs
        self._kind = kind
        self._seed = seed
        self._recorded = recorded
        self._legal: dict[tuple[str, tuple[tuple[str, Value], ...]], Legal] = {}

    def next(self, study: KernelStudy, batch: int, only: Sequence[Variant]) -> list[Choice]:
        """The next candidates of a study, or of some of its variants; none where nothing is left."""
        out: list[Choice] = []

        def add(choice: Choice) -> None:
            if len(out) < batch and not study.has(choice) and choice not in out:
                if not only or choice[0] in only:
                    out.append(choice)

        for choice in self.seeds(study):
            add(choice)
        first = [v for v in only if not study.is_broken(v)] if only else self._worthwhile(study)
        if not only and first:
            add((first[0], self._costs.heuristic(first[0])))
            for choice in self._kin(study, first):
                add(choice)
        for v in first:
            add((v, self._costs.heuristic(v)))
        if len(out) == batch or len(study.tried) >= MOST_TRIALS or (only and out):
            return out
        tables = self._near(study, only)
        for v, schedule in out:
            self.table(study, v).close(schedule)
        if sum(t.left for t in tables) <= SMALL_SPACE:
            rest = [(t.variant, s) for t in tables for s in t.untried()]
            return out + rest[: batch - len(out)]
        return self._sampled(study, tables, out, batch)

    def seeds(self, study: KernelStudy) -> list[Choice]:
        """What earlier tunes found to be fastest, the best first."""
        if study.seeds is None:
            known = sorted((m for m in self._bench.known(study.program.signature) if m.ok), key=lambda m: m.seconds)
            study.seeds = []
            for m in known[:SEEDS]:
                for v in study.variants:
                    if (v.family, v.algorithm, layouts_text(v)) == (m.family, m.algorithm, m.layouts):
                        schedule = self.table(study, v).named(m.schedule)
                        if schedule is not None:
                            study.seeds.append((v, schedule))
        return study.seeds

    def _kin(self, study: KernelStudy, worthwhile: Sequence[Variant]) -> list[Choice]:
        """What was best for the nearest other signatures, and for this one elsewhere, as far as it is legal here.

        A row speaks for the variant with its layouts, or else for the likeliest one of its algorithm.
        """
        if study.kin is None:
            study.kin = []
            for m in self._bench.seeds(study.program):
                alike = [v for v in worthwhile if (v.family, v.algorithm) == (m.family, m.algorithm)]
                v = next((v for v in alike if layouts_text(v) == m.layouts), alike[0] if alike else None)
                schedule = None if v is None else self._legal_near(study, v, Schedule.parse(m.schedule))
                if v is not None and schedule is not None and (v, schedule) not in study.kin:
                    study.kin.append((v, schedule))
                if len(study.kin) == KIN:
                    break
        return study.kin

    def _legal_near(self, study: KernelStudy, v: Variant, wish: Schedule) -> Schedule | None:
        """The schedule itself where it is legal for a variant (listing all takes long), else the untried one that is nearest to it."""
        if self._recorded is None and allows(v, wish, self._target, self._spaces):
            return wish
        return self.table(study, v).nearest(wish.values)

    def _worthwhile(self, study: KernelStudy) -> list[Variant]:
        """The variants that may still win, the likeliest first."""
        limit = HOPELESS * study.seconds
        usable = [v for v in study.variants if self._costs.estimate(v) <= limit and not study.is_broken(v)]
        return sorted(usable, key=lambda v: (self._guess(study, v), study.key(v)))

    def _guess(self, study: KernelStudy, v: Variant) -> float:
        best = study.best.get(study.key(v))
        return best.seconds if best is not None else self._costs.estimate(v)

    def _legal_for(self, v: Variant) -> Legal:
        if self._recorded is not None:
            return Legal(self._recorded(v), self._spaces.of(v.family).choices)
        facts = family(v.family).facts(v, self._target)
        key = (v.family, tuple(sorted(facts.items())))
        found = self._legal.get(key)
        if found is None:
            every = itertools.islice(schedules(v, self._target, self._spaces), MOST_SCHEDULES)
            found = self._legal[key] = Legal(tuple(every), self._spaces.of(v.family).choices)
        return found

    def table(self, study: KernelStudy, v: Variant) -> Table:
        """The schedules of a variant and which of them are untried."""
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
            return [self.table(study, v) for v in only]
        near: list[Variant] = []
        for tolerant in (False, True):
            mine = [v for v in self._worthwhile(study) if v.tolerant is tolerant]
            best = min((self._guess(study, v) for v in mine), default=float("inf"))
            spent = sum(1 for t in study.tried.values() if t.choice[0].tolerant is tolerant)
            if best <= NEAR * study.seconds or spent < OTHER_CLASS:
                near += [v for v in mine if self._guess(study, v) <= NEAR * best]
        near.sort(key=lambda v: self._guess(study, v))
        return [self.table(study, v) for v in near]

    def _sampled(self, study: KernelStudy, tables: list[Table], out: list[Choice], batch: int) -> list[Choice]:
        """Fill the batch with what Optuna proposes."""
        if study.sampler is None:
            study.sampler = ScheduleSampler(study.variants, self._spaces, self._kind, self._seed)
            for tried in study.tried.values():
                study.sampler.tell(tried.choice, tried.seconds)
        return out + study.sampler.ask(tables, batch - len(out))
