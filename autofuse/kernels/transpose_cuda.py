"""Maps that turn axes around, on a GPU: tiles go through shared memory, so that reads and writes are both coalesced."""

from __future__ import annotations

from collections.abc import Callable

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, load, var
from autofuse.kernels.access import Binding
from autofuse.kernels.points import Points, below, crossing, up
from autofuse.loops.ir import (
    Alloc,
    Barrier,
    Buffer,
    For,
    If,
    Let,
    Level,
    LoopKind,
    Scope,
    Stmt,
    Store,
    loop,
)

TILE = 32
_PITCH = TILE + 1
"""One element more than a tile is wide: a column of the tile then lies in as many banks as a row."""

_Make = Callable[[dict[Expr, Expr]], tuple[Stmt, ...]]


def transpose(points: Points, binding: Binding, threads: int) -> For:
    """The loop nest: load tiles along the inputs' axis, wait, evaluate and store along the outputs'."""
    found = crossing(points.rows, points.values)
    assert found is not None
    across, staged = found
    inner = points.rows[-1]
    batch = tuple(a for a in points.rows if a is not across and a is not inner)
    n, m = across.extent or 0, inner.extent or 0
    shape = (*(a.extent or 0 for a in batch), up(n, TILE), up(m, TILE))
    grid = 1
    for extent in shape:
        grid *= extent
    g, t, s = var("g", grid), var("t", threads), var("s", TILE * TILE // threads)
    *outer, tile_n, tile_m = ix.unflatten(g, shape)
    lane, warp = ix.floor_mod(t, TILE), ix.floor_div(t, TILE)
    step = ix.add(ix.mul(s, threads // TILE), warp)
    buffers = [Buffer(f"tile{k}", ld.dtype, TILE * _PITCH, Scope.SHARED) for k, ld in enumerate(staged)]
    swap: dict[Expr, Expr] = dict(zip(batch, outer, strict=True))

    def phase(name: str, local_n: Expr, local_m: Expr, make: _Make) -> Stmt:
        """A pass over the tile; `make` gets where the tile's element lies in the tensors."""
        at_n, at_m = ix.add(ix.mul(tile_n, TILE), local_n), ix.add(ix.mul(tile_m, TILE), local_m)
        x, y = var(f"{name}n", n), var(f"{name}m", m)
        body: tuple[Stmt, ...] = (Let(x, at_n), Let(y, at_m), *make({**swap, across: x, inner: y}))
        inside = ix.both(below(at_n, n), below(at_m, m))
        if inside is not ix.TRUE:
            body = (If(inside, body),)
        return For(s, LoopKind.UNROLL, body)

    def fill(where: dict[Expr, Expr]) -> tuple[Stmt, ...]:
        at = ix.add(ix.mul(step, _PITCH), lane)
        return tuple(Store(b, at, ix.substitute(ld, where)) for b, ld in zip(buffers, staged, strict=True))

    def drain(where: dict[Expr, Expr]) -> tuple[Stmt, ...]:
        at = ix.add(ix.mul(lane, _PITCH), step)
        known: dict[Expr, Expr] = dict(where)
        for b, ld in zip(buffers, staged, strict=True):
            known[ld] = load(b, (at,), ld.dtype)
        return tuple(
            Store(o.buffer, ix.substitute(offset, known), ix.substitute(value, known))
            for o, offset, value in zip(binding.outputs, points.offsets, points.values, strict=True)
        )

    body = (
        phase("a", lane, step, fill),
        Barrier(Level.BLOCK),
        phase("b", step, lane, drain),
    )
    return loop(g, LoopKind.GRID, *(Alloc(b) for b in buffers), For(t, LoopKind.THREAD, body))
