"""Winograd's minimal filtering: where it applies, and its transforms of inputs and outputs.

With r taps in each of one or two dimensions, a tile of m x m outputs is A^T [(G w G^T) * (B^T d B)] A, an element-wise product instead of a
convolution: (m + r - 1)^2 multiplications instead of (m r)^2 (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015). The
matrices are those of `cook_toom`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, apply, const, load, rewrite, select, variables
from autofuse.ir.target import Target
from autofuse.kernels.contract_layouts import can_block_input, channel_axis, number_of
from autofuse.kernels.contract_roles import Contraction, contraction
from autofuse.kernels.cook_toom import short_filter
from autofuse.kernels.layouts import channel_block

SIZES: Mapping[int, tuple[int, ...]] = {3: (4, 2), 5: (4, 2)}
"""Output tiles that are tried, by the number of taps."""


@dataclass(frozen=True)
class Setting:
    """A convolution of stride 1 with equally many taps in one or two dimensions: its axes, and the activation's factor as the model
    reads it (padding as fills). `spaces` are the output's axes along which the taps lie, `strides` how far apart they read (the
    dilation); `images` are all other rows."""

    c: Contraction
    side: int
    weight: int
    activation: Load
    factor: Expr
    n: Var
    channel: Var
    images: tuple[Var, ...]
    spaces: tuple[Var, ...]
    taps: tuple[Var, ...]
    strides: tuple[int, ...]

    @property
    def reach(self) -> int:
        """The number of taps in each dimension."""
        return self.taps[0].extent or 0


@lru_cache(maxsize=1 << 12)
def setting(program: RegionProgram, target: Target) -> Setting | None:
    """The convolution of a region, where Winograd's algorithm applies to it on channel blocks."""
    c = contraction(program)
    if c is None or c.dtype is not DType.FLOAT32 or len(c.reduced) not in (2, 3) or c.rows != c.form.rows:
        return None
    channel, *taps = c.reduced
    if c.reduced != c.form.reduced or taps[0].extent not in SIZES or any(t.extent != taps[0].extent for t in taps):
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
        if not isinstance(n, Var) or not tensor.constant or tensor.dtype is not DType.FLOAT32:
            continue
        places = _places(w, c.reduced)
        if (
            n not in c.only(side)
            or places is None
            or math.prod(tensor.shape[2:]) != math.prod(t.extent or 0 for t in taps)
        ):
            continue
        activation = found[0]
        if not can_block_input(c, activation, channel, channel_block(target)) or len(activation.index) != len(w.index):
            continue
        factor = body.args[1 - side]
        partners = [_partner(c, activation.index[d], factor, t) for d, t in zip(places, taps, strict=True)]
        spaces = tuple(p[0] for p in partners if p is not None)
        strides = tuple(p[1] for p in partners if p is not None)
        if len(set(spaces)) != len(taps):
            continue
        images = tuple(a for a in c.rows if a is not n and a not in spaces)
        return Setting(c, side, number_of(w), activation, factor, n, channel, images, spaces, tuple(taps), strides)
    return None


def _places(w: Load, reduced: Sequence[Var]) -> list[int] | None:
    """The dimensions of the weights that the taps index, where they are read as [outputs, channels, taps ...] and else at zero."""
    channel, *taps = reduced
    if len(w.index) < 2 or w.index[1] is not channel:
        return None
    places = [d for d in range(2, len(w.index)) if w.index[d] in taps]
    if [w.index[d] for d in places] != taps:
        return None
    rest = [w.index[d] for d in range(2, len(w.index)) if d not in places]
    return places if all(isinstance(e, Const) and e.value == 0 for e in rest) else None


def _partner(c: Contraction, index: Expr, factor: Expr, tap: Var) -> tuple[Var, int] | None:
    """The output axis that a tap is added to and how many times, if the factor depends on nothing but that sum."""
    parts = dict(ix.terms(index)[0])
    stride = parts.get(tap, 0)
    if stride < 1:
        return None
    for a in c.rows:
        if parts.get(a) == 1 and tap not in variables(ix.substitute(factor, {a: ix.sub(a, ix.mul(tap, stride))})):
            return a, stride
    return None


