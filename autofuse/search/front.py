"""Two objectives: plans that trade latency for memory or for error, by NSGA-II on predictions, seeded with the best plan.

A trial chooses the best plan's partition or one boolean per class of contested edges, and for each shape of weights whether algorithms that
round more may be used, and which. Latency is predicted by the kernels' times, memory by placing the plan's values (exactly), the error
by the kernels' errors. What stands on the predicted front is then measured end to end: predictions are never reported.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial

from autofuse.engine.build import Needs
from autofuse.engine.options import Option, OptionSource
from autofuse.engine.plan import Plan
from autofuse.errors import PlanError
from autofuse.fusion.partition import Partition
from autofuse.fusion.region import RegionProgram
from autofuse.ir.stage import Kind
from autofuse.search.classes import EdgeClass, contested_classes, decode
from autofuse.search.planner import Planner

LATENCY, MEMORY, ERROR = "latency", "memory", "error"
OBJECTIVES = (LATENCY, MEMORY, ERROR)
POPULATION = 16
_BEST, _CLASSES = "best", "classes"
_ANY, _DIRECT = "any", "direct"
_UNFIT = (1e9, 1e30)
"""What a trial is told that has no plan: the samplers ignore trials that fail."""
_ROUNDED, _ROUNDED_MORE = 3e-7, 3e-6
"""Errors of kernels that were not measured: direct ones, and those of algorithms that round more."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan with what is predicted of it: seconds, and bytes or a relative error."""

    plan: Plan
    seconds: float
    second: float


