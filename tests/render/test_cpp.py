"""Host C++ element by element: types, masks, addresses and guards, run and compared with numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from host_loops import F32, GRID, VECTOR, at, map_kernel, masked_map, matmul, pack, run

from autofuse.devices.cpu import CpuDevice
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, apply, call, cast_to, const, select, var
from autofuse.loops.ir import Buffer, Kernel, Store, loop
from autofuse.render.cpp import render_cpp

RNG = np.random.default_rng(3)
SIZES = (1, 15, 16, 64, 1000, 4096)


@pytest.fixture(scope="module")
def host() -> CpuDevice:
    return CpuDevice(threads=2)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ---- maps


@pytest.mark.parametrize("make", (map_kernel, masked_map))
@pytest.mark.parametrize("n", SIZES)
def test_map(host: CpuDevice, make: Callable[..., Kernel], n: int) -> None:
    """A vector main loop with a scalar tail, and the same with masked lanes."""
    kernel = make(n, lambda a, b: call("add", call("mul", a, b), const(0.5, F32)), (F32, F32), F32)
    a, b = normal(n), normal(n)
    np.testing.assert_allclose(run(host, kernel, a, b)[0], a * b + np.float32(0.5), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lanes", (2, 4, 8, 16, 32, 64, 12, 3))
def test_any_number_of_lanes(host: CpuDevice, lanes: int) -> None:
    """Vectors wider than the machine's are cut up; numbers of lanes that are no power of two too."""
    kernel = masked_map(100, lambda a: call("sub", a, const(1.0, F32)), (F32,), F32, lanes)
    a = normal(100)
    np.testing.assert_array_equal(run(host, kernel, a)[0], a - 1)


@pytest.mark.parametrize("vector_bytes", (16, 32, 64))
def test_any_machine_vector(vector_bytes: int) -> None:
    """The text for narrower machines runs here too."""

    class Narrow(CpuDevice):
        def text(self, kernel: Kernel) -> str:
            return render_cpp(kernel, vector_bytes)

    a, b = normal(29, 40), normal(40, 64)
    c = run(Narrow(1), matmul(29, 64, 40, rows=4), a, pack(b))[0].reshape(29, 64)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-4)
    kernel = masked_map(100, lambda x: call("exp", x), (F32,), F32)
    np.testing.assert_allclose(run(Narrow(1), kernel, a[:4, :25])[0], np.exp(a[:4, :25]).ravel(), rtol=1e-6)


@pytest.mark.parametrize("make", (map_kernel, masked_map))
def test_booleans(host: CpuDevice, make: Callable[..., Kernel]) -> None:
    """Comparisons, logic among masks of several widths, booleans from memory, and a select."""
    n = 133

    def body(a: Expr, b: Expr, m: Expr, d: Expr) -> Expr:
        either = apply("or", (call("lt", a, b), call("and", m, call("gt", d, const(0.0, DType.FLOAT64)))), DType.BOOL)
        return select(call("xor", either, call("not", m)), a, call("neg", b))

    kernel = make(n, body, (F32, F32, DType.BOOL, DType.FLOAT64), F32)
    a, b, m, d = normal(n), normal(n), RNG.random(n) < 0.5, RNG.standard_normal(n)
    expected = np.where(((a < b) | (m & (d > 0))) ^ ~m, a, -b)
    np.testing.assert_array_equal(run(host, kernel, a, b, m, d)[0], expected)
    stores = make(n, lambda x, y, p: call("eq", call("le", x, y), p), (F32, F32, DType.BOOL), DType.BOOL)
    found = run(host, stores, a, b, m)[0]
    assert found.dtype == np.bool_ and set(found.view(np.uint8)) <= {0, 1}
    np.testing.assert_array_equal(found, (a <= b) == m)


