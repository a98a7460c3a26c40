"""Random numbers from a counter: every element hashes its own position with the seed, so that any device draws the same ones.

The generator is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): its n-th number is a hash of
seed + n times an odd constant, and needs no state. Numbers are the same in every run, as a seed asks for; without a seed they
must differ from run to run, and the node stays with the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

import numpy as np
from onnx import TensorProto

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.cast import element_type
from autofuse.ops.common import F16, F32, F64, like
from autofuse.ops.declare import Call, Op, Sample, Unsupported

GAMMA = 0x9E3779B97F4A7C15
"""The odd constant between the numbers of a sequence: 2^64 over the golden ratio."""

MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of the hash."""

_WORD = (1 << 64) - 1


def _mixed(z: int) -> int:
    """SplitMix64's hash of a known number."""
    for shift, factor in MIXERS:
        z = ((z ^ (z >> shift)) * factor) & _WORD
    return z ^ (z >> 31)


def seed_of(c: Call) -> int:
    """64 bits from the attribute `seed`, a float; Unsupported where it is not given."""
    seed = c.attr("seed")
    if seed is None or np.isnan(seed):
        raise Unsupported("without a seed its numbers differ from run to run")
    return _mixed(int(np.array(seed, np.float64).view(np.uint64)))


def position(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The row-major position as a counter. Its arithmetic is of 64 bits, whatever a kernel's indices are narrowed to."""
    out: Expr = const(0, DType.UINT64)
    for i, n in zip(index, shape, strict=True):
        out = call("add", call("mul", out, like(out, n)), cast_to(i, DType.UINT64))
    return out


def bits(counter: Expr, seed: int) -> Expr:
    """64 random bits for a counter."""
    z = call("add", call("mul", counter, like(counter, GAMMA)), like(counter, (seed + GAMMA) & _WORD))
    for shift, factor in MIXERS:
        z = call("mul", call("bit_xor", z, call("shift_right", z, like(z, shift))), like(z, factor))
    return call("bit_xor", z, call("shift_right", z, like(z, 31)))


def uniform(counter: Expr, seed: int, dtype: DType) -> Expr:
    """A number in [0, 1): a multiple of 2^-24, or for double precision of 2^-53, exactly as any device has it."""
    kept = 53 if dtype is DType.FLOAT64 else 24
    word = bits(counter, seed)
    whole = cast_to(call("shift_right", word, like(word, 64 - kept)), DType.INT64 if kept == 53 else DType.INT32)
    e = cast_to(whole, dtype)
    return call("mul", e, like(e, 2.0**-kept))


def normal(counter: Expr, seed: int, dtype: DType) -> Expr:
    """A number of the standard normal distribution from two uniform ones (Box and Muller, 1958); at most 6.8 (double: 8.6) from 0."""
    wide = dtype is DType.FLOAT64
    counter = call("mul", counter, like(counter, 2))
    word = bits(counter, seed)
    # in (0, 1], down to 2^-33 or 2^-54: the tail ends where these do
    kept = 53 if wide else 32
    whole = cast_to(call("shift_right", word, like(word, 64 - kept)), DType.INT64)
    e = cast_to(whole, dtype)
    first = call("mul", call("add", e, like(e, 0.5)), like(e, 2.0**-kept))
    angle = call("mul", uniform(call("add", counter, like(counter, 1)), seed, dtype), like(e, 2 * pi))
    radius = call("sqrt", call("mul", call("log", first), like(first, -2)))
    return call("mul", radius, call("cos", angle))


def _type(c: Call, like_input: bool) -> DType:
    code = c.attr("dtype")
    if code is not None:
        return element_type(int(code))
    return c.builder.dtype(c.input(0)) if like_input else DType.FLOAT32


def _shape(c: Call, like_input: bool) -> Sequence[int]:
    return c.builder.shape(c.input(0)) if like_input else [int(n) for n in c.attr("shape")]


def _filled(c: Call, like_input: bool) -> Sequence[ValueId]:
    seed, dtype, shape = seed_of(c), _type(c, like_input), _shape(c, like_input)
    if not dtype.is_float:
        raise Unsupported(f"random numbers of type {dtype.value}")
    work = dtype.compute

    def body(i: Index, read: Reader) -> Expr:
        del read
        counter = position(i, shape)
        if c.op.startswith("RandomNormal"):
            e = normal(counter, seed, work)
            return call(
                "add", call("mul", e, like(e, float(c.attr("scale", 1.0)))), like(e, float(c.attr("mean", 0.0)))
            )
        low, high = float(c.attr("low", 0.0)), float(c.attr("high", 1.0))
        e = uniform(counter, seed, work)
        return call("add", call("mul", e, like(e, high - low)), like(e, low))

    return [c.builder.map([], shape, body, dtype)]


def _random(c: Call) -> Sequence[ValueId]:
    return _filled(c, like_input=False)


def _random_like(c: Call) -> Sequence[ValueId]:
    return _filled(c, like_input=True)


def drawn(b: Builder, x: ValueId, seed: int) -> ValueId:
    """True with the probability that an element of x gives."""
    shape, work = b.shape(x), b.dtype(x).compute

    def body(i: Index, read: Reader) -> Expr:
        return call("lt", uniform(position(i, shape), seed, work), read(0, i))

    return b.map([x], shape, body)


def _bernoulli(c: Call) -> Sequence[ValueId]:
    b = c.builder
    x = c.input(0)
    seed, dtype = seed_of(c), _type(c, like_input=True)
    if not b.dtype(x).is_float:
        raise Unsupported(f"probabilities of type {b.dtype(x).value}")
    hit = drawn(b, x, seed)
    return [hit if dtype is DType.BOOL else b.map([hit], b.shape(x), lambda i, read: cast_to(read(0, i), dtype), dtype)]


def _multinomial(c: Call) -> Sequence[ValueId]:
    """Classes drawn by their unnormalised log-probabilities: where those plus Gumbel noise are greatest (Gumbel, 1954)."""
    b = c.builder
    x = c.input(0)
    (batch, classes), samples = b.shape(x), int(c.attr("sample_size", 1))
    seed, work = seed_of(c), b.dtype(x).compute
    dtype = element_type(int(c.attr("dtype", TensorProto.INT32)))
    if classes == 0:
        raise Unsupported("a choice among nothing")

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        n, sample = out
        counter = position((n, sample, reduced[0]), (batch, samples, classes))
        u = uniform(counter, seed, work)
        u = call("add", u, like(u, 2.0**-54 if work is DType.FLOAT64 else 2.0**-25))  # in (0, 1)
        noise = call("neg", call("log", call("neg", call("log", u))))
        return call("add", read(0, (n, reduced[0])), noise)

    found = b.reduce([x], (batch, samples), [classes], Combine.ARGMAX, body)
    return [
        found if dtype is DType.INT64 else b.map([found], (batch, samples), lambda i, read: cast_to(read(0, i), dtype))
    ]


RANDOM: tuple[Op, ...] = (
    Op(
        "RandomUniform",
        _random,
        (
            Sample((), {"shape": [3, 5], "seed": 7.0}),
            Sample((), {"shape": [4], "seed": 7.0, "low": -1.0, "high": 3.0, "dtype": int(TensorProto.DOUBLE)}),
            Sample((), {"shape": [2, 3], "seed": 1.0, "dtype": int(TensorProto.FLOAT16)}),
        ),
    ),
    Op(
        "RandomNormal",
        _random,
        (
            Sample((), {"shape": [3, 5], "seed": 7.0}),
            Sample((), {"shape": [4], "seed": 7.0, "mean": 2.0, "scale": 3.0, "dtype": int(TensorProto.DOUBLE)}),
        ),
    ),
    Op(
        "RandomUniformLike",
        _random_like,
        (Sample(((F32, (3, 4)),), {"seed": 7.0}), Sample(((F16, (5,)),), {"seed": 2.0})),
    ),
    Op(
        "RandomNormalLike",
        _random_like,
        (
            Sample(((F32, (3, 4)),), {"seed": 7.0}),
            Sample(((F64, (5,)),), {"seed": 2.0, "dtype": int(TensorProto.FLOAT)}),
        ),
    ),
    Op(
        "Bernoulli",
        _bernoulli,
        (
            Sample(((F32, (4, 5)),), {"seed": 7.0}, low=0.0, high=1.0),
            Sample(((F64, (4, 5)),), {"seed": 7.0, "dtype": int(TensorProto.BOOL)}, low=0.0, high=1.0),
        ),
    ),
    Op("Multinomial", _multinomial, (Sample(((F32, (2, 6)),), {"seed": 7.0, "sample_size": 9}),)),
)
