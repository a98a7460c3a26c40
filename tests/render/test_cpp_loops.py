"""Host C++ statement by statement: register tiles, reductions, branches, scratch; golden texts; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from host_loops import F32, GRID, SERIAL, UNROLL, VECTOR, at, map_kernel, masked_map, matmul, pack, row_kernel, run

from autofuse.devices.cpu import CpuDevice
from autofuse.errors import CompileError
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import call, cast_to, const, var
from autofuse.loops.ir import (
    Alloc,
    Barrier,
    Buffer,
    FragmentFill,
    If,
    Kernel,
    LaneReduce,
    Let,
    Level,
    LoopKind,
    Scope,
    Stmt,
    Store,
    ThreadReduce,
    loop,
)
from autofuse.loops.verify import verify_kernel
from autofuse.render.cpp import render_cpp

GOLDEN = Path(__file__).parent / "golden"
RNG = np.random.default_rng(4)
I64 = DType.INT64


@pytest.fixture(scope="module")
def host() -> CpuDevice:
    return CpuDevice(threads=2)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("m", "n", "k"), ((14, 32, 1), (29, 64, 33), (513, 96, 257)))
def test_matmul(host: CpuDevice, m: int, n: int, k: int) -> None:
    a, b = normal(m, k), normal(k, n)
    found = run(host, matmul(m, n, k), a, pack(b))[0].reshape(m, n)
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-4)


def test_a_register_tile_stays_in_registers(host: CpuDevice) -> None:
    """Each accumulator is a variable of its own, at whatever width the machine has."""
    text = render_cpp(matmul(28, 32, 8), 64)
    assert "acc_27;" in text and "acc_28" not in text and "acc[" not in text
    assert "acc_111" in render_cpp(matmul(28, 32, 8), 16)


@pytest.mark.parametrize("combine", ("sum", "prod", "max", "min"))
def test_row_reductions(host: CpuDevice, combine: str) -> None:
    x = 1 + normal(7, 96) * np.float32(0.1)
    start = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}[combine]
    found = run(host, row_kernel(7, 96, combine, start), x)[0]
    expected = getattr(np, combine)(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("combine", ("max", "min"))
@pytest.mark.parametrize("place", range(0, 96, 5))
def test_nan_wins_wherever_it_stands(host: CpuDevice, combine: str, place: int) -> None:
    x = normal(3, 96)
    x[1, place] = np.nan
    start = -np.inf if combine == "max" else np.inf
    found = run(host, row_kernel(3, 96, combine, start), x)[0]
    np.testing.assert_array_equal(np.isnan(found), [False, True, False])


def test_lane_reduction_of_integers_and_few_lanes(host: CpuDevice) -> None:
    for dtype, lanes in ((DType.INT32, 16), (I64, 8), (DType.FLOAT64, 4), (F32, 2), (DType.UINT8, 64), (F32, 6)):
        x, y = Buffer("x", dtype, lanes), Buffer("y", dtype, 1, written=True)
        g, m, total = var("g", 1), var("m", lanes), var("total", None, dtype)
        body = (LaneReduce(total, "max", at(x, m), m), Store(y, const(0), total))
        data = RNG.integers(0, 100, lanes).astype(dtype.numpy)
        assert run(host, Kernel("few", (x, y), loop(g, GRID, *body), 1), data)[0][0] == data.max()


def test_scratch_memory_and_lets(host: CpuDevice) -> None:
    """Two passes over a block's scratch: squares written, then read turned round; a Let of each kind."""
    n = 48
    x, y = Buffer("x", F32, 10 * n), Buffer("y", F32, 10 * n, written=True)
    kept, other = Buffer("kept", F32, n, Scope.SHARED), Buffer("other", F32, n, Scope.SHARED)
    g, c, l = var("g", 10), var("c", 3), var("l", 16)
    base, v, scale = var("base", 10 * n), var("v", None, F32), var("scale", None, F32)
    i = ix.add(ix.mul(c, 16), l)
    first = loop(
        l,
        VECTOR,
        Let(v, at(x, ix.add(base, i))),
        Store(kept, i, call("mul", v, v)),
        Store(other, i, call("mul", v, scale)),
    )
    turned = at(kept, ix.sub(const(n - 1), i))
    second = loop(l, VECTOR, Store(y, ix.add(base, i), call("add", turned, at(other, i))))
    body: tuple[Stmt, ...] = (
        Alloc(kept),
        Alloc(other),
        Let(base, ix.mul(g, n)),
        Let(scale, at(x, base)),
        loop(c, SERIAL, first),
        Barrier(Level.BLOCK),
        loop(c, UNROLL, second),
    )
    kernel = Kernel("turn", (x, y), loop(g, GRID, *body), 10)
    assert kernel.shared_bytes == 384
    a = normal(10, n)
    np.testing.assert_allclose(
        run(host, kernel, a)[0].reshape(10, n), (a * a)[:, ::-1] + a * a[:, :1], rtol=1e-5, atol=1e-6
    )


