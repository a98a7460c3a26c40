"""A second tune: what was measured is not measured again, and what was best is best again. Counted in kernels, on no clock."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replay import Cost, ReplayBench
from search_graphs import F32, matmul, relu
from test_tune_on import SPACES, best_ns, simple, task

from autofuse.fusion.region import RegionProgram
from autofuse.ir.expr import call
from autofuse.ir.graph import Graph
from autofuse.measure.bench import Choice
from autofuse.measure.journal import Journal
from autofuse.measure.records import Records
from autofuse.measure.result import Measurement
from autofuse.ops.builder import Builder
from autofuse.search.budget import Budget
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.outcome import TuneOutcome
from autofuse.search.tune import tune_on


class Counted(ReplayBench):
    """Says of what it recorded which tune that was, and counts what it measures by signature."""

    def __init__(self, graph: Graph, cost: Cost, seconds: float = 0.5) -> None:
        super().__init__(graph, cost, seconds=seconds)
        self.tune = ""
        self.measured: list[str] = []
        self.compiled = 0

    def kernels(
        self,
        program: RegionProgram,
        constants: Mapping[int, np.ndarray],
        choices: Sequence[Choice],
        deadline: float,
        again: int = 0,
    ) -> list[Measurement]:
        before = {m.key for m in self.past.get(program.signature, ())}
        out = super().kernels(program, constants, choices, deadline, again)
        past = self.past.get(program.signature, [])
        past[:] = [m if m.tune else replace(m, tune=self.tune) for m in past]
        self.measured += [program.signature for m in out if not m.cached and m.samples_ns]
        self.compiled += sum(m.key not in before for m in out)
        tunes = {m.key: m.tune for m in past}
        return [replace(m, tune=tunes.get(m.key, "")) for m in out]

    def known(self, signature: str) -> list[Measurement]:
        return [replace(m, cached=True) for m in super().known(signature)]


def layers(widths: Sequence[int]) -> Graph:
    """Products, biases and Relus; equal widths give equal kernels."""
    generator = np.random.default_rng(0)
    b = Builder()
    v = b.input("x", F32, (8, widths[0]))
    for k, n in itertools.pairwise(widths):
        w = b.constant(generator.standard_normal((k, n)).astype(np.float32))
        bias = b.constant(generator.standard_normal(n).astype(np.float32))
        b.origin += 1
        v = matmul(b, v, w)
        b.origin += 1
        v = b.elementwise([v, bias], lambda x, y: call("add", x, y))
        b.origin += 1
        v = b.elementwise([v], relu)
    return b.graph([("y", v)])


def tuned(graph: Graph, bench: Counted, records: Records, seconds: float) -> TuneOutcome:
    journal = Journal(records, "test", graph.structural_hash, "default")
    bench.tune = journal.tune
    return tune_on(graph, bench, SPACES, task(budget_seconds=seconds, journal=journal), Budget(seconds, bench.clock))


def test_a_second_tune_has_the_best_plan_back_in_a_tenth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = layers((8, 16, 8))
    with Records("test", 2, tmp_path / "records.sqlite") as records:
        first = Counted(graph, simple)
        one = tuned(graph, first, records, 120)
        second = Counted(graph, simple)
        second.past = {s: list(rows) for s, rows in first.past.items()}
        reopen = KernelStudies.reopen
        then: list[set[str]] = []

        def counted(self: KernelStudies, program: RegionProgram | None = None) -> bool:
            then.append(set(second.measured) & set(first.measured))
            return reopen(self, program)

        monkeypatch.setattr(KernelStudies, "reopen", counted)
        two = tuned(graph, second, records, 10)
    assert len(first.measured) > 20
    # Nothing that the first one measured is measured again, unless time is left in the end.
    assert not (then[0] if then else set(second.measured) & set(first.measured))
    assert two.best.key == one.best.key and best_ns(two) == best_ns(one)
    assert two.plans[0].plan.key == one.best.key  # it comes first
    row = next(p for p in two.plans if p.plan.key == one.best.key)
    assert len(row.samples_ns) >= 10 and two.seconds <= 0.1 * 120


def test_with_time_left_a_second_tune_goes_on_searching(tmp_path: Path) -> None:
    graph = layers((8, 16, 8))
    with Records("test", 2, tmp_path / "records.sqlite") as records:
        first = Counted(graph, simple, seconds=2.0)
        one = tuned(graph, first, records, 20)
        second = Counted(graph, simple, seconds=0.5)
        second.past = first.past
        two = tuned(graph, second, records, 60)
    assert second.measured and best_ns(two) <= best_ns(one)


def test_another_model_measures_only_what_it_does_not_share(tmp_path: Path) -> None:
    one, two = layers((8, 16, 16, 8)), layers((8, 16, 16, 12))
    with Records("test", 2, tmp_path / "records.sqlite") as records:
        first = Counted(one, simple)
        tuned(one, first, records, 80)
        second = Counted(two, simple)
        second.past = {s: list(rows) for s, rows in first.past.items()}
        tuned(two, second, records, 20)
    shared = set(first.measured)
    assert second.measured and not shared & set(second.measured)


def test_what_was_measured_on_an_unsteady_machine_is_measured_again(tmp_path: Path) -> None:
    """Of each signature a few of the best, side by side."""
    graph = layers((8, 16, 8))
    with Records("test", 2, tmp_path / "records.sqlite") as records:
        first = Counted(graph, simple)
        tuned(graph, first, records, 60)
        records.act("written", lambda c: c.execute("UPDATE tunes SET steady=0"))
        second = Counted(graph, simple)
        second.past = {s: list(rows) for s, rows in first.past.items()}
        tuned(graph, second, records, 6)
    assert second.measured and set(second.measured) <= set(first.measured)
