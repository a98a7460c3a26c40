"""Scalar expressions as C-like text; what differs between dialects is data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Apply, Const, Expr, Load, Var, apply, cast_to
from autofuse.ir.index import bounds

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "&&",
    "or": "||",
    "bit_and": "&",
    "bit_or": "|",
    "bit_xor": "^",
}


@dataclass(frozen=True)
class ScalarDialect:
    """Names of a dialect. `index` is the type of index arithmetic; functions that are not infix are called as `prefix`+name."""

    types: Mapping[DType, str]
    index: str
    prefix: str = "af_"


def literal(value: float | int | bool, dtype: DType, dialect: ScalarDialect) -> str:
    """A literal that gives exactly this value in this type."""
    name = dialect.types[dtype]
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        if math.isnan(value):
            return f"({name})AF_NAN"
        if math.isinf(value):
            return f"({name}){'-' if value < 0 else ''}AF_INF"
        if dtype is DType.FLOAT64:
            return float(value).hex()
        return f"{float(value).hex()}f" if dtype is DType.FLOAT32 else f"({name}){float(value).hex()}f"
    if dtype is INDEX:
        return (
            str(int(value))
            if abs(int(value)) < 2**31
            else f"{int(value)}LL"
            if value != -(2**63)
            else "(-9223372036854775807LL-1)"
        )
    suffix = "ULL" if dtype is DType.UINT64 else "u" if dtype is DType.UINT32 else ""
    return f"({name}){int(value)}{suffix}"


def scalar_text(e: Expr, dialect: ScalarDialect, names: Callable[[Var], str], read: Callable[[Load], str]) -> str:
    """The text of an expression whose variables and loads are named by the callbacks. Fully parenthesised."""

    def go(x: Expr) -> str:
        match x:
            case Const():
                text = literal(x.value, x.dtype, dialect)
                return f"({text})" if text.startswith("-") else text
            case Var():
                return names(x)
            case Load():
                return read(x)
            case Apply("select", (c, a, b)):
                return f"({go(c)} ? {go(a)} : {go(b)})"
            case Apply("cast", (a,)):
                return cast_text(go(a), a.dtype, x.dtype, dialect)
            case Apply("bitcast", (a,)):
                return f"{dialect.prefix}bitcast<{dialect.types[x.dtype]}>({go(a)})"
            case Apply(fn, args) if any(a.dtype.is_narrow for a in args):
                wide = apply(fn, tuple(cast_to(a, a.dtype.compute) for a in args), x.dtype.compute)
                return go(cast_to(wide, x.dtype))
            case Apply("not", (a,)):
                return f"(!{go(a)})"
            case Apply("neg", (a,)):
                return narrow(f"(-{go(a)})", x.dtype, dialect)
            case Apply("bit_not", (a,)):
                return narrow(f"~{go(a)}", x.dtype, dialect)
            case Apply("xor", (a, b)):
                return f"({go(a)} != {go(b)})"
            case Apply("div", (a, b)) if x.dtype.is_float:
                return f"({go(a)} / {go(b)})"
            case Apply("floor_div" | "floor_mod", (a, Const(value=d))) if (
                x.dtype is INDEX and d > 0 and never_negative(a)
            ):
                return f"({go(a)} {'/' if x.fn == 'floor_div' else '%'} {int(d)})"
            case Apply(fn, (a, b)) if fn in INFIX:
                return narrow(f"({go(a)} {INFIX[fn]} {go(b)})", x.dtype, dialect)
            case Apply():
                return narrow(f"{dialect.prefix}{x.fn}({', '.join(go(a) for a in x.args)})", x.dtype, dialect)

    return go(e)


def never_negative(e: Expr) -> bool:
    """Whether an index expression is known to be at least 0."""
    return bounds(e)[0] >= 0


def narrow(text: str, dtype: DType, dialect: ScalarDialect) -> str:
    """C promotes small integers to int: bring the result back, so that it wraps around as the model's type does."""
    if dtype in (DType.INT8, DType.INT16, DType.UINT8, DType.UINT16):
        return f"(({dialect.types[dtype]})({text}))"
    return text


def cast_text(text: str, source: DType, target: DType, dialect: ScalarDialect) -> str:
    """Conversion as ONNX defines it; half and narrow types go through the prelude's conversions."""
    if source.compute is not source:
        text = f"af_to_{'float' if source.is_float else 'int'}({text})"
    if target is DType.BOOL:
        return f"({text} != 0)"
    if target.is_narrow:
        return f"(({dialect.types[target]})({dialect.types[target.compute]}){text})"
    if target is DType.FLOAT16:
        return f"af_to_half(af_to_odd({text}))" if source is DType.FLOAT64 else f"af_to_half((float){text})"
    if target is DType.BFLOAT16:
        return f"af_to_bfloat((float){text})"
    return f"(({dialect.types[target]}){text})"
