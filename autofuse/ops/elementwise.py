"""Arithmetic, comparison, logic and bits, element by element under numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ops.common import F16, F32, F64, I8, I32, I64, U8, B, like, square
from autofuse.ops.declare import Call, Op, Sample, Unsupported

Scalar = Callable[..., Expr]


def legacy_broadcast(c: Call) -> list[ValueId]:
    """The two operands; below opset 7 the second may start at `axis` of the first."""
    b = c.builder
    x, y = c.input(0), c.input(1)
    axis = c.attr("axis")
    rank, have = len(b.shape(x)), len(b.shape(y))
    if c.opset >= 7 or axis is None or not c.attr("broadcast", 0) or have == 0:
        return [x, y]
    trailing = rank - int(axis) % rank - have
    if trailing == 0:
        return [x, y]
    shape = (*b.shape(y), *([1] * trailing))
    return [x, b.map([y], shape, lambda i, read: read.raw(0, i[:have]))]


def _binary(fn: Callable[[Expr, Expr, Call], Expr]) -> Callable[[Call], Sequence[ValueId]]:
    def emit(c: Call) -> Sequence[ValueId]:
        return [c.builder.elementwise(legacy_broadcast(c), lambda x, y: fn(x, y, c))]

    return emit


def _unary(fn: Callable[[Expr, Call], Expr]) -> Callable[[Call], Sequence[ValueId]]:
    def emit(c: Call) -> Sequence[ValueId]:
        return [c.builder.elementwise([c.input(0)], lambda x: fn(x, c))]

    return emit


def _variadic(fn: Callable[[Expr, Expr], Expr], mean: bool = False) -> Callable[[Call], Sequence[ValueId]]:
    def emit(c: Call) -> Sequence[ValueId]:
        n = len(c.inputs)

        def body(*xs: Expr) -> Expr:
            out = reduce(fn, xs)
            return call("mul", out, like(out, 1.0 / n)) if mean else out

        return [c.builder.elementwise([c.input(k) for k in range(n)], body)]

    return emit


def _div(x: Expr, y: Expr, c: Call) -> Expr:
    return call("div" if x.dtype.is_float else "trunc_div", x, y)


def _mod(x: Expr, y: Expr, c: Call) -> Expr:
    if c.attr("fmod", 0):
        return call("fmod" if x.dtype.is_float else "trunc_mod", x, y)
    return call("float_mod" if x.dtype.is_float else "floor_mod", x, y)


def _shift(x: Expr, y: Expr, c: Call) -> Expr:
    """Bits that leave are gone: a shift by the width or more, or by a negative count, leaves zeros, or copies of the sign to the right."""
    bits = 8 * x.dtype.itemsize
    if x.dtype.is_signed:
        y = select(call("lt", y, like(y, 0)), like(y, bits), y)
    if c.attr("direction") == "LEFT":
        return call("shift_left", x, y)
    if x.dtype.is_signed:
        y = call("minimum", y, like(y, bits - 1))
    return call("shift_right", x, y)


def _pow(c: Call) -> Sequence[ValueId]:
    """The result has the base's type. A literal square or cube is a product."""
    b = c.builder
    inputs = legacy_broadcast(c)
    base = b.dtype(inputs[0])
    known = b.known(inputs[1])
    exponent = float(known.reshape(-1)[0]) if known is not None and known.size == 1 else None
    if exponent in (2.0, 3.0) and known is not None and known.ndim <= len(b.shape(inputs[0])):

        def power(x: Expr) -> Expr:
            return square(x) if exponent == 2.0 else call("mul", square(x), x)

        return [b.elementwise(inputs[:1], power)]

    def body(x: Expr, y: Expr) -> Expr:
        kind = x.dtype if x.dtype.is_float else DType.FLOAT64
        return cast_to(call("pow", cast_to(x, kind), cast_to(y, kind)), x.dtype)

    return [b.elementwise(inputs, body, base)]


def _isinf(x: Expr, c: Call) -> Expr:
    low, high = bool(c.attr("detect_negative", 1)), bool(c.attr("detect_positive", 1))
    if low and high:
        return call("isinf", x)
    if high:
        return call("eq", x, like(x, float("inf")))
    if low:
        return call("eq", x, like(x, float("-inf")))
    return call("ne", call("isinf", x), call("isinf", x))


def _where(c: Call) -> Sequence[ValueId]:
    return [c.builder.elementwise([c.input(0), c.input(1), c.input(2)], select)]


