"""Winograd's minimal filtering F(m x m, 3 x 3): where it applies, and its transforms of inputs and outputs.

A tile of m x m outputs is A^T [(G w G^T) * (B^T d B)] A, an element-wise product instead of a convolution: (m + 2)^2 multiplications instead
of 9 m^2 (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Expr, Load, Var, apply, const, load, rewrite, select, variables
from autofuse.ir.target import Target
from autofuse.kernels.contract_layouts import can_block_input, channel_axis, number_of
from autofuse.kernels.contract_roles import Contraction, contraction
from autofuse.kernels.layouts import channel_block

Combination = Callable[[Sequence[Expr]], list[Expr]]


@dataclass(frozen=True)
class Setting:
    """A 3 x 3 convolution of stride 1: its axes, and the activation's factor as the model reads it (padding as fills)."""

    c: Contraction
    side: int
    weight: int
    activation: Load
    factor: Expr
    n: Var
    channel: Var
    images: tuple[Var, ...]
    height: Var
    width: Var
    taps: tuple[Var, Var]


@lru_cache(maxsize=1 << 12)
def setting(program: RegionProgram, target: Target) -> Setting | None:
    """The convolution of a region, where Winograd's algorithm applies to it on channel blocks."""
    c = contraction(program)
    if c is None or c.dtype is not DType.FLOAT32 or len(c.reduced) != 3 or c.rows != c.form.rows:
        return None
    channel, *taps = c.reduced
    if c.reduced != c.form.reduced or any(t.extent != 3 for t in taps):
        return None
    body = c.form.anchors[0].body
    assert isinstance(body, Apply)
    for side in (0, 1):
        w = body.args[side]
        found = channel_axis(c, 1 - side)
        if found is None or found[1] is not channel or not isinstance(w, Load):
            continue
        tensor = program.inputs[number_of(w)]
        n = w.index[0] if w.index else None
        if (
            w.index[1:] != c.reduced
            or not isinstance(n, Var)
            or not tensor.constant
            or tensor.dtype is not DType.FLOAT32
        ):
            continue
        if n not in c.only(side) or tensor.shape[2:] != (3, 3):
            continue
        activation = found[0]
        if not can_block_input(c, activation, channel, channel_block(target)) or len(activation.index) != 4:
            continue
        factor = body.args[1 - side]
        axes = [_partner(c, activation.index[d], factor, t) for d, t in zip((2, 3), taps, strict=True)]
        height, width = axes
        if height is None or width is None or height is width:
            continue
        images = tuple(a for a in c.rows if a not in (n, height, width))
        return Setting(c, side, number_of(w), activation, factor, n, channel, images, height, width, (taps[0], taps[1]))
    return None


def _partner(c: Contraction, index: Expr, factor: Expr, tap: Var) -> Var | None:
    """The output axis that a tap is added to, if the factor depends on nothing but that sum."""
    parts = dict(ix.terms(index)[0])
    if parts.get(tap) != 1:
        return None
    for a in c.rows:
        if parts.get(a) == 1 and tap not in variables(ix.substitute(factor, {a: ix.sub(a, tap)})):
            return a
    return None


def tile_read(s: Setting, size: int, at: tuple[Expr, Expr], point: tuple[Expr, Expr]) -> Expr:
    """The activation's factor at a point of the input tile of the output tile `at`, zero outside the tensor."""
    swap: dict[Expr, Expr] = {
        s.height: ix.mul(at[0], size),
        s.width: ix.mul(at[1], size),
        s.taps[0]: point[0],
        s.taps[1]: point[1],
    }
    program = s.c.form.program

    def fn(x: Expr) -> Expr | None:
        if isinstance(x, Load):
            inside = ix.in_range(x.index, program.inputs[number_of(x)].shape)
            return select(inside, load(x.source, x.index, x.dtype), const(x.fill or 0, x.dtype))
        return None

    return rewrite(ix.substitute(s.factor, swap), fn)


def _scaled(x: Expr, k: float) -> Expr:
    return x if k == 1 else apply("mul", (x, const(k, x.dtype)), x.dtype)


def _add(a: Expr, b: Expr) -> Expr:
    return apply("add", (a, b), a.dtype)


def _sub(a: Expr, b: Expr) -> Expr:
    return apply("sub", (a, b), a.dtype)


def _input2(d: Sequence[Expr]) -> list[Expr]:
    return [_sub(d[0], d[2]), _add(d[1], d[2]), _sub(d[2], d[1]), _sub(d[1], d[3])]


def _output2(m: Sequence[Expr]) -> list[Expr]:
    return [_add(_add(m[0], m[1]), m[2]), _sub(_sub(m[1], m[2]), m[3])]


def _input4(d: Sequence[Expr]) -> list[Expr]:
    a, b = _sub(d[4], _scaled(d[2], 4)), _sub(d[3], _scaled(d[1], 4))
    c, e = _sub(d[4], d[2]), _scaled(_sub(d[3], d[1]), 2)
    first = _add(_sub(_scaled(d[0], 4), _scaled(d[2], 5)), d[4])
    last = _add(_sub(_scaled(d[1], 4), _scaled(d[3], 5)), d[5])
    return [first, _add(a, b), _sub(a, b), _add(c, e), _sub(c, e), last]


def _output4(m: Sequence[Expr]) -> list[Expr]:
    p, q, r, s = _add(m[1], m[2]), _sub(m[1], m[2]), _add(m[3], m[4]), _sub(m[3], m[4])
    return [
        _add(_add(m[0], p), r),
        _add(q, _scaled(s, 2)),
        _add(p, _scaled(r, 4)),
        _add(_add(q, _scaled(s, 8)), m[5]),
    ]


INPUT: dict[int, Combination] = {2: _input2, 4: _input4}
"""B^T applied to a column, by m."""

OUTPUT: dict[int, Combination] = {2: _output2, 4: _output4}
"""A^T applied to a column, by m."""
