"""Kernels as CUDA C++ text.

The text includes nothing. It is placed after a prelude: cuda.h for NVRTC, emulation.h for the host's C++ compiler, which runs the very same
text on a CPU. Loads are written as subscripts; stores to memory that others see go through the prelude (`af_store`), so that
emulation can check both.

The grid's loop variable is the block's number, a thread loop's the thread's. What stands in the grid's body outside of a thread loop
is run by every thread alike, so only statements for which that is harmless may stand there: allocations, barriers,
scalars, private stores, and loops or conditions around those and thread loops.
"""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.errors import VerificationError
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, Load, Var, loads, var, variables
from autofuse.ir.index import bounds
from autofuse.ir.index import substitute as index_substitute
from autofuse.loops.ir import (
    Alloc,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Buffer,
    For,
    FragmentFill,
    FragmentLoad,
    FragmentStore,
    If,
    Kernel,
    LaneReduce,
    Let,
    Level,
    LoopKind,
    MatrixMultiply,
    Role,
    Scope,
    Stmt,
    Store,
    ThreadReduce,
    expressions,
    statements,
)
from autofuse.render.cuda_types import DIALECT, TYPES, Identifiers
from autofuse.render.cuda_vectors import write_lane_reduce, write_vector_loop
from autofuse.render.scalar import cast_text, literal, scalar_text
from autofuse.render.values import Lines, Values, finite_bounds, replace
from autofuse.render.vectorize import multiple

KERNEL_NAME = "af_kernel"
STATIC_SHARED_BYTES = 48 * 1024
"""A kernel that declares more shared memory than this gets it when it is launched."""
MAX_GRID_X = 2**31 - 1
MAX_THREADS = 1024
_NARROW_LIMIT = 2**31 - 1


def render_cuda(kernel: Kernel) -> str:
    """The text of a kernel. VerificationError where it can't be said in CUDA."""
    return _Renderer(kernel).render()


