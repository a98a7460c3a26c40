"""Index arithmetic: simplification never changes a value, and folds what the ranges prove."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Apply, Const, Expr, Load, Var, apply, const, load, to_text, var, walk
from autofuse.ops.evaluate import evaluate_expr

I, J, K = var("i", 5), var("j", 3), var("k", 4)
AXES = (I, J, K)


def everywhere(e: Expr) -> np.ndarray:
    """The expression's value at every point of the axes."""
    env = {a: np.arange(a.extent).reshape([-1 if n == k else 1 for n in range(3)]) for k, a in enumerate(AXES)}
    return np.broadcast_to(evaluate_expr(e, env, [], False), (5, 3, 4))


leaf = st.one_of(st.sampled_from(AXES), st.integers(-7, 12).map(const))


def grow(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pair = st.tuples(children, children)
    positive = st.integers(1, 9).map(const)
    return st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "minimum", "maximum"]), pair).map(lambda t: apply(t[0], t[1], INDEX)),
        st.tuples(children, st.integers(-4, 6).map(const)).map(lambda t: apply("mul", t, INDEX)),
        st.tuples(st.sampled_from(["floor_div", "floor_mod"]), children, positive).map(
            lambda t: apply(t[0], (t[1], t[2]), INDEX)
        ),
    )


indices = st.recursive(leaf, grow, max_leaves=10)


@settings(max_examples=300, deadline=None)
@given(indices)
def test_simplified_index_has_the_same_value_everywhere(e: Expr) -> None:
    assert np.array_equal(everywhere(ix.simplify(e)), everywhere(e)), to_text(e)


@settings(max_examples=200, deadline=None)
@given(indices)
def test_bounds_hold(e: Expr) -> None:
    lo, hi = ix.bounds(e)
    values = everywhere(e)
    assert lo <= values.min() and values.max() <= hi


@settings(max_examples=150, deadline=None)
@given(indices, indices)
def test_predicates_hold(a: Expr, b: Expr) -> None:
    p = ix.less(ix.simplify(a), ix.simplify(b))
    assert np.array_equal(everywhere(p), everywhere(a) < everywhere(b))


@pytest.mark.parametrize("shape, other", [((6, 4), (3, 8)), ((2, 3, 4), (24,)), ((24,), (4, 3, 2)), ((1, 12), (3, 4))])
def test_reshape_there_and_back_is_the_identity(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    axes = tuple(var(f"a{k}", n) if n > 1 else const(0) for k, n in enumerate(shape))
    there = ix.unflatten(ix.flatten(axes, shape), other)
    assert ix.unflatten(ix.flatten(there, other), shape) == axes


def test_a_blocked_address_is_affine() -> None:
    outer, inner = var("co", 4), var("ci", 16)
    channel = ix.add(ix.mul(outer, 16), inner)
    assert ix.floor_div(channel, 16) is outer
    assert ix.floor_mod(channel, 16) is inner


def test_expressions_are_interned() -> None:
    assert ix.add(I, J) is ix.add(J, I)
    assert const(0.0, DType.FLOAT32) is not const(-0.0, DType.FLOAT32)
    assert const(float("nan"), DType.FLOAT32) is const(float("nan"), DType.FLOAT32)


def test_walk_visits_a_shared_subexpression_once() -> None:
    e: Expr = I
    for _ in range(60):
        e = apply("add", (e, e), INDEX)
    assert len(list(walk(e))) == 61


def test_a_guard_that_always_holds_is_dropped() -> None:
    guarded = load("x", (I,), DType.FLOAT32, 0.0, apply("lt", (I, const(5)), DType.BOOL))
    out = ix.substitute(guarded, {})
    assert isinstance(out, Load) and out.guard is None


def test_division_by_zero_extent_does_not_arise() -> None:
    assert ix.unflatten(const(0), (0, 3)) == (const(0), const(0))


@pytest.mark.parametrize("d, c", list(itertools.product([2, 3, 7], [-5, 0, 4])))
def test_constants_fold_as_python_rounds(d: int, c: int) -> None:
    assert isinstance(ix.floor_div(const(c), d), Const) and ix.floor_div(const(c), d).value == c // d
    assert ix.floor_mod(const(c), d).value == c % d


def test_every_apply_is_in_the_function_table() -> None:
    with pytest.raises(KeyError):
        apply("no_such_function", (I,), INDEX)
    with pytest.raises(ValueError, match="takes 2"):
        apply("add", (I,), INDEX)
    assert isinstance(apply("add", (I, J), INDEX), Apply) and isinstance(I, Var)
