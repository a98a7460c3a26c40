"""Running sums and products: what is common to the host and the GPU."""

from __future__ import annotations

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, const
from autofuse.ir.stage import Combine, Running

COMBINES = {Combine.SUM: "add", Combine.PROD: "mul"}
"""The scalar function of each combine."""


def identity(running: Running) -> Expr:
    """The sum or product of nothing."""
    return const(0 if running.combine is Combine.SUM else 1, running.dtype.compute)


def step(running: Running, t: Expr) -> Expr:
    """The position along the axis that comes t-th."""
    return ix.sub(const(running.shape[running.axis] - 1), t) if running.reverse else t
