"""A second reading of the loop IR: all blocks and threads of a kernel at once, in numpy, a statement at a time.

It takes milliseconds where emulation takes seconds, so that every schedule of a space can be tried. Threads that move in step need no
barriers; that none is missing is for the emulator to find.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, walk
from autofuse.ir.functions import FUNCTIONS
from autofuse.kernels.base import Lowered, Variant
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
    Let,
    Level,
    LoopKind,
    Scope,
    Stmt,
    Store,
    ThreadReduce,
)
from autofuse.ops.interpret import convert, reinterpret

_REDUCE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def run(variant: Variant, lowered: Lowered, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a region's launches. Memory that nobody wrote holds NaN or an odd number."""
    program = variant.program
    ins = [layout.pack(a).reshape(-1) for a, layout in zip(inputs, variant.input_layouts, strict=True)]
    ins = [a if a.size else np.zeros(1, a.dtype) for a in ins]
    tensors = [program.tensor(n) for n in program.outputs]
    outs = [
        _unwritten(t.dtype, (max(1, layout.size(t.shape)),))
        for t, layout in zip(tensors, variant.output_layouts, strict=True)
    ]
    scratch = [np.full(s.bytes, 0x7F, np.uint8) for s in lowered.scratch]
    for launch in lowered.launches:
        arrays = []
        for b, (kind, k) in zip(launch.kernel.params, launch.arguments, strict=True):
            found = {"input": ins, "output": outs, "scratch": scratch}[kind][k]
            arrays.append(found.view(b.dtype.numpy) if kind == "scratch" else found)
        with np.errstate(all="ignore"):
            _Run(launch.kernel, arrays)
    return [
        layout.unpack(a[: layout.size(t.shape)], t.shape).reshape(t.shape)
        for a, t, layout in zip(outs, tensors, variant.output_layouts, strict=True)
    ]


def _unwritten(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, np.nan if dtype.is_float else 77, dtype.numpy)


