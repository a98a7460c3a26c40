"""Statements of the loop IR.

A kernel is a grid of independent blocks (tasks on a CPU), each of some threads (one on a CPU). Loops are bound to the grid, to
threads, to vector lanes, or run serially or unrolled. Buffers live in global memory, in memory that a block's threads share, in
registers, or in fragments of a matrix unit. Scalar expressions are those of `autofuse.ir.expr`; a Load's source is a Buffer and its index one
flat element offset.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, Var, const


class Scope(enum.StrEnum):
    """Where a buffer lives."""

    GLOBAL = "global"
    SHARED = "shared"  # of a block's threads; on a CPU a task's scratch memory (L1 or L2)
    REGISTER = "register"  # private to a thread, indexed by constants once unrolled
    FRAGMENT = "fragment"  # private to a warp, opaque layout: operands of a matrix unit


class Level(enum.StrEnum):
    """Who takes part in a barrier or in a reduction across threads."""

    WARP = "warp"
    BLOCK = "block"
    TEAM = "team"


class LoopKind(enum.StrEnum):
    """What a loop is bound to."""

    GRID = "grid"
    THREAD = "thread"
    SERIAL = "serial"
    UNROLL = "unroll"
    VECTOR = "vector"


@dataclass(frozen=True)
class Buffer:
    """A flat array of `size` elements. Parameters are GLOBAL; `written` tells outputs from inputs.

    `align` is the alignment in bytes of element 0 that a renderer may rely on.
    """

    name: str
    dtype: DType
    size: int
    scope: Scope = Scope.GLOBAL
    written: bool = False
    align: int = 64


@dataclass(frozen=True)
class For:
    """var runs over begin, begin+1, ..., end-1. var.extent bounds it for range analysis; a VECTOR or UNROLL loop has
    begin 0 and a constant end. All lanes of a VECTOR loop run at once: no lane reads what another writes."""

    var: Var
    kind: LoopKind
    body: tuple[Stmt, ...]
    begin: Expr = field(default_factory=lambda: const(0))
    end: Expr | None = None

    @property
    def stop(self) -> Expr:
        """The end, which is the variable's extent where none is given."""
        return self.end if self.end is not None else const(self.var.extent or 0)


@dataclass(frozen=True)
class Let:
    """Define a scalar (inside a VECTOR loop: a value per lane). Each Let's variable is defined once on any path."""

    var: Var
    value: Expr


@dataclass(frozen=True)
class Alloc:
    """Bring a SHARED, REGISTER or FRAGMENT buffer into being, uninitialised, until the enclosing block of statements ends."""

    buffer: Buffer


@dataclass(frozen=True)
class Store:
    """buffer[offset] = value, where guard holds. The value is converted to the buffer's type. `stream` hints that it
    won't be read soon."""

    buffer: Buffer
    offset: Expr
    value: Expr
    guard: Expr | None = None
    stream: bool = False


@dataclass(frozen=True)
class Prefetch:
    """A hint that buffer[offset] of a GLOBAL buffer will be read: soon, or (`far`) not before much else was. It stands outside of VECTOR loops.

    It is no access: the offset may lie outside of the buffer.
    """

    buffer: Buffer
    offset: Expr
    far: bool = False


@dataclass(frozen=True)
class If:
    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class Barrier:
    """No thread of the level goes on before all have come here; shared writes before it are seen after it."""

    level: Level


@dataclass(frozen=True)
class LaneReduce:
    """target = combine of value over the lanes of a VECTOR variable (which is bound here, over 0..extent-1).

    combine is "sum", "prod", "max" or "min" (NaN wins in max and min). The tree's order is the renderer's.
    """

    target: Var
    combine: str
    value: Expr
    lane: Var


@dataclass(frozen=True)
class ThreadReduce:
    """target = combine of value over all threads of the level; every thread gets it. `scratch` is a SHARED buffer
    of at least one element per warp (unused for Level.WARP). It contains its own barriers: all threads must come here."""

    target: Var
    combine: str
    value: Expr
    level: Level
    threads: int
    scratch: Buffer | None


@dataclass(frozen=True)
class AsyncCopy:
    """Begin copying `count` elements from global to shared memory; they may be read only after a Wait. Where guard fails, zeros are written."""

    target: Buffer
    target_offset: Expr
    source: Buffer
    source_offset: Expr
    count: int
    guard: Expr | None = None


@dataclass(frozen=True)
class AsyncCommit:
    """Close the group of asynchronous copies begun since the last commit."""