@pytest.mark.parametrize("dtype", (DType.FLOAT16, DType.BFLOAT16))
@pytest.mark.parametrize("make", (map_kernel, masked_map))
def test_half_types(host: CpuDevice, make: Callable[..., Kernel], dtype: DType) -> None:
    """All bit patterns survive the way to float32 and back; arithmetic rounds to nearest even; NaN is kept."""
    bits = np.arange(65536, dtype=np.uint16).view(dtype.numpy)
    same = make(65536, lambda x: cast_to(x, F32), (dtype,), dtype)
    there = make(65536, lambda x: cast_to(x, F32), (dtype,), F32)
    wide = bits.astype(np.float32)
    nan = np.isnan(wide)
    np.testing.assert_array_equal(run(host, there, bits)[0][~nan].view(np.int32), wide[~nan].view(np.int32))
    back = run(host, same, bits)[0]
    np.testing.assert_array_equal(back.view(np.uint16)[~nan], bits.view(np.uint16)[~nan])
    assert np.isnan(back[nan].astype(np.float32)).all()
    a = np.concatenate([RNG.standard_normal(50000) * 10.0 ** RNG.integers(-9, 9, 50000), [np.nan, np.inf, -np.inf]])
    a = a.astype(np.float32)
    with np.errstate(over="ignore"):
        expected = a.astype(dtype.numpy)
    narrow = run(host, make(a.size, lambda x: x, (F32,), dtype), a)[0]
    finite = ~np.isnan(a)
    np.testing.assert_array_equal(narrow.view(np.uint16)[finite], expected.view(np.uint16)[finite])
    assert np.isnan(narrow[~finite].astype(np.float32)).all()


TYPES = [t for t in DType if t is not DType.STRING and not t.is_narrow]


def test_casts(host: CpuDevice) -> None:
    """Every type to every other, as vectors and as scalars, where the value fits."""
    pairs = list(itertools.product(TYPES, TYPES))
    values = np.array([0, 1, 2, 3, 5, 100, 0, 7, 1, 64, 9, 11, 0, 1, 2, 90, 17, 8, 0])
    for source, target in pairs:
        data = values.astype(source.numpy)
        kernel = map_kernel(len(values), lambda x, t=target: cast_to(x, t), (source,), target)
        np.testing.assert_array_equal(run(host, kernel, data)[0], data.astype(target.numpy), f"{source} to {target}")


def test_float_to_integer_truncates(host: CpuDevice) -> None:
    a = np.array([0.5, -0.5, 1.9, -1.9, 2.5, -100.7, 3.0, 126.9] * 3, np.float32)
    for t in (DType.INT8, DType.INT32, DType.INT64):
        kernel = map_kernel(24, lambda x, t=t: cast_to(cast_to(x, t), F32), (F32,), F32)
        np.testing.assert_array_equal(run(host, kernel, a)[0], np.trunc(a))
    kernel = map_kernel(24, lambda x: cast_to(x, DType.BOOL), (F32,), DType.BOOL)
    np.testing.assert_array_equal(run(host, kernel, a)[0], a != 0)


def test_integers_wrap_around(host: CpuDevice) -> None:
    for t in (DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.UINT32, DType.INT64):
        info = np.iinfo(t.numpy)
        a = np.array([info.max, info.min, 1, 77] * 5, t.numpy)
        kernel = map_kernel(20, lambda x: call("add", call("mul", x, x), x), (t,), t)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(run(host, kernel, a)[0], a * a + a)


def test_streaming_stores(host: CpuDevice) -> None:
    a = normal(4096)
    kernel = map_kernel(4096, lambda x: call("mul", x, const(2.0, F32)), (F32,), F32, stream=True)
    assert "af_stream<" in host.text(kernel)
    np.testing.assert_array_equal(run(host, kernel, a)[0], a * 2)


def test_shared_subexpressions_do_not_grow_the_text(host: CpuDevice) -> None:
    def body(x: Expr) -> Expr:
        for _ in range(60):
            x = call("mul", call("add", x, x), const(0.5, F32))
        return x

    kernel = map_kernel(64, body, (F32,), F32)
    assert len(host.text(kernel)) < 50_000
    a = normal(64)
    np.testing.assert_array_equal(run(host, kernel, a)[0], a)


