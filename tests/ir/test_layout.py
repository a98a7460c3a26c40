"""Layouts: packing, addressing and text agree with each other."""

from __future__ import annotations

import numpy as np
import pytest

from autofuse.ir.expr import const, var
from autofuse.ir.layout import Layout
from autofuse.ops.evaluate import evaluate_expr

CASES = [
    (Layout.plain(3), (2, 3, 4)),
    (Layout.permuted((1, 0)), (5, 7)),
    (Layout.blocked(4, 1, 16), (2, 32, 3, 5)),
    (Layout.blocked(4, 1, 16), (1, 20, 2, 2)),
    (Layout.blocked(3, 1, 8), (2, 3, 4)),
    (Layout.parse("abcd32a"), (48, 3, 3, 3)),
]


@pytest.mark.parametrize("layout, shape", CASES)
def test_pack_and_unpack_are_inverse(layout: Layout, shape: tuple[int, ...]) -> None:
    array = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    memory = layout.pack(array)
    assert memory.shape == layout.extents(shape) and memory.size == layout.size(shape)
    assert np.array_equal(layout.unpack(memory, shape), array)
    assert (memory == 0).sum() == memory.size - array.size


@pytest.mark.parametrize("layout, shape", CASES)
def test_offsets_find_every_element(layout: Layout, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    axes = tuple(var(f"i{k}", n) for k, n in enumerate(shape))
    env = {a: np.arange(a.extent).reshape([-1 if j == k else 1 for j in range(len(shape))]) for k, a in enumerate(axes)}
    offsets = np.broadcast_to(evaluate_expr(layout.offset(axes, shape), env, [], False), shape)
    assert np.array_equal(layout.pack(array).reshape(-1)[offsets], array)


@pytest.mark.parametrize("layout, shape", CASES)
def test_logical_undoes_physical(layout: Layout, shape: tuple[int, ...]) -> None:
    axes = tuple(var(f"i{k}", n) if n > 1 else const(0) for k, n in enumerate(shape))
    assert layout.logical(layout.physical(axes)) == axes


@pytest.mark.parametrize("text", ["abc", "abcd16b", "ba"])
def test_text_and_back(text: str) -> None:
    assert Layout.parse(text).text() == text


@pytest.mark.parametrize("text", ["a1", "ac", "aa", "A", "abcd16b8b", ""])
def test_nonsense_is_refused(text: str) -> None:
    if text == "":
        assert Layout.parse(text).rank == 0
        return
    with pytest.raises(ValueError, match="not a layout"):
        Layout.parse(text)
