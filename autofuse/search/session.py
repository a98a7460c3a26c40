"""One tune, phase by phase: baselines, kernels, plans, finals.

Baselines come first, so that there is a valid best plan within the first minute, and are tuned with the same care as all others. Kernels of
the unfused and the greedy partition are then studied by their share of the time; after that partitions are
proposed, priced with what is known, and the promising ones get what they lack: measured kernels, then a run end to end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Partition
from autofuse.fusion.region import RegionProgram
from autofuse.ir.graph import Graph
from autofuse.kernels.base import Variant
from autofuse.measure.bench import Bench
from autofuse.measure.noise import Patience
from autofuse.measure.result import Status
from autofuse.search import trading
from autofuse.search.book import Book, Entry
from autofuse.search.budget import Budget
from autofuse.search.kernel_study import BATCH, KernelStudies
from autofuse.search.planner import Planner
from autofuse.search.progress import Event, Kernels, Phase, Progress
from autofuse.search.rows import step_of
from autofuse.search.samplers import PlanSampler, Proposal

NOISE_SHARE, MOST_NOISE_SECONDS = 0.02, 3.0
"""The part of the budget that calibrating the noise may take, and its bound in seconds."""
WAIT_SHARE, MOST_WAITED = 0.05, 20.0
"""The same for waiting until a busy machine is calm."""
KERNEL_SHARE = 0.40
PLAN_SHARE = 0.85
_FRONT_SECONDS = 2.0
_IDLE = 40
"""Proposals in a row of which none could be followed in the time that is left, after which no more are asked for."""
FINALISTS = 3
_REPAIRS = 3
_PROPOSALS = 6
_LEAST_GAP = 0.05
"""Kernels that are nearer to their bounds than this count as if they were this far: a bound may be wrong."""
_PROMISING = 1.25
"""Plans whose estimate is within this factor of the best are worth having their kernels measured."""


class Session:
    """The state of a tune. Every method leaves it fit to be finished, so that an interruption loses nothing."""

    def __init__(
        self,
        graph: Graph,
        bench: Bench,
        planner: Planner,
        studies: KernelStudies,
        sampler: Callable[[], PlanSampler],
        budget: Budget,
        progress: Progress,
        trials: int | None = None,
        aim: trading.Aim = trading.NO_AIM,
    ) -> None:
        self.graph = graph
        self.bench = bench
        self.planner = planner
        self.studies = studies
        self.budget = budget
        patience = Patience(min(MOST_WAITED, WAIT_SHARE * budget.seconds))
        self.book = Book(bench, lambda: budget.spent, patience, aim.memory, trading.allowed_weights(graph))
        self.aim = aim
        self.sampler: PlanSampler | None = None
        self._make_sampler = sampler
        self._progress = progress
        self._trials = trials
        self._phase = Phase.PREPARE
        self.unfused: Partition = planner.partitioner.unfused()
        self.greedy: Partition = planner.partitioner.greedy()
        self.heuristic: Plan | None = None
        self.baselines: list[Entry] = []
        """The first unfused plan, then its tuned form and the greedy plans."""
        self.notes: list[str] = []
        self.steady = False
        """Whether the machine was as fast as it was ever seen to be when the device was calibrated."""

    # ---- telling

    def tell(self, text: str, done: int = 0, total: int = 0) -> None:
        """Report where the tune stands."""
        best = self.book.best.ns if self.book.best is not None and self.book.best.ok else 0.0
        first = self.baselines[0].ns if self.baselines and self.baselines[0].ok else 0.0
        gap = self.sampler.gap if self.sampler is not None else float("nan")
        kernels = self.sampler.kernels if self.sampler is not None else Kernels()
        spent, budget = self.budget.spent, self.budget.seconds
        self._progress(Event(self._phase, text, done, total, best, first, gap, spent, budget, kernels))

    def tell_done(self) -> None:
        """Report the end."""
        self._phase = Phase.DONE
        self.tell("done")

    # ---- baselines

    def run_previous(self, plan: Plan) -> None:
        """Measure the best plan of an earlier tune."""
        self._phase = Phase.BASELINES
        self.tell("the previous best plan")
        entry = self.book.attempt(plan, self._step(plan), math.inf)
        if not entry.ok:
            self.notes.append(f"the previous best plan could not be used: {entry.opened.reason}")

    def run_baselines(self) -> None:
        """The unfused and the greedy plan with heuristic schedules."""
        self._phase = Phase.BASELINES
        self.tell("the unfused plan", 0, 2)
        first = self._baseline(self.unfused, "unfused", direct=True)
        if first is not None and first.ok and not self._affordable(first.plan, first.opened.seconds):
            self.notes.append(
                f"compiling the unfused plan took {first.opened.seconds:.0f} s of {self.budget.seconds:.0f}: "
                "no other plan could be tried; give a larger --budget"
            )
            return
        self.tell("the greedy plan", 1, 2)
        self._baseline(self.greedy, "greedy")

    def run_noise(self) -> None:
        """Calibrate the noise: the incumbent against itself."""
        seconds = min(NOISE_SHARE * self.budget.seconds, MOST_NOISE_SECONDS)
        if self.book.best is not None and seconds > 0:
            self.tell("the noise: the best plan against itself")
            self.book.calibrate_noise(seconds)

    def _affordable(self, done: Plan, seconds: float) -> bool:
        """Whether the greedy plan can be made ready in what is left, by what the unfused one took for each of its kernels."""
        plan = self.planner.plan(self.greedy, "greedy")
        if plan is None:
            return True
        have = {(p.signature, r.schedule) for r, p in self.planner.kernels(done)}
        new = {(p.signature, r.schedule) for r, p in self.planner.kernels(plan)} - have
        # The greedy plan is what most people come for: it may overrun the budget by half.
        limit = max(self.budget.left, self.budget.seconds / 2)
        return seconds * len(new) / max(1, len(have)) <= limit or self.budget.seconds <= 0

    def _attempt(self, plan: Plan) -> Entry:
        """Try a plan end to end, and learn from it what its kernels take in place."""
        fresh = not self.book.tried(plan)
        known = not self.planner.open_kernels(plan)
        entry = self.book.attempt(plan, self._step(plan), self.planner.seconds(plan), known)
        if fresh and entry.ok and entry.region_ns:
            self.studies.observe_in_place(self.planner.placed(plan, entry.region_ns), instead=entry.again)
        return entry

    def _baseline(self, partition: Partition, origin: str, direct: bool = False, known: bool = False) -> Entry | None:
        """Try a partition's plan; where it fails, find the kernels to blame and plan again without them."""
        entry: Entry | None = None
        for _ in range(_REPAIRS):
            plan = self.planner.plan(partition, origin, direct, known)
            if plan is None:
                self.notes.append(f"the {origin} partition cannot run: a region of it has no working kernel")
                return entry
            if self.bench.checks_first_plan:
                self._check_kernels(plan)
                plan = self.planner.plan(partition, origin, direct, known) or plan
            if self.heuristic is None and partition is self.unfused:
                self.heuristic = plan
            again = self.book.tried(plan)
            entry = self._attempt(plan)
            if entry.ok:
                if entry not in self.baselines:
                    self.baselines.append(entry)
                return entry
            if again:
                return entry
            self._check_kernels(plan)
        return entry

    def _check_kernels(self, plan: Plan) -> None:
        """Have each kernel of a plan checked on its own."""
        found = self.planner.open_kernels(plan)
        for k, (v, _) in enumerate(found):
            self.studies.reopen(v.program)
            self.tell("checking the plan's kernels one by one", k, len(found))
            self.studies.step(v.program, self.budget.at(1.0), batch=1, only=[v])
            # Where it fails, the others of its signature are tried until one works.
            while self.studies.of(v.program).leader is None and self.studies.step(v.program, self.budget.at(1.0)):
                pass

    def _step(self, plan: Plan) -> str:
        return step_of(self.graph, plan, self.unfused, self.heuristic, self.bench.target)

    # ---- kernels

    def run_kernels(self, share: float = KERNEL_SHARE) -> None:
        """Study the kernels of the unfused and the greedy partition, those that hold most of the time first."""
        self._phase = Phase.KERNELS
        while self.budget.within(share):
            plans = [p for p in (self.planner.plan(x, "") for x in (self.unfused, self.greedy)) if p is not None]
            if not self._study_heaviest(plans, share):
                break
        for partition, origin, direct in (
            (self.unfused, "unfused, tuned", True),
            (self.greedy, "greedy, tuned", True),
            (self.greedy, "greedy, tuned, any algorithm", False),
        ):
            if self.budget.within(PLAN_SHARE):
                self.tell(f"the plan {origin}")
                self._baseline(partition, origin, direct, known=True)

    def _study_heaviest(self, plans: list[Plan], share: float, steps: int = 4) -> bool:
        """A few steps on the signatures that promise most; False where nothing is left to study."""
        weights: dict[str, tuple[RegionProgram, float]] = {}
        for plan in plans:
            for s, (program, seconds) in self.planner.weights(plan).items():
                if s not in weights or seconds > weights[s][1]:
                    weights[s] = (program, seconds)
        total, done = len(weights), 0
        while done < steps and self.budget.within(share):
            ready = {s: w for s, w in weights.items() if not (of := self.studies.of(w[0])).closed and not of.settled}
            if not ready:
                break
            chosen = max(ready, key=lambda s: self._promise(*ready[s]))
            program = ready[chosen][0]
            room = self.studies.room(program, self.budget.at(share))
            if room < 1:
                weights.pop(chosen)
                continue
            kinds = "/".join(dict.fromkeys(s.kind.value for s in program.steps))
            self.tell(f"kernel {chosen[:8]} ({kinds})", total - len(ready), total)
            done += self.studies.step(program, self.budget.at(min(1.0, share + 0.1)), min(room, BATCH))
        return done > 0

    def _promise(self, program: RegionProgram, seconds: float) -> float:
        """What another batch of a kernel's trials may bring: its share of the time, as far as its bound leaves any to gain.

        The gain of another batch shrinks with every batch: it is divided among them.
        """
        open_part = max(_LEAST_GAP, self.studies.gap(program))
        return seconds * open_part / float((1 + self.studies.of(program).batches) ** 1.5)

    # ---- plans

    def run_plans(self, share: float = PLAN_SHARE) -> None:
        """Propose partitions, price them, and give the promising ones what they lack."""
        self._phase = Phase.PLANS
        if not self.budget.within(share):
            return
        self.sampler = self._make_sampler()
        pool: dict[object, tuple[Proposal, Plan, float]] = {}
        proposed = idle = 0
        while self.budget.within(share) and idle < _IDLE:
            exhausted = moved = False
            for _ in range(_PROPOSALS):
                proposal = None
                if self._trials is None or proposed < self._trials:
                    proposal = self.sampler.propose()
                if proposal is None:
                    exhausted = True
                    break
                proposed += 1
                if proposal.plan is not None:
                    moved |= self._follow(proposal, proposal.plan, pool, share)
                    break
                self._price(proposal, pool)
                if not self.budget.within(share):
                    break
            self.tell(f"{proposed} partitions proposed", proposed, self._trials or 0)
            moved = moved or self._advance(pool, share)
            # Better schedules of what is already good are as likely to pay as another partition.
            studied = self._study_heaviest(self._leading(pool), share, steps=1)
            idle = 0 if moved or studied else idle + 1
            if exhausted and idle:
                # What earlier tunes settled comes last: it was studied with care before.
                if not self.studies.reopen():
                    break
                self.sampler.reopen()
        proven = self.sampler.certificate()
        if proven:
            self.notes.append(proven)

    def _follow(
        self, proposal: Proposal, plan: Plan, pool: dict[object, tuple[Proposal, Plan, float]], share: float
    ) -> bool:
        """Measure what a whole plan lacks, or run it where it lacks nothing; False where time allows neither."""
        done = 0
        together: dict[str, list[Variant]] = {}
        fresh = [v for v in proposal.lacking if not self.studies.is_settled(v.program, self.budget.at(share))]
        for v in fresh:
            together.setdefault(v.program.signature, []).append(v)
        if together and self.budget.within(share):
            self.tell(f"compiling what the {proposal.label} lacks")
            self.studies.compile(fresh)
        for mine in together.values():
            program = mine[0].program
            if not self.budget.within(share):
                break
            if self.studies.room(program, self.budget.at(share)) < 1:
                continue
            self.tell(f"kernel {program.signature[:8]} of the {proposal.label}")
            done += self.studies.step(program, self.budget.at(share), batch=2 * len(mine), only=mine)
        in_time = self.budget.at(share) - self.budget.clock() >= self.book.pace
        if not proposal.lacking and in_time and not self.book.tried(plan):
            self.tell(f"{proposal.label} end to end")
            if not self._attempt(plan).ok:
                self._check_kernels(plan)
            done += 1
        seconds = self.planner.seconds(plan)
        assert self.sampler is not None
        self.sampler.observe(proposal, seconds)
        if not proposal.lacking and math.isfinite(seconds):
            pool[plan.key] = (proposal, plan, seconds)
        return done > 0

    def _price(self, proposal: Proposal, pool: dict[object, tuple[Proposal, Plan, float]]) -> None:
        plan = self.planner.plan(proposal.partition, proposal.label)
        seconds = self.planner.seconds(plan) if plan is not None else math.inf
        assert self.sampler is not None
        self.sampler.observe(proposal, seconds)
        if plan is not None and math.isfinite(seconds):
            pool[proposal.partition.key] = (proposal, plan, seconds)

    def _advance(self, pool: dict[object, tuple[Proposal, Plan, float]], share: float) -> bool:
        """Take the most promising plan that is not settled one step further; False where all are."""
        ranked = sorted((x for x in pool.values() if x[0].plan is None), key=lambda x: x[2])
        if not ranked:
            return False
        best = self._best_estimate()
        for proposal, _, seconds in ranked[: 4 * FINALISTS]:
            if seconds > _PROMISING * min(best, ranked[0][2]):
                return False
            plan = self.planner.plan(proposal.partition, proposal.label)
            if plan is None or self.book.tried(plan):
                continue
            lacking = self.planner.open_kernels(plan)
            if lacking:
                v = lacking[0][0]
                if self.studies.room(v.program, self.budget.at(share)) < 1:
                    continue
                self.tell(f"kernel {v.program.signature[:8]} of a promising plan")
                if not self.studies.step(v.program, self.budget.at(share), batch=2, only=[v]):
                    self.studies.step(v.program, self.budget.at(share), batch=2)
                self._price(proposal, pool)
                return True
            if seconds > 1.1 * best and self.book.best is not None:
                continue
            if self.budget.at(share) - self.budget.clock() < self.book.pace:
                continue
            self.tell(f"{proposal.label} end to end")
            self._attempt(plan)
            return True
        return False

    def _best_estimate(self) -> float:
        """The sum of kernels of the incumbent, by what is known now."""
        return self.planner.seconds(self.book.best.plan) if self.book.best is not None else math.inf

    def _leading(self, pool: dict[object, tuple[Proposal, Plan, float]]) -> list[Plan]:
        best = [self.book.best.plan] if self.book.best is not None else []
        return best + [plan for _, plan, _ in sorted(pool.values(), key=lambda x: x[2])[:FINALISTS]]

    # ---- two objectives

    def run_front(self, share: float = PLAN_SHARE) -> None:
        """Plans that trade latency for the second objective, or that keep to a limit that the best one does not: predicted, then run."""
        best = self.book.best
        if best is None or (self.aim.second is None and self.book.fits(best)):
            return
        self._phase = Phase.PLANS
        self.tell("predicting trade-offs")
        end = self.budget.clock() + max(_FRONT_SECONDS, 0.5 * (self.budget.at(share) - self.budget.clock()))
        enough = lambda: self.budget.clock() > end  # noqa: E731
        chosen = trading.predicted(self.planner, self.book, self.aim, self._trials, enough)
        for k, c in enumerate(chosen):
            # A limit must be tried to be met, also when the time is over.
            needed = not any(e.ok and self.book.fits(e) for e in self.book.entries.values())
            if not self.budget.within(share) and not needed:
                break
            self.tell("a trade-off end to end", k, len(chosen))
            self._attempt(c.plan)

    # ---- finals

    def run_finals(self) -> None:
        """The incumbent's partition with the newest schedules, then the best plans and the baselines side by side."""
        self._phase = Phase.FINALS
        self._refresh_best()
        keep = self.finalists()
        self.tell("the best plans side by side", 0, len(keep))
        self.book.final(keep, self.budget.left)
        self.book.profile([e for e in keep if e.ok], 5)
        self.book.tell_noise()
        self.notes += trading.limits_noted(self.graph, self.book)

    def finalists(self) -> list[Entry]:
        """The best plans, of different partitions as far as there are such, and the unfused and the greedy plan at their best."""
        ranked = sorted((e for e in self.book.entries.values() if e.ok), key=self._rank)
        # The best of each step is there too, so that gains are told apart on paired numbers.
        steps = {e.step: e for e in reversed(ranked)}
        nodes = {id(e): tuple(sorted(r.region.nodes for r in e.plan.regions if r.region.nodes)) for e in ranked}
        best_of = {nodes[id(e)]: e for e in reversed(ranked)}
        diverse = sorted(best_of.values(), key=self._rank)[:FINALISTS]
        best = list(dict.fromkeys([*diverse, *ranked]))[:FINALISTS]
        landmarks = [best_of[x.key] for x in (self.unfused, self.greedy) if x.key in best_of]
        front = trading.front_of(self.book, self.aim.second)[: trading.FRONT]
        return list(dict.fromkeys([*best, *self.baselines[:1], *landmarks, *steps.values(), *front]))

    def _rank(self, e: Entry) -> tuple[bool, float]:
        """What keeps to the limits comes first."""
        return not self.book.fits(e), e.score

    def _refresh_best(self) -> None:
        """Kernels may have improved since the incumbent was tried."""
        best = self.book.best
        if best is None or self.budget.left <= 0:
            return
        regions = tuple(r.region for r in best.plan.regions if r.region.nodes)
        plan = self.planner.plan(Partition(regions), best.plan.origin, known=True)
        if plan is not None and not self.planner.open_kernels(plan) and not self.book.tried(plan):
            self._attempt(plan)

    def additivity(self) -> str:
        """How far sums of kernels were from whole plans, in words; "" where no plan had all its kernels measured beforehand."""
        known = [e for e in self.book.entries.values() if not math.isnan(e.off)]
        if not known:
            return ""
        worst = max(known, key=lambda e: abs(e.off))
        again = sum(e.again for e in known)
        rest = "no kernel had to be measured again in place"
        if again:
            rest = (
                f"for {again} of them the kernels were measured again in place, and the search went on with those times"
            )
        return (
            f"the sum of kernels was within {abs(worst.off):.0%} of the whole for all {len(known)} plans whose kernels were all "
            f"measured beforehand; {rest}"
        )

    def failure(self) -> str:
        """Why no plan works, in words."""
        reasons = [f"{e.plan.origin}: {e.opened.status.value}, {e.opened.reason}" for e in self.book.entries.values()]
        errors = [
            e.opened.error
            for e in self.book.entries.values()
            if e.opened.status is Status.WRONG and math.isfinite(e.opened.error)
        ]
        if errors:
            reasons.append(f"the least relative error that a plan had is {min(errors):.2g}")
        return "; ".join(dict.fromkeys(reasons)) or "; ".join(self.notes) or "no plan could be made"
