"""Programs for measuring one region: one that checks its numbers, and one that repeats it for timing.

The check program first fills outputs and scratch memory with 0xFF bytes (NaN in every float type), so that an element that a kernel forgets
is seen. The timing program repeats the region back to back. Activations and outputs keep their place, as the
engine's arena does: what fits the caches is warm. Weights are repeated in as many copies as it takes to come from memory, where the model's do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.devices.base import BufferRef, Launch, Port, Program
from autofuse.engine.lowering import Ready
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import const, var
from autofuse.ir.target import Target
from autofuse.kernels.base import Variant
from autofuse.loops.ir import Buffer, For, Kernel, LoopKind, Store, loop

ALIGN = 64
_CHUNKS = (1 << 22, 1 << 16, 1 << 10, 64)
_SPAN_SECONDS = 2e-4
_MOST_REPETITIONS = 64
_MOST_COPIES = 16
_MOST_WEIGHT_BYTES = 256 << 20


@dataclass(frozen=True)
class Repetition:
    """How often a timing program repeats its region, and over how many copies of its weights."""

    times: int
    copies: int


def repetition(variant: Variant, seconds: float, rotate_bytes: int) -> Repetition:
    """Enough repetitions that a run takes a fraction of a millisecond; copies of the weights that fill `rotate_bytes`."""
    weights = constant_bytes(variant)
    copies = 1
    if weights and rotate_bytes:
        copies = max(1, min(math.ceil(rotate_bytes / weights), _MOST_COPIES, _MOST_WEIGHT_BYTES // weights))
    times = max(copies, min(_MOST_REPETITIONS, math.ceil(_SPAN_SECONDS / max(seconds, 1e-7))))
    return Repetition(math.ceil(times / copies) * copies, copies)


def constant_bytes(variant: Variant) -> int:
    """Bytes of the region's constants in their prepared layouts."""
    return sum(variant.elements(k) * t.dtype.itemsize for k, t in enumerate(variant.program.inputs) if t.constant)


def region_bytes(variant: Variant) -> int:
    """Bytes of all operands of the region, each once."""
    program = variant.program
    outs = [program.tensor(n) for n in program.outputs]
    pairs = [
        *zip(program.inputs, variant.input_layouts, strict=True),
        *zip(outs, variant.output_layouts, strict=True),
    ]
    return sum(layout.size(t.shape) * t.dtype.itemsize for t, layout in pairs)


def packed_inputs(variant: Variant, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What is fed to the program's input ports: the inputs that are no constants, as they lie in memory."""
    return [
        layout.pack(a)
        for a, layout, t in zip(inputs, variant.input_layouts, variant.program.inputs, strict=True)
        if not t.constant
    ]


def unpacked_outputs(variant: Variant, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs in logical order."""
    program = variant.program
    return [
        layout.unpack(a, program.tensor(n).shape)
        for a, layout, n in zip(outputs, variant.output_layouts, program.outputs, strict=True)
    ]


def check_program(ready: Ready, inputs: Sequence[np.ndarray], target: Target) -> Program:
    """Poison, then one run of the region."""
    frame = _Frame(ready, inputs, 1)
    launches: list[Launch] = []
    for k, port in enumerate(frame.outputs):
        size = math.prod(port.shape) * port.dtype.itemsize
        launches += poison("output", k, 0, size, target)
    for at, nbytes in zip(frame.scratch, ready.scratch, strict=True):
        launches += poison("arena", 0, at, nbytes, target)
    launches += frame.launches(0, "check")
    return frame.program(launches)


def timing_program(ready: Ready, inputs: Sequence[np.ndarray], r: Repetition) -> Program:
    """The region `r.times` times over."""
    frame = _Frame(ready, inputs, r.copies)
    return frame.program([x for k in range(r.times) for x in frame.launches(k % r.copies, "time")])


class _Frame:
    """A region's ports, constants and scratch memory."""

    def __init__(self, ready: Ready, inputs: Sequence[np.ndarray], copies: int) -> None:
        variant = ready.variant
        program = variant.program
        self.ready = ready
        self.inputs: list[Port] = []
        self.constants: list[np.ndarray] = []
        self._input_at: dict[int, int] = {}
        self._constant_at: dict[int, int] = {}
        packed = {k: variant.pack(k, inputs[k]) for k, t in enumerate(program.inputs) if t.constant}
        for k, (t, layout) in enumerate(zip(program.inputs, variant.input_layouts, strict=True)):
            if t.constant:
                self._constant_at[k] = len(self._constant_at)
            else:
                self._input_at[k] = len(self.inputs)
                self.inputs.append(Port(f"i{k}", t.dtype, layout.extents(t.shape)))
        for copy in range(copies):
            self.constants += [a if copy == 0 else a.copy() for a in packed.values()]
        self.outputs = [
            Port(f"o{k}", program.tensor(n).dtype, layout.extents(program.tensor(n).shape))
            for k, (n, layout) in enumerate(zip(program.outputs, variant.output_layouts, strict=True))
        ]
        self.scratch: list[int] = []
        self.arena = 0
        for nbytes in ready.scratch:
            self.scratch.append(self.arena)
            self.arena += -(-nbytes // ALIGN) * ALIGN

    def _reference(self, kind: str, k: int, copy: int) -> BufferRef:
        match kind:
            case "input" if k in self._constant_at:
                return BufferRef("constant", copy * len(self._constant_at) + self._constant_at[k])
            case "input":
                return BufferRef("input", self._input_at[k])
            case "output":
                return BufferRef("output", k)
            case _:
                return BufferRef("arena", 0, self.scratch[k])

    def launches(self, copy: int, label: str) -> list[Launch]:
        return [
            Launch(kernel, tuple(self._reference(kind, k, copy) for kind, k in arguments), label)
            for kernel, arguments in self.ready.launches
        ]

    def program(self, launches: Sequence[Launch]) -> Program:
        return Program(tuple(launches), self.arena, tuple(self.constants), tuple(self.inputs), tuple(self.outputs))


def poison(place: str, index: int, offset: int, size: int, target: Target) -> list[Launch]:
    """Launches that fill `size` bytes with 0xFF. A few fixed kernels cover every size, so that they are compiled once."""
    out: list[Launch] = []
    for chunk in (*_CHUNKS, 1):
        while size >= chunk:
            ref = BufferRef("output", index, offset) if place == "output" else BufferRef("arena", index, offset)
            out.append(Launch(fill_kernel(chunk, target), (ref,), "poison"))
            offset += chunk
            size -= chunk
    return out


def fill_kernel(nbytes: int, target: Target) -> Kernel:
    """Fill a number of bytes (a power of two) with 0xFF."""
    dtype = DType.UINT8 if nbytes < 4 else DType.UINT32
    n = nbytes // dtype.itemsize
    value = const((1 << (8 * dtype.itemsize)) - 1, dtype)
    buffer = Buffer("o0", dtype, n, written=True, align=ALIGN if nbytes >= ALIGN else 1)
    threads = min(n, 256) if target.is_cuda else 1
    each = max(1, min(n // threads, 16 if target.is_cuda else 16384))
    blocks = n // (threads * each)
    b, t, k = var("b", blocks), var("t", threads), var("k", each)
    at = ix.add(ix.mul(b, threads * each), ix.mul(k, threads), t) if threads > 1 else ix.add(ix.mul(b, each), k)
    body: For = loop(k, LoopKind.SERIAL, Store(buffer, at, value))
    if target.is_cuda:
        body = loop(t, LoopKind.THREAD, body)
    return Kernel("fill", (buffer,), loop(b, LoopKind.GRID, body), blocks, threads)
