"""Kin of kernel signatures, and records from elsewhere: what is near is a seed, and never a result."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.ir.dtype import DType
from autofuse.ir.expr import call
from autofuse.ir.stage import Combine
from autofuse.measure.kinship import FAR, Traits, distance, nearest
from autofuse.measure.records import Records
from autofuse.measure.result import Measurement, Status
from autofuse.measure.seeding import Seeding
from autofuse.ops.builder import Builder

F32 = DType.FLOAT32
ROW = Measurement("k1", "sig", "map_host", "vector", "ab->ab", "task=1", Status.OK, samples_ns=(10, 20, 30))


def product(m: int, k: int, n: int, relu: bool = False) -> RegionProgram:
    b = Builder()
    x, w = b.input("x", F32, (m, k)), b.input("w", F32, (k, n))
    y = b.reduce(
        [x, w],
        (m, n),
        (k,),
        Combine.SUM,
        lambda i, r, read: call("mul", read(0, (i[0], r[0])), read(1, (r[0], i[1]))),
    )
    nodes = [0]
    if relu:
        y = b.elementwise([y], lambda a: call("tanh", a))
        nodes.append(1)
    graph = b.graph([("y", y)])
    return program_of(graph, Region.of(graph, nodes))


def square(n: int) -> RegionProgram:
    b = Builder()
    y = b.elementwise([b.input("x", F32, (n, n))], lambda a: call("neg", a))
    graph = b.graph([("y", y)])
    return program_of(graph, Region.of(graph, [0]))


def test_traits_come_back_from_their_text_and_foreign_text_is_none() -> None:
    traits = Traits.of(product(8, 16, 32))
    assert Traits.read(traits.text()) == traits
    assert Traits.read("nonsense") is None and Traits.read("[1, 2]") is None


def test_the_nearest_kernel_has_the_same_operators_and_the_nearest_shape() -> None:
    mine = Traits.of(product(64, 64, 64))
    near, far, other = product(64, 64, 128), product(512, 512, 512), product(64, 64, 64, relu=True)
    assert distance(mine, mine) == 0
    assert 0 < distance(mine, Traits.of(near)) < 1 < distance(mine, Traits.of(other))
    assert distance(mine, Traits.of(far)) == pytest.approx(3)
    assert math.isinf(distance(mine, Traits.of(square(64))))
    programs = {p.signature: Traits.of(p) for p in (far, other, near, square(64), product(1 << 13, 1 << 13, 1 << 13))}
    found = nearest(mine, programs.items(), 9)
    assert [s for s, _ in found] == [near.signature, other.signature, far.signature]
    assert all(d <= FAR for _, d in found)


def test_seeds_come_from_the_nearest_signatures_of_any_model(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    near, far, wrong = product(64, 64, 128), product(512, 512, 512), product(64, 128, 64)
    with Records("cpu|a", 2, path, "g++ 13") as r:
        seeding = Seeding(r)
        for k, p in enumerate((far, near, wrong)):
            seeding.describe(p)
            seeding.describe(p)
            status = Status.WRONG if p is wrong else Status.OK
            r.add([replace(ROW, key=f"k{k}", signature=p.signature, status=status)])
            r.add([replace(ROW, key=f"s{k}", signature=p.signature, schedule="task=2", samples_ns=(90,))])
    with Records("cpu|a", 2, path, "g++ 13") as r:
        seeding = Seeding(r)
        rows = seeding.rows(product(64, 64, 64))
        assert [m.signature for m in rows] == [near.signature, wrong.signature, far.signature]
        assert [m.schedule for m in rows] == ["task=1", "task=2", "task=1"]
        assert seeding.rows(square(64)) == [] and seeding.notes() == []


@pytest.mark.parametrize(
    ("device", "threads", "environment", "origin"),
    [
        ("cpu|a", 2, "g++ 14", "another compiler or driver (g++ 13)"),
        ("cpu|a", 1, "g++ 13", "2 threads"),
        ("cpu|b", 2, "g++ 13", "another device (cpu a)"),
    ],
)
def test_rows_from_elsewhere_are_seeds_and_said_to_be(
    tmp_path: Path, device: str, threads: int, environment: str, origin: str
) -> None:
    path = tmp_path / "records.sqlite"
    p = product(8, 8, 8)
    with Records("cpu|a", 2, path, "g++ 13") as r:
        r.add([replace(ROW, signature=p.signature)])
        assert r.find(["k1"], "warm", p.signature) and r.elsewhere(p.signature) == []
    with Records(device, threads, path, environment) as r:
        assert r.find(["k1"], "warm", p.signature) == {} and r.of_signature(p.signature) == []
        seeding = Seeding(r)
        assert [m.key for m in seeding.rows(p)] == ["k1"]
        assert len(seeding.notes()) == 1 and origin in seeding.notes()[0] and "measured again" in seeding.notes()[0]
        r.add([replace(ROW, signature=p.signature, samples_ns=(5,))])
        assert r.find(["k1"], "warm", p.signature)["k1"].samples_ns == (5,)
    with Records("cuda|sm_90", 1, path, "driver 580") as r:
        assert Seeding(r).rows(p) == []  # the CPU's tiles say nothing of a GPU


def test_a_table_without_environments_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    with Records("cpu", 2, path) as r:
        r.add([ROW])
    c = sqlite3.connect(path)
    c.execute("ALTER TABLE measurements DROP COLUMN environment")
    c.commit()
    c.close()
    with Records("cpu", 2, path, "g++ 13") as r:
        assert r.notes == []
        assert r.find(["k1"], "warm", "sig")["k1"].samples_ns == ROW.samples_ns
