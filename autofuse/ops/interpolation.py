"""Reading a tensor between its elements: taps and weights of linear and cubic interpolation at positions that are data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autofuse.ir import index as ix
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const
from autofuse.ops.common import like

Tap = tuple[Expr, Expr]
"""An integer position along one axis, and its weight."""

KEYS = -0.75
"""The free coefficient of cubic convolution (R. Keys, 1981) as ONNX and PyTorch have it."""


def linear_taps(x: Expr) -> list[Tap]:
    """The two neighbours of a float position x: floor(x) and the next one."""
    low = call("floor", x)
    ratio = call("sub", x, low)
    at = cast_to(low, INDEX)
    return [(at, call("sub", like(x, 1), ratio)), (ix.add(at, const(1)), ratio)]


def cubic_weights(t: Expr, a: float = KEYS) -> list[Expr]:
    """Weights of the four neighbours at distances 1 + t, t, 1 - t and 2 - t (Keys)."""

    def polynomial(x: Expr, *coefficients: float) -> Expr:
        out = like(x, coefficients[0])
        for c in coefficients[1:]:
            out = call("add", call("mul", out, x), like(x, c))
        return out

    rest = call("sub", like(t, 1), t)

    def outer(x: Expr) -> Expr:
        return polynomial(call("add", x, like(x, 1)), a, -5 * a, 8 * a, -4 * a)

    def inner(x: Expr) -> Expr:
        return polynomial(x, a + 2, -(a + 3), 0.0, 1.0)

    return [outer(t), inner(t), inner(rest), outer(rest)]


def cubic_taps(x: Expr) -> list[Tap]:
    """The four neighbours of a float position x, from floor(x) - 1 to floor(x) + 2."""
    low = call("floor", x)
    at = cast_to(low, INDEX)
    weights = cubic_weights(call("sub", x, low))
    return [(ix.add(at, const(k - 1)), w) for k, w in enumerate(weights)]


def interpolated(taps: Sequence[Sequence[Tap]], read: Callable[[tuple[Expr, ...]], Expr]) -> Expr:
    """The sum over all combinations of an axis' taps, the last axis innermost, of weights times what is read there."""

    def along(k: int, at: tuple[Expr, ...]) -> Expr:
        if k == len(taps):
            return read(at)
        total: Expr | None = None
        for position, weight in taps[k]:
            part = call("mul", along(k + 1, (*at, position)), weight)
            total = part if total is None else call("add", total, part)
        assert total is not None
        return total

    return along(0, ())