def launch_grid(kernel: Kernel) -> tuple[int, int]:
    """The grid's extents in x and y; y is used where the blocks are too many for x. Blocks beyond the last one end at once."""
    if kernel.grid <= MAX_GRID_X:
        return max(kernel.grid, 1), 1
    width = 1 << 30
    return width, -(-kernel.grid // width)


def dynamic_shared_bytes(kernel: Kernel) -> int:
    """Shared memory that must be asked for at launch; 0 where the kernel declares its own."""
    total = kernel.shared_bytes
    return total if total > STATIC_SHARED_BYTES else 0


class _Renderer:
    """Writes one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines = Lines()
        self.names: dict[Var, str] = {}
        self.buffers: dict[Buffer, str] = {}
        self.identifiers = Identifiers()
        self.fresh = self.identifiers.fresh
        self.ranged: dict[Expr, Expr] = {}
        self.definitions: dict[Expr, Expr] = {}  # what index variables stand for, in loop variables
        self.in_thread = kernel.threads == 1
        low, high = _index_range(kernel)
        self.wide = kernel.needs_wide_index or high > _NARROW_LIMIT or low < -_NARROW_LIMIT
        self.index = "long long" if self.wide else "int"
        self.dynamic = dynamic_shared_bytes(kernel) > 0
        self.offsets: dict[Buffer, int] = {}
        self.values = Values(self.lines, self._scalar, self.declare, self.identifiers.numbered, self._bind)

    def fail(self, what: str) -> VerificationError:
        return VerificationError(f"kernel {self.kernel.family} cannot be written in CUDA: {what}")

    # ---- names and types

    def _bind(self, v: Var, name: str) -> None:
        self.names[v] = name

    def name(self, v: Var) -> str:
        """The name of a variable; one that comes again in another scope keeps it."""
        found = self.names.get(v)
        if found is None:
            found = self.names[v] = self.fresh(v.name)
        return found

    def type_of(self, v: Var) -> str:
        """Index variables of known range take the kernel's index type; other integers are the model's own."""
        return self.index if v.dtype is INDEX and v.extent is not None else TYPES[v.dtype]

    def declare(self, v: Var, name: str, constant: bool) -> str:
        """The head of a scalar's definition."""
        return f"{'const ' if constant else ''}{self.type_of(v)} {name}"

    # ---- expressions

    def _scalar(self, e: Expr) -> str:
        text = scalar_text(e, DIALECT, self.name, self._read)
        return text[1:-1] if _wrapped(text) else text

    def _read(self, x: Load) -> str:
        assert isinstance(x.source, Buffer)
        text = f"{self.buffers[x.source]}[{self._scalar(x.index[0])}]"
        if x.source.dtype is not x.dtype:
            text = cast_text(text, x.source.dtype, x.dtype, DIALECT)
        if x.guard is None:
            return text
        fill = literal(0 if x.fill is None else x.fill, x.dtype, DIALECT)
        return f"({self._scalar(x.guard)} ? {text} : {fill})"

    def texts(self, *roots: Expr) -> list[str]:
        """The texts of expressions that are all evaluated here; temporaries are written first."""
        return self.values.texts([replace(e, self.ranged) for e in roots])

    def converted(self, text: str, source: DType, target: DType) -> str:
        """A value's text in the type that a buffer stores."""
        return text if source is target else cast_text(f"({text})", source, target, DIALECT)

    # ---- the kernel

    def render(self) -> str:
        kernel, root = self.kernel, self.kernel.body
        if not 1 <= kernel.threads <= MAX_THREADS:
            raise self.fail(f"a block has 1 to {MAX_THREADS} threads, not {kernel.threads}")
        params: list[str] = []
        passed = _passed(kernel)
        for b in kernel.params:
            if b.dtype not in TYPES:
                raise self.fail(f"parameter {b.name} holds {b.dtype}")
            self.buffers[b] = name = self.fresh(b.name)
            macro = "AF_PASSED" if b in passed else "AF_OUTPUT" if b.written else "AF_INPUT"
            params.append(f"{macro}({TYPES[b.dtype]}, {name})")
        head = f'extern "C" __global__ void __launch_bounds__({kernel.threads}) {KERNEL_NAME}'
        self.lines.open(f"{head}({', '.join(params)})")
        self._number_of_block(root)
        self.block(root.body)
        self.lines.close()
        return str(self.lines)

    def _number_of_block(self, root: For) -> None:
        width, height = launch_grid(self.kernel)
        name = self.name(root.var)
        if height == 1:
            self.lines.add(f"const {self.index} {name} = ({self.index})blockIdx.x;")
            return
        self.lines.add(f"const long long {name} = (long long)blockIdx.y * {width} + blockIdx.x;")
        self.lines.add(f"if ({name} >= {self.kernel.grid}LL) return;")

    def block(self, body: Sequence[Stmt]) -> None:
        """A list of statements, in the scope that is open."""
        for s in body:
            self.statement(s)

    def statement(self, s: Stmt) -> None:
        match s:
            case For():
                self.loop(s)
            case Let():
                self._let(s)
            case Alloc():
                self._alloc(s.buffer)
            case Store():
                self.store(s)
            case If():
                self._if(s)
            case Barrier():
                self._barrier(s.level)
            case LaneReduce():
                write_lane_reduce(self, s)
            case ThreadReduce():
                self._thread_reduce(s)
            case AsyncCopy():
                self._async_copy(s)
            case AsyncCommit():
                self.lines.add("af_async_commit();")
            case AsyncWait():
                self.lines.add(f"af_async_wait<{s.pending}>();")
            case Role():
                self._role(s)
            case FragmentLoad() | FragmentFill() | MatrixMultiply() | FragmentStore():
                raise self.fail(f"matrix units are not supported by this renderer yet ({type(s).__name__})")

    def _let(self, s: Let) -> None:
        (text,) = self.texts(s.value)
        self.define(s.var, s.value)
        if s.var.dtype is INDEX and s.var.extent is None:
            lo, hi = bounds(replace(s.value, self.ranged))
            if lo >= 0 and hi <= _NARROW_LIMIT:
                # a variable whose range is known keeps index arithmetic narrow and its divisions plain
                ranged = var(f"${s.var.name}", hi + 1, INDEX)
                self.names[ranged] = self.name(s.var)
                self.ranged[s.var] = ranged
                self.lines.add(f"{self.declare(ranged, self.name(s.var), True)} = {text};")
                return
        self.lines.add(f"{self.declare(s.var, self.name(s.var), True)} = {text};")

    def define(self, v: Var, value: Expr) -> None:
        """Remember what an index variable stands for: alignment is seen through it."""
        self.definitions.pop(v, None)
        self.ranged.pop(v, None)
        if v.dtype is INDEX and not loads(value):
            self.definitions[v] = index_substitute(value, self.definitions)

    def expanded(self, e: Expr) -> Expr:
        """An index expression in loop variables."""
        return index_substitute(e, self.definitions) if self.definitions else e

    def _alloc(self, b: Buffer) -> None:
        name = self.buffers[b] = self.fresh(b.name)
        kind = TYPES[b.dtype]
        if b.scope is Scope.REGISTER:
            self.lines.add(f"AF_REGISTER({kind}, {name}, {b.size});")
        elif b.scope is Scope.SHARED:
            offset = self.offsets.setdefault(b, sum(-(-o.size * o.dtype.itemsize // 64) * 64 for o in self.offsets))
            macro = "AF_SHARED_DYNAMIC" if self.dynamic else "AF_SHARED"
            self.lines.add(f"{macro}({kind}, {name}, {b.size}, {offset});")
        else:
            raise self.fail(f"buffer {b.name} is in {b.scope} memory, which this renderer does not support yet")

    def store(self, s: Store) -> None:
        """One element's store."""
        if s.buffer.scope is not Scope.REGISTER:
            self.by_thread(f"a store to {s.buffer.name}")
        if s.guard is not None:
            (guard,) = self.texts(s.guard)
            self.lines.open(f"if ({guard})")
        offset, value = self.texts(s.offset, s.value)
        value = self.converted(value, s.value.dtype, s.buffer.dtype)
        name = self.buffers[s.buffer]
        if s.buffer.scope is Scope.REGISTER:
            self.lines.add(f"{name}[{offset}] = {value};")
        else:
            stream = "_stream" if s.stream and s.buffer.scope is Scope.GLOBAL else ""
            self.lines.add(f"af_store{stream}({name}, {offset}, {value});")
        if s.guard is not None:
            self.lines.close()

    def by_thread(self, what: str) -> None:
        """Refuse what all threads would do alike."""
        if not self.in_thread:
            raise self.fail(f"{what} stands outside of the loop over threads")

    def _if(self, s: If) -> None:
        (condition,) = self.texts(s.condition)
        self.lines.open(f"if ({condition})")
        self.block(s.then)
        if s.otherwise:
            self.lines.close(" else {")
            self.lines.depth += 1
            self.block(s.otherwise)
        self.lines.close()

    def _barrier(self, level: Level) -> None:
        if level is Level.TEAM:
            raise self.fail("blocks cannot wait for each other")
        self.lines.add("__syncthreads();" if level is Level.BLOCK else "__syncwarp();")

    def _role(self, s: Role) -> None:
        self.lines.open(f"if (threadIdx.x >= {s.first}u && threadIdx.x < {s.first + s.count}u)")
        self.block(s.body)
        self.lines.close()

    # ---- loops

    def loop(self, s: For) -> None:
        """A loop of any kind."""
        match s.kind:
            case LoopKind.THREAD:
                before, self.in_thread = self.in_thread, True
                self.lines.open("")
                self.lines.add(f"const {self.index} {self.name(s.var)} = ({self.index})threadIdx.x;")
                self.block(s.body)
                self.lines.close()
                self.in_thread = before
            case LoopKind.VECTOR:
                write_vector_loop(self, s)
            case LoopKind.GRID:
                raise self.fail("a second grid loop")
            case _:
                self.open_loop(s)
                self.block(s.body)
                self.lines.close()

    def open_loop(self, s: For) -> None:
        """The head of a serial or unrolled loop."""
        begin, end = self.texts(s.begin, s.stop)
        if s.kind is not LoopKind.SERIAL:
            self.lines.add("#pragma unroll")
        kind, name = self.type_of(s.var), self.name(s.var)
        # a bound that holds data may be wider than the variable
        data = any(v.extent is None for v in variables(s.stop)) and kind == "int"
        end = f"(int)({end})" if data else end if end.isalnum() else f"({end})"
        self.lines.open(f"for ({kind} {name} = {begin}; {name} < {end}; ++{name})")

    # ---- reductions and copies

    def _thread_reduce(self, s: ThreadReduce) -> None:
        op = f"af_{s.combine}()"
        (value,) = self.texts(s.value)
        if s.value.dtype is INDEX:
            value = f"(long long)({value})"
        within = s.threads <= 32 and s.threads & (s.threads - 1) == 0
        if s.level is Level.TEAM:
            raise self.fail("a reduction across blocks")
        if within:
            call = f"af_warp_reduce<{s.threads}>({op}, {value})"
        elif s.level is Level.WARP:
            raise self.fail(f"a warp's reduction over {s.threads} threads, not a power of two up to 32")
        elif s.scratch is None:
            raise self.fail(f"a reduction over {s.threads} threads without scratch memory")
        elif s.threads != self.kernel.threads and (s.threads % 32 or self.kernel.threads % s.threads):
            raise self.fail(f"a reduction over groups of {s.threads} threads, which are not whole warps")
        else:
            sizes = f"{s.threads}, {self.kernel.threads}"
            call = f"af_block_reduce<{sizes}>({op}, {value}, {self.buffers[s.scratch]})"
        self.lines.add(f"{self.declare(s.target, self.name(s.target), True)} = {call};")

    def _async_copy(self, s: AsyncCopy) -> None:
        self.by_thread(f"a copy to {s.target.name}")
        roots = [s.target_offset, s.source_offset] + ([s.guard] if s.guard is not None else [])
        to, source, *guard = self.texts(*roots)
        sizes = f"{s.count}, {self._copy_width(s)}"
        names = f"{self.buffers[s.target]}, {to}, {self.buffers[s.source]}, {source}"
        self.lines.add(f"af_async_copy<{sizes}>({names}, {guard[0] if guard else 'true'});")

    def _copy_width(self, s: AsyncCopy) -> int:
        """Elements that one hardware copy moves: 16, 8 or 4 bytes, aligned on both sides; 0 where none fits."""
        size = s.target.dtype.itemsize
        if s.source.dtype is not s.target.dtype:
            raise self.fail(f"an asynchronous copy from {s.source.dtype} to {s.target.dtype}")
        for width_bytes in (16, 8, 4):
            width = width_bytes // size
            if width == 0 or s.count % width or min(s.target.align, s.source.align) % width_bytes:
                continue
            if all(multiple(self.expanded(o), width) == width for o in (s.target_offset, s.source_offset)):
                return width
        return 0


def _wrapped(text: str) -> bool:
    """Whether a text is one pair of parentheses around something."""
    if not text.startswith("(") or not text.endswith(")"):
        return False
    depth = 0
    for k, ch in enumerate(text):
        depth += (ch == "(") - (ch == ")")
        if depth == 0:
            return k == len(text) - 1
    return False


def _index_range(kernel: Kernel) -> tuple[int, int]:
    """The widest range of the kernel's index arithmetic, seen through scalars."""
    known: dict[Expr, Expr] = {}
    low = high = 0
    for s in statements(kernel.body):
        roots = [index_substitute(e, known) for e in expressions(s)] if known else list(expressions(s))
        lo, hi = finite_bounds(roots)
        low, high = min(low, lo), max(high, hi)
        if isinstance(s, Let) and s.var.dtype is INDEX and not loads(s.value):
            known[s.var] = roots[0]
    return low, high


def _passed(kernel: Kernel) -> set[Buffer]:
    """The parameters through which the threads of a block pass values to one another."""
    if not uses_fibers(kernel):
        return set()
    read = {ld.source for s in statements(kernel.body) for e in expressions(s) for ld in loads(e)}
    return {b for b in kernel.params if b.written and b in read}


def uses_fibers(kernel: Kernel) -> bool:
    """Whether threads of a block wait for each other, so that they can't be run one after another."""
    return any(isinstance(s, Barrier | ThreadReduce) for s in statements(kernel.body))
