"""How single functions are written in host C++: prelude names, conversions of scalars, powers by small constants."""

from __future__ import annotations

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, apply, const
from autofuse.render.cpp_types import CODED, TYPES


def named_function(e: Apply) -> tuple[str, tuple[Expr, ...]]:
    """The prelude's function for a node, and its arguments in order."""
    if e.fn in ("maximum", "minimum") and e.dtype.is_float:
        a, b = e.args
        if isinstance(a, Const):
            a, b = b, a
        if isinstance(b, Const) and b.value == b.value:
            return f"af_{e.fn}_number", (a, b)
    return f"af_{'trunc_div' if e.fn == 'div' else e.fn}", e.args


def scalar_cast(text: str, source: DType, target: DType) -> str:
    """Conversion of a scalar; half and narrow types go by way of what they compute in."""
    if source in CODED:
        text = f"{decoder(source)}<{TYPES[source]}>({text})"
    if target is DType.BOOL:
        return f"({text} != 0)"
    if target is DType.FLOAT16 and source is DType.FLOAT64:
        text = f"af_to_odd<double>({text})"  # a float would be rounded twice
    if target in CODED:
        return f"{encoder(target)}<{TYPES[target.compute]}>({text})"
    return f"(({TYPES[target]}){text})"


def decoder(source: DType) -> str:
    """The prelude's conversion of a half or narrow type to the type that it computes in."""
    return f"af_{CODED[source]}_to_{'float' if source.is_float else 'int'}"


def encoder(target: DType) -> str:
    """The prelude's conversion to a half or narrow type from the type that it computes in."""
    return f"af_{'float' if target.is_float else 'int'}_to_{CODED[target]}"


def with_plain_power(e: Apply) -> Expr:
    """A float power by a small constant as products, which are correctly rounded too or nearly so; else e itself."""
    if e.fn != "pow" or not isinstance(e.args[1], Const) or e.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return e
    x, y = e.args[0], e.args[1].value
    one = const(1, e.dtype)
    root = apply("sqrt", (x,), e.dtype)  # as numpy has it: C's pow differs for -0 and -inf only
    match y:
        case 0:
            return one
        case 1:
            return x
        case 2:
            return apply("mul", (x, x), e.dtype)
        case 3:
            return apply("mul", (apply("mul", (x, x), e.dtype), x), e.dtype)
        case -1:
            return apply("div", (one, x), e.dtype)
        case 0.5:
            return root
        case -0.5:
            return apply("div", (one, root), e.dtype)
        case 0.75:  # of local response normalisation
            return apply("mul", (root, apply("sqrt", (root,), e.dtype)), e.dtype)
        case 1.5:
            return apply("mul", (x, root), e.dtype)
        case _:
            return e
