"""Access: a form's logical loads and stores become buffers and flat offsets under the chosen layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autofuse.fusion.form import Form
from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, apply, const, load, select, var, variables, walk
from autofuse.ir.layout import Layout
from autofuse.kernels.base import Argument, Variant
from autofuse.loops.ir import Buffer, Stmt, Store


@dataclass(frozen=True)
class Operand:
    """A tensor of the region as a kernel sees it."""

    buffer: Buffer
    shape: tuple[int, ...]
    layout: Layout

    def offset(self, index: Sequence[Expr]) -> Expr:
        """The flat offset of a logical index."""
        return self.layout.offset(tuple(index), self.shape)


@dataclass(frozen=True)
class Binding:
    """The operands of one kernel: inputs by local number, outputs by their position in the region's outputs."""

    inputs: Mapping[int, Operand]
    outputs: tuple[Operand, ...]

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        return tuple(o.buffer for o in (*self.inputs.values(), *self.outputs))

    @property
    def arguments(self) -> tuple[Argument, ...]:
        ins = tuple(("input", k) for k in self.inputs)
        return ins + tuple(("output", k) for k in range(len(self.outputs)))

    @property
    def nbytes(self) -> int:
        """Bytes of every operand once."""
        return sum(b.size * b.dtype.itemsize for b in self.parameters)


def bind(variant: Variant) -> Binding:
    """Buffers for all inputs and outputs of a variant's program."""
    program = variant.program
    inputs: dict[int, Operand] = {}
    for k, (tensor, layout) in enumerate(zip(program.inputs, variant.input_layouts, strict=True)):
        size = variant.elements(k)
        inputs[k] = Operand(Buffer(f"x{k}", tensor.dtype, size), tensor.shape, layout)
    outputs: list[Operand] = []
    for k, (number, layout) in enumerate(zip(program.outputs, variant.output_layouts, strict=True)):
        tensor = program.tensor(number)
        size = layout.size(tensor.shape)
        outputs.append(Operand(Buffer(f"y{k}", tensor.dtype, size, written=True), tensor.shape, layout))
    return Binding(inputs, tuple(outputs))


class Resolver:
    """Rewrites a form's expression into one over buffers, under a substitution of the domain's axes.

    A load under a branch of a select gets the branch's condition as its guard unless its index stays inside the tensor
    anyway, so that a vectorised select never touches memory that the model does not read.
    """

    def __init__(self, inputs: Mapping[int, Operand], where: Mapping[Expr, Expr]) -> None:
        self.inputs = inputs
        self.where = dict(where)
        self._memo: dict[tuple[Expr, Expr], Expr] = {}

    def __call__(self, e: Expr, guard: Expr = ix.TRUE) -> Expr:
        key = (e, guard)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._resolve(e, guard)
        return found

    def _resolve(self, e: Expr, guard: Expr) -> Expr:
        if e in self.where:
            return self.where[e]
        match e:
            case Const() | Var():
                return e
            case Load():
                return self._load(e, guard)
            case Apply("select", (c, a, b)):
                condition = self(c, guard)
                if isinstance(condition, Const):
                    return self(a if condition.value else b, guard)
                then = self(a, ix.both(guard, condition))
                otherwise = self(b, ix.both(guard, ix.negate(condition)))
                return select(condition, then, otherwise)
            case Apply():
                args = {a: self(a, guard) for a in e.args}
                return ix.substitute(apply(e.fn, e.args, e.dtype), args)

    def _load(self, e: Load, guard: Expr) -> Expr:
        assert isinstance(e.source, int)
        operand = self.inputs[e.source]
        index = tuple(self(i, guard) for i in e.index)
        inside = ix.in_range(index, operand.shape)
        if isinstance(inside, Const) and not inside.value:
            return const(e.fill or 0, e.dtype)
        condition: Expr | None = None
        if e.fill is not None:
            condition = None if isinstance(inside, Const) else inside
            if condition is not None and guard is not ix.TRUE:
                condition = ix.both(guard, condition)
        if condition is None and guard is not ix.TRUE and not isinstance(inside, Const):
            condition = guard
        if isinstance(condition, Const):
            condition = None
        return load(
            operand.buffer, (operand.offset(index),), e.dtype, e.fill if condition is not None else None, condition
        )


@dataclass(frozen=True)
class Iteration:
    """A loop nest over a logical shape in the order of a layout's physical dimensions.

    `axes` are the loop variables, outermost first; `index` is the logical index; `valid` says where it is inside the shape (it is not in padding).
    """

    axes: tuple[Var, ...]
    index: tuple[Expr, ...]
    valid: Expr


def iterate(layout: Layout, shape: tuple[int, ...], prefix: str = "p") -> Iteration:
    """Loop variables for the physical dimensions of a layout; dimensions of extent 1 have none."""
    axes: list[Var] = []
    physical: list[Expr] = []
    for k, n in enumerate(layout.extents(shape)):
        if n == 1:
            physical.append(const(0))
        else:
            axes.append(var(f"{prefix}{k}", n))
            physical.append(axes[-1])
    index = layout.logical(tuple(physical))
    return Iteration(tuple(axes), index, ix.in_range(index, shape))


def collapse(axes: Sequence[Var], exprs: Sequence[Expr], keep: int = 0) -> tuple[tuple[Var, ...], dict[Expr, Expr]]:
    """Merge neighbouring axes wherever no expression needs them apart.

    Gives the new axes and the substitution of old ones. The last `keep` axes are left alone. An axis pair merges when, written as quotient and
    remainder of one axis, every expression simplifies back to one without new divisions.
    """
    current = list(axes)
    bodies = list(exprs)
    total: dict[Expr, Expr] = {a: a for a in axes}
    k = len(current) - 2 - keep
    while k >= 0:
        outer, inner = current[k], current[k + 1]
        if not outer.extent or not inner.extent:  # there are no points to run over
            k -= 1
            continue
        n = inner.extent
        merged = var(f"{outer.name}_{inner.name}"[-24:], outer.extent * n)
        swap: dict[Expr, Expr] = {outer: ix.floor_div(merged, n), inner: ix.floor_mod(merged, n)}
        touched = [b for b in bodies if variables(b) & {outer, inner}]
        changed = {b: ix.substitute(b, swap) for b in touched}
        if all(_divisions(new) <= _divisions(old) for old, new in changed.items()):
            bodies = [changed.get(b, b) for b in bodies]
            current[k : k + 2] = [merged]
            total = {a: ix.substitute(e, swap) for a, e in total.items()}
        k -= 1
    return tuple(current), total


def _divisions(e: Expr) -> int:
    return sum(1 for x in walk(e) if isinstance(x, Apply) and x.fn in ("floor_div", "floor_mod"))


def stores(form: Form, binding: Binding, resolve: Resolver, which: Sequence[int]) -> tuple[Stmt, ...]:
    """Let and Store statements that deliver the given outputs (positions in form.outputs) at the current point."""
    out: list[Stmt] = []
    for k in which:
        o = form.outputs[k]
        operand = binding.outputs[k]
        index = tuple(resolve(i) for i in o.index)
        out.append(Store(operand.buffer, operand.offset(index), resolve(o.value)))
    return tuple(out)


def plain_layouts(program: RegionProgram) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """Row-major layouts for all inputs and outputs."""
    ins = tuple(Layout.plain(len(t.shape)) for t in program.inputs)
    return ins, tuple(Layout.plain(len(program.tensor(n).shape)) for n in program.outputs)