class _Run:
    """Values are arrays over (block, thread, lane); masks say where a statement runs."""

    def __init__(self, kernel: Kernel, arrays: Sequence[np.ndarray]) -> None:
        self.blocks, self.threads = kernel.grid, kernel.threads
        self.block_number = np.arange(self.blocks).reshape(-1, 1, 1)
        self.thread_number = np.arange(self.threads).reshape(1, -1, 1)
        self.memory: dict[Buffer, np.ndarray] = {}
        for b, a in zip(kernel.params, arrays, strict=True):
            assert (a.size, a.dtype) == (b.size, b.dtype.numpy), b.name
            self.memory[b] = a
        everywhere = np.ones((self.blocks, self.threads, 1), bool)
        self.values: dict[Var, np.ndarray] = {kernel.body.var: self.block_number}
        self.block(kernel.body.body, everywhere)

    def block(self, body: Sequence[Stmt], mask: np.ndarray) -> None:
        for s in body:
            self.statement(s, mask)

    def statement(self, s: Stmt, mask: np.ndarray) -> None:
        match s:
            case For():
                self.loop(s, mask)
            case Let():
                self.values[s.var] = convert(self.evaluate(s.value, mask), s.var.dtype)
            case Alloc():
                private = s.buffer.scope is Scope.REGISTER
                lead = (self.blocks, self.threads) if private else (self.blocks,)
                self.memory[s.buffer] = _unwritten(s.buffer.dtype, (*lead, s.buffer.size))
            case Store():
                where = mask if s.guard is None else mask & self.evaluate(s.guard, mask)
                self.store(s.buffer, self.evaluate(s.offset, mask), self.evaluate(s.value, mask), where)
            case If():
                condition = self.evaluate(s.condition, mask)
                self.block(s.then, mask & condition)
                self.block(s.otherwise, mask & ~condition)
            case Barrier():
                assert mask.all(), "a barrier that not all threads reach"
            case ThreadReduce():
                self.reduce(s, mask)
            case AsyncCopy():
                self.copy(s, mask)
            case AsyncCommit() | AsyncWait():
                pass
            case _:
                raise NotImplementedError(type(s).__name__)

    def loop(self, s: For, mask: np.ndarray) -> None:
        if s.kind is LoopKind.THREAD:
            self.values[s.var] = self.thread_number
            self.block(s.body, mask)
            return
        begin, end = self.evaluate(s.begin, mask), self.evaluate(s.stop, mask)
        if s.kind is LoopKind.VECTOR:
            self.values[s.var] = np.arange(int(end)).reshape(1, 1, -1)
            self.block(s.body, np.broadcast_to(mask, (*mask.shape[:2], int(end))))
            return
        first, last = np.broadcast_to(begin, mask.shape), np.broadcast_to(end, mask.shape)
        if mask.any():
            for i in range(int(first[mask].min()), int(last[mask].max())):
                self.values[s.var] = np.asarray(i)
                self.block(s.body, mask & (first <= i) & (i < last))

    def address(self, b: Buffer, offset: np.ndarray) -> tuple[np.ndarray, ...]:
        """The subscripts of a buffer's elements."""
        if b.scope is Scope.GLOBAL:
            return (offset,)
        block = np.broadcast_to(self.block_number, offset.shape)
        if b.scope is Scope.SHARED:
            return block, offset
        return block, np.broadcast_to(self.thread_number, offset.shape), offset

    def store(self, b: Buffer, offset: np.ndarray, value: np.ndarray, mask: np.ndarray) -> None:
        shape = np.broadcast_shapes(offset.shape, value.shape, mask.shape)
        where = np.broadcast_to(mask, shape)
        at = np.broadcast_to(offset, shape)
        inside = at[where]
        assert not inside.size or (inside.min() >= 0 and inside.max() < b.size), f"a store outside of {b.name}"
        subscripts = tuple(a[where] for a in self.address(b, at))
        self.memory[b][subscripts] = np.broadcast_to(convert(value, b.dtype), shape)[where]

    def reduce(self, s: ThreadReduce, mask: np.ndarray) -> None:
        assert mask.all(), "a reduction across threads that not all reach"
        shape = (self.blocks, self.threads, 1)
        value = np.broadcast_to(convert(self.evaluate(s.value, mask), s.target.dtype), shape)
        if s.level is Level.BLOCK:
            assert s.scratch is not None and s.scratch in self.memory
            assert s.scratch.dtype is s.target.dtype and s.scratch.size * 32 >= self.threads
        groups = value.reshape(self.blocks, self.threads // s.threads, s.threads)
        found = _REDUCE[s.combine].reduce(groups, axis=2, keepdims=True, dtype=groups.dtype)
        self.values[s.target] = np.broadcast_to(found, groups.shape).reshape(shape)

    def copy(self, s: AsyncCopy, mask: np.ndarray) -> None:
        inside = mask if s.guard is None else mask & self.evaluate(s.guard, mask)
        for k in range(s.count):
            source = np.broadcast_to(self.evaluate(s.source_offset, mask), mask.shape) + k
            value = np.zeros(mask.shape, s.source.dtype.numpy)
            value[inside] = self.memory[s.source][source[inside]]
            self.store(s.target, self.evaluate(s.target_offset, mask) + k, value, mask)

    def evaluate(self, root: Expr, mask: np.ndarray) -> np.ndarray:
        """A value wherever the mask holds. A load outside of its buffer is an error there."""
        done: dict[Expr, Any] = {}
        for e in walk(root):
            match e:
                case Const():
                    done[e] = np.asarray(e.value, e.dtype.numpy)
                case Var():
                    done[e] = self.values[e]
                case Load():
                    guard = mask if e.guard is None else mask & done[e.guard]
                    done[e] = self.load(e, done[e.index[0]], guard)
                case Apply("cast", (a,)):
                    done[e] = convert(done[a], e.dtype)
                case Apply("bitcast", (a,)):
                    done[e] = reinterpret(done[a], a.dtype, e.dtype)
                case Apply():
                    done[e] = FUNCTIONS[e.fn].numpy(*(done[a] for a in e.args))
        return np.asarray(done[root])

    def load(self, e: Load, offset: np.ndarray, mask: np.ndarray) -> np.ndarray:
        b = e.source
        assert isinstance(b, Buffer)
        shape = np.broadcast_shapes(offset.shape, mask.shape)
        where, at = np.broadcast_to(mask, shape), np.broadcast_to(offset, shape)
        outside = where & ((at < 0) | (at >= b.size))
        assert not outside.any(), f"a load outside of {b.name} at {at[outside][:3]}"
        found = self.memory[b][self.address(b, np.where(where, at, 0))]
        return np.where(where, found, np.asarray(e.fill or 0, e.dtype.numpy))
