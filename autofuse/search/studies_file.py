"""Optuna's storage: the studies of a tune, written in batches from what was measured, for optuna-dashboard and for later tunes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from autofuse.errors import StorageError

IDENTITY = "identity"
_BATCH = 8


@dataclass(frozen=True)
class StoredTrial:
    """A finished trial. `identity` tells it from the others of its study; seconds are infinite where it failed, and `status` says how."""

    identity: str
    params: Mapping[str, str | int | bool]
    distributions: Mapping[str, BaseDistribution]
    seconds: float
    status: str
    attributes: Mapping[str, str | float | int] = field(default_factory=dict)

    def frozen(self) -> FrozenTrial:
        """As Optuna has it."""
        done = math.isfinite(self.seconds)
        attributes = {IDENTITY: self.identity, "status": self.status, **self.attributes}
        return create_trial(
            state=TrialState.COMPLETE if done else TrialState.FAIL,
            params=dict(self.params),
            distributions=dict(self.distributions),
            value=self.seconds if done else None,
            user_attrs=attributes,
        )


class StudiesFile:
    """A storage by URL. Nothing is open between two writes."""

    def __init__(self, url: str) -> None:
        self.url = url

    def write(self, studies: Mapping[str, Sequence[StoredTrial]], seconds: float = math.inf) -> list[str]:
        """Add the trials that the studies do not hold yet, study by study; what time does not allow is left to a later tune, with a note.

        Optuna writes a trial in some ten statements, a hundred trials a second at best. StorageError where writing fails.
        """
        left = written = 0
        try:
            storage = optuna.storages.get_storage(self.url)
            known = {s.study_name for s in optuna.get_all_study_summaries(storage, include_best_trial=False)}
            deadline = time.monotonic() + seconds
            for name, trials in studies.items():
                study = optuna.create_study(study_name=name, storage=storage, direction="minimize", load_if_exists=True)
                have: set[str] = set()
                if name in known:
                    have = {str(t.user_attrs.get(IDENTITY)) for t in study.get_trials(deepcopy=False)}
                fresh = [t.frozen() for t in trials if t.identity not in have]
                for k in range(0, len(fresh), _BATCH):
                    if written and time.monotonic() >= deadline:
                        left += len(fresh) - k
                        break
                    study.add_trials(fresh[k : k + _BATCH])
                    written += _BATCH
        except (SQLAlchemyError, OSError, ValueError, ImportError, optuna.exceptions.OptunaError) as e:
            first = str(e).splitlines()[0] if str(e) else type(e).__name__
            raise StorageError(
                f"the Optuna studies cannot be written to {self.url}: {first}; the tune's result is not affected. "
                "Give another --storage."
            ) from e
        return [f"{left} trials are not in {self.url} yet: a later tune writes them"] if left else []
