"""Reads that leave their tensor are found where they are certain, and only there."""

from __future__ import annotations

import pytest

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, const, load, select, var
from autofuse.ir.reach import leaving
from autofuse.ir.stage import Combine, Stage, axes_of

F32 = DType.FLOAT32
I, J = axes_of((3, 4))


def read(*index: Expr, fill: float | None = None) -> Expr:
    return load(0, index, F32, fill)


@pytest.mark.parametrize(
    ("body", "shape", "wrong"),
    [
        (read(I, J), (3, 4), ""),
        (read(I, J), (3, 3), "elements 0 to 3 of dimension 1 of input 0 are read, which has 3"),
        (read(I, ix.add(J, const(2))), (3, 5), "elements 2 to 5 of dimension 1 of input 0 are read, which has 5"),
        (read(ix.sub(const(2), I), J), (3, 4), ""),
        (read(ix.sub(const(1), I), J), (3, 4), "elements -1 to 1 of dimension 0 of input 0 are read, which has 3"),
        (read(ix.sub(ix.add(I, J), J), J), (3, 4), ""),
        (read(ix.floor_mod(J, 2), J), (2, 4), ""),
        (read(I, ix.add(J, const(2)), fill=0.0), (3, 5), ""),
        (read(I, J), (3, 0), "elements 0 to 3 of dimension 1 of input 0 are read, which has 0"),
    ],
)
def test_what_is_read(body: Expr, shape: tuple[int, ...], wrong: str) -> None:
    assert leaving(Stage((I, J), body, F32), [shape]) == wrong


def test_a_branch_guards_its_reads_but_not_its_condition() -> None:
    far = read(ix.add(I, const(1)), J)
    inside = select(call("lt", I, const(2)), far, const(0.0, F32))
    assert leaving(Stage((I, J), inside, F32), [(3, 4)]) == ""
    asked = select(call("lt", far, const(0.0, F32)), const(1.0, F32), const(0.0, F32))
    assert leaving(Stage((I, J), asked, F32), [(3, 4)])


def test_reduced_axes_and_empty_ones() -> None:
    k = var("k", 5)
    total = Stage((I,), read(I, k), F32, (k,), Combine.SUM)
    assert leaving(total, [(3, 5)]) == "" and leaving(total, [(3, 4)])
    nothing = axes_of((3, 0))
    assert leaving(Stage(nothing, read(*nothing), F32), [(3, 0)]) == ""
