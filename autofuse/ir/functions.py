"""The table of scalar functions: arity, FLOP weight and numpy meaning.

A function here is one name in kernel text too: each renderer's prelude supplies it. The weights of transcendental functions
are those of the polynomials in the preludes, so that a roofline is honest about them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any


@dataclass(frozen=True)
class Function:
    """One scalar function. `result` is "same" (the type of the last argument), "bool" or "cast"."""

    arity: int
    flops: int
    result: str
    numpy: Callable[..., Array]


def _erf(x: Array) -> Array:
    from scipy.special import erf

    return erf(x)


def _trunc_div(a: Array, b: Array) -> Array:
    """Integer division that truncates towards zero, as C and ONNX do; division by zero gives 0."""
    a, b = np.asarray(a), np.asarray(b)
    safe = np.where(b == 0, 1, b)
    if np.issubdtype(a.dtype, np.unsignedinteger):
        return np.where(b == 0, 0, a // safe).astype(a.dtype)
    with np.errstate(over="ignore"):
        q = np.floor_divide(a, safe)
        q = q + ((q < 0) & (q * safe != a))
    return np.where(b == 0, 0, q).astype(a.dtype)


def _safe_int(op: Callable[..., Array]) -> Callable[..., Array]:
    def inner(a: Array, b: Array) -> Array:
        b = np.asarray(b)
        return np.where(b == 0, 0, op(a, np.where(b == 0, 1, b))).astype(np.asarray(a).dtype)

    return inner


def _shift(op: Callable[..., Array]) -> Callable[..., Array]:
    def inner(a: Array, b: Array) -> Array:
        bits = np.asarray(a).dtype.itemsize * 8
        return np.where(b < bits, op(a, np.minimum(b, bits - 1)), 0).astype(np.asarray(a).dtype)

    return inner


def _pow(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    if np.issubdtype(a.dtype, np.integer):
        return np.power(a.astype(np.float64), b).astype(a.dtype)
    return np.power(a, b)


def _join_bytes(a: Array, b: Array, c: Array, d: Array) -> Array:
    """Four bytes as one 32-bit integer, the first lowest."""
    parts = [np.asarray(x).astype(np.uint8).astype(np.uint32) << (8 * k) for k, x in enumerate((a, b, c, d))]
    return (parts[0] | parts[1] | parts[2] | parts[3]).astype(np.int32)


def _dot_bytes(a: Array, b: Array, total: Array) -> Array:
    """total + the products of the four bytes of a (unsigned) with those of b (signed), around 2^32."""
    a, b = np.asarray(a).astype(np.int32), np.asarray(b).astype(np.int32)
    for k in range(4):
        total = total + ((a >> (8 * k)) & 255) * ((b >> (8 * k)) & 255).astype(np.uint8).astype(np.int8).astype(
            np.int32
        )
    return total


def _same(fn: Callable[..., Array], flops: int, arity: int = 1) -> Function:
    return Function(arity, flops, "same", fn)


def _test(fn: Callable[..., Array], arity: int = 2) -> Function:
    return Function(arity, 1, "bool", fn)


FUNCTIONS: dict[str, Function] = {
    # arithmetic; integers wrap around as numpy's do
    "add": _same(np.add, 1, 2),
    "sub": _same(np.subtract, 1, 2),
    "mul": _same(np.multiply, 1, 2),
    "div": _same(np.divide, 1, 2),
    "fma": _same(lambda a, b, c: a * b + c, 2, 3),
    "trunc_div": _same(_trunc_div, 1, 2),
    "floor_div": _same(_safe_int(np.floor_divide), 1, 2),
    "floor_mod": _same(_safe_int(np.mod), 1, 2),
    "trunc_mod": _same(_safe_int(np.fmod), 1, 2),
    "fmod": _same(np.fmod, 4, 2),
    "float_mod": _same(np.mod, 5, 2),
    "minimum": _same(np.minimum, 1, 2),  # NaN wins, as in numpy and ONNX
    "maximum": _same(np.maximum, 1, 2),
    "neg": _same(np.negative, 1),
    "abs": _same(np.abs, 1),
    "sign": _same(np.sign, 2),
    "pow": _same(_pow, 20, 2),
    # rounding
    "floor": _same(np.floor, 1),
    "ceil": _same(np.ceil, 1),
    "round": _same(np.rint, 1),  # half to even
    "trunc": _same(np.trunc, 1),
    # powers, exponentials, trigonometry
    "sqrt": _same(np.sqrt, 4),
    "exp": _same(np.exp, 10),
    "log": _same(np.log, 12),
    "log1p": _same(np.log1p, 14),
    "sin": _same(np.sin, 14),
    "cos": _same(np.cos, 14),
    "tan": _same(np.tan, 20),
    "asin": _same(np.arcsin, 20),
    "acos": _same(np.arccos, 20),
    "atan": _same(np.arctan, 20),
    "sinh": _same(np.sinh, 20),
    "cosh": _same(np.cosh, 20),
    "tanh": _same(np.tanh, 14),
    "asinh": _same(np.arcsinh, 20),
    "acosh": _same(np.arccosh, 20),
    "atanh": _same(np.arctanh, 20),
    "erf": _same(_erf, 18),
    # tests
    "lt": _test(np.less),
    "le": _test(np.less_equal),
    "gt": _test(np.greater),
    "ge": _test(np.greater_equal),
    "eq": _test(np.equal),
    "ne": _test(np.not_equal),
    "isnan": _test(np.isnan, 1),
    "isinf": _test(np.isinf, 1),
    # logic on booleans, bits on integers
    "and": Function(2, 0, "bool", np.logical_and),
    "or": Function(2, 0, "bool", np.logical_or),
    "xor": Function(2, 0, "bool", np.logical_xor),
    "not": Function(1, 0, "bool", np.logical_not),
    "bit_and": _same(np.bitwise_and, 0, 2),
    "bit_or": _same(np.bitwise_or, 0, 2),
    "bit_xor": _same(np.bitwise_xor, 0, 2),
    "bit_not": _same(np.invert, 0),
    "shift_left": _same(_shift(np.left_shift), 0, 2),
    "shift_right": _same(_shift(np.right_shift), 0, 2),
    # four bytes in a 32-bit integer, as dot instructions take them (on the host)
    "join_bytes": Function(4, 0, "cast", _join_bytes),
    "dot_bytes": _same(_dot_bytes, 8, 3),
    "select": Function(3, 1, "same", np.where),
    # the target type is the node's own; see ops.interpret
    "cast": Function(1, 0, "cast", lambda x: x),
    "bitcast": Function(1, 0, "cast", lambda x: x),
}
