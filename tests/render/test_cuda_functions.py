"""Every scalar function in CUDA text: the numbers of its numpy meaning under emulation, and NVRTC takes it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from cuda_loops import run

from autofuse.devices.nvrtc import cuda_source, find_nvrtc
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, apply, call, cast_to, const, load, select, var
from autofuse.ir.functions import FUNCTIONS
from autofuse.loops.ir import Buffer, Kernel, LoopKind, Store, loop

FLOATS = (DType.FLOAT32, DType.FLOAT64)
HALVES = (DType.FLOAT16, DType.BFLOAT16)
SIGNED = (DType.INT8, DType.INT16, DType.INT32, DType.INT64)
UNSIGNED = (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)
INTEGERS = (*SIGNED, *UNSIGNED)

_LOGIC = ("and", "or", "xor", "not")
_BITS = ("bit_and", "bit_or", "bit_xor", "bit_not")
_SHIFTS = ("shift_left", "shift_right")
_TOTAL = ("trunc_div", "floor_div", "floor_mod", "trunc_mod")
_ANY = ("add", "sub", "mul", "minimum", "maximum", "neg", "abs", "sign", "lt", "le", "gt", "ge", "eq", "ne")
_SPECIAL = ("select", "cast", "bitcast", "join_bytes", "dot_bytes")
_FLOAT = tuple(
    f for f in FUNCTIONS if f not in (*_LOGIC, *_BITS, *_SHIFTS, *_TOTAL, *_ANY, *_SPECIAL, "isnan", "isinf")
)


def functions(dtype: DType) -> tuple[str, ...]:
    """The functions that ONNX's operators apply to a type."""
    if dtype is DType.BOOL:
        return (*_LOGIC, "eq")
    if dtype.is_float:
        return (*_ANY, *_FLOAT, "isnan", "isinf")
    names = (*_ANY, *_TOTAL, "fmod", "pow", *_BITS)
    return (*names, *_SHIFTS) if dtype in UNSIGNED else tuple(n for n in names if n != "pow" or dtype in SIGNED[2:])


def operands(dtype: DType) -> np.ndarray:
    """Numbers with the edges of the type: zeros, extremes, NaN and infinities."""
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_float:
        edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5, -1.5, 1.0, -1.0, 3.0, -7.25, 0.125, 10.0]
        return np.array(edges).astype(dtype.numpy)
    low, high = int(dtype.min_value), int(dtype.max_value)
    return np.array(
        [0, 1, 2, 3, 5, 7, high, high - 1, low, low + 1, 100, *([-1, -2, -3, -7] if low else [])], dtype.numpy
    )


def function_kernel(dtype: DType, names: Sequence[str], n: int) -> Kernel:
    """An output a function, of up to three inputs."""
    ins = [Buffer(f"x{k}", dtype, n) for k in range(3)]
    t, g = var("t", 32), var("g", -(-n // 32))
    at = ix.add(ix.mul(g, 32), t)
    inside = ix.less(at, const(n))
    args = [load(b, (at,), dtype) for b in ins]
    outs, stores = [], []
    for k, name in enumerate(names):
        value = call(name, *args[: FUNCTIONS[name].arity])
        outs.append(Buffer(f"y{k}", value.dtype, n, written=True))
        stores.append(Store(outs[-1], at, value, None if inside is ix.TRUE else inside))
    return Kernel(
        "functions", (*ins, *outs), loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, *stores)), g.extent or 1, 32
    )


def inputs(dtype: DType) -> list[np.ndarray]:
    """All triples of operands that differ in the first two."""
    values = operands(dtype)
    pairs = np.array(list(itertools.product(range(len(values)), repeat=2)))
    return [values[pairs[:, 0]], values[pairs[:, 1]], values[(pairs[:, 0] + 2 * pairs[:, 1]) % len(values)]]


@pytest.mark.parametrize("dtype", [*FLOATS, *HALVES, *INTEGERS, DType.BOOL])
def test_functions_give_numpys_numbers(dtype: DType) -> None:
    names = functions(dtype)
    args = inputs(dtype)
    results = run(function_kernel(dtype, names, len(args[0])), *args)
    wide = [a.astype(np.float32) for a in args] if dtype in HALVES else args
    for name, got in zip(names, results, strict=True):
        info = FUNCTIONS[name]
        with np.errstate(all="ignore"):
            expected = np.asarray(info.numpy(*wide[: info.arity]))
        if name == "pow" and dtype.is_integer:
            # beyond what a double holds exactly, or outside of the type, there is no defined result
            with np.errstate(all="ignore"):
                exact = np.abs(args[0].astype(np.float64)) ** args[1].astype(np.float64)
            defined = (exact < min(2.0**52, float(dtype.max_value))) & (args[1] >= 0)
            np.testing.assert_array_equal(got[defined], expected[defined], err_msg=name)
        elif dtype in HALVES and info.result == "same":
            with np.errstate(all="ignore"):
                rounded = expected.astype(dtype.numpy).astype(np.float32)
            np.testing.assert_allclose(
                got.astype(np.float32),
                rounded,
                1e-2,
                equal_nan=True,
                err_msg=name,
            )
        elif dtype.is_float and info.result == "same":
            close = 1e-5 if dtype is DType.FLOAT32 else 1e-12
            np.testing.assert_allclose(got, expected, close, close / 100, equal_nan=True, err_msg=name)
        else:
            np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.parametrize("dtype", [*FLOATS, *HALVES, *INTEGERS, DType.BOOL])
