"""Functions of vectors in host C++: arithmetic by vector extensions, masks, conversions, tests of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Expr, const
from autofuse.render.cpp_functions import decoder, encoder, named_function
from autofuse.render.cpp_types import CODED, TYPES, Mode, Value, constant, vector_type
from autofuse.render.scalar import INFIX

if TYPE_CHECKING:
    from autofuse.render.cpp_expr import ExpressionWriter

_LOGIC = {"and": "&", "or": "|", "xor": "^", "eq": "^", "ne": "^"}
_TESTS = ("lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf")
_POSITION_MASK = 4


def vector_apply(w: ExpressionWriter, e: Apply, mode: Mode) -> Value:
    """The value of a function application that differs from lane to lane."""
    logical = e.dtype is DType.BOOL and e.args[-1].dtype is DType.BOOL
    if w.is_position(e) and not (logical and e.fn in ("and", "or", "xor", "not")):
        return _position(w, e, mode)
    kind = vector_type(e.dtype, mode.lanes)
    match e:
        case Apply("select", (c, a, b)):
            return _select(w, c, a, b, mode)
        case Apply("cast", (a,)):
            return _cast(w, a, e.dtype, mode)
        case Apply("bitcast", (a,)):
            return Value(f"af_as<{kind}>({w.vector(a, mode)})", vector=True)
        case Apply("not", (a,)):
            v = w.value(a, mode)
            return Value(f"(~{v.text})", vector=True, mask=v.mask)
        case Apply(fn, args) if logical:
            return _logic(w, fn, args, mode)
        case Apply("neg", (a,)):
            return Value(f"(-{w.vector(a, mode)})", vector=True)
        case Apply("bit_not", (a,)):
            return Value(f"(~{w.vector(a, mode)})", vector=True)
        case Apply("fma", (a, b, c)):
            return Value(f"({w.vector(a, mode)} * {w.vector(b, mode)} + {w.vector(c, mode)})", vector=True)
        case Apply("div", (a, b)) if e.dtype.is_float:
            return Value(f"({w.vector(a, mode)} / {w.vector(b, mode)})", vector=True)
        case Apply(fn, (a, b)) if fn in INFIX:
            text = f"({w.vector(a, mode)} {INFIX[fn]} {w.vector(b, mode)})"
            return Value(text, vector=True, mask=a.dtype.itemsize if fn in _TESTS else 0)
        case _:
            name, ordered = named_function(e)
            kind = vector_type(e.args[-1].dtype, mode.lanes)
            text = f"{name}<{kind}>({', '.join(w.vector(a, mode) for a in ordered)})"
            return Value(text, vector=True, mask=e.args[-1].dtype.itemsize if e.dtype is DType.BOOL else 0)


def _meet(*values: Value) -> int:
    """The bytes of a mask's elements in which booleans meet: those of the widest."""
    return max((v.mask for v in values), default=0) or _POSITION_MASK


def _logic(w: ExpressionWriter, fn: str, args: tuple[Expr, ...], mode: Mode) -> Value:
    values = [w.value(x, mode) for x in args]
    mask = _meet(*values)
    a, b = (w.as_vector(v, DType.BOOL, mode, mask) for v in values)
    match fn:
        case "and" | "or" | "xor" | "ne":
            text = f"({a} {_LOGIC[fn]} {b})"
        case "eq":
            text = f"(~({a} ^ {b}))"
        # true is -1 in a mask, so the order of booleans is that of masks turned round
        case "lt":
            text = f"({a} > {b})"
        case "le":
            text = f"({a} >= {b})"
        case "gt":
            text = f"({a} < {b})"
        case "ge":
            text = f"({a} <= {b})"
        case "maximum":
            text = f"({a} | {b})"
        case _:  # minimum
            text = f"({a} & {b})"
    return Value(text, vector=True, mask=mask)


def _select(w: ExpressionWriter, c: Expr, a: Expr, b: Expr, mode: Mode) -> Value:
    condition, then, otherwise = (w.value(x, mode) for x in (c, a, b))
    mask = _meet(then, otherwise, condition) if a.dtype is DType.BOOL else 0
    chosen = w.as_vector(condition, DType.BOOL, mode, mask or a.dtype.itemsize) if condition.vector else condition.text
    branches = " : ".join(w.as_vector(v, a.dtype, mode, mask) for v in (then, otherwise))
    return Value(f"({chosen} ? {branches})", vector=True, mask=mask)


def _cast(w: ExpressionWriter, a: Expr, target: DType, mode: Mode) -> Value:
    source, n = a.dtype, mode.lanes
    kind = vector_type(target, n)
    if source is DType.BOOL:
        mask = w.vector(a, mode, target.itemsize)
        one, zero = (f"af_splat<{kind}>({constant(const(v, target))})" for v in (1, 0))
        return Value(f"({mask} ? {one} : {zero})", vector=True)
    text = w.vector(a, mode)
    if source in CODED:
        text, source = f"{decoder(source)}<{vector_type(source, n)}>({text})", source.compute
    if target is DType.BOOL:
        return Value(f"({text} != 0)", vector=True, mask=source.itemsize)
    if target in CODED:
        wide = vector_type(target.compute, n)
        if target is DType.FLOAT16 and source is DType.FLOAT64:
            text = f"af_to_odd<{vector_type(source, n)}>({text})"  # a float would be rounded twice
        elif source is not target.compute:
            text = f"af_convert<{wide}>({text})"
        return Value(f"{encoder(target)}<{wide}>({text})", vector=True)
    return Value(text if TYPES[source] == TYPES[target] else f"af_convert<{kind}>({text})", vector=True)


def _position(w: ExpressionWriter, e: Apply, mode: Mode) -> Value:
    """A position, or a test of positions: lanes below a bound where it is such, else lane by lane."""
    if e.dtype is not DType.BOOL:
        return Value(w.gathered(vector_type(e.dtype, mode.lanes), e, mode), vector=True)
    found = _below(w, e, mode)
    if found is None:
        kind = f"vec<int{8 * _POSITION_MASK}_t, {mode.lanes}>"
        found = w.gathered(kind, e, mode, "-(int)")
    return Value(found, vector=True, mask=_POSITION_MASK)


def _below(w: ExpressionWriter, e: Apply, mode: Mode) -> str | None:
    """lane + a < b as `lanes below b - a`; its mirror image as the complement."""
    if e.fn not in ("lt", "le", "gt", "ge"):
        return None
    a, b = e.args if e.fn in ("lt", "le") else (e.args[1], e.args[0])
    # a < b, or a <= b which is a < b + 1
    gap = ix.sub(b, a) if e.fn in ("lt", "gt") else ix.add(ix.sub(b, a), const(1))
    step, base = w.split(gap, mode)  # true where base + step * lane > 0
    if step == -1:
        return f"af_below<{mode.lanes}>({w.scalar(base)})"
    if step == 1:
        # lane > -base: not below 1 - base
        return f"(~af_below<{mode.lanes}>({w.scalar(ix.sub(const(1), base))}))"
    return None
