"""Partitions: landmarks, verdicts with reasons, and the enumerator."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from autofuse.errors import VerificationError
from autofuse.fusion.form import Form, analyse
from autofuse.fusion.legality import RULES, Candidate, check
from autofuse.fusion.partition import Partition, Partitioner, verify_partition
from autofuse.fusion.region import Region, Verdict, program_of
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.dtype import DType
from autofuse.ir.expr import call, const
from autofuse.ir.graph import Graph
from autofuse.ir.stage import Combine, Kind
from autofuse.ops.builder import Builder
from tests.graphs import random_graph
from tests.targets import HOST
from tests.traps.fusion import would_be_cycle

F32 = DType.FLOAT32


def softmax() -> Graph:
    b = Builder()
    x = b.input("x", F32, (4, 8, 16))
    m = b.reduce([x], (4, 8, 1), (16,), Combine.MAX, lambda i, r, read: read(0, (i[0], i[1], r[0])))
    e = b.elementwise([x, m], lambda a, c: call("exp", call("sub", a, c)))
    s = b.reduce([e], (4, 8, 1), (16,), Combine.SUM, lambda i, r, read: read(0, (i[0], i[1], r[0])))
    y = b.elementwise([e, s], lambda a, c: call("div", a, c))
    return b.graph([("y", y)])


def test_a_softmax_is_one_region_with_two_anchors() -> None:
    graph = softmax()
    (region,) = Partitioner(graph, HOST).greedy().regions
    form = analyse(program_of(graph, region))
    assert isinstance(form, Form) and form.kind is Kind.REDUCE
    assert [a.combine for a in form.anchors] == [Combine.MAX, Combine.SUM]
    assert [o.full for o in form.outputs] == [True]


def test_group_norm_through_reshapes_is_one_region() -> None:
    graph = import_model(load_model("sample:chain_groupnorm"))
    assert len(Partitioner(graph, HOST).greedy().regions) == 1


@pytest.mark.parametrize("name", ["gelu", "layernorm", "rmsnorm", "softmax", "swiglu", "rotary", "groupnorm"])
def test_each_memory_bound_chain_is_one_region(name: str) -> None:
    graph = import_model(load_model(f"sample:chain_{name}"))
    partitioner = Partitioner(graph, HOST)
    assert len(partitioner.greedy().regions) == 1
    assert len(partitioner.unfused().regions) > 2


def test_a_region_that_leaves_and_comes_back_is_refused_with_its_reason() -> None:
    graph = import_model(would_be_cycle().model)
    relu, matmul, add = (n.id for n in graph.nodes)
    verdict = check(graph, Region.of(graph, [relu, add]), HOST)
    assert not verdict and verdict.rule == "convexity" and matmul in verdict.nodes


def test_two_contractions_are_refused() -> None:
    graph = import_model(load_model("sample:mlp"))
    contractions = [n.id for n in graph.nodes if n.kind is Kind.CONTRACT]
    everything = Region.of(graph, range(contractions[0], contractions[1] + 1))
    verdict = check(graph, everything, HOST)
    assert (verdict.ok, verdict.rule) == (False, "contractions")


def test_too_many_arguments_are_refused() -> None:
    b = Builder()
    xs = [b.input(f"x{k}", F32, (4,)) for k in range(300)]
    total = xs[0]
    for x in xs[1:]:
        total = b.elementwise([total, x], lambda p, q: call("add", p, q))
    graph = b.graph([("y", total)])
    few = dataclasses.replace(HOST, max_parameters=50)
    verdict = check(graph, Region.of(graph, range(60)), few)
    assert (verdict.ok, verdict.rule) == (False, "arguments")
    greedy = Partitioner(graph, few).greedy()
    assert max(len(r.inputs) + len(r.outputs) for r in greedy.regions) == 50
    verify_partition(graph, greedy, HOST)


def test_a_dear_producer_is_not_computed_for_every_use() -> None:
    b = Builder()
    x = b.input("x", F32, (64, 64))
    e = b.elementwise([x], lambda v: call("exp", v))
    w = b.constant(np.ones((64, 64), np.float32))
    y = b.reduce(
        [e, w],
        (64, 64),
        (64,),
        Combine.SUM,
        lambda i, r, read: call("mul", read(0, (i[0], r[0])), read(1, (r[0], i[1]))),
    )
    graph = b.graph([("y", y)])
    verdict = check(graph, Region.of(graph, [0, 1]), HOST)
    assert (verdict.ok, verdict.rule) == (False, "recomputation") and "32 times" in verdict.reason


def test_an_epilogue_with_residual_joins_the_contraction() -> None:
    b = Builder()
    x, z = b.input("x", F32, (8, 16)), b.input("z", F32, (8, 24))
    w = b.constant(np.ones((16, 24), np.float32))
    y = b.reduce(
        [x, w],
        (8, 24),
        (16,),
        Combine.SUM,
        lambda i, r, read: call("mul", read(0, (i[0], r[0])), read(1, (r[0], i[1]))),
    )
    y = b.elementwise([y, z], lambda p, q: call("add", p, q))
    y = b.elementwise([y], lambda p: call("maximum", p, const(0, F32)))
    graph = b.graph([("y", y)])
    assert [r.nodes for r in Partitioner(graph, HOST).greedy().regions] == [(0, 1, 2)]


def test_every_rule_says_why() -> None:
    graph = softmax()
    for rule in RULES:
        assert isinstance(rule(Candidate(graph, Region.of(graph, [0, 1]), HOST)), Verdict)
        assert rule.__doc__


def test_the_enumerator_is_lazy_starts_with_the_landmarks_and_repeats_nothing() -> None:
    graph = import_model(load_model("sample:squeezenet"))
    partitioner = Partitioner(graph, HOST)
    first = list(itertools.islice(partitioner.enumerate(), 20))
    assert first[0].key == partitioner.unfused().key
    assert first[1].key == partitioner.greedy().key
    assert len({p.key for p in first}) == 20


@pytest.mark.parametrize("seed", range(40))
def test_every_enumerated_partition_passes_the_verifier(seed: int) -> None:
    graph = random_graph(seed)
    for partition in itertools.islice(Partitioner(graph, HOST).enumerate(), 12):
        verify_partition(graph, partition, HOST)


def test_the_verifier_can_fail() -> None:
    graph = softmax()
    good = Partitioner(graph, HOST).merge([])
    with pytest.raises(VerificationError, match="before any region delivers it"):
        verify_partition(graph, Partition(tuple(reversed(good.regions))), HOST)
    with pytest.raises(VerificationError, match="delivered by no region"):
        verify_partition(graph, Partition(good.regions[:-1]), HOST)
    illegal = Region.of(graph, [0, 2])
    with pytest.raises(VerificationError, match=r"before any|illegal"):
        verify_partition(graph, Partition((illegal, *good.regions)), HOST)


def test_equal_layers_have_equal_programs() -> None:
    graph = import_model(load_model("sample:resnet50"))
    regions = Partitioner(graph, HOST).greedy().regions
    signatures = {program_of(graph, r).signature for r in regions}
    assert len(signatures) < len(regions) / 2
