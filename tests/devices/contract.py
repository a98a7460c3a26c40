"""What every device is held to, as programs that any device can run: one thread a block, one element a block."""

from __future__ import annotations

import numpy as np

from autofuse.devices.base import BufferRef, Launch, Port, Program
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, const, load, var
from autofuse.loops.ir import Buffer, FragmentFill, Kernel, LoopKind, Scope, Stmt, Store, loop

F32 = DType.FLOAT32
N = 96


def kernel(fn: str, operand: float | None = None, n: int = N, align: int = 64) -> Kernel:
    """y[i] = fn(x[i], operand), or of two inputs where there is no operand."""
    x, z = Buffer("x", F32, n, align=align), Buffer("z", F32, n, align=align)
    y = Buffer("y", F32, n, written=True, align=align)
    g = var("g", n)
    left: Expr = load(x, (g,), F32)
    right: Expr = const(operand, F32) if operand is not None else load(z, (g,), F32)
    params = (x, y) if operand is not None else (x, z, y)
    return Kernel(fn, params, loop(g, LoopKind.GRID, Store(y, g, call(fn, left, right))), n)


def reversal(n: int = N) -> Kernel:
    """y[i] = x[n - 1 - i]."""
    x, y = Buffer("x", F32, n), Buffer("y", F32, n, written=True)
    g = var("g", n)
    return Kernel(
        "reversal",
        (x, y),
        loop(g, LoopKind.GRID, Store(y, g, load(x, (ix.sub(const(n - 1), g),), F32))),
        n,
    )


def broken() -> Kernel:
    """A kernel that no compiler takes: a fragment that nobody can fill at this size."""
    y = Buffer("y", F32, 1, written=True)
    g = var("g", 1)
    body: tuple[Stmt, ...] = (
        FragmentFill(Buffer("f", F32, 7, Scope.FRAGMENT), const(0.0, F32)),
        Store(y, g, const(1.0, F32)),
    )
    return Kernel("broken", (y,), loop(g, LoopKind.GRID, *body), 1)


def chain(n: int = N) -> Program:
    """out0 = reversed(x * 2 + constant), out1 = out0 * x: three places, two steps through the arena at an offset."""
    double, add, turn, times = kernel("mul", 2.0, n), kernel("add", None, n), reversal(n), kernel("mul", None, n)
    constant = np.linspace(-1, 1, n).astype(np.float32)
    first, second = BufferRef("arena", 0, 0), BufferRef("arena", 0, 4096)
    x, out0, out1 = BufferRef("input", 0), BufferRef("output", 0), BufferRef("output", 1)
    launches = (
        Launch(double, (x, first), "double"),
        Launch(add, (first, BufferRef("constant", 0), second), "add"),
        Launch(turn, (second, out0), "turn"),
        Launch(times, (out0, x, out1), "times"),
    )
    ports = (Port("x", F32, (4, n // 4)),)
    outputs = (Port("out0", F32, (n,)), Port("out1", F32, (2, n // 2)))
    return Program(launches, 4096 + 4 * n, (constant,), ports, outputs)


def chain_expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `chain` gives."""
    flat = x.reshape(-1)
    first = (flat * 2 + np.linspace(-1, 1, flat.size).astype(np.float32))[::-1]
    return first, (first * flat).reshape(2, -1)


def single(k: Kernel) -> Program:
    """One launch: unwritten parameters are inputs, written ones outputs."""
    ins = [b for b in k.params if not b.written]
    outs = [b for b in k.params if b.written]
    refs = tuple(
        BufferRef("output", outs.index(b)) if b.written else BufferRef("input", ins.index(b)) for b in k.params
    )
    ports = [tuple(Port(b.name, b.dtype, (b.size,)) for b in group) for group in (ins, outs)]
    return Program((Launch(k, refs),), 0, (), ports[0], ports[1])
