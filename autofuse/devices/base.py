"""The contract of a device: what the engine hands to it and what it gives back.

A Program is a sequence of launches over one arena of memory, constants, inputs and outputs. Everything in it is plain: the
device knows nothing of graphs, regions or plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from autofuse.ir.dtype import DType
from autofuse.ir.target import Target
from autofuse.loops.ir import Kernel, Rendered

Place = Literal["arena", "constant", "input", "output"]


@dataclass(frozen=True)
class BufferRef:
    """Where an argument of a launch lives: in the arena at a byte offset, or in the numbered constant, input or output
    (at a byte offset too)."""

    place: Place
    index: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Launch:
    """One kernel with its arguments, in the order of `kernel.params`."""

    kernel: Kernel | Rendered
    arguments: tuple[BufferRef, ...]
    label: str = ""


@dataclass(frozen=True)
class Port:
    """An input or output of a program: plain row-major memory."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """Launches in order. The arena is uninitialised; its offsets are multiples of 64 bytes. Constants are read-only, in physical layout."""

    launches: tuple[Launch, ...]
    arena_bytes: int
    constants: tuple[np.ndarray, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclass(frozen=True)
class Resources:
    """What the compiler says that a kernel needs. Zero where the device's compiler does not tell.

    `seconds` is the time spent compiling, 0.0 when the binary came from the cache.
    """

    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel. `key` is the SHA-256 of its text, flags and compiler: the same key is the same machine code."""

    key: str
    text: str
    path: str
    resources: Resources


class Executable(Protocol):
    """A loaded program. It is bound to one thread of control at a time: callers that share it must take turns."""

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once. Inputs are C-contiguous with the ports' types and shapes; outputs are new arrays that the caller owns."""

    def bind(self, inputs: Sequence[np.ndarray]) -> None:
        """Fix the inputs for `time` and `stamps` (and outputs owned by the executable)."""

    def time(self, repeats: int) -> list[int]:
        """Nanoseconds of each of `repeats` whole runs on the bound inputs, launch overheads included."""

    def stamps(self, repeats: int) -> np.ndarray:
        """Nanoseconds of each launch in each run: int64 of shape (repeats, launches)."""

    def close(self) -> None:
        """Free memory and threads. Calling it twice does no harm."""


class Device(Protocol):
    """A device: it renders and compiles kernels and runs programs."""

    @property
    def target(self) -> Target:
        """Its limits."""

    @property
    def threads(self) -> int:
        """Worker threads of the host that a program runs on (1 on a GPU)."""

    def text(self, kernel: Kernel) -> str:
        """The kernel's text as the compiler gets it, prelude included by reference."""

    def compile(self, kernels: Iterable[Kernel | Rendered]) -> list[Compiled | Exception]:
        """Compile a batch, side by side where the device allows and while the next ones are made; a CompileError takes the place of what failed."""

    def load(self, program: Program) -> Executable:
        """Compile what is not compiled and make the program ready. Raises CompileError or LaunchError."""


@runtime_checkable
class Remembers(Protocol):
    """A device that keeps small records between processes, and runs programs of kernels of which only the text is known."""

    def recall(self, key: str) -> bytes | None:
        """What was kept under a key; None where there is nothing (any more)."""

    def remember(self, key: str, data: bytes) -> None:
        """Keep it for a while. A disk that is full or not writable is no error."""
