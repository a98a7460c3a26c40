"""The narrow types in kernels, bit by bit against ml_dtypes: vectors and scalars on the host, CUDA text under emulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cuda_loops
import host_loops
import numpy as np
import pytest

from autofuse.devices.cpu import CpuDevice
from autofuse.devices.nvrtc import cuda_source, find_nvrtc
from autofuse.ir import index as ix
from autofuse.ir.dtype import NARROW_FLOATS, NARROW_INTEGERS, DType
from autofuse.ir.expr import Expr, bitcast_to, call, cast_to, const, load, select, var
from autofuse.loops.ir import Buffer, Kernel, LoopKind, Store, loop
from autofuse.render.cpp import render_cpp

F32, F64, I32, U8 = DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.UINT8
NARROW = (*NARROW_FLOATS, *NARROW_INTEGERS)
LANES = 16

Value = tuple[int, Callable[[Expr], Expr], DType]
"""An output: which input it is made from, how, and what it is stored as."""
Run = Callable[[Sequence[np.ndarray], Sequence[DType], Sequence[Value]], list[np.ndarray]]


def kernel(kinds: Sequence[DType], values: Sequence[Value], n: int, cuda: bool, vectors: bool) -> Kernel:
    """Every output element by element, LANES neighbours together: in a vector loop, or one after another."""
    xs = [Buffer(f"x{k}", d, n) for k, d in enumerate(kinds)]
    ys = [Buffer(f"y{k}", d, n, written=True) for k, (_, _, d) in enumerate(values)]
    threads = 32 if cuda else 1
    g, t, lane = var("g", -(-n // (threads * LANES))), var("t", threads), var("lane", LANES)
    i = ix.add(ix.mul(ix.add(ix.mul(g, threads), t) if cuda else g, LANES), lane)
    assert n % (threads * LANES) == 0
    stores = [Store(y, i, body(load(xs[k], (i,), kinds[k]))) for y, (k, body, _) in zip(ys, values, strict=True)]
    inner = loop(lane, LoopKind.VECTOR if vectors else LoopKind.SERIAL, *stores)
    nest = loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, inner) if cuda else inner)
    return Kernel("narrow", (*xs, *ys), nest, g.extent or 1, threads)


class _Narrow(CpuDevice):
    """A machine whose vectors have 16 bytes."""

    def text(self, kernel: Kernel) -> str:
        return render_cpp(kernel, 16)


def _on_host(device: CpuDevice, vectors: bool) -> Run:
    return lambda xs, kinds, values: host_loops.run(device, kernel(kinds, values, len(xs[0]), False, vectors), *xs)


RUNS: dict[str, Run] = {
    "vectors": _on_host(CpuDevice(threads=1), True),
    "narrow vectors": _on_host(_Narrow(threads=1), True),
    "scalars": _on_host(CpuDevice(threads=1), False),
    "emulated": lambda xs, kinds, values: cuda_loops.run(kernel(kinds, values, len(xs[0]), True, True), *xs),
}
runs = pytest.mark.parametrize("run", RUNS.values(), ids=list(RUNS))


def codes(dtype: DType, n: int = 512) -> np.ndarray:
    """Every code of a type, over and over."""
    return np.resize(np.arange(1 << dtype.bits, dtype=np.uint8), n).view(dtype.numpy)


def floats() -> np.ndarray:
    """Every float with 16 zero bits at its end and its neighbours, and every boundary of a rounding with its."""
    coarse = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        known = [codes(t, 1 << t.bits).astype(np.float32) for t in NARROW_FLOATS]
        sorted_ = [np.sort(x[np.isfinite(x)]) for x in known]
        middles = np.concatenate([(x[1:].astype(np.float64) + x[:-1]) / 2 for x in sorted_]).astype(np.float32)
        edges = np.concatenate([coarse, *known, middles])
        every = np.concatenate(
            [edges, np.nextafter(edges, np.float32(np.inf)), np.nextafter(edges, np.float32(-np.inf))]
        )
    return np.resize(every, -(-len(every) // 512) * 512)


@runs
def test_every_code_is_read(run: Run) -> None:
    values: list[Value] = [(k, lambda x: cast_to(x, x.dtype.compute), t.compute) for k, t in enumerate(NARROW)]
    xs = [codes(t) for t in NARROW]
    for t, x, got in zip(NARROW, xs, run(xs, NARROW, values), strict=True):
        want = x.astype(t.compute.numpy)
        np.testing.assert_array_equal(got, want, t.value)
        if t.is_float:
            np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(want[~np.isnan(want)]), t.value)


@runs
def test_what_lies_above_a_value_in_its_byte_is_no_part_of_it(run: Run) -> None:
    kinds = list(NARROW_INTEGERS)
    values: list[Value] = [(k, lambda x: cast_to(x, x.dtype.compute), t.compute) for k, t in enumerate(kinds)]
    raw = np.arange(512).astype(np.uint8)
    for t, got in zip(kinds, run([raw.view(t.numpy) for t in kinds], kinds, values), strict=True):
        np.testing.assert_array_equal(got, raw.view(t.numpy).astype(t.compute.numpy), t.value)


@runs
def test_floats_are_rounded(run: Run) -> None:
    x = floats()
    kinds = list(NARROW_FLOATS)
    values: list[Value] = [(0, lambda x, t=t: cast_to(x, t), t) for t in kinds]
    for t, got in zip(kinds, run([x], [F32], values), strict=True):
        with np.errstate(all="ignore"):
            want = x.astype(t.numpy)
        differ = got.view(np.uint8) != want.view(np.uint8)
        assert not differ.any(), f"{t}: {x[differ][:5]} give {got[differ][:5]} instead of {want[differ][:5]}"


@runs
def test_integers_keep_their_low_bits(run: Run) -> None:
    x = np.resize(np.arange(-300, 300, dtype=np.int32), 1024)
    kinds = list(NARROW_INTEGERS)
    values: list[Value] = [(0, lambda x, t=t: cast_to(x, t), t) for t in kinds]
    for t, got in zip(kinds, run([x], [I32], values), strict=True):
        np.testing.assert_array_equal(got.view(np.uint8), x.astype(t.numpy).view(np.uint8), t.value)


@runs
def test_other_types_by_way_of_what_is_computed_in(run: Run) -> None:
    x = np.resize(np.array([0, 1, 2, 3, -1, 1.5, -2.25, 6, 7, 100, 0.3], np.float64), 512)
    f8, i4 = DType.FLOAT8E4M3FN, DType.INT4
    values: list[Value] = [
        (0, lambda x: cast_to(x, f8), f8),
        (0, lambda x: cast_to(x, i4), i4),
        (1, lambda x: cast_to(x, DType.FLOAT16), DType.FLOAT16),
        (1, lambda x: cast_to(x, DType.BOOL), DType.BOOL),
        (1, lambda x: cast_to(x, i4), i4),
        (2, lambda x: cast_to(x, f8), f8),
        (2, lambda x: cast_to(x, DType.INT64), DType.INT64),
        (2, lambda x: cast_to(x, DType.BOOL), DType.BOOL),
        (3, lambda x: cast_to(x, f8), f8),
        (3, lambda x: cast_to(x, DType.UINT2), DType.UINT2),
    ]
    small = np.resize(np.array([0, -0.0, 1, 2.5, -3, 7], np.float32), 512).astype(f8.numpy)
    xs = [x, small, codes(i4), np.resize([True, False], 512)]
    expected = [
        x.astype(np.float32).astype(f8.numpy),
        x.astype(np.int32).astype(i4.numpy),
        small.astype(np.float16),
        small.astype(np.float32) != 0,
        small.astype(np.float32).astype(np.int32).astype(i4.numpy),
        xs[2].astype(np.float32).astype(f8.numpy),
        xs[2].astype(np.int64),
        xs[2].astype(np.int32) != 0,
        xs[3].astype(np.float32).astype(f8.numpy),
        xs[3].astype(np.int32).astype(DType.UINT2.numpy),
    ]
    for k, (got, want) in enumerate(zip(run(xs, [F64, f8, i4, DType.BOOL], values), expected, strict=True)):
        np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"), f"output {k}")


@runs
def test_casts_among_the_other_types(run: Run) -> None:
    """Integers out of range wrap around, whatever is not zero is true (NaN too), and integers of any width round to floats."""
    wide = [t for t in DType if t is not DType.STRING and not t.is_narrow]
    rng = np.random.default_rng(9)
    xs = []
    for t in wide:
        if t.is_float:
            x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-7, -3.0, 0.5, 100.0])
        else:
            low, high = int(t.min_value), int(t.max_value)
            drawn = rng.integers(low, high, 60, dtype=t.numpy if t.is_integer else np.int64, endpoint=True)
            x = np.array([0, 1, low, high, high - 1, high // 2 + 1, *map(int, drawn)], object)
        with np.errstate(all="ignore"):
            xs.append(np.resize(x.astype(t.numpy), 512))
    pairs = [(k, u) for k, t in enumerate(wide) for u in wide if not (t.is_float and u.is_integer)]
    values: list[Value] = [(k, lambda x, u=u: cast_to(x, u), u) for k, u in pairs]
    for (k, u), got in zip(pairs, run(xs, wide, values), strict=True):
        with np.errstate(all="ignore"):
            want = xs[k].astype(u.numpy)
        if u.is_float:
            got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(got, want, f"{wide[k]} to {u}")


@runs
def test_a_double_is_rounded_to_a_half_once(run: Run) -> None:
    """By way of a float, what lies a little above the middle of two halves would go to the even one."""
    halves = np.arange(0x7C00, dtype=np.uint16)[::61].view(np.float16).astype(np.float64)
    middles = (halves[1:] + halves[:-1]) / 2
    edges = np.concatenate([halves, middles, [65519.99999999, 65520, 1e300, 2.0**-25, 1e-320, np.inf, np.nan]])
    near = np.concatenate([edges, edges * (1 + 2.0**-40), edges * (1 - 2.0**-40)])
    x = np.resize(np.concatenate([near, -near]), -(-2 * len(near) // 512) * 512)
    (got,) = run([x], [F64], [(0, lambda x: cast_to(x, DType.FLOAT16), DType.FLOAT16)])
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    finite = ~np.isnan(x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    np.testing.assert_array_equal(got.view(np.uint16)[finite], want.view(np.uint16)[finite])


@runs
def test_literals_selects_and_arithmetic(run: Run) -> None:
    """A function of narrow values computes in the wide type and rounds once; literals are exact."""
    f8, i4 = DType.FLOAT8E5M2, DType.INT4
    values: list[Value] = [
        (0, lambda x: select(call("lt", x, const(1.5, f8)), const(-448.0, f8), x), f8),
        (0, lambda x: call("add", x, const(0.3, f8)), f8),
        (0, lambda x: const(float("inf"), f8), f8),
        (1, lambda x: call("maximum", x, const(-2, i4)), i4),
        (1, lambda x: call("mul", x, const(3, i4)), i4),
    ]
    x, y = np.resize(np.array([0, 1, 2.5, -3], np.float32), 512), codes(i4).astype(np.int32)
    third = np.float32(np.array(0.3).astype(f8.numpy))
    expected = [
        np.where(x < 1.5, np.float32(-448), x).astype(f8.numpy),
        (x + third).astype(f8.numpy),
        np.full(512, np.inf, np.float32).astype(f8.numpy),
        np.maximum(y, -2).astype(i4.numpy),
        (y * 3).astype(i4.numpy),
    ]
    for k, (got, want) in enumerate(zip(run([x.astype(f8.numpy), codes(i4)], [f8, i4], values), expected, strict=True)):
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8), f"output {k}")


@runs
def test_bits_are_kept(run: Run) -> None:
    pairs = [(F32, I32), (I32, F32), (F64, DType.INT64), (DType.INT64, F64), (DType.FLOAT16, DType.INT16)]
    pairs += [(U8, DType.FLOAT8E5M2), (DType.FLOAT8E4M3FN, DType.INT8), (DType.INT4, DType.UINT4)]
    rng = np.random.default_rng(7)
    xs = [
        codes(s) if s.bits < 8 else rng.integers(0, 256, 512 * s.itemsize).astype(np.uint8).view(s.numpy)
        for s, _ in pairs
    ]
    values: list[Value] = [(k, lambda x, t=t: bitcast_to(x, t), t) for k, (_, t) in enumerate(pairs)]
    for (s, t), x, got in zip(pairs, xs, run(xs, [s for s, _ in pairs], values), strict=True):
        assert got.tobytes() == x.tobytes(), f"{s} as {t}"


def test_a_boolean_has_no_bits_to_look_at() -> None:
    with pytest.raises(ValueError, match="bool"):
        bitcast_to(load("x", (const(0),), DType.BOOL), U8)
    with pytest.raises(ValueError, match="float64"):
        bitcast_to(load("x", (const(0),), F32), F64)


@pytest.mark.parametrize("arch", ("sm_80", "sm_90"))
def test_nvrtc_takes_every_narrow_type(arch: str) -> None:
    values: list[Value] = [(k, lambda x: cast_to(x, x.dtype.compute), t.compute) for k, t in enumerate(NARROW)]
    values += [(len(NARROW), lambda x, t=t: cast_to(x, t), t) for t in NARROW]
    values += [(len(NARROW), lambda x: bitcast_to(x, I32), I32), (0, lambda x: bitcast_to(x, U8), U8)]
    find_nvrtc().compile(cuda_source(kernel((*NARROW, F32), values, 512, True, True)), arch)
