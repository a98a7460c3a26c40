"""Who proposes partitions. The heuristic samplers are Optuna's, over one boolean per class of contested edges."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import Trial

from autofuse.engine.plan import Plan
from autofuse.errors import UsageError
from autofuse.fusion.partition import Partition, Partitioner
from autofuse.kernels.base import Variant
from autofuse.search.classes import EdgeClass, contested_classes, decode
from autofuse.search.progress import Kernels
from autofuse.search.studies_file import StoredTrial

HEURISTIC = ("tpe", "nsga2", "random", "brute-force")
EXACT = "exact"
SAMPLERS = (EXACT, *HEURISTIC)
SMALL = 6
"""Up to so many classes every combination is tried."""
_STARTUP = 12
_MOST_REPEATS = 64


@dataclass(frozen=True, eq=False)
class Proposal:
    """A partition to be looked at. `token` is the sampler's own.

    A sampler that chooses layouts and variants, too, gives the whole `plan`, and in `lacking` the kernels that are to be measured, the most
    telling first; a plan that lacks none is to be run.
    """

    partition: Partition
    label: str
    token: object = None
    attributes: Mapping[str, str | float] = field(default_factory=dict)
    plan: Plan | None = None
    lacking: tuple[Variant, ...] = ()


class PlanSampler(Protocol):
    """The seam at which an exact solver takes the place of a heuristic one.

    `propose` and `observe` alternate freely: a proposal may be observed late, or never. Costs change while kernels are measured, so the
    same partition may be observed again with a better figure. `gap` is what is proven to be left, relative to the best (NaN where
    nothing is proven).
    """

    @property
    def name(self) -> str: ...

    @property
    def gap(self) -> float: ...

    @property
    def kernels(self) -> Kernels:
        """What became of the kernels so far; nothing but zeros where that is not counted."""

    def propose(self) -> Proposal | None:
        """The next partition, or None when there is nothing left to propose (by the costs that are known now)."""

    def observe(self, proposal: Proposal, seconds: float) -> None:
        """The cost of a proposal; infinity where it cannot run."""

    def reopen(self) -> None:
        """Kernels that could not be measured so far can be from now on."""

    def trials(self) -> list[StoredTrial]:
        """What was proposed and observed, for Optuna's storage."""

    def certificate(self) -> str:
        """What is proven of the best plan, in words; "" where nothing is."""


class OptunaPlanSampler:
    """Optuna's samplers. The greedy and the unfused partition come first; a partition seen before is passed over."""

    def __init__(self, partitioner: Partitioner, kind: str, seed: int) -> None:
        if kind not in HEURISTIC:
            raise UsageError(f"unknown sampler {kind!r}; there are: {', '.join(HEURISTIC)}")
        self._partitioner = partitioner
        self.classes: tuple[EdgeClass, ...] = contested_classes(partitioner)
        self._kind = kind
        small = kind == "tpe" and len(self.classes) <= SMALL
        sampler = _sampler("brute-force" if small else kind, seed)
        self._study = optuna.create_study(sampler=sampler, direction="minimize")
        self._seen: dict[object, float] = {}
        self._observed: dict[object, tuple[dict[str, bool], float, str]] = {}
        self._known = {c.name: CategoricalDistribution((False, True)) for c in self.classes}
        self._study.enqueue_trial({c.name: True for c in self.classes})
        self._study.enqueue_trial({c.name: c.default for c in self.classes})
        self._exhausted = False

    @property
    def name(self) -> str:
        return self._kind

    @property
    def kernels(self) -> Kernels:
        return Kernels()

    @property
    def gap(self) -> float:
        return float("nan")

    def certificate(self) -> str:
        """See PlanSampler."""
        return ""

    def propose(self) -> Proposal | None:
        """See PlanSampler."""
        if not self.classes:
            return None
        for _ in range(_MOST_REPEATS):
            if self._exhausted:
                return None
            trial = self._study.ask()
            chosen = {name: bool(trial.suggest_categorical(name, (False, True))) for name in self._known}
            partition = decode(self._partitioner, chosen, self.classes)
            known = self._seen.get(partition.key)
            if known is None:
                return Proposal(partition, f"trial {trial.number}", (trial, chosen))
            self._tell(trial, known)
        self._exhausted = True
        return None

    def observe(self, proposal: Proposal, seconds: float) -> None:
        """See PlanSampler."""
        key = proposal.partition.key
        first = key not in self._seen
        self._seen[key] = seconds
        if not isinstance(proposal.token, tuple):
            return
        trial, chosen = proposal.token
        self._observed[key] = (chosen, seconds, proposal.label)
        if first:
            self._tell(trial, seconds)

    def _tell(self, trial: Trial, seconds: float) -> None:
        worst = max((s for s in self._seen.values() if math.isfinite(s)), default=1.0)
        # Optuna's samplers ignore failed trials: what cannot run counts as twice the worst that can.
        value = seconds if math.isfinite(seconds) else 2 * worst
        try:
            self._study.tell(trial, math.log(max(value, 1e-9)))
        except RuntimeError:
            # Optuna's brute-force sampler stops the study when it has tried everything, which outside of optimize() is an error.
            self._exhausted = True

    def reopen(self) -> None:
        """See PlanSampler."""

    def trials(self) -> list[StoredTrial]:
        """See PlanSampler."""
        return [
            StoredTrial(
                ",".join(sorted(n for n, on in chosen.items() if on)) or "-",
                chosen,
                self._known,
                seconds,
                "ok" if math.isfinite(seconds) else "not runnable",
                {"label": label},
            )
            for chosen, seconds, label in self._observed.values()
        ]


def _sampler(kind: str, seed: int) -> optuna.samplers.BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        match kind:
            case "nsga2":
                return optuna.samplers.NSGAIISampler(population_size=16, seed=seed)
            case "random":
                return optuna.samplers.RandomSampler(seed=seed)
            case "brute-force":
                return optuna.samplers.BruteForceSampler(seed=seed)
            case _:
                return optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=_STARTUP, multivariate=True, constant_liar=True
                )
