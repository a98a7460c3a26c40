"""The host prelude's functions against numpy in double precision: dense ranges, special values, vectors equal to scalars."""

from __future__ import annotations

import numpy as np
import pytest
from host_loops import F32, at, map_kernel, masked_map, run

from autofuse.devices.cpu import CpuDevice
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, apply, call, cast_to, const, var
from autofuse.ir.functions import FUNCTIONS
from autofuse.loops.ir import Buffer, Kernel, LoopKind, Store, loop

RNG = np.random.default_rng(11)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, -1e-45, 1e-38, -1e-38, 3e38, -3e38, 0.5, -0.5, 1.5, 2.5, -2.5,
     0.49999997, 8388609.0, -8388609.0, 1e-10, -1e-10],
    np.float32,
)  # fmt: skip

# function: (range, units in the last place, or relative error where it is below 1)
ACCURACY: dict[str, tuple[float, float, float]] = {
    "exp": (-110, 95, 2),
    "log": (0, 100, 2),
    "log1p": (-1, 20, 1e-6),
    "tanh": (-12, 12, 1e-6),
    "erf": (-6, 6, 1e-6),
    "sin": (-300, 300, 1e-6),
    "cos": (-300, 300, 1e-6),
    "sqrt": (0, 100, 0.51),
    "tan": (-100, 100, 2),
    "asin": (-1, 1, 2),
    "acos": (-1, 1, 2),
    "atan": (-50, 50, 2),
    "sinh": (-90, 90, 3),
    "cosh": (-90, 90, 3),
    "asinh": (-90, 90, 3),
    "acosh": (1, 90, 3),
    "atanh": (-1, 1, 3),
}
EXACT = ("floor", "ceil", "round", "trunc", "abs", "sign", "neg")


@pytest.fixture(scope="module")
def host() -> CpuDevice:
    return CpuDevice(threads=2)


def scalar_map(n: int, name: str, dtype: DType = F32) -> Kernel:
    """One function of each element, without vectors."""
    x, y = Buffer("x", dtype, n), Buffer("y", dtype, n, written=True)
    g, k = var("g", 1), var("k", n)
    return Kernel(
        "scalar", (x, y), loop(g, LoopKind.GRID, loop(k, LoopKind.SERIAL, Store(y, k, call(name, at(x, k))))), 1
    )


def points(low: float, high: float) -> np.ndarray:
    """A dense range, random bit patterns, tiny numbers and the special ones."""
    bits = RNG.integers(0, 2**32, 1 << 17, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = np.linspace(low, high, 1 << 17)
    near = np.linspace(-1e-3, 1e-3, 4096)
    return np.concatenate([dense.astype(np.float32), bits, near.astype(np.float32), SPECIAL])


@pytest.mark.parametrize("name", (*ACCURACY, *EXACT))
def test_float_functions(host: CpuDevice, name: str) -> None:
    low, high, allowed = ACCURACY.get(name, (-100.0, 100.0, 0.0))
    x = points(low, high)
    vector = run(host, masked_map(x.size, lambda v: call(name, v), (F32,), F32), x)[0]
    scalar = run(host, scalar_map(x.size, name), x)[0]
    with np.errstate(all="ignore"):
        exact = np.asarray(FUNCTIONS[name].numpy(x.astype(np.float64)))
        rounded = exact.astype(np.float32)
    nan = np.isnan(exact)
    np.testing.assert_array_equal(np.isnan(vector), nan)
    np.testing.assert_array_equal(
        vector[~nan].view(np.int32), scalar[~nan].view(np.int32), "vectors differ from scalars"
    )
    normal = np.isfinite(rounded) & (np.abs(exact) > 1.2e-38)
    error = np.abs(vector[normal] - exact[normal])
    if 0 < allowed < 0.5:
        assert (error / np.abs(exact[normal])).max() < allowed
    else:
        assert (error / np.spacing(np.abs(rounded[normal]))).max() <= allowed
    tiny = ~nan & (np.abs(exact) <= 1.2e-38)
    np.testing.assert_allclose(vector[tiny], exact[tiny], rtol=0, atol=3e-44)
    beyond = ~nan & ~np.isfinite(rounded)
    np.testing.assert_array_equal(vector[beyond], rounded[beyond])
    if name in EXACT:
        np.testing.assert_array_equal(vector[~nan].view(np.int32), rounded[~nan].view(np.int32), "signs of zeros")


@pytest.mark.parametrize("name", (*ACCURACY, *EXACT))
def test_double_functions(host: CpuDevice, name: str) -> None:
    low, high, _ = ACCURACY.get(name, (-100.0, 100.0, 0.0))
    x = np.concatenate([np.linspace(low, high, 4001), SPECIAL.astype(np.float64), [4503599627370497.5, 1e300]])
    found = run(host, masked_map(x.size, lambda v: call(name, v), (DType.FLOAT64,), DType.FLOAT64), x)[0]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, FUNCTIONS[name].numpy(x), rtol=1e-14, atol=1e-300)


