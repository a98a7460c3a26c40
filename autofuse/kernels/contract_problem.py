"""A contraction under the layouts of a variant: everything as flat addresses over a few loop axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, Load, Var, loads, var, variables
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, Resolver, bind, collapse
from autofuse.kernels.base import Variant
from autofuse.kernels.contract_layouts import channel_axis, vector_axis
from autofuse.kernels.contract_roles import coefficient, contraction
from autofuse.loops.ir import Buffer


@dataclass(frozen=True)
class Result:
    """An output: its buffer, and the offset and value at a point. `padded` says that lanes past the end exist and must hold zero."""

    buffer: Buffer
    offset: Expr
    value: Expr
    padded: bool


@dataclass(frozen=True)
class Problem:
    """What a kernel of a contraction needs to know.

    `wide` is read by vectors along `n`, `narrow` one element at a time; tiles hold some points of `m` (None where the narrow factor has
    no axis of its own) times some vectors. `batch` are the other row axes that the wide factor has, `outer` those that it has not, `reduced` the
    axes of the sum in loop order. `points` is the extent of n with the padding that must be written.
    """

    binding: Binding
    narrow: Expr
    wide: Expr
    results: tuple[Result, ...]
    total: Var
    n: Var
    m: Var | None
    batch: tuple[Var, ...]
    outer: tuple[Var, ...]
    reduced: tuple[Var, ...]
    points: int
    lanes: int
    flops: int
    constants: frozenset[int]

    @property
    def dtype(self) -> DType:
        return self.total.dtype

    @property
    def vectors(self) -> int:
        """Vectors along n."""
        return -(-self.points // self.lanes)

    @property
    def rows(self) -> int:
        """Points along m."""
        return (self.m.extent or 1) if self.m is not None else 1

    @property
    def depth(self) -> int:
        """Terms of the sum."""
        return math.prod(a.extent or 1 for a in self.reduced)

    @cached_property
    def must_pack(self) -> bool:
        """Whether neighbouring lanes of the wide factor lie apart in memory."""
        return not all(self._neighbours(ld.index[0]) for ld in _memory(self.wide))

    @cached_property
    def scatters(self) -> bool:
        """Whether neighbouring lanes of an output lie apart in memory."""
        return not all(self._neighbours(r.offset) for r in self.results)

    def _neighbours(self, offset: Expr) -> bool:
        lane = var("lane", self.lanes)
        point = ix.add(ix.mul(var("start", self.vectors), self.lanes), lane)
        return coefficient(ix.substitute(offset, {self.n: point}), lane) in (0, 1)

    @cached_property
    def may_pack(self) -> bool:
        """Whether packing the wide factor may pay: it was not packed when the engine was built."""
        changing = {self.binding.inputs[k].buffer for k in self.changing}
        return any(ld.source in changing and self.n in variables(ld) for ld in _memory(self.wide))

    @property
    def changing(self) -> tuple[int, ...]:
        """The inputs that are no constants."""
        return tuple(k for k in self.binding.inputs if k not in self.constants)


def _memory(e: Expr) -> tuple[Load, ...]:
    return tuple(ld for ld in loads(e) if isinstance(ld.source, Buffer))


@lru_cache(maxsize=256)
def problem(variant: Variant, target: Target) -> Problem:
    """The problem of a variant of the direct algorithm."""
    c = contraction(variant.program)
    assert c is not None
    side, n = vector_axis(c, variant)
    binding = bind(variant)
    resolve = Resolver(binding.inputs, {})
    narrow, wide = resolve(c.factors[1 - side]), resolve(c.factors[side])
    values = [resolve(value) for _, value in c.outputs]
    offsets = [o.offset(index) for o, (index, _) in zip(binding.outputs, c.outputs, strict=True)]

    reduced, swap = _split_channels(c.reduced, variant, side)
    narrow, wide = ix.substitute(narrow, swap), ix.substitute(wide, swap)
    reduced, merged = collapse(reduced, [narrow, wide])
    narrow, wide = ix.substitute(narrow, merged), ix.substitute(wide, merged)

    in_wide = variables(wide)
    batch = tuple(a for a in c.rows if a is not n and a in in_wide)
    own = tuple(a for a in c.rows if a not in in_wide and a is not n)
    own, merged = collapse(own, [narrow, *values, *offsets])
    narrow = ix.substitute(narrow, merged)
    values = [ix.substitute(e, merged) for e in values]
    offsets = [ix.substitute(e, merged) for e in offsets]

    m = _tile_axis(own)
    padded = [not o.layout.is_plain and o.layout.is_padded(o.shape) for o in binding.outputs]
    points = n.extent or 1
    for o, pad in zip(binding.outputs, padded, strict=True):
        if pad:
            block = next(iter(o.layout.blocks.values()))
            points = max(points, -(-(n.extent or 1) // block) * block)
    results = tuple(
        Result(o.buffer, offset, value, pad)
        for o, offset, value, pad in zip(binding.outputs, offsets, values, padded, strict=True)
    )
    outer = tuple(a for a in own if a is not m)
    lanes = target.lanes(c.dtype.itemsize)
    constants = frozenset(k for k, t in enumerate(variant.program.inputs) if t.constant)
    return Problem(
        binding,
        narrow,
        wide,
        results,
        c.result,
        n,
        m,
        batch,
        outer,
        reduced,
        points,
        lanes,
        c.form.flops,
        constants,
    )


def _tile_axis(own: tuple[Var, ...]) -> Var | None:
    """The axis of the register tile's rows: the innermost one, unless it is so short that another fills the registers better."""
    if not own:
        return None
    return max(own, key=lambda a: (min(a.extent or 1, 6), own.index(a)))


def _split_channels(reduced: tuple[Var, ...], variant: Variant, side: int) -> tuple[tuple[Var, ...], dict[Expr, Expr]]:
    """Channels of a blocked activation as blocks (outermost) and the position in the block (innermost), over the padding too."""
    c = contraction(variant.program)
    assert c is not None
    found = channel_axis(c, 1 - side)
    if found is None:
        return reduced, {}
    activation, channel = found
    assert isinstance(activation.source, int)
    block = variant.input_layouts[activation.source].blocks.get(1, 0)
    if not block:
        return reduced, {}
    high = var(f"{channel.name}b", -(-(channel.extent or 1) // block))
    low = var(f"{channel.name}l", block)
    axes = tuple(high if a is channel else a for a in reduced)
    return (*axes, low), {channel: ix.add(ix.mul(high, block), low)}
