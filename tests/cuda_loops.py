"""Kernels written straight in the loop IR, as a GPU would run them, and how tests run them under emulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from autofuse.devices.base import BufferRef, Launch, Port, Program
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, load, var
from autofuse.loops.ir import (
    Alloc,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    Level,
    LoopKind,
    Role,
    Scope,
    Stmt,
    Store,
    ThreadReduce,
    loop,
)
from autofuse.loops.verify import verify_kernel

F32 = DType.FLOAT32


def program_of(kernel: Kernel) -> Program:
    """One launch: unwritten parameters are inputs, written ones outputs."""
    ins = [b for b in kernel.params if not b.written]
    outs = [b for b in kernel.params if b.written]
    refs = tuple(
        BufferRef("output", outs.index(b)) if b.written else BufferRef("input", ins.index(b)) for b in kernel.params
    )
    ports = [tuple(Port(b.name, b.dtype, (b.size,)) for b in group) for group in (ins, outs)]
    return Program((Launch(kernel, refs, kernel.family),), 0, (), ports[0], ports[1])


def run(kernel: Kernel, *inputs: np.ndarray, device: EmulatedCudaDevice | None = None) -> list[np.ndarray]:
    """The outputs of a kernel under emulation."""
    executable = (device or EmulatedCudaDevice()).load(program_of(verify_kernel(kernel)))
    return executable.run([np.ascontiguousarray(x).reshape(-1) for x in inputs])


def edited(kernel: Kernel, change: Callable[[Stmt], tuple[Stmt, ...]]) -> Kernel:
    """The kernel with every statement replaced by those that `change` gives for it, innermost first."""

    def go(s: Stmt) -> tuple[Stmt, ...]:
        match s:
            case For() | Role():
                s = dataclasses.replace(s, body=block(s.body))
            case If():
                s = dataclasses.replace(s, then=block(s.then), otherwise=block(s.otherwise))
            case _:
                pass
        return change(s)

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(t for s in body for t in go(s))

    return dataclasses.replace(kernel, body=dataclasses.replace(kernel.body, body=block(kernel.body.body)))


def without_barrier(kernel: Kernel, number: int) -> Kernel:
    """The kernel with one of its barriers taken out."""
    seen = -1

    def change(s: Stmt) -> tuple[Stmt, ...]:
        nonlocal seen
        if isinstance(s, Barrier):
            seen += 1
            if seen == number:
                return ()
        return (s,)

    return edited(kernel, change)


def thread_map(
    n: int,
    body: Callable[[Expr], Expr],
    inputs: tuple[Buffer, ...],
    out: DType = F32,
    threads: int = 32,
    lanes: int = 1,
    stream: bool = False,
) -> Kernel:
    """y[i] = body(i), `lanes` neighbouring elements a thread."""
    per_block = threads * lanes
    g, t, v = var("g", -(-n // per_block)), var("t", threads), var("v", lanes)
    y = Buffer("y", out, n, written=True)
    i = ix.add(ix.mul(ix.add(ix.mul(g, threads), t), lanes), v)
    guard = ix.less(i, const(n))
    store = Store(y, i, body(i), None if guard is ix.TRUE else guard, stream)
    nest = loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, loop(v, LoopKind.VECTOR, store)))
    return Kernel("map", (*inputs, y), nest, g.extent or 1, threads)


def gelu_map(n: int, lanes: int = 4, threads: int = 32, dtype: DType = F32) -> Kernel:
    """y = x * tanh(x + 1.5), computed in float."""
    x = Buffer("x", dtype, n)

    def body(i: Expr) -> Expr:
        value = load(x, (i,), dtype)
        wide = value if dtype is F32 else cast_to(value, F32)
        result = call("mul", wide, call("tanh", call("add", wide, const(1.5, F32))))
        return result if dtype is F32 else cast_to(result, dtype)

    return thread_map(n, body, (x,), dtype, threads, lanes)


def row_reduce(rows: int, columns: int, threads: int, combine: str = "sum", initial: float = 0.0) -> Kernel:
    """A block reduces a row."""
    x, y = Buffer("x", F32, rows * columns), Buffer("y", F32, rows, written=True)
    scratch = Buffer("scratch", F32, -(-threads // 32), Scope.SHARED)
    acc = Buffer("acc", F32, 1, Scope.REGISTER)
    g, t, k = var("g", rows), var("t", threads), var("k", -(-columns // threads))
    column = ix.add(ix.mul(k, threads), t)
    zero, total = const(0), var("total", None, F32)
    old = load(acc, (zero,), F32)
    element = load(x, (ix.add(ix.mul(g, columns), column),), F32, initial, ix.less(column, const(columns)))
    join = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}[combine]
    body = loop(
        t,
        LoopKind.THREAD,
        Alloc(acc),
        Store(acc, zero, const(initial, F32)),
        loop(k, LoopKind.SERIAL, Store(acc, zero, call(join, old, element))),
        ThreadReduce(total, combine, old, Level.BLOCK if threads > 32 else Level.WARP, threads, scratch),
        Store(y, g, total, call("eq", t, zero)),
    )
    return Kernel("rows", (x, y), loop(g, LoopKind.GRID, Alloc(scratch), body), rows, threads)


def transpose(rows: int, columns: int, tile: int = 16, pad: int = 1) -> Kernel:
    """A tile through shared memory, so that reads and writes both go along rows."""
    x, y = Buffer("x", F32, rows * columns), Buffer("y", F32, rows * columns, written=True)
    s = Buffer("tile", F32, tile * (tile + pad), Scope.SHARED)
    across = -(-columns // tile)
    g, t = var("g", across * -(-rows // tile)), var("t", tile * tile)
    top, left = ix.mul(ix.floor_div(g, across), tile), ix.mul(ix.floor_mod(g, across), tile)
    r, c = ix.floor_div(t, tile), ix.floor_mod(t, tile)
    in_r, in_c = ix.add(top, r), ix.add(left, c)
    out_r, out_c = ix.add(left, r), ix.add(top, c)
    read = load(x, (ix.add(ix.mul(in_r, columns), in_c),), F32, 0.0, _inside(in_r, rows, in_c, columns))
    body = loop(
        t,
        LoopKind.THREAD,
        Store(s, ix.add(ix.mul(r, tile + pad), c), read),
        Barrier(Level.BLOCK),
        Store(
            y,
            ix.add(ix.mul(out_r, rows), out_c),
            load(s, (ix.add(ix.mul(c, tile + pad), r),), F32),
            _inside(out_r, columns, out_c, rows),
        ),
    )
    return Kernel("transpose", (x, y), loop(g, LoopKind.GRID, Alloc(s), body), g.extent or 1, tile * tile)


def _inside(r: Expr, rows: int, c: Expr, columns: int) -> Expr | None:
    guard = ix.both(ix.less(r, const(rows)), ix.less(c, const(columns)))
    return None if guard is ix.TRUE else guard


def matmul(m: int, n: int, k: int, tile: int = 32, depth: int = 8, own: int = 4, stages: int = 0) -> Kernel:
    """C = A B: a block makes tile x tile elements, a thread own x own of them in registers.

    `stages` 0 copies tiles plainly; 2 is double buffering by asynchronous copies: the next tiles are under way while these are used.
    """
    side = tile // own
    threads = side * side
    a, b, c = Buffer("a", F32, m * k), Buffer("b", F32, k * n), Buffer("c", F32, m * n, written=True)
    slots = max(1, stages)
    sa = Buffer("tile_a", F32, slots * tile * depth, Scope.SHARED)
    sb = Buffer("tile_b", F32, slots * depth * tile, Scope.SHARED)
    acc = Buffer("acc", F32, own * own, Scope.REGISTER)
    g, t = var("g", (m // tile) * (n // tile)), var("t", threads)
    top, left = ix.mul(ix.floor_div(g, n // tile), tile), ix.mul(ix.floor_mod(g, n // tile), tile)
    r0, c0 = ix.mul(ix.floor_div(t, side), own), ix.mul(ix.floor_mod(t, side), own)
    steps = k // depth
    i, j, d = var("i", own), var("j", own), var("d", depth)
    cell = ix.add(ix.mul(i, own), j)

    def fetch(step: Expr, slot: Expr) -> tuple[Stmt, ...]:
        """Four neighbouring elements at a time, dealt out to threads."""
        out: list[Stmt] = []
        for name, target, source, rows, columns, pitch, row, column in (
            ("a", sa, a, tile, depth, k, top, ix.mul(step, depth)),
            ("b", sb, b, depth, tile, n, ix.mul(step, depth), left),
        ):
            chunks = rows * columns // 4
            u, v = var(f"u{name}", -(-chunks // threads)), var(f"v{name}", 4)
            at = ix.add(ix.mul(u, threads), t)
            inner = columns // 4
            r, q = ix.floor_div(at, inner), ix.mul(ix.floor_mod(at, inner), 4)
            to = ix.add(ix.mul(slot, rows * columns), ix.add(ix.mul(r, columns), q))
            origin = ix.add(ix.mul(ix.add(row, r), pitch), ix.add(column, q))
            one: Stmt = (
                AsyncCopy(target, to, source, origin, 4)
                if stages
                else loop(v, LoopKind.VECTOR, Store(target, ix.add(to, v), load(source, (ix.add(origin, v),), F32)))
            )
            guard = ix.less(at, const(chunks))
            out.append(loop(u, LoopKind.UNROLL, one if guard is ix.TRUE else If(guard, (one,))))
        return tuple(out)

    def multiply(slot: Expr) -> Stmt:
        x = load(sa, (ix.add(ix.mul(slot, tile * depth), ix.add(ix.mul(ix.add(r0, i), depth), d)),), F32)
        y = load(sb, (ix.add(ix.mul(slot, depth * tile), ix.add(ix.mul(d, tile), ix.add(c0, j))),), F32)
        step = Store(acc, cell, call("fma", x, y, load(acc, (cell,), F32)))
        return loop(d, LoopKind.UNROLL, loop(i, LoopKind.UNROLL, loop(j, LoopKind.UNROLL, step)))

    s = var("s", steps)
    if stages:
        now, ahead = ix.floor_mod(s, 2), ix.floor_mod(ix.add(s, const(1)), 2)
        body: tuple[Stmt, ...] = (
            *fetch(const(0), const(0)),
            AsyncCommit(),
            loop(
                s,
                LoopKind.SERIAL,
                If(
                    ix.less(s, const(steps - 1)),
                    fetch(ix.add(s, const(1)), ahead),
                ),
                AsyncCommit(),
                AsyncWait(1),
                Barrier(Level.BLOCK),
                multiply(now),
                Barrier(Level.BLOCK),
            ),
        )
    else:
        body = (
            loop(
                s, LoopKind.SERIAL, *fetch(s, const(0)), Barrier(Level.BLOCK), multiply(const(0)), Barrier(Level.BLOCK)
            ),
        )
    where = ix.add(ix.mul(ix.add(top, ix.add(r0, i)), n), ix.add(left, ix.add(c0, j)))
    write = loop(i, LoopKind.UNROLL, loop(j, LoopKind.VECTOR, Store(c, where, load(acc, (cell,), F32))))
    clear = loop(i, LoopKind.UNROLL, loop(j, LoopKind.UNROLL, Store(acc, cell, const(0.0, F32))))
    nest = loop(t, LoopKind.THREAD, Alloc(acc), clear, *body, write)
    return Kernel("matmul", (a, b, c), loop(g, LoopKind.GRID, Alloc(sa), Alloc(sb), nest), g.extent or 1, threads)
