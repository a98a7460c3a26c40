"""What a tune trades latency for: a second objective, and limits on memory and on prepared weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autofuse.engine.build import Needs, planned_needs
from autofuse.engine.lowering import plainly
from autofuse.engine.plan import Plan
from autofuse.ir.graph import Graph
from autofuse.search.book import Book, Entry
from autofuse.search.front import ERROR, MEMORY, Candidate, FrontSearch, spread
from autofuse.search.planner import Planner

FRONT = 6
"""Plans of a front that are run, and that are in the finals."""
TRIALS = 96
_MOST_WEIGHTS = 2.5
_FEW_WEIGHTS = 1 << 20


@dataclass(frozen=True)
class Aim:
    """What is wanted besides low latency: a second objective, "memory" or "error", and a limit in bytes on intermediates."""

    second: str | None = None
    memory: float = math.inf
    seed: int = 0


NO_AIM = Aim()


def allowed_weights(graph: Graph) -> float:
    """Bytes that prepared weights may take: Winograd's are up to four times the model's own, which is not always worth it."""
    return _MOST_WEIGHTS * sum(a.nbytes for a in graph.constants.values()) + _FEW_WEIGHTS


def predicted(
    planner: Planner, book: Book, aim: Aim, trials: int | None, enough: Callable[[], bool]
) -> list[Candidate]:
    """Plans that are worth running for the second objective, or to keep to the limits, by what is predicted of them."""
    assert book.best is not None
    make = plainly(planner.bench.target)
    threads = 0 if planner.bench.target.is_cuda else planner.bench.threads
    known: dict[str, Needs] = {}

    def needs_of(plan: Plan) -> Needs:
        if plan.key not in known:
            known[plan.key] = planned_needs(planner.graph, plan, make, threads)
        return known[plan.key]

    search = FrontSearch(planner, aim.second or MEMORY, needs_of, aim.seed, aim.memory, allowed_weights(planner.graph))
    others = [e.plan for e in book.entries.values() if e.ok and e is not book.best]
    return spread(search.search(book.best.plan, others, trials or TRIALS, enough), FRONT)


def front_of(book: Book, second: str | None) -> list[Entry]:
    """The measured plans that nothing beats in latency and the second objective, fastest first."""

    def value(e: Entry) -> float:
        return e.opened.error if second == ERROR else float(e.opened.peak_bytes)

    standing: list[Entry] = []
    if second is not None:
        for e in sorted((e for e in book.entries.values() if e.ok), key=lambda e: (e.ns, value(e))):
            if not standing or value(e) < value(standing[-1]):
                standing.append(e)
    return standing


def limits_noted(graph: Graph, book: Book) -> list[str]:
    """Where a limit cost speed, in words."""
    best = book.best
    if best is None or not book.fits(best):
        return []
    over = [e for e in book.entries.values() if e.ok and e.ns < best.ns and not book.fits(e)]
    if not over:
        return []
    e = min(over, key=lambda e: e.ns)
    why = f"its intermediates need {e.opened.peak_bytes:,} bytes"
    if e.opened.weight_bytes > allowed_weights(graph):
        why = (
            f"its prepared weights need {e.opened.weight_bytes:,} bytes, and {allowed_weights(graph):,.0f} are allowed"
        )
    return [f"a plan of {e.ns / 1e6:.3g} ms was not chosen over one of {best.ns / 1e6:.3g} ms: {why}"]
