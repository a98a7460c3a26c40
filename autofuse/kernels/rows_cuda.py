"""Rows on a GPU: the loops of a reduction's passes over the reduced domain of one row, shared by a row's threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autofuse.fusion.form import Form
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, Var, const, load, var
from autofuse.kernels.access import Binding
from autofuse.kernels.combine_cuda import Accumulator, Threads, across
from autofuse.kernels.passes_cuda import Kept, Pass, invariants, kept_values, passes_of, places_of
from autofuse.kernels.points import Points, below, place, up
from autofuse.loops.ir import Alloc, Buffer, For, If, Let, LoopKind, Scope, Stmt, Store, loop

UNROLLED = 32
"""The most iterations of a loop whose values are kept in registers."""


@dataclass(frozen=True)
class Span:
    """The share of the reduced domain that a row's threads go over: chunks of `vector` points, `count` from `first` on."""

    chunks: int
    vector: int
    count: int
    first: Expr

    @staticmethod
    def whole(points: Points, vector: int) -> Span:
        chunks = points.reduced_points // vector
        return Span(chunks, vector, chunks, const(0))

    def part(self, number: Expr, parts: int) -> Span:
        """One of several shares of equal size, of which the last ones may be shorter or empty."""
        count = up(self.chunks, parts)
        return Span(self.chunks, self.vector, count, ix.mul(number, count))


def row_axes(points: Points, row: Expr) -> dict[Expr, Expr]:
    """The row axes of a row number."""
    return dict(zip(points.rows, ix.unflatten(row, tuple(a.extent or 0 for a in points.rows)), strict=True))


def block_nest(g: Var, t: Var, rows: Rows, body: Sequence[Stmt]) -> For:
    """The grid around a thread's statements: what the block shares is allocated once for all its threads."""
    shared = [s for s in body if isinstance(s, Alloc) and s.buffer.scope is Scope.SHARED]
    private = tuple(s for s in body if s not in shared)
    return loop(g, LoopKind.GRID, *rows.shared(), *shared, For(t, LoopKind.THREAD, private))


@dataclass(frozen=True)
class _Work:
    """What one pass evaluates at a point: anchors' bodies, (offset, value) of its outputs, and (key, value) of what it keeps."""

    bodies: tuple[Expr, ...]
    stores: tuple[tuple[Expr, Expr], ...]
    made: tuple[tuple[Expr, Expr], ...]

    @property
    def roots(self) -> tuple[Expr, ...]:
        return (*self.bodies, *(v for _, v in self.stores), *(v for _, v in self.made))

    def replaced(self, known: dict[Expr, Expr]) -> _Work:
        """The same with subexpressions replaced."""
        return _Work(
            tuple(ix.substitute(e, known) for e in self.bodies),
            tuple((ix.substitute(o, known), ix.substitute(v, known)) for o, v in self.stores),
            tuple((k, ix.substitute(v, known)) for k, v in self.made),
        )