class FrontSearch:
    """Proposes plans on the predicted front of latency and a second objective.

    `memory` bounds the bytes of intermediates, `weights` those of prepared constants.
    """

    def __init__(
        self,
        planner: Planner,
        second: str,
        needs_of: Callable[[Plan], Needs],
        seed: int,
        memory: float = math.inf,
        weights: float = math.inf,
    ) -> None:
        self._planner = planner
        self._second = second
        self._needs_of = needs_of
        self._limits = memory, weights
        self._classes: tuple[EdgeClass, ...] = contested_classes(planner.partitioner)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            sampler = optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=seed)
        self._study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        self.found: dict[str, Candidate] = {}
        """Everything that was predicted and keeps to the limits, by the plan's key."""
        self._weights: dict[str, tuple[str, ...]] = {}
        self._base = Partition(())

    # ---- searching

    def search(self, best: Plan, others: Sequence[Plan], trials: int, enough: Callable[[], bool]) -> list[Candidate]:
        """Trials on predictions from the best plan on; gives the predicted front, fastest first.

        The best plan, whether a class of edges can say it or not, is told to the study as it is; others are only compared with.
        """
        self._base = Partition(tuple(r.region for r in best.regions if r.region.nodes))
        self._weights = self._contested((best, *others))
        self._tell_seed(best)
        for plan in others:
            self._predict(plan)
        fused = self._chosen(best)
        same = dict.fromkeys(self._weights, _ANY)
        self._study.enqueue_trial({"partition": _BEST, **same, **fused}, skip_if_exists=True)
        self._study.enqueue_trial({"partition": _BEST, **dict.fromkeys(same, _DIRECT), **fused}, skip_if_exists=True)
        for on in (True, False):
            classes = {c.name: on for c in self._classes}
            self._study.enqueue_trial({"partition": _CLASSES, **same, **classes}, skip_if_exists=True)
        for _ in range(trials):
            if enough():
                break
            trial = self._study.ask()
            params: dict[str, object] = {
                name: trial.suggest_categorical(name, d.choices) for name, d in self._distributions().items()
            }
            planned = self._plan(params)
            made = None if planned is None else self._predict(planned)
            self._study.tell(trial, _UNFIT if made is None else self._values(made))
        return self.front()

    def front(self) -> list[Candidate]:
        """Of what keeps to the limits, what nothing beats in both, fastest first."""
        standing: list[Candidate] = []
        for c in sorted(self.found.values(), key=lambda c: (c.seconds, c.second)):
            if not standing or c.second < standing[-1].second:
                standing.append(c)
        return standing

    # ---- what a trial decides

    def _distributions(self) -> dict[str, CategoricalDistribution]:
        found = {"partition": CategoricalDistribution((_BEST, _CLASSES))}
        found |= {name: CategoricalDistribution(choices) for name, choices in self._weights.items()}
        return found | {c.name: CategoricalDistribution((True, False)) for c in self._classes}

    def _chosen(self, plan: Plan) -> dict[str, bool]:
        """The classes of edges of which a plan fuses one."""
        together = [set(r.region.nodes) for r in plan.regions]
        return {
            c.name: any({e.producer, e.consumer} <= nodes for e in c.edges for nodes in together) for c in self._classes
        }

    def _contested(self, plans: Sequence[Plan]) -> dict[str, tuple[str, ...]]:
        """For each shape of weights with algorithms that round more: any of them, none, or one by name."""
        found: dict[str, dict[str, None]] = {}
        for plan in plans:
            for _, program in self._planner.kernels(plan):
                name = _weights_of(program)
                if name is None:
                    continue
                tolerant = {
                    o.variant.algorithm: None for o in self._planner.studies.options(program) if o.variant.tolerant
                }
                if tolerant:
                    found.setdefault(name, {}).update(tolerant)
        return {name: (_ANY, _DIRECT, *algorithms) for name, algorithms in found.items()}

    def _plan(self, params: Mapping[str, object]) -> Plan | None:
        partition = self._base
        if params["partition"] == _CLASSES:
            chosen = {c.name: bool(params[c.name]) for c in self._classes}
            partition = decode(self._planner.partitioner, chosen, self._classes)
        return self._planner.plan_with(partition, f"front of {LATENCY} and {self._second}", self._source(params))

    def _source(self, params: Mapping[str, object]) -> OptionSource:
        def options(program: RegionProgram) -> Sequence[Option]:
            found = self._planner.studies.options(program)
            wish = params.get(_weights_of(program) or "", _ANY)
            if wish == _ANY:
                return found
            kept = [o for o in found if not o.variant.tolerant or o.variant.algorithm == wish]
            return kept or found

        return options

    # ---- what is predicted

    def _predict(self, plan: Plan) -> Candidate | None:
        known = self.found.get(plan.key)
        if known is not None:
            return known
        seconds = self._planner.seconds(plan)
        try:
            second = float(self._needs_of(plan).memory) if self._second == MEMORY else self._error(plan)
            fits = self._excess(plan) <= 0
        except PlanError:
            return None
        if not math.isfinite(seconds):
            return None
        made = Candidate(plan, seconds, second)
        if fits:
            self.found[plan.key] = made
        return made

    def _excess(self, plan: Plan) -> float:
        """By how many bytes a plan exceeds the limits (not more than 0: it keeps to them)."""
        if all(math.isinf(x) for x in self._limits):
            return -1.0
        needs = self._needs_of(plan)
        return max(needs.memory - self._limits[0], needs.weights - self._limits[1])

    def _values(self, made: Candidate) -> tuple[float, float]:
        """What the study is told: what exceeds a limit is worse than all that doesn't, the more so the more it exceeds it."""
        over = self._excess(made.plan)
        return (made.seconds, made.second) if over <= 0 else (1e3 + over, 1e20 + over)

    def _error(self, plan: Plan) -> float:
        """Errors add up like independent ones."""
        total = 0.0
        for r, program in self._planner.kernels(plan):
            total += self._planner.error(r, program, _ROUNDED, _ROUNDED_MORE) ** 2
        return math.sqrt(total)

    def _tell_seed(self, best: Plan) -> None:
        made = self._predict(best)
        if made is None:
            return
        params: dict[str, object] = {"partition": _BEST, **dict.fromkeys(self._weights, _ANY), **self._chosen(best)}
        known: dict[str, BaseDistribution] = dict(self._distributions())
        seed: FrozenTrial = optuna.trial.create_trial(
            params=params,
            distributions=known,
            values=self._values(made),
        )
        self._study.add_trial(seed)


def spread(front: Sequence[Candidate], count: int) -> list[Candidate]:
    """At most so many of a front: both ends, and between them those that are evenly far apart in the second objective's logarithm."""
    if len(front) <= count:
        return list(front)
    places = np.log([max(c.second, 1e-12) for c in front])
    wanted = np.linspace(places[0], places[-1], count)
    chosen = dict.fromkeys(int(np.argmin(np.abs(places - w))) for w in wanted)
    return [front[k] for k in sorted({0, len(front) - 1, *chosen})][: count + 1]


def _weights_of(program: RegionProgram) -> str | None:
    """The shape of the weights of a region with a contraction: stable whatever is fused with it."""
    if not any(s.kind is Kind.CONTRACT for s in program.steps):
        return None
    found = [t for t in program.inputs if t.constant and len(t.shape) >= 2]
    if not found:
        return None
    return "weights " + max(found, key=lambda t: math.prod(t.shape)).text()
