"""Kernels as host C++: one function that runs the blocks begin .. end of the grid.

    extern "C" void af_kernel(void* const* args, int64_t begin, int64_t end, char* scratch)

A block runs on one thread. SHARED buffers lie in `scratch`, which is aligned to 64 bytes; REGISTER buffers are local variables,
one vector each; vector loops are written with the compiler's vector extensions. Parameters are `restrict`: where an output takes the place of
an input, each of its elements may be read only to compute the same element. Only streaming stores rely on the alignment of
a buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from autofuse.errors import CompileError, VerificationError
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, Load, Var, cast_to, load, rewrite
from autofuse.loops.ir import Alloc, Buffer, Kernel, Let, Prefetch, Scope, Store, TransposeTile
from autofuse.render.cpp_expr import ExpressionWriter, Frame
from autofuse.render.cpp_flatten import Branch, Fold, Item, Line, Loop, flatten_kernel, registers
from autofuse.render.cpp_types import SCALAR, TYPES, Mode, Namer, Value, stored, vector_type

PRELUDE = Path(__file__).with_name("prelude")
"""The folder of the headers that kernel text includes."""

_FOLDS = {
    "sum": "(a + b)",
    "prod": "(a * b)",
    "max": "af_maximum<decltype(a)>(a, b)",
    "min": "af_minimum<decltype(a)>(a, b)",
}


def render_cpp(kernel: Kernel, vector_bytes: int) -> str:
    """The text of a kernel for machine vectors of that many bytes. CompileError where the host has no rendering of something."""
    return _Writer(kernel, vector_bytes).text()


class _Writer:
    def __init__(self, kernel: Kernel, vector_bytes: int) -> None:
        self.kernel = kernel
        self.namer = Namer()
        self.items = flatten_kernel(kernel, vector_bytes)
        self.kept = registers(self.items)
        self.names = {b: self.namer.fresh(b.name) for b in kernel.params}
        temporary = (self.namer.fresh(f"t{k}") for k in itertools.count())
        self.w = ExpressionWriter(self.kept, self.names, temporary)
        self.shared: dict[Buffer, int] = {}
        self.scratch_bytes = 0
        self.streams = False
        self.declared: list[set[Buffer]] = [set()]

    def text(self) -> str:
        self.collect_shared(self.items)
        grid = self.define(self.kernel.body.var)
        self.w.frames = [Frame()]
        self.block(self.items, "    ")
        body = self.w.frames[0].lines
        head = [f"  {self.parameter(k, b)}" for k, b in enumerate(self.kernel.params)]
        for b, offset in self.shared.items():
            kind = stored(b.dtype)
            head.append(f"  {kind}* __restrict__ {self.names[b]} = ({kind}*)(scratch + {offset});")
        return "\n".join(
            [
                '#include "host.h"',
                'extern "C" __attribute__((visibility("default")))',
                "void af_kernel(void* const* args, int64_t begin, int64_t end, char* scratch) {",
                *head,
                f"  for (int64_t {grid} = begin; {grid} < end; ++{grid}) {{",
                *body,
                "  }",
                *(["  af_stream_end();"] if self.streams else []),
                "}",
                "",
            ]
        )

    def parameter(self, k: int, b: Buffer) -> str:
        kind = stored(b.dtype)
        constness = "" if b.written else "const "
        value = f"({constness}{kind}*)args[{k}]"
        if b.written and b.align > b.dtype.itemsize:
            value = f"({kind}*)__builtin_assume_aligned(args[{k}], {min(b.align, 64)})"
        return f"{constness}{kind}* __restrict__ {self.names[b]} = {value};"

    def define(self, v: Var) -> str:
        name = self.namer.fresh(v.name)
        self.w.variables[v] = Value(name)
        return name

    def collect_shared(self, items: Iterable[Item]) -> None:
        for item in items:
            match item:
                case Line(Alloc(b)) if b.scope is Scope.SHARED and b not in self.shared:
                    self.names[b] = self.namer.fresh(b.name)
                    self.shared[b] = self.scratch_bytes
                    self.scratch_bytes += -(-b.size * b.dtype.itemsize // 64) * 64
                case Loop():
                    self.collect_shared(item.body)
                case Branch():
                    self.collect_shared((*item.then, *item.otherwise))
                case _:
                    pass

    # ---- blocks

    def block(self, items: tuple[Item, ...], indent: str) -> None:
        """Write statements into the current frame; lines are indented afterwards, since expressions write there too."""
        outer = self.w.counts
        self.w.counts = self.w.count(root for item in items for root in _roots(item))
        self.declared.append(set())
        lines = self.w.frames[-1].lines
        start = len(lines)
        for item in items:
            self.item(item)
        lines[start:] = [indent + line if not line.startswith(" ") else line for line in lines[start:]]
        self.declared.pop()
        self.w.counts = outer

    def nested(self, items: tuple[Item, ...], opening: str, closing: str) -> None:
        """A block of its own in braces."""
        depth = len(self.declared)
        self.w.frames.append(Frame())
        self.block(items, "  " * (depth + 1))
        inner = self.w.frames.pop().lines
        pad = "  " * depth
        self.w.frames[-1].lines += [pad + opening, *inner, pad + closing]

    def item(self, item: Item) -> None:
        match item:
            case Line(Alloc(b)):
                self.allocate(b)
            case Line(TransposeTile() as s):
                self.turn(s)
            case Line(Prefetch() as s):
                near = 2 if s.far else 3  # the second cache, or the first
                self.line(f"__builtin_prefetch({self.names[s.buffer]} + {self.w.scalar(s.offset)}, 0, {near});")
            case Line(Let() as s):
                self.let(s, Mode(item.lane))
            case Line(Store() as s):
                self.store(s, Mode(item.lane))
            case Fold():
                self.fold(item)
            case Loop():
                # what the loop writes is not what it was before, from the second round on
                for b in _written(item.body):
                    self.w.forget(b)
                begin, end = self.w.scalar(item.begin), self.w.scalar(item.end)
                name = self.define(item.var)
                self.nested(item.body, f"for (int64_t {name} = {begin}; {name} < {end}; ++{name}) {{", "}")
            case Branch():
                condition = self.w.value(item.condition, SCALAR).text
                if self.w.depends(item.condition):
                    raise VerificationError(f"kernel {self.kernel.family}: a branch differs from lane to lane")
                self.nested(item.then, f"if ({condition}) {{", "}")
                if item.otherwise:
                    self.nested(item.otherwise, "else {", "}")

    def line(self, text: str) -> None:
        self.w.frames[-1].lines.append(text)

    # ---- statements

    def allocate(self, b: Buffer) -> None:
        if b.scope is Scope.SHARED or any(b in scope for scope in self.declared):
            return
        self.declared[-1].add(b)
        name = self.names[b] = self.names.get(b) or self.namer.fresh(b.name)
        kept = self.kept.get(b)
        if kept is None:
            return  # never read or written
        if kept.width == 0:
            self.line(f"alignas(64) {stored(b.dtype)} {name}[{b.size}];")
            return
        kind = (
            TYPES[b.dtype] if kept.width == 1 else vector_type(b.dtype, kept.width, 1 if b.dtype is DType.BOOL else 0)
        )
        count = -(-b.size // kept.width)
        for k in range(0, count, 8):
            self.line(f"{kind} {', '.join(f'{name}_{i}' for i in range(k, min(k + 8, count)))};")

    def let(self, s: Let, mode: Mode) -> None:
        value = self.w.value(cast_to(s.value, s.var.dtype), mode)
        name = self.namer.fresh(s.var.name)
        self.w.variables[s.var] = Value(name, value.vector, value.mask)
        if value.vector:
            self.w.lane_variables.add(s.var)
        kind = vector_type(s.var.dtype, mode.lanes, value.mask) if value.vector else TYPES[s.var.dtype]
        self.line(f"const {kind} {name} = {value.text};")

    def turn(self, s: TransposeTile) -> None:
        kept, name = self.kept.get(s.buffer), self.names.get(s.buffer)
        if kept is None or kept.width != s.side or name is None:
            raise CompileError(f"kernel {self.kernel.family}: a tile of {s.side} rows is not kept in vectors as wide")
        self.line(f"af_transpose({', '.join(f'{name}_{k}' for k in range(s.side))});")
        self.w.forget(s.buffer)

    def fold(self, f: Fold) -> None:
        mode, dtype = Mode(f.lane), f.target.dtype
        if f.combine not in _FOLDS or dtype is DType.BOOL:
            raise CompileError(f"kernel {self.kernel.family}: no rendering of a {f.combine} over lanes of {dtype}")
        wide = dtype.compute
        kind = vector_type(wide, mode.lanes) if f.lane is not None else TYPES[wide]
        combine = f"[](auto a, auto b) {{ return (decltype(a)){_FOLDS[f.combine]}; }}"
        total = self.namer.fresh(f"{f.target.name}_lanes")
        for k, v in enumerate(f.values):
            e = cast_to(v, wide)
            text = self.w.vector(e, mode) if f.lane is not None else self.w.scalar(e)
            self.line(f"{kind} {total} = {text};" if k == 0 else f"{total} = ({combine})({total}, {text});")
        name = self.namer.fresh(f.target.name)
        result = f"af_fold({total}, {combine})" if f.lane is not None else total
        self.line(f"const {TYPES[wide]} {name} = {result};")
        self.w.variables[f.target] = Value(name)
        if wide is not dtype:
            raise CompileError(f"kernel {self.kernel.family}: a reduction over lanes of half type {dtype}")

    def store(self, s: Store, mode: Mode) -> None:
        sure, lanewise = self.w.conjuncts(s.guard, mode)
        if sure is None:
            self.assign(s, lanewise, mode)
        else:
            condition = self.w.scalar(sure)
            self.w.frames.append(Frame())
            self.assign(s, lanewise, mode)
            inner = self.w.frames.pop().lines
            self.w.frames[-1].lines.append(f"if ({condition}) {{ {' '.join(inner)} }}")
        self.w.forget(s.buffer)

    def assign(self, s: Store, lanewise: Expr | None, mode: Mode) -> None:
        value = cast_to(s.value, s.buffer.dtype)
        if lanewise is not None:
            value = _guarded(value, lanewise)
        if mode.lane is None or not any(self.w.depends(e) for e in (s.offset, value)):
            if lanewise is not None:
                raise VerificationError(f"kernel {self.kernel.family}: lanes differ in whether they write one element")
            self.assign_scalar(s.buffer, s.offset, value)
            return
        step, base = self.w.split(s.offset, mode)
        if step == 0:
            raise VerificationError(f"kernel {self.kernel.family}: lanes write different values to one element")
        kept = self.kept.get(s.buffer)
        if kept is not None and kept.width:
            self.assign_register(s, value, lanewise, mode)
        elif step == 1:
            self.assign_vector(s, base, value, lanewise, mode)
        else:
            self.scatter(s, value, lanewise, mode)

    def assign_scalar(self, b: Buffer, offset: Expr, value: Expr) -> None:
        text = self.w.scalar(value)
        kept = self.kept.get(b)
        if kept is not None and kept.width:
            target = self.w.register(b, offset, SCALAR).text
            if b.dtype is DType.BOOL and kept.width > 1:
                target, text = target.removeprefix("(").removesuffix(" != 0)"), f"-(int)({text})"
        else:
            target = f"{self.names[b]}[{self.w.scalar(offset)}]"
        self.line(f"{target} = {text};")

    def assign_register(self, s: Store, value: Expr, lanewise: Expr | None, mode: Mode) -> None:
        mask = 1 if s.buffer.dtype is DType.BOOL else 0
        text = self.w.vector(value, mode, mask)
        target = self.w.register(s.buffer, s.offset, mode).text
        if lanewise is not None:
            chosen = self.w.vector(lanewise, mode, s.buffer.dtype.itemsize)
            text = f"({chosen} ? {text} : {target})"
        self.line(f"{target} = {text};")

    def assign_vector(self, s: Store, base: Expr, value: Expr, lanewise: Expr | None, mode: Mode) -> None:
        kind, n, b = stored(s.buffer.dtype), mode.lanes, s.buffer
        if b.dtype is DType.BOOL:
            text = f"af_convert<vec<uint8_t, {n}>>({self.w.vector(value, mode, 1)} & 1)"
        else:
            text = self.w.vector(value, mode)
        address = f"{self.names[b]} + {self.w.scalar(base)}"
        if lanewise is not None:
            mask = self.w.vector(lanewise, mode, b.dtype.itemsize)
            self.line(f"af_store_masked<{kind}, {n}>({address}, {mask}, {text});")
            return
        stream = s.stream and _is_multiple(base, n) and b.align % min(n * b.dtype.itemsize, 64) == 0
        self.streams = self.streams or stream
        self.line(f"{'af_stream' if stream else 'af_store'}<{kind}, {n}>({address}, {text});")

    def scatter(self, s: Store, value: Expr, lanewise: Expr | None, mode: Mode) -> None:
        v = self.w.value(value, mode)
        if v.vector:
            name = next(self.w.temporary)
            self.line(f"const {vector_type(value.dtype, mode.lanes, v.mask)} {name} = {v.text};")
            v = Value(f"({name}[l] != 0)" if v.mask else f"{name}[l]")
        lines, offset = self.w.element(s.offset, mode)
        statement = f"{self.names[s.buffer]}[{offset}] = {v.text};"
        if lanewise is not None:
            before, condition = self.w.element(lanewise, mode)
            statement = f"{' '.join(before)} if ({condition}) {{ {' '.join(lines)} {statement} }}"
        else:
            statement = f"{' '.join(lines)} {statement}"
        self.line(f"for (int64_t l = 0; l < {mode.lanes}; ++l) {{ {statement} }}")


def _guarded(value: Expr, guard: Expr) -> Expr:
    """A value that is stored only where the guard holds: its loads touch memory only there."""

    def inner(e: Expr) -> Expr | None:
        if isinstance(e, Load) and isinstance(e.source, Buffer) and e.source.scope is not Scope.REGISTER:
            both = guard if e.guard is None else ix.both(e.guard, guard)
            return load(e.source, e.index, e.dtype, e.fill, both)
        return None

    return rewrite(value, inner)


def _is_multiple(offset: Expr, n: int) -> bool:
    parts, constant = ix.terms(offset)
    return constant % n == 0 and all(c % n == 0 for _, c in parts)


def _roots(item: Item) -> Iterable[Expr]:
    match item:
        case Line(Let(v, value)):
            return (cast_to(value, v.dtype),)
        case Line(Store() as s):
            value = cast_to(s.value, s.buffer.dtype)
            return (s.offset, value) if s.guard is None else (s.offset, value, s.guard)
        case Line(Prefetch() as s):
            return (s.offset,)
        case Fold():
            return item.values
        case Loop():
            return (item.begin, item.end)
        case Branch():
            return (item.condition,)
        case _:
            return ()


def _written(items: Iterable[Item]) -> set[Buffer]:
    out: set[Buffer] = set()
    for item in items:
        match item:
            case Line(Store() as s):
                out.add(s.buffer)
            case Loop():
                out |= _written(item.body)
            case Branch():
                out |= _written((*item.then, *item.otherwise))
            case _:
                pass
    return out
