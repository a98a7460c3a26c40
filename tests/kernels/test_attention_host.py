"""Two contractions in one host kernel against float64 arithmetic: shapes, masks, layouts, tails, and what is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from host_contract import Case, Maker, check, in_space, schedules, target

from autofuse.fusion.chain import Chain, chain_of
from autofuse.kernels.attention_host import AttentionHost
from autofuse.kernels.attention_problem import sweeps_of
from autofuse.kernels.base import Schedule
from autofuse.kernels.least import least_bytes, least_products
from autofuse.render.cpp import render_cpp

ATTENTION = AttentionHost()


def attention(
    heads: tuple[int, ...] = (2,),
    queries: int = 37,
    keys: int = 41,
    width: int = 24,
    columns: int = 0,
    mask: str = "",
    turned: bool = False,
    value_turned: bool = False,
    dtype: type = np.float32,
) -> Case:
    """As exporters write it: scores divided by the root of the width, a mask added, a softmax, the values' mean.

    `turned`: keys come as (width, keys) already; `value_turned`: values come as (columns, keys). `mask`: "added" by key, "causal" as a constant,
    "chosen" by Where with -inf.
    """
    g = Maker(dtype)
    q = g.input(*heads, queries, width)
    k = g.input(*heads, width, keys) if turned else g.input(*heads, keys, width)
    v = g.input(*heads, columns or width, keys) if value_turned else g.input(*heads, keys, columns or width)
    order = [*range(len(heads)), len(heads) + 1, len(heads)]
    scores = g.op("MatMul", q, k if turned else g.op("Transpose", k, perm=order))
    scores = g.op("Div", scores, g.b.constant(np.array(math.sqrt(width), dtype)))
    if mask == "added":
        scores = g.op("Add", scores, g.input(1, keys))
    elif mask == "causal":
        upper = np.triu(np.full((queries, keys), np.finfo(dtype).min), 1)
        scores = g.op("Add", scores, g.b.constant(upper.astype(dtype)))
    elif mask == "chosen":
        allowed = np.tril(np.ones((queries, keys), bool))
        least = g.b.constant(np.array(-np.inf, dtype))
        scores = g.op("Where", g.b.constant(allowed), scores, least)
    weights = g.op("Softmax", scores, axis=-1)
    return g.case(g.op("MatMul", weights, g.op("Transpose", v, perm=order) if value_turned else v))


def heads_side_by_side(sequence: int = 33, heads: int = 3, width: int = 16) -> Case:
    """Heads are cut out of rows and put together again; a mask by key for all of them; what follows is added."""
    g = Maker()
    shape = g.b.constant(np.array([1, sequence, heads, width]))
    q, k, v = (g.op("Reshape", g.input(1, sequence, heads * width), shape) for _ in range(3))
    q, v = (g.op("Transpose", x, perm=[0, 2, 1, 3]) for x in (q, v))
    scores = g.op("MatMul", g.op("Mul", q, g.b.constant(np.float32(0.3))), g.op("Transpose", k, perm=[0, 2, 3, 1]))
    weights = g.op("Softmax", g.op("Add", scores, g.input(1, 1, 1, sequence)), axis=-1)
    mixed = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    joined = g.op("Reshape", mixed, g.b.constant(np.array([1, sequence, heads * width])))
    return g.case(g.op("Add", joined, g.input(1, sequence, heads * width)))


def grouped(sequence: int = 20, keys: int = 19) -> Case:
    """Two heads of queries share each head of keys and values."""
    g = Maker()
    q, k, v = g.input(2, 2, sequence, 16), g.input(2, 1, 16, keys), g.input(2, 1, keys, 16)
    return g.case(g.op("MatMul", g.op("Softmax", g.op("MatMul", q, k), axis=-1), v))


CASES: dict[str, Callable[[], Case]] = {
    "plain": attention,
    "aligned": lambda: attention((1, 2), 32, 48, 32),
    "one query block": lambda: attention((3,), 5, 9, 7),
    "two queries": lambda: attention((1,), 2, 3, 4),
    "many queries": lambda: attention((1,), 131, 17, 8, 50),
    "many keys": lambda: attention((1,), 17, 300, 8),
    "no heads": lambda: attention((), 33, 18, 16),
    "keys turned": lambda: attention(turned=True),
    "values turned": lambda: attention(value_turned=True),
    "values turned, many": lambda: attention((2,), 70, 33, 16, 35, turned=True, value_turned=True),
    "mask added": lambda: attention(mask="added"),
    "causal": lambda: attention(mask="causal"),
    "chosen": lambda: attention(mask="chosen"),
    "double": lambda: attention(dtype=np.float64, mask="added"),
    "heads side by side": heads_side_by_side,
    "grouped": grouped,
}


@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, tmp_path: Path) -> None:
    """Every variant, with its heuristic schedule and two random ones."""
    case = CASES[name]()
    t = target()
    found = list(ATTENTION.variants(case.program, t))
    assert [v.algorithm for v in found] == ["kept", "late"]
    for k, v in enumerate(found):
        for s in schedules(ATTENTION, v, t, 2, seed=k):
            assert in_space(ATTENTION, v, s, t) == []
            check(case, ATTENTION, v, s, t, tmp_path)


@pytest.mark.parametrize("name", ["plain", "mask added", "values turned"])
def test_narrow_vectors(name: str, tmp_path: Path) -> None:
    """Vectors of 32 bytes and sixteen registers."""
    case = CASES[name]()
    t = target(32)
    for v in ATTENTION.variants(case.program, t):
        for s in schedules(ATTENTION, v, t, 1):
            assert in_space(ATTENTION, v, s, t) == []
            check(case, ATTENTION, v, s, t, tmp_path)


def test_constant_masks_lie_query_by_query() -> None:
    """A causal mask is prepared so that neighbouring queries lie side by side: no lane is gathered from it."""
    case = CASES["causal"]()
    v = next(iter(ATTENTION.variants(case.program, target())))
    mask = next(k for k, t in enumerate(case.program.inputs) if t.constant and len(t.shape) == 2)
    assert not v.input_layouts[mask].is_plain
    assert all(l.is_plain for k, l in enumerate(v.input_layouts) if k != mask)


def test_a_division_of_whole_rows_may_wait() -> None:
    """`kept` holds what it divided, `late` divides in the end: neither sweeps over the scores more often than it needs."""
    case = CASES["plain"]()
    chain = chain_of(case.program)
    assert isinstance(chain, Chain)
    kept, late = (sweeps_of(chain, late) for late in (False, True))
    assert [len(s.anchors) for s in kept.sweeps] == [1, 1, 0] and kept.divisor is None
    assert [len(s.anchors) for s in late.sweeps] == [1, 1] and late.divisor is not None
    assert [v.tolerant for v in ATTENTION.variants(case.program, target())] == [False, True]


def test_products_count_whole_vectors() -> None:
    """The bound of 37 queries is that of 48 in the first product, and of columns filled up in the second; sums are read once."""
    case = CASES["plain"]()
    t = target()
    v = next(iter(ATTENTION.variants(case.program, t)))
    assert least_products(v, t) == 2 * 2 * 41 * (48 * 24 + 37 * 32)
    assert least_bytes(v) == 4 * 2 * (2 * 37 * 24 + 2 * 41 * 24) + 4


def test_golden(golden: Callable[[Path, str], None]) -> None:
    """The text of a kernel with whole and cut blocks, masks and tails."""
    case = attention((1,), 20, 5, 3, mask="added")
    v = list(ATTENTION.variants(case.program, target()))[1]
    s = Schedule.parse("keys=4 rows=4 unroll=2 vectors=1 wide=1")
    (launch,) = ATTENTION.lower(v, s, target()).launches
    golden(Path(__file__).parent / "golden" / "attention.cpp", render_cpp(launch.kernel, 64))
