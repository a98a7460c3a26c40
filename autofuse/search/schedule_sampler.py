"""Optuna's view of one kernel's variants and schedules: fixed categories, and proposals moved to the nearest legal candidate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import Trial, TrialState, create_trial

from autofuse.errors import UsageError
from autofuse.kernels.base import Choice as Value
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.space import Spaces
from autofuse.measure.bench import Choice, layouts_text
from autofuse.search.tables import Table

KINDS = ("tpe", "random")
_STARTUP = 8


def make_sampler(kind: str, seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's sampler of schedules by name; the plan level's other samplers use TPE below."""
    if kind == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
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
        self._known = distributions(variants, spaces)
        self._study = optuna.create_study(sampler=make_sampler(kind, seed), direction="minimize")
        self._pending: dict[tuple[str, str], Trial] = {}
        self._worst = 0.0

    def ask(self, tables: Sequence[Table], count: int) -> list[Choice]:
        """Up to `count` untried candidates of the tables; they are marked as tried. What Optuna wishes for is moved to the nearest of them."""
        labels = {variant_label(t.variant): t for t in tables}
        out: list[Choice] = []
        while len(out) < count:
            left = [t for t in tables if t.left]
            if not left:
                break
            trial = self._study.ask()
            wished = labels.get(str(trial.suggest_categorical("variant", self._known["variant"].choices)))
            table = wished if wished is not None and wished.left else left[0]
            prefix = f"{table.variant.family}."
            wish = {
                key.removeprefix(prefix): trial.suggest_categorical(key, d.choices)
                for key, d in self._known.items()
                if key.startswith(prefix)
            }
            schedule = table.nearest(wish)
            assert schedule is not None
            table.close(schedule)
            self._pending[_name(table.variant, schedule)] = trial
            out.append((table.variant, schedule))
        return out

    def tell(self, choice: Choice, seconds: float) -> None:
        """Report a time; infinity for a failure, which counts as twice the worst time (Optuna's samplers ignore failed trials)."""
        if math.isfinite(seconds):
            self._worst = max(self._worst, seconds)
        value = math.log(seconds if math.isfinite(seconds) else 2 * max(self._worst, 1e-6))
        trial = self._pending.pop(_name(*choice), None)
        if trial is not None:
            self._study.tell(trial, value)
            return
        params = parameters(choice, self._known)
        if params is not None:
            used: dict[str, BaseDistribution] = {k: self._known[k] for k in params}
            self._study.add_trial(
                create_trial(state=TrialState.COMPLETE, params=params, distributions=used, value=value)
            )


def _name(variant: Variant, schedule: Schedule) -> tuple[str, str]:
    return variant_label(variant), schedule.text()