def test_deep_expressions(host: CpuDevice) -> None:
    """A chain of hundreds of operations needs neither Python's stack nor the compiler's nesting."""

    def body(x: Expr) -> Expr:
        for k in range(700):
            x = call("add", x, const(float(k % 3 - 1), F32))
        return x

    a = np.round(normal(64) * 8)
    expected = a + sum(k % 3 - 1 for k in range(700))
    np.testing.assert_array_equal(run(host, map_kernel(64, body, (F32,), F32), a)[0], expected)


# ---- addresses


def shaped(n: int, offset: Callable[[Expr], Expr], guard: Callable[[Expr], Expr] | None, size: int) -> Kernel:
    """y[i] = x[offset(i)] where guard(i), else 9."""
    x, y = Buffer("x", F32, size), Buffer("y", F32, n, written=True)
    g, lane = var("g", n // 16), var("lane", 16)
    i = ix.add(ix.mul(g, 16), lane)
    value = at(x, offset(i), guard(i) if guard is not None else None, 9.0)
    return Kernel("shaped", (x, y), loop(g, GRID, loop(lane, VECTOR, Store(y, i, value))), n // 16)


def test_strided_gathered_and_reversed_loads(host: CpuDevice) -> None:
    x, i = normal(512), np.arange(160)
    cases: list[tuple[Callable[[Expr], Expr], np.ndarray]] = [
        (lambda e: ix.mul(e, 3), i * 3),
        (lambda e: ix.sub(const(511), e), 511 - i),
        (lambda e: ix.floor_div(e, 5), i // 5),
        (lambda e: ix.add(ix.mul(ix.floor_mod(e, 10), 16), ix.floor_div(e, 10)), i % 10 * 16 + i // 10),
        (lambda e: ix.add(e, const(7)), i + 7),
    ]
    for offset, index in cases:
        np.testing.assert_array_equal(run(host, shaped(160, offset, None, 512), x)[0], x[index])


def test_guarded_loads_touch_nothing_outside(host: CpuDevice) -> None:
    """A window that slides off both ends of the buffer; and a guard that differs from lane to lane with no pattern."""
    x, i = normal(160), np.arange(160)
    for shift in (-1000003, -20, -3, 0, 5, 1000003):

        def inside(e: Expr, s: int = shift) -> Expr:
            return ix.in_range((ix.add(e, const(s)),), (160,))

        found = run(host, shaped(160, lambda e, s=shift: ix.add(e, const(s)), inside, 160), x)[0]
        where = (i + shift >= 0) & (i + shift < 160)
        np.testing.assert_array_equal(found, np.where(where, x[np.clip(i + shift, 0, 159)], 9))
    for edge in (0, 7, 100, 160):  # one element for all lanes, of which some, all or none may read it
        limit = const(edge)
        kernel = shaped(160, lambda e: const(-1), lambda e, n=limit: ix.less(e, n), 160)
        if edge == 0:
            np.testing.assert_array_equal(run(host, kernel, x)[0], np.full(160, 9))
        kernel = shaped(160, lambda e: const(3), lambda e, n=limit: ix.less(e, n), 160)
        np.testing.assert_array_equal(run(host, kernel, x)[0], np.where(i < edge, x[3], 9))
    third = run(host, shaped(160, lambda e: e, lambda e: ix.less(ix.floor_mod(e, 3), const(1)), 160), x)[0]
    np.testing.assert_array_equal(third, np.where(i % 3 < 1, x, 9))


def test_gather_by_data(host: CpuDevice) -> None:
    """y[i] = x[index[i]] with indices from memory, which may be negative."""
    x, index, y = Buffer("x", F32, 50), Buffer("index", DType.INT64, 64), Buffer("y", F32, 64, written=True)
    g, lane = var("g", 4), var("lane", 16)
    i = ix.add(ix.mul(g, 16), lane)
    j = at(index, i)
    plain = select(call("lt", j, const(0)), call("add", j, const(50)), j)
    kernel = Kernel("gather", (x, index, y), loop(g, GRID, loop(lane, VECTOR, Store(y, i, at(x, plain)))), 4)
    data, where = normal(50), RNG.integers(-50, 50, 64)
    np.testing.assert_array_equal(run(host, kernel, data, where)[0], data[where])


def test_scattered_stores_and_guards(host: CpuDevice) -> None:
    """A transpose with a masked edge: 24 rows of 10, written column by column."""
    x, y = Buffer("x", F32, 240), Buffer("y", F32, 240, written=True)
    g, lane = var("g", 24), var("lane", 16)
    inside = ix.less(lane, const(10))
    value = at(x, ix.add(ix.mul(g, 10), lane), inside, 0)
    store = Store(y, ix.add(ix.mul(lane, 24), g), value, inside)
    kernel = Kernel("transpose", (x, y), loop(g, GRID, loop(lane, VECTOR, store)), 24)
    a = normal(24, 10)
    np.testing.assert_array_equal(run(host, kernel, a)[0].reshape(10, 24), a.T)


def test_positions_as_values(host: CpuDevice) -> None:
    """Lane positions in arithmetic and in selects."""
    y = Buffer("y", F32, 64, written=True)
    g, lane = var("g", 4), var("lane", 16)
    i = ix.add(ix.mul(g, 16), lane)
    whole = cast_to(ix.floor_mod(i, 7), F32)
    value = select(ix.less(const(20), i), whole, call("neg", cast_to(i, F32)))
    kernel = Kernel("range", (y,), loop(g, GRID, loop(lane, VECTOR, Store(y, i, value))), 4)
    n = np.arange(64)
    np.testing.assert_array_equal(run(host, kernel)[0], np.where(n > 20, n % 7, -n))


@pytest.mark.parametrize("dtype", (F32, DType.FLOAT64, DType.FLOAT16, DType.INT8, DType.INT64, DType.BOOL))
@pytest.mark.parametrize("lanes", (2, 8, 16))
def test_every_second_element(host: CpuDevice, dtype: DType, lanes: int) -> None:
    """Loads two elements apart, the last of which is the buffer's last."""
    x, y = Buffer("x", dtype, 4 * lanes - 1), Buffer("y", dtype, 2 * lanes, written=True)
    g, l = var("g", 2), var("l", lanes)
    point = ix.add(ix.mul(g, lanes), l)
    body = loop(g, GRID, loop(l, VECTOR, Store(y, point, at(x, ix.mul(point, 2)))))
    values = (np.arange(x.size) % 120 if dtype is not DType.BOOL else RNG.random(x.size) < 0.5).astype(dtype.numpy)
    np.testing.assert_array_equal(run(host, Kernel("even", (x, y), body, 2), values)[0], values[::2])


@pytest.mark.parametrize("power", (-1.0, -0.5, 0.5, 0.75, 1.5, 2.0, 3.0, 2.5))
def test_powers_by_constants(host: CpuDevice, power: float) -> None:
    """Products and roots where they do, at zero and infinity, too."""
    kernel = masked_map(100, lambda a: call("pow", a, const(power, F32)), (F32,), F32)
    a = np.abs(normal(100))
    a[:2] = 0, np.inf
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(run(host, kernel, a)[0], np.power(a, np.float32(power)), rtol=1e-6)


def test_products_with_reciprocals(host: CpuDevice) -> None:
    """x * (1 / y) is one division where nothing else wants the reciprocal, with the same infinities and NaNs."""
    a, b = normal(100), normal(100)
    a[:6] = 0, np.inf, -np.inf, np.nan, 1, 1
    b[:6] = 0, np.inf, 0, 2, np.nan, -np.inf

    def once(x: Expr, y: Expr) -> Expr:
        return call("mul", x, call("div", const(1.0, F32), y))

    def twice(x: Expr, y: Expr) -> Expr:
        inverse = call("div", const(1.0, F32), y)
        return call("add", call("mul", inverse, x), inverse)

    texts = [render_cpp(masked_map(100, body, (F32, F32), F32), 64) for body in (once, twice)]
    assert ["0x1.0000000000000p+0f) /" in t for t in texts] == [False, True]
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = 1 / b
        found = run(host, masked_map(100, once, (F32, F32), F32), a, b)[0]
        np.testing.assert_allclose(found, a * inverse, rtol=3e-7)
        found = run(host, masked_map(100, twice, (F32, F32), F32), a, b)[0]
        np.testing.assert_allclose(found, a * inverse + inverse, rtol=1e-5, atol=1e-5)
