"""Which plan a model runs with: a given one, the saved best one for the device, or the heuristic one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofuse.devices.base import Device
from autofuse.engine import assign
from autofuse.engine.build import planned_needs
from autofuse.engine.lowering import lowering
from autofuse.engine.options import heuristic_options
from autofuse.engine.plan import Plan, check_plan, load_plan
from autofuse.errors import AutofuseError, PlanError, StorageError
from autofuse.fusion.partition import Partitioner
from autofuse.ir.graph import Graph
from autofuse.report.naming import model_stem
from autofuse.report.places import PLAN, RUN, find_results, saved_plans
from autofuse.report.units import bytes_text

RESULTS = Path("results")
"""Where saved plans are looked for: in the folder that tuning writes to by default."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A plan, where it came from in words, and the environment in which it was tuned (none for a heuristic plan)."""

    plan: Plan
    origin: str
    environment: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    saved: Path | None = None
    """The file of a plan that was found, not given."""


def heuristic_plan(graph: Graph, device: Device, accuracy: str = "default") -> Plan:
    """The plan without measuring: all fused that may be, with heuristic schedules."""
    return assign.heuristic_plan(graph, device.target, device.threads, accuracy)


def choose(graph: Graph, device: Device, plan: Plan | str | Path | None, results: Path = RESULTS) -> Choice:
    """The plan to run a graph with. A given one must fit (PlanError); without one, the newest that fits in `results` is taken."""
    if isinstance(plan, Plan):
        return Choice(plan, plan.origin or "given plan", {}, check_plan(plan, graph, device.target, device.threads))
    if plan is not None:
        path = plan_file(Path(plan))
        found = load_plan(path)
        return Choice(
            found, f"plan {path}", _environment(path), check_plan(found, graph, device.target, device.threads)
        )
    saved = list(saved_plans(results, graph.structural_hash, device.target))
    fitting = [s for s in saved if s[1].threads == device.threads] or saved
    if fitting:
        path, found = fitting[0]
        warnings = check_plan(found, graph, device.target, device.threads)
        return Choice(found, f"saved plan {path}", _environment(path), warnings, path)
    return heuristic_choice(graph, device, f"nothing is saved in {results} for this model on {device.target.name}")


def heuristic_choice(graph: Graph, device: Device, why: str) -> Choice:
    """The heuristic plan, and why it is that one."""
    return Choice(heuristic_plan(graph, device), f"heuristic plan ({why}; `autofuse tune` finds a better one)", {})


def within(graph: Graph, device: Device, choice: Choice, limit: int, given: bool) -> Choice:
    """The choice, or where it was not given and needs more memory than the limit, the fastest other one of its tune that does not, or the
    heuristic one. AutofuseError where none keeps to the limit: it tells the least that one needs.
    """
    make, threads = lowering(device), 0 if device.target.is_cuda else device.threads
    need = planned_needs(graph, choice.plan, make, threads).memory
    if need <= limit:
        return choice
    least = need
    if not given:
        for other in _others(graph, device, choice):
            need = planned_needs(graph, other.plan, make, threads).memory
            if need <= limit:
                return other
            least = min(least, need)
    raise AutofuseError(
        f"the {choice.origin} keeps its intermediates not within {bytes_text(limit)}; the least that a known plan needs is "
        f"{bytes_text(least)}. Tune with --max-memory to look for one that needs less"
    )


def _others(graph: Graph, device: Device, choice: Choice) -> Iterator[Choice]:
    """The other plans of the tune that a choice is from, fastest first; then the heuristic ones."""
    if choice.saved is not None:
        from autofuse.report.results import open_results  # heavy, and rarely needed

        with contextlib.suppress(StorageError, PlanError):
            results = open_results(choice.saved.parent)
            good = results.trade_offs[results.trade_offs["status"] == "ok"].sort_values("median_ms")
            for key in dict.fromkeys(good["plan"]):
                plan = results.plans[str(key)]
                yield dataclasses.replace(choice, plan=plan, origin=f"plan {key} of {choice.saved.parent}")
    why = "the best plan needs more memory than was allowed"
    yield heuristic_choice(graph, device, why)
    unfused = Partitioner(graph, device.target).unfused()
    options = heuristic_options(device.target, device.threads, choice.plan.accuracy)
    plan = assign.assign(
        graph, unfused, device.target, device.threads, choice.plan.accuracy, options, "heuristic, unfused"
    )
    yield Choice(plan, f"heuristic plan without fusion ({why})", {})


def plan_file(path: Path) -> Path:
    """The plan file that a path means: itself, or the one in a result folder."""
    return find_results(path) / PLAN if path.is_dir() else path


def _environment(plan: Path) -> Mapping[str, Any]:
    """The environment written beside a plan; nothing where there is none."""
    try:
        run = json.loads((plan.parent / RUN).read_text())
        found = run["environment"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def saved_shapes(model: str, results: Path = RESULTS) -> dict[str, tuple[int, ...]] | None:
    """The input shapes of the newest saved result for a model of this name; None where there is none."""
    runs = sorted(results.glob(f"{model_stem(model)}-*/*/*/{RUN}"), key=lambda p: p.stat().st_mtime, reverse=True)
    return next((shapes for shapes in map(_shapes, runs) if shapes is not None), None)


def shapes_of_results(path: Path) -> dict[str, tuple[int, ...]] | None:
    """The input shapes that a plan beside a run.json was tuned for; None where that is not written down."""
    try:
        return _shapes(plan_file(path).parent / RUN)
    except StorageError:
        return None


def _shapes(run: Path) -> dict[str, tuple[int, ...]] | None:
    try:
        shapes = json.loads(run.read_text())["shapes"]
        return {str(name): tuple(int(d) for d in dims) for name, dims in shapes.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