@dataclass
class Rows:
    """Writes the passes of a form for one row a group of threads.

    `row` are the values of the row axes; `valid` tells whether the row exists: threads of rows that do not exist compute with
    another row's data and store nothing. `keep` is how values are kept between passes: recompute, shared or register.
    """

    form: Form
    binding: Binding
    points: Points
    who: Threads
    span: Span
    row: dict[Expr, Expr]
    valid: Expr
    keep: str = "recompute"
    passes: tuple[Pass, ...] = ()
    kept: tuple[Kept, ...] = ()
    buffers: dict[Expr, Buffer] = field(default_factory=dict)
    held: dict[Expr, Var] = field(default_factory=dict)
    scratch: dict[DType, Buffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.passes = passes_of(self.form, self.points)
        if self.keep != "recompute":
            self.kept = kept_values(self.passes, self.points)
        self._assign_buffers()
        if self.who.adjacent and self.who.lanes > 32:
            warps = up(self.who.threads, 32)
            types = [self.accumulator(k, 1).dtype for k in range(len(self.form.anchors))]
            if any(a.combine.is_arg for a in self.form.anchors):
                types.append(DType.INT32)
            for t in dict.fromkeys(types):
                self.scratch[t] = Buffer(f"scratch_{t.value}", t, warps, Scope.SHARED)

    # ---- what is kept between passes

    @property
    def trips(self) -> int:
        """Iterations of a thread over its share of the reduced domain."""
        return up(self.span.count, self.who.lanes)

    def _assign_buffers(self) -> None:
        """Memory and a placeholder for every kept value."""
        in_registers = self.keep == "register"
        scope = Scope.REGISTER if in_registers else Scope.SHARED
        size = self.trips * self.span.vector if in_registers else self.who.rows * self.points.reduced_points
        places = places_of(self.kept, self.passes, self.points)
        for number, (k, place_number) in enumerate(zip(self.kept, places, strict=True)):
            self.buffers[k.value] = Buffer(f"kept{place_number}", k.value.dtype, size, scope)
            self.held[k.value] = var(f"held{number}", None, k.value.dtype)

    def _slot(self, trip: Expr, lane: Expr) -> Expr:
        vector = self.span.vector
        if self.keep == "register":
            return ix.add(ix.mul(trip, vector), lane)
        within = ix.add(ix.mul(ix.add(ix.mul(trip, self.who.lanes), self.who.lane), vector), lane)
        if self.who.adjacent:
            return ix.add(ix.mul(self.who.row, self.points.reduced_points), within)
        return ix.add(ix.mul(within, self.who.rows), self.who.row)

    # ---- statements

    def shared(self) -> tuple[Stmt, ...]:
        """Allocations of memory that the block shares: they stand outside the loop over threads."""
        kept = [b for b in dict.fromkeys(self.buffers.values()) if b.scope is Scope.SHARED]
        return tuple(Alloc(b) for b in (*self.scratch.values(), *kept))

    def private(self) -> list[Stmt]:
        """Allocations of registers for kept values."""
        return [Alloc(b) for b in dict.fromkeys(self.buffers.values()) if b.scope is Scope.REGISTER]

    def accumulator(self, k: int, width: int) -> Accumulator:
        """A fresh accumulator of an anchor."""
        return Accumulator(self.form.anchors[k], self.points.bodies[k].dtype, width, k)

    def accumulate(self, number: int) -> tuple[list[Accumulator], list[Stmt]]:
        """The loop of one pass: accumulators hold what this thread has found; full outputs of the pass are stored."""
        p = self.passes[number]
        accumulators = [self.accumulator(k, self.span.vector) for k in p.anchors]
        out: list[Stmt] = [s for a in accumulators for s in a.start()]
        made = [k.value for k in self.kept if k.first == number]
        work = _Work(
            tuple(self._staged(self.points.bodies[k]) for k in p.anchors),
            tuple((self._staged(self.points.offsets[k]), self._staged(self.points.values[k])) for k in p.outputs),
            tuple((e, self._staged(e, but=e)) for e in made),
        )
        inner = (*self.points.reduced, *self.held.values())
        fixed: dict[Expr, Expr] = {}
        for k, e in enumerate(invariants(work.roots, inner)):
            fixed[e] = hoisted = var(f"h{number}_{k}", None, e.dtype)
            out.append(Let(hoisted, e))
        if self.span.chunks:
            out += self._loop(number, accumulators, work.replaced(fixed))
        return accumulators, out

    def _staged(self, e: Expr, but: Expr | None = None) -> Expr:
        """An expression at this row, with placeholders for kept values (except one that is being made)."""
        known: dict[Expr, Expr] = {k: v for k, v in self.held.items() if k is not but}
        return ix.substitute(ix.substitute(e, known), self.row)

    def _loop(self, number: int, accumulators: Sequence[Accumulator], work: _Work) -> list[Stmt]:
        span, who = self.span, self.who
        trip = var(f"k{number}", self.trips)
        at: Expr = const(0) if self.trips == 1 else trip
        local = ix.add(ix.mul(at, who.lanes), who.lane)
        start = ix.add(span.first, local)
        chunk, lane = var(f"c{number}", span.chunks), var(f"v{number}", span.vector)
        element = lane if span.vector > 1 else const(0)
        where = place(self.points.reduced, chunk, span.vector, element)
        slot = self._slot(at, element)
        body: list[Stmt] = [Let(chunk, start)]
        makes, held = self._make(number, work, where, slot)
        position = ix.substitute(self.points.position, where)
        for e, a in zip(work.bodies, accumulators, strict=True):
            makes += a.add(element, ix.substitute(e, held), position)
        if self.valid is ix.TRUE:
            body += self._lanes(lane, [*makes, *self._put(number, work, held)])
        else:
            body += self._lanes(lane, makes)
            if work.stores:
                again = dict(held)
                again.update((v, load(self.buffers[e], (slot,), e.dtype)) for e, v in self.held.items())
                body.append(If(self.valid, tuple(self._lanes(lane, self._put(number, work, again)))))
        inside = ix.both(below(local, span.count), below(start, span.chunks))
        guarded: list[Stmt] = body if inside is ix.TRUE else [If(inside, tuple(body))]
        if self.trips == 1:
            return guarded
        kind = LoopKind.UNROLL if self.keep == "register" and self.kept else LoopKind.SERIAL
        return [For(trip, kind, tuple(guarded))]

    def _make(
        self, number: int, work: _Work, where: dict[Expr, Expr], slot: Expr
    ) -> tuple[list[Stmt], dict[Expr, Expr]]:
        """Statements that make what this pass keeps, and what placeholders and axes stand for at one point."""
        at: dict[Expr, Expr] = dict(where)
        for k in self.kept:
            if k.first < number:
                at[self.held[k.value]] = load(self.buffers[k.value], (slot,), k.value.dtype)
        out: list[Stmt] = []
        for n, (e, value) in enumerate(work.made):
            made = var(f"m{number}_{n}", None, e.dtype)
            out += [Let(made, ix.substitute(value, at)), Store(self.buffers[e], slot, made)]
            at[self.held[e]] = made
        return out, at

    def _put(self, number: int, work: _Work, at: dict[Expr, Expr]) -> list[Stmt]:
        """Store the full outputs of a pass at one point."""
        return [
            Store(self.binding.outputs[k].buffer, ix.substitute(offset, at), ix.substitute(value, at))
            for k, (offset, value) in zip(self.passes[number].outputs, work.stores, strict=True)
        ]

    def _lanes(self, lane: Var, body: Sequence[Stmt]) -> list[Stmt]:
        if not body or lane.extent == 1:
            return list(body)
        return [For(lane, LoopKind.VECTOR, tuple(body))]

    def finish(self, accumulators: Sequence[Accumulator]) -> list[Stmt]:
        """Put a pass's accumulators together across the row's threads: the anchors' results are known after it."""
        return across(accumulators, self.who, self.scratch)

    def row_outputs(self, also: Expr = ix.TRUE) -> list[Stmt]:
        """Store what there is one of a row, by the row's first thread."""
        out: list[Stmt] = []
        for k, o in enumerate(self.form.outputs):
            if not o.full:
                target = self.binding.outputs[k].buffer
                offset = ix.substitute(self.points.offsets[k], self.row)
                out.append(Store(target, offset, ix.substitute(self.points.values[k], self.row)))
        if not out:
            return []
        condition = ix.both(ix.both(self.valid, below(self.who.lane, 1)), also)
        return out if condition is ix.TRUE else [If(condition, tuple(out))]
