"""Spans: how the points of a host kernel are dealt out to tasks, vectors and tails."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, Var, apply, const, var
from autofuse.loops.ir import For, If, LoopKind, Stmt, loop

Block = Callable[[dict[Expr, Expr], Expr, int, int], tuple[Stmt, ...]]
"""(outer axes' values, first inner point, lanes, unroll) -> statements for unroll x lanes neighbouring points."""


def cover(n: int, lanes: int) -> list[tuple[int, int]]:
    """Cover n points by vectors of falling power-of-two width: [(start, lanes), ...]."""
    out: list[tuple[int, int]] = []
    start = 0
    width = lanes
    while start < n:
        while width > n - start:
            width //= 2
        out.append((start, width))
        start += width
    return out


def span(
    n: int, lanes: int, unroll: int, body: Callable[[Expr, int, int], tuple[Stmt, ...]], name: str
) -> tuple[Stmt, ...]:
    """Statements that run `body(start, lanes, unroll)` over 0..n-1: a main loop of full blocks, then narrower vectors."""
    step = lanes * unroll
    full = n // step
    out: list[Stmt] = []
    if full == 1:
        out += body(const(0), lanes, unroll)
    elif full > 1:
        x = var(name, full)
        out.append(loop(x, LoopKind.SERIAL, *body(ix.mul(x, step), lanes, unroll)))
    for start, width in cover(n - full * step, lanes):
        out += body(const(full * step + start), width, 1)
    return tuple(out)


def tasks(outer: Sequence[Var], n: int, lanes: int, unroll: int, task: int, block: Block) -> For:
    """The grid of a kernel over outer axes and n inner points, with about `task` points a task."""
    rows = math.prod(a.extent or 0 for a in outer)
    step = lanes * unroll
    shape = tuple(a.extent or 0 for a in outer)

    def place(flat: Expr) -> dict[Expr, Expr]:
        return dict(zip(outer, ix.unflatten(flat, shape), strict=True))

    if n <= 2 * task or n <= step:
        each = max(1, min(rows, task // max(n, 1)))
        grid = max(1, -(-rows // each)) if rows else 0
        g = var("g", grid)
        if each == 1:
            return For(g, LoopKind.GRID, span(n, lanes, unroll, lambda s, w, u: block(place(g), s, w, u), "x"))
        o = var("o", each)
        flat = ix.add(ix.mul(g, each), o)
        inner = span(n, lanes, unroll, lambda s, w, u: block(place(flat), s, w, u), "x")
        end = None if rows % each == 0 else ix.minimum(const(each), ix.sub(const(rows), ix.mul(g, each)))
        return loop(g, LoopKind.GRID, loop(o, LoopKind.SERIAL, *inner, end=end))
    chunk = -(-task // step) * step
    chunks = -(-n // chunk)
    g = var("g", rows * chunks)
    c = ix.floor_mod(g, chunks)
    where = place(ix.floor_div(g, chunks))
    base = ix.mul(c, chunk)
    x = var("x", chunk // step)
    end = None
    if n % chunk:
        left = ix.sub(const(n), base)
        end = ix.minimum(const(chunk // step), apply("floor_div", (left, const(step)), INDEX))
    out: list[Stmt] = [loop(x, LoopKind.SERIAL, *block(where, ix.add(base, ix.mul(x, step)), lanes, unroll), end=end)]
    rest = n % step
    if rest:
        tail: list[Stmt] = []
        for start, width in cover(rest, lanes):
            tail += block(where, const(n - rest + start), width, 1)
        out.append(If(apply("eq", (c, const(chunks - 1)), DType.BOOL), tuple(tail)))
    return For(g, LoopKind.GRID, tuple(out))


def lanewise(
    start: Expr, lanes: int, unroll: int, make: Callable[[Expr, Expr], tuple[Stmt, ...]], name: str = "v"
) -> Stmt:
    """UNROLL over `unroll` vectors of `lanes`: make(point, register offset) gives the statements of one lane."""
    u, v = var(f"{name}u", unroll), var(f"{name}l", lanes)
    register = ix.add(ix.mul(u, lanes), v)
    body = make(ix.add(start, register), register)
    if lanes == 1:
        body = make(ix.add(start, u), u)
        return loop(u, LoopKind.UNROLL, *body)
    vector = loop(v, LoopKind.VECTOR, *body)
    return loop(u, LoopKind.UNROLL, vector)