def _bound(c: Call, k: int, attribute: str) -> tuple[float | int | None, ValueId | None]:
    """A bound of Clip as a literal or as a value; (None, None) where there is none."""
    if attribute in c.attributes:
        return float(c.attributes[attribute]), None
    if not c.has(k):
        return None, None
    known = c.builder.known(c.input(k))
    if known is None:
        return None, c.input(k)
    value = known.reshape(-1)[0]
    return (int(value) if np.issubdtype(known.dtype, np.integer) else float(value)), None


def _clip(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    bounds = [("maximum", _bound(c, 1, "min")), ("minimum", _bound(c, 2, "max"))]
    inputs = [x] + [v for _, (_, v) in bounds if v is not None]
    rank_zero = [b.shape(v) for v in inputs[1:]]
    if any(s not in ((), (1,)) for s in rank_zero):
        raise Unsupported("a bound is no scalar")

    def body(e: Expr, *given: Expr) -> Expr:
        rest = iter(given)
        for fn, (literal, value) in bounds:
            if value is not None:
                e = call(fn, e, next(rest))
            elif literal is not None:
                e = call(fn, e, like(e, literal))
        return e

    shape = b.shape(x)
    return [
        b.map(
            inputs,
            shape,
            lambda i, read: body(read(0, i), *(read(k, (const(0),) * len(s)) for k, s in enumerate(rank_zero, 1))),
            b.dtype(x),
        )
    ]


_AB = ((F32, (2, 3, 4)), (F32, (3, 1)))
_INTS = (np.array([7, -7, 7, -7, 0], np.int32), np.array([2, 2, -2, -2, 3], np.int32))
_BOOLS = (np.array([[True, False], [True, True]]), np.array([True, False]))
_SHIFTS = (np.array([-8, 4, -1, 5, -9], np.int32), np.array([-1, -32, 33, 1, 2], np.int32))
_BITS = (np.array([[1, 2, 250], [7, 8, 9]], np.uint8), np.array([3, 1, 200], np.uint8))


def _arithmetic(name: str, fn: Callable[[Expr, Expr, Call], Expr], *samples: Sample) -> Op:
    both = (Sample(_AB), Sample(((F64, (2, 1)), (F64, (1, 3)))), Sample(((F16, (4,)), (F16, (4,)))))
    return Op(name, _binary(fn), samples or (*both, Sample(_INTS)))


def _compare(name: str, fn: str) -> Op:
    samples = (Sample(_AB), Sample(_INTS), Sample((np.array([1.0, np.nan, 2.0], np.float32),) * 2))
    return Op(name, _binary(lambda x, y, c: call(fn, x, y)), samples)


def _function(name: str, fn: str, low: float = -2.0, high: float = 2.0, ints: bool = False) -> Op:
    samples = [Sample(((F32, (2, 3, 5)),), low=low, high=high), Sample(((F64, (4,)),), low=low, high=high)]
    samples.append(Sample(((I32, (3, 4)),), low=-9, high=9) if ints else Sample(((F16, (7,)),), low=low, high=high))
    return Op(name, _unary(lambda x, c: call(fn, x)), tuple(samples))


def _logic(name: str, fn: str) -> Op:
    return Op(name, _binary(lambda x, y, c: call(fn, x, y)), (Sample(_BOOLS),))


def _bits(name: str, fn: str) -> Op:
    return Op(name, _binary(lambda x, y, c: call(fn, x, y)), (Sample(_BITS),))


_NAN = np.array([1.0, np.nan, -np.inf, np.inf, 0.0], np.float32)
_MANY = (Sample(_AB), Sample(((F32, (3,)),)), Sample(((F32, (2, 1)), (F32, (1, 3)), (F32, (1,)))))

ELEMENTWISE: tuple[Op, ...] = (
    _arithmetic("Add", lambda x, y, c: call("add", x, y)),
    _arithmetic("Sub", lambda x, y, c: call("sub", x, y)),
    _arithmetic("Mul", lambda x, y, c: call("mul", x, y)),
    _arithmetic("Div", _div, Sample(_AB, low=0.5), Sample(((I64, (5,)), (I64, (5,))), low=1, high=50)),
    _arithmetic(
        "Mod",
        _mod,
        Sample(_INTS),
        Sample(_INTS, {"fmod": 1}),
        Sample(((F32, (9,)), (F32, (9,))), {"fmod": 1}),
        Sample(((U8, (9,)), (U8, (9,))), low=1, high=99),
    ),
    Op(
        "Pow",
        _pow,
        (
            Sample(_AB, low=0.5),
            Sample(((F32, (4,)), np.array(2, np.int64)), constant=(1,)),
            Sample(((F32, (4,)), np.array([3], np.float32)), constant=(1,)),
            Sample((np.array([2, 3, 4], np.int32), np.array([2.0, 0.5, 3.0], np.float32))),
        ),
    ),
    Op(
        "Min", _variadic(lambda x, y: call("minimum", x, y)), (*_MANY, Sample((_NAN, _NAN[::-1].copy())), Sample(_INTS))
    ),
    Op(
        "Max", _variadic(lambda x, y: call("maximum", x, y)), (*_MANY, Sample((_NAN, _NAN[::-1].copy())), Sample(_INTS))
    ),
    Op("Sum", _variadic(lambda x, y: call("add", x, y)), _MANY),
    Op("Mean", _variadic(lambda x, y: call("add", x, y), mean=True), _MANY),
    _function("Neg", "neg", ints=True),
    _function("Abs", "abs", ints=True),
    _function("Sign", "sign", ints=True),
    _function("Floor", "floor"),
    _function("Ceil", "ceil"),
    Op(
        "Round",
        _unary(lambda x, c: call("round", x)),
        (Sample((np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.3], np.float32),)), Sample(((F64, (9,)),))),
    ),
    Op(
        "Reciprocal",
        _unary(lambda x, c: call("div", like(x, 1), x)),
        (Sample(((F32, (4, 3)),), low=0.5), Sample(((F16, (5,)),), low=0.5)),
    ),
    _function("Sqrt", "sqrt", low=0.0),
    _function("Exp", "exp"),
    _function("Log", "log", low=0.1),
    _function("Sin", "sin"),
    _function("Cos", "cos"),
    _function("Tan", "tan", low=-1, high=1),
    _function("Asin", "asin", low=-1, high=1),
    _function("Acos", "acos", low=-1, high=1),
    _function("Atan", "atan"),
    _function("Sinh", "sinh"),
    _function("Cosh", "cosh"),
    _function("Tanh", "tanh"),
    _function("Asinh", "asinh"),
    _function("Acosh", "acosh", low=1.1, high=4),
    _function("Atanh", "atanh", low=-0.9, high=0.9),
    Op("Erf", _unary(lambda x, c: call("erf", x)), (Sample(((F32, (2, 3, 5)),)), Sample(((F16, (7,)),)))),
    _logic("And", "and"),
    _logic("Or", "or"),
    _logic("Xor", "xor"),
    Op("Not", _unary(lambda x, c: call("not", x)), (Sample((_BOOLS[0],)),)),
    _compare("Equal", "eq"),
    _compare("Less", "lt"),
    _compare("Greater", "gt"),
    _compare("LessOrEqual", "le"),
    _compare("GreaterOrEqual", "ge"),
    _bits("BitwiseAnd", "bit_and"),
    _bits("BitwiseOr", "bit_or"),
    _bits("BitwiseXor", "bit_xor"),
    Op("BitwiseNot", _unary(lambda x, c: call("bit_not", x)), (Sample((_BITS[0],)), Sample(((I8, (5,)),)))),
    Op(
        "BitShift",
        _binary(_shift),
        tuple(Sample((_BITS[0], np.array([1, 2, 3], np.uint8)), {"direction": d}) for d in ("LEFT", "RIGHT"))
        + tuple(Sample(_SHIFTS, {"direction": d}) for d in ("LEFT", "RIGHT")),
    ),
    Op("IsNaN", _unary(lambda x, c: call("isnan", x)), (Sample((_NAN,)),)),
    Op(
        "IsInf",
        _unary(_isinf),
        (Sample((_NAN,)), Sample((_NAN,), {"detect_negative": 0}), Sample((_NAN,), {"detect_positive": 0})),
    ),
    Op(
        "Where",
        _where,
        (Sample(((B, (2, 1, 4)), (F32, (3, 1)), (F32, (4,)))), Sample(((B, (3,)), (I64, (3,)), (I64, ())))),
    ),
    Op(
        "Clip",
        _clip,
        (
            Sample(((F32, (3, 4)), np.array(-0.5, np.float32), np.array(0.5, np.float32)), constant=(1, 2)),
            Sample(((F32, (3, 4)), np.array(-0.5, np.float32), np.array(0.5, np.float32))),
            Sample(((F32, (3, 4)), None, np.array(0.5, np.float32))),
            Sample(((F32, (3, 4)),)),
            Sample(((I8, (6,)), np.array(-1, np.int8)), constant=(1,), low=-5, high=5),
            Sample(((F32, (3, 4)),), {"min": -0.25, "max": 1.0}, opset=6),
        ),
    ),
)