def tile_read(s: Setting, first: Sequence[Expr], point: Sequence[Expr]) -> Expr:
    """The activation's factor at a point of the input tile whose first output is at `first`, zero outside the tensor."""
    swap: dict[Expr, Expr] = dict(zip((*s.spaces, *s.taps), (*first, *point), strict=True))
    program = s.c.form.program

    def fn(x: Expr) -> Expr | None:
        if isinstance(x, Load):
            inside = ix.in_range(x.index, program.inputs[number_of(x)].shape)
            return select(inside, load(x.source, x.index, x.dtype), const(x.fill or 0, x.dtype))
        return None

    return rewrite(ix.substitute(s.factor, swap), fn)


def _add(a: Expr, b: Expr) -> Expr:
    return apply("add", (a, b), a.dtype)


def _sub(a: Expr, b: Expr) -> Expr:
    return apply("sub", (a, b), a.dtype)


def _scaled(x: Expr, k: Fraction) -> Expr:
    return x if k == 1 else apply("mul", (x, const(float(k), x.dtype)), x.dtype)


def _linear(coefficients: Sequence[Fraction], xs: Sequence[Expr]) -> Expr:
    """The sum of coefficients times values, of which some are not zero; a factor that all share is taken out."""
    parts = [(k, x) for k, x in zip(coefficients, xs, strict=True) if k]
    sizes = {abs(k) for k, _ in parts}
    if len(sizes) == 1 and len(parts) > 1 and sizes != {Fraction(1)}:
        size = sizes.pop()
        return _scaled(_linear([k / size for k in coefficients], xs), size)
    parts.sort(key=lambda p: (p[0] < 0, abs(p[0]) != 1))
    (k, x), *rest = parts
    total = _scaled(x, k)
    for k, x in rest:
        total = _add(total, _scaled(x, k)) if k > 0 else _sub(total, _scaled(x, -k))
    return total


def transform_input(size: int, taps: int, d: Sequence[Expr]) -> list[Expr]:
    """B^T of F(size, taps) applied to a column of inputs. A point and its negative share what stands at even and at odd places."""
    rows = short_filter(size, taps).input
    out = [_linear(rows[0], d)]
    for row in rows[1:-1:2]:
        # for p it is q(x) (x + p), for -p it is q(x) (x - p), and q is odd
        even = _linear([c if j % 2 == 0 else Fraction(0) for j, c in enumerate(row)], d)
        odd = _linear([c if j % 2 else Fraction(0) for j, c in enumerate(row)], d)
        out += [_add(even, odd), _sub(even, odd)]
    return [*out, _linear(rows[-1], d)]


def transform_output(size: int, taps: int, m: Sequence[Expr]) -> list[Expr]:
    """A^T of F(size, taps) applied to a column of products, by the sum and the difference of each point and its negative."""
    pairs = [(_add(a, b), _sub(a, b)) for a, b in zip(m[1:-1:2], m[2:-1:2], strict=True)]
    out: list[Expr] = []
    for i, row in enumerate(short_filter(size, taps).output):
        values = [m[0], *(pair[i % 2] for pair in pairs), m[-1]]
        out.append(_linear([row[0], *row[1:-1:2], row[-1]], values))
    return out


def arithmetic(s: Setting, size: int, tiles: int, flops: int) -> int:
    """FLOPs of the algorithm itself: the products of all tiles, both transforms, and what else is in `flops`, the count of a direct
    convolution with its epilogue. A multiplication with an addition counts as two, also where it is a plain addition."""
    channels, features = s.channel.extent or 1, s.n.extent or 1
    points = math.prod(a.extent or 1 for a in (*s.images, *s.spaces, s.n))
    rest = max(0, flops - 2 * points * channels * int(s.reach ** len(s.spaces)))
    return multiplications(s, size, tiles, features) + transforms(s, size, tiles) + rest


def multiplications(s: Setting, size: int, tiles: int, features: int) -> int:
    """FLOPs of the products of all tiles, for a number of features."""
    points = (size + s.reach - 1) ** len(s.spaces)
    return int(2 * tiles * points * (s.channel.extent or 1) * features)


def transforms(s: Setting, size: int, tiles: int) -> int:
    """FLOPs of both transforms, without what is gained where sums are shared."""
    f = short_filter(size, s.reach)
    side, rank = size + s.reach - 1, len(s.spaces)
    coefficients = [sum(x != 0 for row in matrix for x in row) for matrix in (f.input, f.output)]
    # a dimension after the other: one that was transformed already has as many places as come out of it
    taken = coefficients[0] * sum(side ** (rank - 1) for _ in range(rank))
    given = coefficients[1] * sum(size**k * side ** (rank - 1 - k) for k in range(rank))
    return int(2 * tiles * (taken * (s.channel.extent or 1) + given * (s.n.extent or 1)))
