"""Fetching ahead: memory moves while arithmetic runs only where its addresses are known early enough.

A processor's own prefetchers follow a stream within a page and begin anew at the next one, and a kernel that sweeps over a row
several times asks memory for all of it during the first sweep and for nothing during the others. Hints for the row that comes next,
spread over the longest sweep, keep both busy (Callahan, Kennedy, Porterfield 1991).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Load, Var, const, variables, walk
from autofuse.kernels.points import own_loads, stride_of
from autofuse.loops.ir import Buffer, Prefetch, Scope

LINE = 64
"""Bytes of a cache line."""
_NEAR = 1024
"""Addresses of one buffer that always stay this close are one stream."""


@dataclass(frozen=True)
class Stream:
    """Neighbouring elements of a buffer, read one after the other as an axis goes on."""

    buffer: Buffer
    offset: Expr


def streams_along(values: Iterable[Expr], axis: Var) -> tuple[Stream, ...]:
    """The streams that expressions read along an axis, each once."""
    found: list[Stream] = []
    for ld in dict.fromkeys(ld for v in values for ld in own_loads(v)):
        buffer, offset = ld.source, ld.index[0]
        if not isinstance(buffer, Buffer) or buffer.scope is not Scope.GLOBAL or stride_of(offset, axis) != 1:
            continue
        if any(isinstance(x, Load) for x in walk(offset)) or any(_close(s, buffer, offset) for s in found):
            continue
        found.append(Stream(buffer, offset))
    return tuple(found)


def _close(s: Stream, buffer: Buffer, offset: Expr) -> bool:
    if s.buffer != buffer:
        return False
    low, high = ix.bounds(ix.sub(s.offset, offset))
    return max(-low, high) * buffer.dtype.itemsize < _NEAR


def fetch(
    streams: Sequence[Stream], at: Mapping[Expr, Expr], axis: Var, start: Expr, count: int, far: bool
) -> tuple[Prefetch, ...]:
    """Hints for `count` elements of each stream from `start` on, with the other axes as `at` has them."""
    out: list[Prefetch] = []
    for s in streams:
        each = LINE // s.buffer.dtype.itemsize
        for k in range(0, count, each):
            where = {**at, axis: ix.add(start, const(k))}
            out.append(Prefetch(s.buffer, ix.substitute(s.offset, where), far))
    return tuple(out)


def moves(streams: Iterable[Stream], axis: Var) -> tuple[Stream, ...]:
    """Those of the streams that go elsewhere as another axis goes on: what does not is in a cache already."""
    return tuple(s for s in streams if axis in variables(s.offset))


def gaps(streams: Iterable[Stream], row: Var, axis: Var) -> bool:
    """Whether one of the streams along `axis` goes on elsewhere when `row` does."""
    return any(stride_of(s.offset, row) not in (0, axis.extent) for s in streams)


def repeated(streams: Iterable[Stream], axes: Sequence[Var], nbytes: int) -> Var | None:
    """The outermost axis that a stream does not depend on, where more than `nbytes` of it are read in each round of the axes within."""
    for k, axis in enumerate(axes[:-1]):
        for s in streams:
            used = variables(s.offset)
            within = math.prod(a.extent or 0 for a in axes[k + 1 :] if a in used)
            if axis not in used and (axis.extent or 1) > 1 and within * s.buffer.dtype.itemsize > nbytes:
                return axis
    return None
