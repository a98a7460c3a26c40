"""Accumulators of a GPU's thread, and how the threads of a row put theirs together.

An accumulator has a register for every lane of a vector. Small integers and booleans are carried in 32 bits; the position of an
extreme is carried beside its value, and ties and NaN are settled as numpy does it (NaN wins; the first or the last position).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from autofuse.fusion.form import Anchor
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, load, select, var
from autofuse.ir.stage import Combine
from autofuse.loops.ir import Alloc, Barrier, Buffer, Let, Level, LoopKind, Scope, Stmt, Store, ThreadReduce, loop

_FUNCTION = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
_NARROW = frozenset({DType.BOOL, DType.INT8, DType.INT16, DType.UINT8, DType.UINT16})
_NONE = 2**31 - 1
"""A position that no element has."""


def carried(dtype: DType) -> DType:
    """The type of an accumulator of a reduction in `dtype`."""
    return DType.INT32 if dtype in _NARROW else dtype.compute


@dataclass(frozen=True)
class Threads:
    """Who shares a row: `lanes` threads of a block of `threads`.

    `row` and `lane` say which row of the block and which of its lanes a thread is. `adjacent` lanes are neighbouring threads, which
    reduce by shuffles; otherwise neighbouring threads belong to different rows, and partial results go through shared memory.
    """

    threads: int
    lanes: int
    row: Expr
    lane: Expr
    adjacent: bool

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.threads // self.lanes

    @staticmethod
    def of(t: Expr, threads: int, lanes: int, adjacent: bool) -> Threads:
        """The thread t of a block."""
        rows = threads // lanes
        if adjacent:
            return Threads(threads, lanes, ix.floor_div(t, lanes), ix.floor_mod(t, lanes), True)
        return Threads(threads, lanes, ix.floor_mod(t, rows), ix.floor_div(t, rows), False)


class Accumulator:
    """The accumulator of one anchor over `width` vector lanes."""

    def __init__(self, anchor: Anchor, body: DType, width: int, number: int) -> None:
        self.anchor = anchor
        self.width = width
        self.number = number
        self.dtype = carried(body)
        self.source = body
        self.is_arg = anchor.combine.is_arg
        self.last = anchor.combine in (Combine.ARGMAX_LAST, Combine.ARGMIN_LAST)
        self.values = Buffer(f"acc{number}", self.dtype, width, Scope.REGISTER)
        self.places = Buffer(f"pos{number}", DType.INT32, width, Scope.REGISTER)

    @property
    def combine(self) -> str:
        """sum, prod, max or min: how values are put together."""
        match self.anchor.combine:
            case Combine.ARGMAX | Combine.ARGMAX_LAST:
                return "max"
            case Combine.ARGMIN | Combine.ARGMIN_LAST:
                return "min"
            case plain:
                return plain.value

    @property
    def identity(self) -> Expr:
        """What changes nothing."""
        match self.combine:
            case "sum":
                return const(0, self.dtype)
            case "prod":
                return const(1, self.dtype)
            case "max":
                return const(self.source.compute.min_value, self.dtype)
            case _:
                return const(self.source.compute.max_value, self.dtype)

    @property
    def nowhere(self) -> Expr:
        """The position of nothing."""
        return const(-1 if self.last else _NONE, DType.INT32)

    def start(self) -> list[Stmt]:
        """Allocate the registers and set them to the identity."""
        out: list[Stmt] = [Alloc(self.values)]
        out += [Store(self.values, const(k), self.identity) for k in range(self.width)]
        if self.is_arg:
            out.append(Alloc(self.places))
            out += [Store(self.places, const(k), self.nowhere) for k in range(self.width)]
        return out

    def add(self, lane: Expr, value: Expr, position: Expr) -> list[Stmt]:
        """Take one element in; elements come to a lane in the order of their positions."""
        held = load(self.values, (lane,), self.dtype)
        value = cast_to(value, self.dtype)
        if not self.is_arg:
            return [Store(self.values, lane, self._join(held, value))]
        new, take = var(f"e{self.number}", None, self.dtype), var(f"better{self.number}", None, DType.BOOL)
        wins = "gt" if self.combine == "max" else "lt"
        better = call("ge" if wins == "gt" else "le", new, held) if self.last else call(wins, new, held)
        if self.dtype.is_float:
            nan = call("isnan", new)
            better = call("or", better, nan if self.last else call("and", nan, call("not", call("isnan", held))))
        if not self.last:
            better = call("or", better, call("eq", load(self.places, (lane,), DType.INT32), self.nowhere))
        place = select(take, cast_to(position, DType.INT32), load(self.places, (lane,), DType.INT32))
        return [
            Let(new, value),
            Let(take, better),
            Store(self.places, lane, place),
            Store(self.values, lane, select(take, new, held)),
        ]

    def _join(self, a: Expr, b: Expr) -> Expr:
        return call(_FUNCTION[self.combine], a, b)

    def _fold(self, values: Sequence[Expr]) -> Expr:
        """Put values together pairwise: the chain of dependent operations stays short."""
        work = list(values)
        while len(work) > 1:
            pairs = [self._join(a, b) for a, b in zip(work[::2], work[1::2], strict=False)]
            work = pairs + ([work[-1]] if len(work) % 2 else [])
        return work[0]

    def _fold_places(self, places: Sequence[Expr]) -> Expr:
        return reduce(lambda a, b: call("maximum" if self.last else "minimum", a, b), places)

    def _matches(self, value: Expr, top: Expr, place: Expr) -> Expr:
        """The position, if its value is the extreme one."""
        same = call("eq", value, top)
        if self.dtype.is_float:
            same = call("or", same, call("and", call("isnan", value), call("isnan", top)))
        return select(same, place, self.nowhere)

    def own(self) -> tuple[Expr, Expr | None]:
        """What this thread has found: the value and, for an extreme's position, the place."""
        value = self._fold([load(self.values, (const(k),), self.dtype) for k in range(self.width)])
        if not self.is_arg:
            return value, None
        if self.width != 1:
            raise ValueError("positions are not carried in vectors")
        return value, load(self.places, (const(0),), DType.INT32)

    def serial(self, count: int, element: Callable[[Expr], Expr]) -> list[Stmt]:
        """Reduce `count` values one after another; every thread does it for itself."""
        s = var(f"s{self.number}", count)
        held = load(self.values, (const(0),), self.dtype)
        step = Store(self.values, const(0), self._join(held, element(s)))
        return [*self.start(), loop(s, LoopKind.SERIAL, step), self.deliver(held, None)]

    def deliver(self, value: Expr, place: Expr | None) -> Stmt:
        """Define the anchor's result."""
        return Let(self.anchor.result, cast_to(value if place is None else place, self.anchor.result.dtype))

    def across_warp(self, who: Threads, scratch: dict[DType, Buffer], value: Expr, place: Expr | None) -> list[Stmt]:
        """Reduce over adjacent lanes; every lane gets the result."""
        level = Level.WARP if who.lanes == 32 else Level.BLOCK
        top = var(f"all{self.number}", None, self.dtype)
        own = var(f"own{self.number}", None, self.dtype)
        out: list[Stmt] = [
            Let(own, value),
            ThreadReduce(top, self.combine, own, level, who.lanes, scratch.get(self.dtype)),
        ]
        if place is None:
            return [*out, self.deliver(top, None)]
        at = var(f"at{self.number}", None, DType.INT32)
        here = self._matches(own, top, place)
        out.append(ThreadReduce(at, "max" if self.last else "min", here, level, who.lanes, scratch.get(DType.INT32)))
        return [*out, self.deliver(top, at)]

    def partials(self, who: Threads) -> list[Buffer]:
        """Shared buffers for reduction over lanes that are not adjacent: one element a thread."""
        out = [Buffer(f"part{self.number}", self.dtype, who.threads, Scope.SHARED)]
        if self.is_arg:
            out.append(Buffer(f"where{self.number}", DType.INT32, who.threads, Scope.SHARED))
        return out

    def put(self, who: Threads, buffers: Sequence[Buffer], value: Expr, place: Expr | None) -> list[Stmt]:
        """Store this thread's partial result where the row's other threads can read it."""
        at = _slot(who, who.lane)
        out: list[Stmt] = [Store(buffers[0], at, value)]
        if place is not None:
            out.append(Store(buffers[1], at, place))
        return out

    def take(self, who: Threads, buffers: Sequence[Buffer]) -> list[Stmt]:
        """Put the partial results of a row together, after a barrier."""
        slots = [_slot(who, const(k)) for k in range(who.lanes)]
        values = [load(buffers[0], (s,), self.dtype) for s in slots]
        top = var(f"all{self.number}", None, self.dtype)
        out: list[Stmt] = [Let(top, self._fold(values))]
        if not self.is_arg:
            return [*out, self.deliver(top, None)]
        places = [load(buffers[1], (s,), DType.INT32) for s in slots]
        found = self._fold_places([self._matches(v, top, p) for v, p in zip(values, places, strict=True)])
        return [*out, self.deliver(top, found)]


def _slot(who: Threads, lane: Expr) -> Expr:
    return ix.add(ix.mul(lane, who.rows), who.row)


def across(accumulators: Sequence[Accumulator], who: Threads, scratch: dict[DType, Buffer]) -> list[Stmt]:
    """Statements that turn every thread's accumulators into the anchors' results, known to all threads of the row."""
    out: list[Stmt] = []
    if who.lanes == 1 or not accumulators:
        return [a.deliver(*a.own()) for a in accumulators]
    if who.adjacent:
        for a in accumulators:
            out += a.across_warp(who, scratch, *a.own())
        return out
    buffers = [a.partials(who) for a in accumulators]
    for a, b in zip(accumulators, buffers, strict=True):
        out += [Alloc(x) for x in b]
        out += a.put(who, b, *a.own())
    out.append(Barrier(Level.BLOCK))
    for a, b in zip(accumulators, buffers, strict=True):
        out += a.take(who, b)
    return out
