"""Roles of a contraction's axes: which of its two factors each axis belongs to, and how its operands are indexed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from autofuse.fusion.form import Form, Index, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, const, load, loads, rewrite, select, var, variables, walk
from autofuse.ir.stage import Combine, Kind

MAX_SPLITS = 8


@dataclass(frozen=True)
class Contraction:
    """A sum of products over a domain whose axes were split until each factor's indices are affine in them, where that is possible.

    Loads are logical. Reads outside a tensor (padding) are selects on the index. `outputs` are (index, value) pairs in
    which `result` stands for the sum.
    """

    form: Form
    rows: tuple[Var, ...]
    reduced: tuple[Var, ...]
    factors: tuple[Expr, Expr]
    outputs: tuple[tuple[Index, Expr], ...]
    result: Var

    @property
    def dtype(self) -> DType:
        """The type in which the sum is carried."""
        return self.result.dtype

    def only(self, side: int) -> tuple[Var, ...]:
        """The row axes that occur in this factor and not in the other."""
        mine, other = variables(self.factors[side]), variables(self.factors[1 - side])
        return tuple(a for a in self.rows if a in mine and a not in other)


@lru_cache(maxsize=1 << 12)
def contraction(program: RegionProgram) -> Contraction | None:
    """The contraction of a region, or None where it holds none that is a plain sum of products."""
    form = analyse(program)
    if not isinstance(form, Form) or form.kind is not Kind.CONTRACT or len(form.anchors) != 1:
        return None
    anchor = form.anchors[0]
    if anchor.combine is not Combine.SUM or any(o.full for o in form.outputs):
        return None
    match anchor.body:
        case Apply("mul", (a, b)):
            factors = (padding_as_select(a, program), padding_as_select(b, program))
        case _:
            return None
    if form.row_points * form.reduced_points == 0:
        return None
    outputs = tuple((o.index, padding_as_select(o.value, program)) for o in form.outputs)
    return split_axes(Contraction(form, form.rows, form.reduced, factors, outputs, anchor.result))


def split_axes(found: Contraction) -> Contraction:
    """The contraction with axes that a factor divides by a number split in two."""
    for _ in range(MAX_SPLITS):
        pair = _division(found)
        if pair is None:
            return found
        found = _split(found, *pair)
    return found


def padding_as_select(e: Expr, program: RegionProgram) -> Expr:
    """The expression with every filled read outside a tensor written as a select on its index."""

    def fn(x: Expr) -> Expr | None:
        if isinstance(x, Load) and x.fill is not None and isinstance(x.source, int):
            inside = ix.in_range(x.index, program.inputs[x.source].shape)
            return select(inside, load(x.source, x.index, x.dtype), const(x.fill, x.dtype))
        return None

    return rewrite(e, fn)


def _division(c: Contraction) -> tuple[Var, int] | None:
    """An axis that a factor divides by a number which its extent is a multiple of."""
    axes = {*c.rows, *c.reduced}
    for f in c.factors:
        for e in walk(f):
            match e:
                case Apply("floor_div" | "floor_mod", (Var() as a, Const(value=d))) if a in axes:
                    n = a.extent or 0
                    if 1 < d < n and n % int(d) == 0:
                        return a, int(d)
                case _:
                    pass
    return None


def _split(c: Contraction, axis: Var, d: int) -> Contraction:
    high = var(f"{axis.name}q", (axis.extent or 0) // d)
    low = var(f"{axis.name}m", d)
    swap: dict[Expr, Expr] = {axis: ix.add(ix.mul(high, d), low)}

    def axes(old: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(x for a in old for x in ((high, low) if a is axis else (a,)))

    a, b = (ix.substitute(f, swap) for f in c.factors)
    outputs = tuple(
        (tuple(ix.substitute(i, swap) for i in index), ix.substitute(value, swap)) for index, value in c.outputs
    )
    return Contraction(c.form, axes(c.rows), axes(c.reduced), (a, b), outputs, c.result)


def coefficient(e: Expr, axis: Var) -> int | None:
    """The factor of an axis in an index that is affine in it; None where the axis also stands elsewhere."""
    found = 0
    for atom, c in ix.terms(e)[0]:
        if atom is axis:
            found = c
        elif axis in variables(atom):
            return None
    return found


def dimension(index: Iterable[Expr], axis: Var) -> int | None:
    """The one dimension in which an axis stands, with coefficient 1; None where there is no such."""
    found: int | None = None
    for d, i in enumerate(index):
        c = coefficient(i, axis)
        if c == 0:
            continue
        if c != 1 or found is not None:
            return None
        found = d
    return found


def vanishing(e: Expr) -> frozenset[Expr]:
    """The comparisons without which an expression is zero: those in the conditions of selects against 0."""
    match e:
        case Apply("select", (c, a, Const(value=v))) if v == 0:
            return frozenset(conjuncts(c)) | vanishing(a)
        case Apply("cast", (a,)) if a.dtype.has_zero:
            return vanishing(a)
        case Apply("mul", (a, b)):
            return vanishing(a) | vanishing(b)
        case _:
            return frozenset()


def conjuncts(c: Expr) -> tuple[Expr, ...]:
    """The conditions that hold where a condition does: the parts of nested ands."""
    match c:
        case Apply("and", (a, b)):
            return (*conjuncts(a), *conjuncts(b))
        case _:
            return (c,)


def tensor_loads(e: Expr) -> tuple[Load, ...]:
    """The loads of a logical expression that read inputs of the region."""
    return tuple(ld for ld in loads(e) if isinstance(ld.source, int))


def variables_of(index: Iterable[Expr]) -> frozenset[Var]:
    """The variables of several expressions."""
    return frozenset(v for i in index for v in variables(i))