def test_what_a_loop_writes_is_read_again(host: CpuDevice) -> None:
    """A value read before a loop and again inside it after a store is not kept from before."""
    x, y = Buffer("x", F32, 4), Buffer("y", F32, 4, written=True)
    s = Buffer("s", F32, 1, Scope.SHARED)
    g, k = var("g", 4), var("k", 5)
    one, value = const(0), at(s, const(0))
    body = (
        Alloc(s),
        Store(s, one, at(x, g)),
        Store(s, one, call("add", value, value)),
        loop(k, SERIAL, Store(s, one, call("add", value, call("mul", value, value)))),
        Store(y, g, call("mul", value, value)),
    )
    a = normal(4) * np.float32(0.1)
    expected = a + a
    for _ in range(5):
        expected = expected + expected * expected
    found = run(host, Kernel("again", (x, y), loop(g, GRID, *body), 4), a)[0]
    np.testing.assert_allclose(found, expected * expected, rtol=1e-5)


def test_branches(host: CpuDevice) -> None:
    """Conditions on blocks, on data, inside vector loops, and one that differs from lane to lane."""
    x, y = Buffer("x", F32, 64), Buffer("y", F32, 64, written=True)
    g, l = var("g", 4), var("l", 16)
    i = ix.add(ix.mul(g, 16), l)
    two, minus = (Store(y, i, call("mul", at(x, i), const(v, F32))) for v in (2.0, -1.0))
    a = normal(64)
    even = ix.less(ix.floor_mod(g, 2), const(1))
    by_block = loop(l, VECTOR, If(even, (two,), (minus,)))
    found = run(host, Kernel("branch", (x, y), loop(g, GRID, by_block), 4), a)[0]
    np.testing.assert_array_equal(found, np.where(np.arange(64) // 16 % 2 == 0, a * 2, -a))
    by_data = If(call("gt", at(x, ix.mul(g, 16)), const(0.0, F32)), (loop(l, VECTOR, two),), (loop(l, VECTOR, minus),))
    found = run(host, Kernel("branch", (x, y), loop(g, GRID, by_data), 4), a)[0]
    np.testing.assert_array_equal(found, np.where(np.repeat(a[::16], 16) > 0, a * 2, -a))
    by_lane = loop(l, VECTOR, If(call("gt", at(x, i), const(0.0, F32)), (two,), (minus,)))
    found = run(host, Kernel("branch", (x, y), loop(g, GRID, by_lane), 4), a)[0]
    np.testing.assert_array_equal(found, np.where(a > 0, a * 2, -a))


def test_register_buffers_of_every_kind(host: CpuDevice) -> None:
    """Scalars only; vectors whose lanes are read one by one; and an index that is not constant, which needs memory."""
    x, y = Buffer("x", F32, 64), Buffer("y", F32, 64, written=True)
    r = Buffer("r", F32, 32, Scope.REGISTER)
    g, l, k = var("g", 2), var("l", 32), var("k", 32)
    point = ix.add(ix.mul(g, 32), l)
    turn = ix.floor_mod(ix.mul(k, 5), 32)
    fill = loop(l, VECTOR, Store(r, l, at(x, point)))
    a = normal(2, 32)
    for kind in (UNROLL, SERIAL):
        out = loop(k, kind, Store(y, ix.add(ix.mul(g, 32), k), at(r, turn)))
        kernel = Kernel("turn", (x, y), loop(g, GRID, Alloc(r), fill, out), 2)
        assert ("r[32]" in host.text(kernel)) == (kind is SERIAL)
        np.testing.assert_array_equal(run(host, kernel, a)[0].reshape(2, 32), a[:, np.arange(32) * 5 % 32])
    s = Buffer("s", F32, 2, Scope.REGISTER)
    body = (
        Alloc(s),
        Store(s, const(0), const(0.0, F32)),
        Store(s, const(1), const(1.0, F32)),
        loop(k, SERIAL, Store(s, const(0), call("add", at(s, const(0)), at(x, k)))),
        Store(y, g, call("add", at(s, const(0)), at(s, const(1)))),
    )
    found = run(host, Kernel("sums", (x, y), loop(g, GRID, *body), 2), a)[0]
    np.testing.assert_allclose(found[:2], a[0].sum() + 1, rtol=1e-5)


def test_boolean_registers(host: CpuDevice) -> None:
    x, y = Buffer("x", F32, 32), Buffer("y", DType.BOOL, 32, written=True)
    r = Buffer("r", DType.BOOL, 32, Scope.REGISTER)
    g, l, k = var("g", 1), var("l", 32), var("k", 32)
    body = (
        Alloc(r),
        loop(l, VECTOR, Store(r, l, call("gt", at(x, l), const(0.0, F32)))),
        Store(r, const(3), const(True, DType.BOOL)),
        loop(k, UNROLL, Store(y, ix.sub(const(31), k), call("not", at(r, k)))),
    )
    a = normal(32)
    expected = a > 0
    expected[3] = True
    np.testing.assert_array_equal(run(host, Kernel("flags", (x, y), loop(g, GRID, *body), 1), a)[0], ~expected[::-1])


def test_threads_run_one_after_another_where_they_do_not_meet(host: CpuDevice) -> None:
    x, y = Buffer("x", F32, 64), Buffer("y", F32, 64, written=True)
    g, t = var("g", 2), var("t", 32)
    i = ix.add(ix.mul(g, 32), t)
    kernel = Kernel("threads", (x, y), loop(g, GRID, loop(t, LoopKind.THREAD, Store(y, i, at(x, i)))), 2, threads=32)
    a = normal(64)
    np.testing.assert_array_equal(run(host, kernel, a)[0], a)


def test_one_thread_reduces_alone(host: CpuDevice) -> None:
    x, y = Buffer("x", F32, 2), Buffer("y", F32, 2, written=True)
    g, total = var("g", 2), var("total", None, F32)
    body = (ThreadReduce(total, "sum", at(x, g), Level.BLOCK, 1, None), Store(y, g, total))
    a = normal(2)
    np.testing.assert_array_equal(run(host, Kernel("one", (x, y), loop(g, GRID, *body), 2), a)[0], a)


# ---- golden texts


def test_golden_matmul(golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / "matmul.cpp", render_cpp(verify_kernel(matmul(7, 32, 64, rows=4)), 64))


def test_golden_masked_map(golden: Callable[[Path, str], None]) -> None:
    kernel = masked_map(
        100, lambda x: call("mul", cast_to(x, F32), call("exp", cast_to(x, F32))), (DType.FLOAT16,), F32
    )
    golden(GOLDEN / "masked_map.cpp", render_cpp(verify_kernel(kernel), 64))


def test_names_never_break_the_text(host: CpuDevice) -> None:
    """Words of C++, odd characters, and names that collide once they are cleaned up."""
    for name in ("for", "af_exp", "x y;//", "7", "args", "", "t0", "l"):
        x, y = Buffer(name, F32, 16), Buffer(name + "_", F32, 16, written=True)
        g, l = var(name, 1), var("l", 16)
        a = normal(16)
        kernel = Kernel("names", (x, y), loop(g, GRID, loop(l, VECTOR, Store(y, l, at(x, l)))), 1)
        np.testing.assert_array_equal(run(host, kernel, a)[0], a)


# ---- refusals


def test_what_is_not_rendered_is_refused_by_name(host: CpuDevice) -> None:
    y = Buffer("y", F32, 16, written=True)
    g, t = var("g", 1), var("t", 32)
    fragment = Buffer("f", F32, 64, Scope.FRAGMENT)
    total = var("total", None, F32)
    cases: list[tuple[tuple[Stmt, ...], int, str]] = [
        ((FragmentFill(fragment, const(0.0, F32)),), 1, "FragmentFill"),
        ((loop(t, LoopKind.THREAD, Barrier(Level.BLOCK)),), 32, "barrier"),
        (
            (loop(t, LoopKind.THREAD, ThreadReduce(total, "sum", const(0.0, F32), Level.BLOCK, 32, None)),),
            32,
            "barrier",
        ),
        ((loop(var("k", 20000), UNROLL, Store(y, const(0), const(0.0, F32))),), 1, "16384"),
    ]
    for body, threads, word in cases:
        with pytest.raises(CompileError, match=word):
            host.text(Kernel("odd", (y,), loop(g, GRID, *body), 1, threads))


def test_unrolled_copies_keep_their_own_lets(host: CpuDevice) -> None:
    x, y = Buffer("x", F32, 64), Buffer("y", F32, 64, written=True)
    g, k, l = var("g", 1), var("k", 4), var("l", 16)
    v, w = var("v", None, F32), var("w", None, F32)
    i = ix.add(ix.mul(k, 16), l)
    body = loop(
        k,
        UNROLL,
        Let(w, at(x, ix.mul(k, 16))),
        loop(l, VECTOR, Let(v, call("add", at(x, i), w)), Store(y, i, call("mul", v, v))),
    )
    a = normal(4, 16)
    found = run(host, Kernel("lets", (x, y), loop(g, GRID, body), 1), a)[0].reshape(4, 16)
    np.testing.assert_allclose(found, (a + a[:, :1]) ** 2, rtol=1e-6)


def test_map_kernel_on_an_empty_grid(host: CpuDevice) -> None:
    kernel = map_kernel(0, lambda x: x, (F32,), F32)
    assert run(host, kernel, normal(0))[0].size == 0
