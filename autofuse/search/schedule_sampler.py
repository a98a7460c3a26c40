"""Optuna's view of one kernel's variants and schedules: fixed categories, and proposals moved to the nearest legal candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import Trial, TrialState, create_trial

from autofuse.errors import UsageError
from autofuse.kernels.base import Choice as Value
from autofuse.kernels.base import Variant
from autofuse.kernels.space import Spaces
from autofuse.measure.bench import Choice, layouts_text

KINDS = ("tpe", "random")
_STARTUP = 8
_OTHER_VARIANT = 100.0


def make_sampler(kind: str, seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's sampler of schedules by name; the plan level's other samplers use TPE below."""
    if kind == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=_STARTUP, multivariate=True, group=True, constant_liar=True
    )


def variant_label(v: Variant) -> str:
    """A variant's name among those of its region."""
    return f"{v.family}/{v.algorithm} {layouts_text(v)}"


def distributions(variants: Sequence[Variant], spaces: Spaces) -> dict[str, CategoricalDistribution]:
    """The parameters of a kernel study: the variant, and each family's choices under the family's name."""
    labels = tuple(dict.fromkeys(variant_label(v) for v in variants))
    if not labels:
        raise UsageError("a kernel study needs a variant")
    found = {"variant": CategoricalDistribution(labels)}
    for name in dict.fromkeys(v.family for v in variants):
        for choice, values in spaces.of(name).choices:
            found[f"{name}.{choice}"] = CategoricalDistribution(values)
    return found


def parameters(choice: Choice, known: Mapping[str, CategoricalDistribution]) -> dict[str, Value] | None:
    """A candidate as Optuna's parameters; None where a heuristic schedule lies outside the categories."""
    variant, schedule = choice
    out: dict[str, Value] = {"variant": variant_label(variant)}
    for name, value in schedule.choices:
        key = f"{variant.family}.{name}"
        if key not in known or value not in known[key].choices:
            return None
        out[key] = value
    return out


class ScheduleSampler:
    """Proposes candidates and learns from their times."""

    def __init__(self, variants: Sequence[Variant], spaces: Spaces, kind: str, seed: int) -> None:
        self._variants = {variant_label(v): v for v in variants}
        self._known = distributions(variants, spaces)
        self._study = optuna.create_study(sampler=make_sampler(kind, seed), direction="minimize")
        self._pending: dict[Choice, Trial] = {}
        self._worst = 0.0

    def ask(self, rest: Sequence[Choice], count: int) -> list[Choice]:
        """Up to `count` of the candidates `rest`."""
        left = list(rest)
        out: list[Choice] = []
        for _ in range(min(count, len(left))):
            trial = self._study.ask()
            choice = self._nearest(trial, left)
            self._pending[choice] = trial
            left.remove(choice)
            out.append(choice)
        return out

    def _nearest(self, trial: Trial, left: Sequence[Choice]) -> Choice:
        label = trial.suggest_categorical("variant", self._known["variant"].choices)
        wanted = self._variants[str(label)]
        picked = {
            key: trial.suggest_categorical(key, d.choices)
            for key, d in self._known.items()
            if key.startswith(f"{wanted.family}.")
        }

        def distance(choice: Choice) -> float:
            v, schedule = choice
            total = 0.0 if v == wanted else _OTHER_VARIANT * (1 + (v.family != wanted.family))
            for name, value in schedule.choices:
                key = f"{v.family}.{name}"
                if key in picked and key in self._known:
                    total += _steps(self._known[key], value, picked[key])
            return total

        return min(left, key=distance)

    def tell(self, choice: Choice, seconds: float) -> None:
        """Report a time; infinity for a failure, which counts as twice the worst time (Optuna's samplers ignore failed trials)."""
        if math.isfinite(seconds):
            self._worst = max(self._worst, seconds)
        value = math.log(seconds if math.isfinite(seconds) else 2 * max(self._worst, 1e-6))
        trial = self._pending.pop(choice, None)
        if trial is not None:
            self._study.tell(trial, value)
            return
        params = parameters(choice, self._known)
        if params is not None:
            used: dict[str, BaseDistribution] = {k: self._known[k] for k in params}
            self._study.add_trial(
                create_trial(state=TrialState.COMPLETE, params=params, distributions=used, value=value)
            )


def _steps(d: CategoricalDistribution, a: Value, b: object) -> float:
    """How far two choices lie apart in the list of the search space, which is ordered."""
    values = list(d.choices)
    if a not in values or b not in values:
        return 1.0
    return abs(values.index(a) - values.index(b)) / max(1, len(values) - 1)
