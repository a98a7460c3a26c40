"""The parts of the search: edge classes, plan samplers, candidate tables, schedule sampler, paces."""

from __future__ import annotations

import math

import pytest
from replay import HOST, Clock
from search_graphs import chain, mlp, softmax

from autofuse.errors import UsageError
from autofuse.fusion.partition import Partitioner, verify_partition
from autofuse.fusion.region import program_of
from autofuse.kernels.base import Schedule
from autofuse.kernels.families import schedules, variants
from autofuse.kernels.space import load_spaces
from autofuse.search.budget import Pace
from autofuse.search.classes import contested_classes, decode
from autofuse.search.samplers import HEURISTIC, OptunaPlanSampler
from autofuse.search.schedule_sampler import ScheduleSampler
from autofuse.search.tables import Legal, Table

SPACES = load_spaces("cpu")


def contraction() -> tuple[Table, list[Schedule]]:
    graph = mlp()
    program = program_of(graph, Partitioner(graph, HOST).unfused().regions[0])
    v = next(v for v in variants(program, HOST) if v.family == "contract_host")
    every = list(schedules(v, HOST, SPACES))
    return Table(v, Legal(every, SPACES.of(v.family).choices)), every


def test_decoding_all_and_none_gives_the_landmarks() -> None:
    for graph in (mlp(), softmax(), chain()):
        p = Partitioner(graph, HOST)
        classes = contested_classes(p)
        assert decode(p, {c.name: True for c in classes}, classes).key == p.greedy().key
        assert decode(p, {}, classes).key == p.unfused().key
        assert len({c.name for c in classes}) == len(classes)


@pytest.mark.parametrize("kind", HEURISTIC)
def test_samplers_propose_distinct_legal_partitions_and_come_to_an_end(kind: str) -> None:
    graph = softmax()
    sampler = OptunaPlanSampler(Partitioner(graph, HOST), kind, 0)
    seen = []
    for _ in range(200):
        proposal = sampler.propose()
        if proposal is None:
            break
        verify_partition(graph, proposal.partition, HOST)
        seen.append(proposal.partition.key)
        sampler.observe(proposal, math.inf if len(seen) == 2 else float(len(proposal.partition.regions)))
    assert len(seen) == len(set(seen)) < 200
    assert seen[0] == Partitioner(graph, HOST).greedy().key
    trials = sampler.trials()
    assert len(trials) == len(seen) and [t.status for t in trials].count("not runnable") == 1


def test_an_unknown_sampler_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="nsga2"):
        OptunaPlanSampler(Partitioner(mlp(), HOST), "magic", 0)


def test_a_table_gives_the_nearest_untried_schedule() -> None:
    table, every = contraction()
    wish = every[40].values
    assert table.nearest(wish) == every[40]
    table.close(every[40])
    second = table.nearest(wish)
    assert second is not None and second != every[40]
    assert sum(second.values[k] != wish[k] for k in wish) <= 2
    assert table.left == len(every) - 1 and len(table.untried()) == table.left
    assert table.named(every[3].text()) == every[3] and table.named("nonsense") is None
    table.close(Schedule.of({"unknown": 1}))
    assert table.left == len(every) - 1


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_the_schedule_sampler_gives_legal_untried_candidates_until_none_is_left(kind: str) -> None:
    table, every = contraction()
    sampler = ScheduleSampler([table.variant], SPACES, kind, 0)
    for s in every[: len(every) - 10]:
        table.close(s)
    first = sampler.ask([table], 6)
    for k, choice in enumerate(first):
        sampler.tell(choice, math.inf if k == 0 else 1e-6 * k)
    rest = sampler.ask([table], 6)
    assert [len(first), len(rest)] == [6, 4]
    assert {s for _, s in first + rest} == set(every[len(every) - 10 :])
    assert sampler.ask([table], 6) == []


def test_tpe_finds_a_good_tile_sooner_than_it_would_by_trying_all() -> None:
    table, every = contraction()

    def cost(s: Schedule) -> float:
        return 1.0 + abs(int(s.values["rows"]) - 8) + abs(math.log2(int(s.values["unroll"])) - 2)

    best = min(map(cost, every))
    sampler = ScheduleSampler([table.variant], SPACES, "tpe", 1)
    found, asked = math.inf, 0
    while found > best and asked < len(every):
        for v, s in sampler.ask([table], 6):
            asked += 1
            found = min(found, cost(s))
            sampler.tell((v, s), 1e-6 * cost(s))
    assert asked < len(every) / 3


def test_a_pace_is_learnt() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.room("map", clock.now + 1, 2) == 2
    assert pace.room("map", clock.now - 1, 2) == 0
    with pace.timed("map", 4):
        clock.now += 8
    assert pace.room("map", clock.now + 10, 2) == 5
    assert pace.room("contract", clock.now + 10, 2) == 2