def test_nvrtc_takes_every_function(dtype: DType) -> None:
    code, _ = find_nvrtc().compile(cuda_source(function_kernel(dtype, functions(dtype), 64)), "sm_80")
    assert code[:4] == b"\x7fELF"


CASTS = (*FLOATS, *HALVES, DType.INT8, DType.INT32, DType.INT64, DType.UINT8, DType.UINT32, DType.BOOL)


def cast_kernel(source: DType, n: int) -> Kernel:
    x = Buffer("x", source, n)
    g, t = var("g", 1), var("t", n)
    outs = [Buffer(f"y{k}", d, n, written=True) for k, d in enumerate(CASTS)]
    value = load(x, (t,), source)
    stores = [Store(b, t, cast_to(value, b.dtype)) for b in outs]
    return Kernel("casts", (x, *outs), loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, *stores)), 1, n)


@pytest.mark.parametrize("source", CASTS)
def test_casts(source: DType) -> None:
    values = np.array([0, 1, 2, 3, 100, 127, 0, 1] if source is not DType.BOOL else [0, 1] * 4).astype(source.numpy)
    if source.is_float:
        values[3] = 3.75
    for d, got in zip(CASTS, run(cast_kernel(source, 8), values), strict=True):
        np.testing.assert_array_equal(got, values.astype(d.numpy), err_msg=d.value)
    find_nvrtc().compile(cuda_source(cast_kernel(source, 8)), "sm_90")


@pytest.mark.parametrize("dtype", HALVES)
def test_half_conversions_round_to_nearest_even_bit_by_bit(dtype: DType) -> None:
    """All 65,536 halves to float and back; floats around every rounding boundary."""
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    halves = bits.view(dtype.numpy)
    with np.errstate(all="ignore"):
        near = np.nextafter(halves.astype(np.float32), np.float32(np.inf))
        middles = ((halves[:-1].astype(np.float64) + halves[1:].astype(np.float64)) / 2).astype(np.float32)
    floats = np.concatenate(
        [halves.astype(np.float32), near, middles, np.float32([65519.9, 65520.0, 1e-8, -1e-8, 3e38])]
    )
    n = -(-len(floats) // 64) * 64
    floats = np.resize(floats, n)
    h, x = Buffer("h", dtype, 65536), Buffer("x", DType.FLOAT32, n)
    up, down = Buffer("up", DType.FLOAT32, 65536, written=True), Buffer("down", dtype, n, written=True)
    g, t = var("g", n // 64), var("t", 64)
    at = ix.add(ix.mul(g, 64), t)
    body = (
        Store(up, at, cast_to(load(h, (at,), dtype), DType.FLOAT32), ix.less(at, const(65536))),
        Store(down, at, cast_to(load(x, (at,), DType.FLOAT32), dtype)),
    )
    kernel = Kernel("halves", (h, x, up, down), loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, *body)), n // 64, 64)
    wide, narrow = run(kernel, halves, floats)
    np.testing.assert_array_equal(wide, halves.astype(np.float32))
    with np.errstate(all="ignore"):
        expected = floats.astype(dtype.numpy)
    np.testing.assert_array_equal(np.isnan(narrow.astype(np.float32)), np.isnan(floats))
    finite = ~np.isnan(floats)
    np.testing.assert_array_equal(narrow.view(np.uint16)[finite], expected.view(np.uint16)[finite])


def test_literals_of_every_type() -> None:
    cases: list[tuple[DType, float | int | bool]] = [
        (DType.FLOAT32, 0.1),
        (DType.FLOAT32, float("-inf")),
        (DType.FLOAT64, 0.1),
        (DType.FLOAT16, 1.5),
        (DType.BFLOAT16, -2.0),
        (DType.INT8, -128),
        (DType.INT32, -(2**31)),
        (DType.INT64, -(2**63)),
        (DType.INT64, 2**40),
        (DType.UINT64, 2**64 - 1),
        (DType.UINT32, 2**32 - 1),
        (DType.BOOL, True),
    ]
    t, g = var("t", 1), var("g", 1)
    outs = [Buffer(f"y{k}", d, 1, written=True) for k, (d, _) in enumerate(cases)]
    stores = [Store(b, const(0), const(v, d)) for b, (d, v) in zip(outs, cases, strict=True)]
    kernel = Kernel("literals", tuple(outs), loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, *stores)), 1, 1)
    for (d, v), got in zip(cases, run(kernel), strict=True):
        np.testing.assert_array_equal(got, np.array([v]).astype(d.numpy), err_msg=f"{d} {v}")
    find_nvrtc().compile(cuda_source(kernel), "sm_80")


def test_mixed_index_and_data_arithmetic_is_wide_enough() -> None:
    """An index is an int in the text; times itself it may not be, and with a model's int64 data it never is."""
    n = 100_000
    x, y = Buffer("x", DType.INT64, 1), Buffer("y", DType.INT64, n, written=True)
    g, t = var("g", n // 32), var("t", 32)
    at = ix.add(ix.mul(g, 32), t)
    square = apply("mul", (at, at), DType.INT64)
    data = load(x, (const(0),), DType.INT64)
    value: Expr = call("add", select(call("lt", data, at), square, at), call("maximum", data, at))
    kernel = Kernel("mixed", (x, y), loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, Store(y, at, value))), n // 32, 32)
    (got,) = run(kernel, np.array([5], np.int64))
    i = np.arange(n, dtype=np.int64)
    np.testing.assert_array_equal(got, np.where(i > 5, i * i, i) + np.maximum(5, i))