def test_maximum_and_minimum_keep_nan(host: CpuDevice) -> None:
    a, b = (g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL))
    for name in ("maximum", "minimum"):
        found = run(host, masked_map(a.size, lambda x, y, f=name: call(f, x, y), (F32, F32), F32), a, b)[0]
        np.testing.assert_array_equal(found, FUNCTIONS[name].numpy(a, b))
        for c in (0.0, 6.0, -np.inf):
            for turned in (False, True):

                def body(x: Expr, f: str = name, c: float = c, turned: bool = turned) -> Expr:
                    return call(f, const(c, F32), x) if turned else call(f, x, const(c, F32))

                found = run(host, masked_map(a.size, body, (F32,), F32), a)[0]
                np.testing.assert_array_equal(found, FUNCTIONS[name].numpy(a, np.float32(c)))


@pytest.mark.parametrize("make", (map_kernel, masked_map))
def test_tests_of_floats(host: CpuDevice, make: object) -> None:
    for name in ("isnan", "isinf"):
        for dtype in (F32, DType.FLOAT64, DType.FLOAT16):
            with np.errstate(over="ignore"):
                x = SPECIAL.astype(dtype.numpy)
            found = run(host, make(x.size, lambda v, f=name: call(f, v), (dtype,), DType.BOOL), x)[0]  # type: ignore[operator]
            np.testing.assert_array_equal(found, FUNCTIONS[name].numpy(x))


INTEGERS = (DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.UINT32, DType.INT64, DType.UINT64)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_functions(host: CpuDevice, dtype: DType) -> None:
    """Division by zero gives zero, shifts past the width give zero, and nothing traps."""
    info = np.iinfo(dtype.numpy)
    some = np.array([info.min, info.max, 0, 1, 2, 3, 7, 100, info.max - 1], dtype.numpy)
    if info.min < 0:
        some = np.concatenate([some, np.array([-1, -2, -7, -100], dtype.numpy)])
    a, b = (np.ascontiguousarray(g.ravel()) for g in np.meshgrid(some, some))
    names = ["trunc_div", "floor_div", "floor_mod", "trunc_mod", "minimum", "maximum", "bit_and", "bit_or", "bit_xor"]
    if not dtype.is_signed:
        names += ["shift_left", "shift_right"]
    sure = np.ones(a.shape, bool) if info.min == 0 else (a != info.min) | (b != -1)  # numpy warns, C would trap
    for name in names:
        for make in (map_kernel, masked_map):
            found = run(host, make(a.size, lambda x, y, f=name: call(f, x, y), (dtype, dtype), dtype), a, b)[0]
            with np.errstate(all="ignore"):
                expected = FUNCTIONS[name].numpy(a, b)
            np.testing.assert_array_equal(found[sure], expected[sure], f"{name} of {dtype}")
    for name in ("abs", "sign", "neg", "bit_not"):
        found = run(host, masked_map(a.size, lambda x, f=name: call(f, x), (dtype,), dtype), a)[0]
        np.testing.assert_array_equal(found, FUNCTIONS[name].numpy(a), name)


def test_float_modulo_and_powers(host: CpuDevice) -> None:
    a = RNG.standard_normal(4000).astype(np.float32) * 5
    b = RNG.standard_normal(4000).astype(np.float32) * 3
    for name in ("fmod", "float_mod"):
        found = run(host, masked_map(a.size, lambda x, y, f=name: call(f, x, y), (F32, F32), F32), a, b)[0]
        np.testing.assert_allclose(found, FUNCTIONS[name].numpy(a, b), rtol=1e-5, atol=1e-5)
    found = run(host, masked_map(a.size, lambda x, y: call("pow", call("abs", x), y), (F32, F32), F32), a, b)[0]
    np.testing.assert_allclose(found, np.abs(a) ** b, rtol=1e-5)
    x = np.concatenate([a, SPECIAL])
    for p in (0.0, 1.0, 2.0, 3.0, -1.0, 0.5, 2.5, -2.0):
        kernel = masked_map(x.size, lambda v, p=p: call("pow", v, const(p, F32)), (F32,), F32)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(run(host, kernel, x)[0], np.power(x, np.float32(p)), rtol=1e-6, err_msg=str(p))


def test_fused_multiply_add(host: CpuDevice) -> None:
    a = RNG.standard_normal(64).astype(np.float32)
    found = run(host, masked_map(64, lambda x: apply("fma", (x, x, x), F32), (F32,), F32), a)[0]
    np.testing.assert_allclose(found, a.astype(np.float64) ** 2 + a, rtol=2e-7, atol=1e-8)


def test_every_function_has_a_rendering(host: CpuDevice) -> None:
    """A name in the table of functions is a name in the prelude: in vectors and in scalars."""
    kernels = []
    for name, f in FUNCTIONS.items():
        boolean = name in ("and", "or", "xor", "not")
        integer = name.startswith(("bit_", "shift_", "dot_")) or name in (
            "trunc_div",
            "floor_div",
            "floor_mod",
            "trunc_mod",
        )
        dtype = DType.BOOL if boolean else DType.UINT32 if integer else F32
        out = DType.BOOL if f.result == "bool" else dtype

        def body(x: Expr, name: str = name, arity: int = f.arity, out: DType = out) -> Expr:
            if name == "select":
                return apply("select", (call("lt", x, x), x, x), x.dtype)
            if name == "join_bytes":
                return call("bitcast", apply(name, (cast_to(x, DType.UINT8),) * arity, DType.INT32))
            return apply(name, (x,) * arity, out)

        kernels += [map_kernel(40, body, (dtype,), out), masked_map(40, body, (dtype,), out)]
    failed = [m for m in host.compile(kernels) if isinstance(m, Exception)]
    assert not failed, failed[0]
