"""The rules of the loop IR, checked on every kernel before it is rendered."""

from __future__ import annotations

from autofuse.errors import VerificationError
from autofuse.ir.expr import Const, Load, Var, walk
from autofuse.loops.ir import (
    Alloc,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    LaneReduce,
    Let,
    LoopKind,
    Prefetch,
    Role,
    Scope,
    Stmt,
    Store,
    ThreadReduce,
    TransposeTile,
    expressions,
)


def verify_kernel(kernel: Kernel) -> Kernel:
    """Check a kernel and give it back.

    Rules: one outermost GRID loop of the kernel's extent; at most one THREAD loop on any path, of the kernel's thread count; VECTOR and UNROLL loops
    start at 0 and have constant ends; variables are defined before use and buffers allocated before use; only
    written parameters are stored to; barriers and thread reductions stand under no condition and no VECTOR loop.
    """
    root = kernel.body
    if root.kind is not LoopKind.GRID or root.var.extent != kernel.grid:
        raise VerificationError(f"{kernel.family}: the outermost loop must be the grid of {kernel.grid} blocks")
    names = [b.name for b in kernel.params]
    if len(set(names)) != len(names):
        raise VerificationError(f"{kernel.family}: parameter names repeat: {names}")
    _Checker(kernel).block(root.body, {root.var}, set(kernel.params), frozenset())
    return kernel


class _Checker:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def fail(self, what: str) -> VerificationError:
        return VerificationError(f"kernel {self.kernel.family}: {what}")

    def block(self, body: tuple[Stmt, ...], known: set[Var], buffers: set[Buffer], inside: frozenset[str]) -> None:
        known, buffers = set(known), set(buffers)
        for s in body:
            self.check(s, known, buffers, inside)

    def check(self, s: Stmt, known: set[Var], buffers: set[Buffer], inside: frozenset[str]) -> None:
        extra = {s.lane} if isinstance(s, LaneReduce) else set()
        for e in expressions(s):
            for x in walk(e):
                if isinstance(x, Var) and x not in known and x not in extra:
                    raise self.fail(f"variable {x.name} is used before it is defined")
                if isinstance(x, Load) and x.source not in buffers:
                    raise self.fail(f"buffer {x.source} is read before it is allocated")
                if isinstance(x, Load) and len(x.index) != 1:
                    raise self.fail(f"load from {x.source} has {len(x.index)} indices, not one offset")
        match s:
            case For():
                self.loop(s, known, buffers, inside)
            case Let():
                known.add(s.var)
            case Alloc():
                if s.buffer.scope is Scope.GLOBAL:
                    raise self.fail(f"global buffer {s.buffer.name} is allocated inside the kernel")
                buffers.add(s.buffer)
            case Store():
                if s.buffer not in buffers:
                    raise self.fail(f"buffer {s.buffer.name} is written before it is allocated")
                if s.buffer.scope is Scope.GLOBAL and not s.buffer.written:
                    raise self.fail(f"input {s.buffer.name} is written")
            case Prefetch():
                if s.buffer not in buffers or s.buffer.scope is not Scope.GLOBAL or LoopKind.VECTOR.value in inside:
                    raise self.fail(f"{s.buffer.name} is fetched ahead, but is no parameter, or inside a vector loop")
            case TransposeTile():
                if s.buffer not in buffers or s.buffer.scope is not Scope.REGISTER or s.buffer.size != s.side**2:
                    raise self.fail(f"{s.buffer.name} is no square tile in registers of side {s.side}")
            case If():
                self.block(s.then, known, buffers, inside | {"if"})
                self.block(s.otherwise, known, buffers, inside | {"if"})
            case Role():
                self.block(s.body, known, buffers, inside | {"if"})
            case Barrier():
                self.convergent("a barrier", inside)
            case LaneReduce():
                known.add(s.target)
            case ThreadReduce():
                self.convergent("a reduction across threads", inside)
                known.add(s.target)
            case _:
                pass

    def convergent(self, what: str, inside: frozenset[str]) -> None:
        if inside & {"if", LoopKind.VECTOR.value}:
            raise self.fail(f"{what} stands where not all threads come")

    def loop(self, s: For, known: set[Var], buffers: set[Buffer], inside: frozenset[str]) -> None:
        if s.kind is LoopKind.GRID:
            raise self.fail("a second grid loop")
        if s.kind is LoopKind.THREAD and (s.kind.value in inside or s.var.extent != self.kernel.threads):
            raise self.fail(f"thread loop {s.var.name} is nested or does not have {self.kernel.threads} threads")
        if s.kind in (LoopKind.VECTOR, LoopKind.UNROLL):
            if not (isinstance(s.begin, Const) and s.begin.value == 0 and isinstance(s.stop, Const)):
                raise self.fail(f"{s.kind} loop {s.var.name} must run from 0 to a constant")
        if s.kind is LoopKind.VECTOR and s.kind.value in inside:
            raise self.fail(f"vector loop {s.var.name} is nested in another")
        self.block(s.body, known | {s.var}, buffers, inside | {s.kind.value})
