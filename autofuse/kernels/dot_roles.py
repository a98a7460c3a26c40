"""Products of 8-bit integers: what is multiplied before zero points are taken off, and the preparation of constant factors.

    sum (a - za) (b - zb) = sum a b - za sum b - zb sum a + K za zb

holds in integers around 2^32 as it does in the reals, so that the result is exact whatever overflows. Dot instructions multiply bytes
without a sign (a) by bytes with one (b): a factor of the other kind is moved by 128, and its zero point with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, apply, const, select, variables
from autofuse.ir.stage import Combine, Kind
from autofuse.kernels.contract_roles import Contraction, dimension, padding_as_select, split_axes

BYTES = (DType.INT8, DType.UINT8)
QUAD = 4
"""Bytes that a dot instruction takes from each operand for a lane."""


@dataclass(frozen=True)
class IntegerProduct:
    """A contraction whose factors are 8-bit integers, and the zero point (INT32) to be taken off each; None where there is none."""

    c: Contraction
    zeros: tuple[Expr | None, Expr | None]


@lru_cache(maxsize=1 << 12)
def integer_product(program: RegionProgram) -> IntegerProduct | None:
    """The sum of products of 8-bit integers that a region computes, in INT32; None where it is something else."""
    form = analyse(program)
    if not isinstance(form, Form) or form.kind not in (Kind.CONTRACT, Kind.REDUCE) or len(form.anchors) != 1:
        return None
    anchor = form.anchors[0]
    if anchor.combine is not Combine.SUM or anchor.body.dtype is not DType.INT32 or any(o.full for o in form.outputs):
        return None
    if form.row_points * form.reduced_points == 0 or not form.reduced:  # no terms, or one alone
        return None
    match anchor.body:
        case Apply("mul", (x, y)):
            pass
        case _:
            return None
    a, b = (_shifted(padding_as_select(e, program)) for e in (x, y))
    if a is None or b is None:
        return None
    outputs = tuple((o.index, padding_as_select(o.value, program)) for o in form.outputs)
    # zero points take part in the splitting of axes as if they were results
    shifts = tuple(((), z if z is not None else const(0, DType.INT32)) for _, z in (a, b))
    whole = Contraction(form, form.rows, form.reduced, (a[0], b[0]), (*outputs, *shifts), anchor.result)
    c = split_axes(whole)
    kept = tuple(z if had is not None else None for (_, z), (_, had) in zip(c.outputs[-2:], (a, b), strict=True))
    if any(z is not None and variables(z) & set(c.reduced) for z in kept):
        return None
    bare = Contraction(form, c.rows, c.reduced, c.factors, c.outputs[:-2], c.result)
    return IntegerProduct(bare, (kept[0], kept[1]))


def _shifted(e: Expr) -> tuple[Expr, Expr | None] | None:
    """An 8-bit value and its zero point, of an INT32 expression that is the first less the second; zero stands for the latter's place."""
    match e:
        case Apply("cast", (inner,)) if inner.dtype in BYTES:
            return inner, None
        case Apply("sub", (value, Apply("cast", (zero,)) as shift)):
            found = _shifted(value)
            if found is None or found[1] is not None or zero.dtype is not found[0].dtype:
                return None
            return found[0], shift
        case Apply("select", (condition, value, Const(value=v))) if v == 0:
            found = _shifted(value)
            if found is None:
                return None
            raw, point = found
            outside = point.args[0] if isinstance(point, Apply) else const(0, raw.dtype)
            return select(condition, raw, outside), point
        case _:
            return None


def unsigned(e: Expr) -> Expr:
    """An 8-bit value as bits of one without a sign: a signed one is moved by 128."""
    return e if e.dtype is DType.UINT8 else _flipped(apply("bitcast", (e,), DType.UINT8))


def signed(e: Expr) -> Expr:
    """An 8-bit value as bits of one with a sign: an unsigned one is moved by -128."""
    return apply("bitcast", (e,), DType.UINT8) if e.dtype is DType.INT8 else _flipped(e)


def _flipped(e: Expr) -> Expr:
    return apply("bit_xor", (e, const(128, DType.UINT8)), DType.UINT8)


def quad_axis(c: Contraction) -> Var:
    """The reduced axis whose neighbours are multiplied four at a time: with the least padding, then the longest, then the last."""
    found = [
        (-(-(a.extent or 1) // QUAD) * QUAD / (a.extent or 1), -(a.extent or 1), -k, a) for k, a in enumerate(c.reduced)
    ]
    return min(found, key=lambda f: f[:3])[3]


@dataclass(frozen=True)
class Quads:
    """A constant of 8-bit integers as dot instructions read it: [n / lanes][others][quads][lanes][4], zeros in the padding; then for each n
    the sum of its elements, in 32 bits. Elements without a sign are moved by -128.

    `n`, `quad` and `others` are dimensions; further ones have extent 1.
    """

    n: int
    quad: int
    others: str
    lanes: int

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(int(d) for d in self.others.split(",") if d)

    def elements(self, shape: tuple[int, ...]) -> int:
        """How many bytes a constant of this shape becomes."""
        n = -(-shape[self.n] // self.lanes) * self.lanes
        depth = -(-shape[self.quad] // QUAD) * QUAD * math.prod(shape[d] for d in self._others)
        return n * (depth + 4)

    def saving(self, shape: tuple[int, ...]) -> float:
        """No multiplication is saved."""
        del shape
        return 1.0

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The constant as it lies in memory (flat)."""
        order = (self.n, *self._others, self.quad)
        rest = [d for d in range(array.ndim) if d not in order]
        moved = array.transpose(*rest, *order).reshape(array.shape[self.n], -1, array.shape[self.quad])
        if array.dtype == np.uint8:
            moved = (moved ^ 128).view(np.int8)
        n, others, depth = moved.shape
        wide = np.zeros((-(-n // self.lanes) * self.lanes, others, -(-depth // QUAD) * QUAD), np.int8)
        wide[:n, :, :depth] = moved
        tiles = wide.reshape(-1, self.lanes, others, wide.shape[2] // QUAD, QUAD).transpose(0, 2, 3, 1, 4)
        sums = wide.sum((1, 2), np.int32)
        return np.concatenate([tiles.reshape(-1), sums.view(np.int8)]).view(array.dtype)

    def text(self) -> str:
        """Short and stable."""
        return f"quads{self.n}q{self.quad}o{self.others or '-'}x{self.lanes}"


def quads_of(factor: Expr, c: Contraction, n: Var, quad: Var, lanes: int) -> tuple[int, Quads] | None:
    """The constant that a factor is, by input number, and its preparation; None where it is no plain read of one."""
    if not isinstance(factor, Load) or not isinstance(factor.source, int) or factor.dtype not in BYTES:
        return None
    tensor = c.form.program.inputs[factor.source]
    places = [dimension(factor.index, a) for a in (n, quad, *(a for a in c.reduced if a is not quad))]
    if not tensor.constant or factor.fill is not None or None in places or len(set(places)) != len(places):
        return None
    inside = [factor.index[d] for d in places if d is not None]
    if inside != [n, quad, *(a for a in c.reduced if a is not quad)]:
        return None
    whole = all(
        (a.extent or 1) == tensor.shape[d]
        for a, d in zip(inside, places, strict=True)
        if isinstance(a, Var) and d is not None
    )
    rest = [k for k in range(len(tensor.shape)) if k not in places]
    if not whole or any(tensor.shape[k] != 1 for k in rest):
        return None
    n_at, quad_at, *others = (d for d in places if d is not None)
    return factor.source, Quads(n_at, quad_at, ",".join(str(d) for d in others), lanes)