@dataclass(frozen=True)
class AsyncWait:
    """Wait until at most `pending` committed groups are still under way (own thread's; a Barrier shares them)."""

    pending: int


@dataclass(frozen=True)
class FragmentLoad:
    """Fill a FRAGMENT buffer with a rows x columns tile of a shared or global buffer (row pitch in elements)."""

    target: Buffer
    source: Buffer
    offset: Expr
    pitch: int
    rows: int
    columns: int
    transposed: bool = False


@dataclass(frozen=True)
class FragmentFill:
    target: Buffer
    value: Expr


@dataclass(frozen=True)
class MatrixMultiply:
    """accumulator += a x b on a warp's matrix unit: tiles m x k and k x n, all FRAGMENT buffers."""

    accumulator: Buffer
    a: Buffer
    b: Buffer
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class FragmentStore:
    target: Buffer
    offset: Expr
    pitch: int
    source: Buffer
    rows: int
    columns: int


@dataclass(frozen=True)
class TransposeTile:
    """Rows and columns of a REGISTER buffer of side x side elements, which holds them row by row, change places."""

    buffer: Buffer
    side: int


@dataclass(frozen=True)
class Role:
    """Statements that only threads first .. first+count-1 of a block run (a producer warp, say)."""

    name: str
    first: int
    count: int
    body: tuple[Stmt, ...]


Stmt = (
    For
    | Let
    | Alloc
    | Store
    | Prefetch
    | If
    | Barrier
    | LaneReduce
    | ThreadReduce
    | AsyncCopy
    | AsyncCommit
    | AsyncWait
    | FragmentLoad
    | FragmentFill
    | MatrixMultiply
    | FragmentStore
    | TransposeTile
    | Role
)


@dataclass(frozen=True)
class Kernel:
    """One launch: a grid of `grid` blocks of `threads` threads, outermost a single GRID loop over its variable.

    `params` are the GLOBAL buffers in the order in which they are passed. `family` names the kernel family for people; the kernel's
    text holds nothing from the model but numbers. `flops` and `bytes` are the model's: arithmetic of the algorithm, and each operand once.
    """

    family: str
    params: tuple[Buffer, ...]
    body: For
    grid: int
    threads: int = 1
    flops: int = 0
    bytes: int = 0

    @property
    def shared_bytes(self) -> int:
        """Bytes of SHARED buffers, each aligned to 64 bytes."""
        found = {s.buffer for s in statements(self.body) if isinstance(s, Alloc) and s.buffer.scope is Scope.SHARED}
        return sum(-(-b.size * b.dtype.itemsize // 64) * 64 for b in found)

    @property
    def needs_wide_index(self) -> bool:
        """True where an offset may pass 2^31."""
        return any(b.size >= 2**31 for b in self.params) or self.grid * self.threads >= 2**31


@dataclass(frozen=True)
class Rendered:
    """A kernel whose text was remembered: all that a launch must know of it, without the loops."""

    family: str
    params: tuple[Buffer, ...]
    grid: int
    threads: int
    flops: int
    bytes: int
    shared_bytes: int
    text: str


def loops_of(kernel: Kernel | Rendered) -> Kernel:
    """The kernel with its loops; TypeError where only its text is known."""
    if isinstance(kernel, Rendered):
        raise TypeError(f"only the text of the kernel {kernel.family} is known here")
    return kernel


def blocks_of(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The statement lists nested directly in a statement."""
    match s:
        case For() | Role():
            return (s.body,)
        case If():
            return (s.then, s.otherwise)
        case _:
            return ()


def statements(root: Stmt) -> Iterator[Stmt]:
    """A statement and all below it, in order."""
    yield root
    for block in blocks_of(root):
        for s in block:
            yield from statements(s)


def expressions(s: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement itself evaluates (not those of nested statements)."""
    match s:
        case For():
            return (s.begin, s.stop)
        case Let() | LaneReduce() | ThreadReduce() | FragmentFill():
            return (s.value,)
        case Store():
            return (s.offset, s.value) if s.guard is None else (s.offset, s.value, s.guard)
        case Prefetch():
            return (s.offset,)
        case If():
            return (s.condition,)
        case AsyncCopy():
            pair = (s.target_offset, s.source_offset)
            return pair if s.guard is None else (*pair, s.guard)
        case FragmentLoad() | FragmentStore():
            return (s.offset,)
        case _:
            return ()


def loop(var: Var, kind: LoopKind, *body: Stmt, begin: Expr | None = None, end: Expr | None = None) -> For:
    """A For with its statements given one by one."""
    return For(var, kind, body, begin if begin is not None else const(0), end)
