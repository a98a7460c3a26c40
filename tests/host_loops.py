"""Kernels written straight in the loop IR, as the host would run them, and how tests run them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autofuse.devices.base import BufferRef, Launch, Port, Program
from autofuse.devices.cpu import CpuDevice
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, load, var
from autofuse.loops.ir import Alloc, Buffer, If, Kernel, LaneReduce, LoopKind, Scope, Stmt, Store, loop
from autofuse.loops.verify import verify_kernel

F32 = DType.FLOAT32
GRID, SERIAL, UNROLL, VECTOR = LoopKind.GRID, LoopKind.SERIAL, LoopKind.UNROLL, LoopKind.VECTOR
Body = Callable[..., Expr]


def at(b: Buffer, offset: Expr, guard: Expr | None = None, fill: float | None = None) -> Expr:
    """An element of a buffer."""
    return load(b, (offset,), b.dtype, fill, guard)


def inputs(*dtypes: DType, size: int) -> list[Buffer]:
    return [Buffer(f"x{k}", d, size) for k, d in enumerate(dtypes)]


def program_of(*kernels: Kernel) -> Program:
    """Launches of the same parameters: unwritten ones are inputs, written ones outputs."""
    params = kernels[0].params
    ins = [b for b in params if not b.written]
    outs = [b for b in params if b.written]
    refs = tuple(BufferRef("output", outs.index(b)) if b.written else BufferRef("input", ins.index(b)) for b in params)
    ports = [tuple(Port(b.name, b.dtype, (b.size,)) for b in group) for group in (ins, outs)]
    return Program(tuple(Launch(k, refs, k.family) for k in kernels), 0, (), ports[0], ports[1])


def run(device: CpuDevice, kernel: Kernel, *arrays: np.ndarray) -> list[np.ndarray]:
    """The outputs of a kernel."""
    executable = device.load(program_of(verify_kernel(kernel)))
    try:
        return executable.run([np.ascontiguousarray(a).reshape(-1) for a in arrays])
    finally:
        executable.close()


def map_kernel(
    n: int, body: Body, dtypes: tuple[DType, ...], out: DType, lanes: int = 16, stream: bool = False
) -> Kernel:
    """out[i] = body(x0[i], x1[i], ...): tasks of 4 vectors, then a scalar tail in the last block."""
    xs = inputs(*dtypes, size=n)
    y = Buffer("y", out, n, written=True)
    block = 4 * lanes
    blocks = max(1, -(-n // block))
    g, v, lane, i = var("g", blocks), var("v", 4), var("lane", lanes), var("i", block)
    start = ix.add(ix.mul(g, block), ix.mul(v, lanes))

    def one(offset: Expr) -> Stmt:
        return Store(y, offset, body(*(at(x, offset) for x in xs)), stream=stream)

    whole = ix.less(ix.add(start, const(lanes - 1)), const(n))
    vectors = loop(v, SERIAL, If(whole, (loop(lane, VECTOR, one(ix.add(start, lane))),)))
    first = ix.mul(const(n // lanes), lanes)
    tail = loop(i, SERIAL, one(i), begin=first, end=const(n))
    last = If(ix.less(const(blocks - 2), g), (tail,))
    return Kernel("map", (*xs, y), loop(g, GRID, vectors, last), blocks, bytes=n * 8)


def masked_map(n: int, body: Body, dtypes: tuple[DType, ...], out: DType, lanes: int = 16) -> Kernel:
    """The same with guards on lanes instead of a tail."""
    xs = inputs(*dtypes, size=n)
    y = Buffer("y", out, n, written=True)
    g, lane = var("g", -(-n // lanes)), var("lane", lanes)
    offset = ix.add(ix.mul(g, lanes), lane)
    inside = ix.less(offset, const(n))
    value = body(*(at(x, offset, inside, 0) for x in xs))
    store = Store(y, offset, value, None if inside is ix.TRUE else inside)
    return Kernel("map", (*xs, y), loop(g, GRID, loop(lane, VECTOR, store)), g.extent or 0)


def row_kernel(rows: int, n: int, combine: str, start: float, lanes: int = 32) -> Kernel:
    """y[r] = combine of x[r, :] with partial results in a register vector; n is a multiple of `lanes`."""
    x, y = Buffer("x", F32, rows * n), Buffer("y", F32, rows, written=True)
    part = Buffer("part", F32, lanes, Scope.REGISTER)
    r, c, l, m = var("r", rows), var("c", n // lanes), var("l", lanes), var("m", lanes)
    total = var("total", None, F32)
    op = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[combine]
    offset = ix.add(ix.mul(r, n), ix.mul(c, lanes), l)
    step = Store(part, l, call(op, at(part, l), at(x, offset)))
    body = (
        Alloc(part),
        loop(l, VECTOR, Store(part, l, const(start, F32))),
        loop(c, SERIAL, loop(l, VECTOR, step)),
        LaneReduce(total, combine, at(part, m), m),
        Store(y, r, total),
    )
    return Kernel("rows", (x, y), loop(r, GRID, *body), rows)


def matmul(m: int, n: int, k: int, rows: int = 14, columns: int = 32) -> Kernel:
    """c = a b with a register tile; b is packed as [n / columns][k][columns], m may have a tail."""
    a, b, c = Buffer("a", F32, m * k), Buffer("b", F32, n * k), Buffer("c", F32, m * n, written=True)
    acc = Buffer("acc", F32, rows * columns, Scope.REGISTER)
    grid = -(-m // rows) * (n // columns)
    g, r, l, p = var("g", grid), var("r", rows), var("l", columns), var("p", k)
    panel, tile = ix.floor_mod(g, n // columns), ix.floor_div(g, n // columns)
    row = ix.add(ix.mul(tile, rows), r)
    safe = ix.minimum(row, const(m - 1))
    place = ix.add(ix.mul(r, columns), l)
    weights = at(b, ix.add(ix.mul(panel, columns * k), ix.mul(p, columns), l))
    product = call("mul", at(a, ix.add(ix.mul(safe, k), p)), weights)
    target = ix.add(ix.mul(row, n), ix.mul(panel, columns), l)
    body = (
        Alloc(acc),
        loop(r, UNROLL, loop(l, VECTOR, Store(acc, place, const(0.0, F32)))),
        loop(p, SERIAL, loop(r, UNROLL, loop(l, VECTOR, Store(acc, place, call("add", at(acc, place), product))))),
        loop(r, UNROLL, loop(l, VECTOR, Store(c, target, at(acc, place), ix.less(row, const(m))))),
    )
    return Kernel("matmul", (a, b, c), loop(g, GRID, *body), grid, flops=2 * m * n * k)


def pack(b: np.ndarray, columns: int = 32) -> np.ndarray:
    """A matrix as `matmul` wants it."""
    k, n = b.shape
    return np.ascontiguousarray(b.reshape(k, n // columns, columns).transpose(1, 0, 2))


def unary(name: str, dtype: DType = F32) -> Body:
    """The body of a map that applies one function."""
    return lambda x: call(name, cast_to(x, dtype))
