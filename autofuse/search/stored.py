"""The studies of a tune in the form that Optuna's storage keeps: one per kernel signature, and one for the plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autofuse.ir.graph import Graph
from autofuse.kernels.space import Spaces
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.samplers import PlanSampler
from autofuse.search.schedule_sampler import distributions, parameters
from autofuse.search.studies_file import StoredTrial
from autofuse.search.study import KernelStudy


def stored_studies(
    graph: Graph, spaces: Spaces, studies: KernelStudies, sampler: PlanSampler | None, accuracy: str
) -> dict[str, Sequence[StoredTrial]]:
    """All studies by name. The name holds the version of the search space, since Optuna's choices can't change within a study."""
    target = studies.target
    where = f"{target.kind}-{target.arch}-{studies.bench.threads}t-{accuracy}"
    out: dict[str, Sequence[StoredTrial]] = {}
    if sampler is not None:
        trials = sampler.trials()
        if trials:
            out[f"plan-{graph.structural_hash[:16]}-{where}-{sampler.name}"] = trials
    for signature, study in studies.studies.items():
        trials = kernel_trials(study, spaces)
        if trials:
            out[f"kernel-{signature}-{where}-{spaces.version}"] = trials
    return out


def kernel_trials(study: KernelStudy, spaces: Spaces) -> list[StoredTrial]:
    """The candidates of a kernel study that lie within the categories (a heuristic schedule may not)."""
    if not study.tried:
        return []
    known = distributions(study.variants, spaces)
    out: list[StoredTrial] = []
    for (key, schedule), tried in study.tried.items():
        params = parameters(tried.choice, known)
        m = tried.measurement
        if params is None:
            continue
        attributes: Mapping[str, str | float | int] = {"reason": m.reason} if m.reason else {}
        used = {k: known[k] for k in params}
        seconds = m.seconds if m.ok else float("inf")
        out.append(StoredTrial(f"{key} {schedule}", params, used, seconds, m.status.value, attributes))
    return out
