"""CUDA text: golden kernels, joined accesses, what is refused, and temporaries that evaluate nothing that was not asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cuda_loops import F32, gelu_map, matmul, row_reduce, run, thread_map, transpose

from autofuse.devices.nvrtc import cuda_source, find_nvrtc
from autofuse.errors import VerificationError
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, const, load, select, var
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
    Role,
    Scope,
    Stmt,
    Store,
    ThreadReduce,
    loop,
)
from autofuse.loops.verify import verify_kernel
from autofuse.render.cuda import launch_grid, render_cuda

GOLDEN = Path(__file__).parent / "golden"
RNG = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("map", gelu_map(4096, 4)),
        ("map_half_tail", gelu_map(4100, 4, dtype=DType.FLOAT16)),
        ("rows", row_reduce(4, 1000, 256)),
        ("transpose", transpose(33, 48)),
        ("matmul_double_buffered", matmul(64, 64, 32, stages=2)),
    ],
)
def test_golden_text(name: str, kernel: Kernel, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.cu", render_cuda(kernel))


def in_threads(threads: int, params: tuple[Buffer, ...], *body: Stmt, outside: tuple[Stmt, ...] = ()) -> Kernel:
    """One block whose threads run the body with variable t."""
    t, g = var("t", threads), var("g", 1)
    return verify_kernel(
        Kernel("small", params, loop(g, LoopKind.GRID, *outside, loop(t, LoopKind.THREAD, *body)), 1, threads)
    )


T = var("t", 32)
X, Y = Buffer("x", F32, 256), Buffer("y", F32, 256, written=True)


# ---- joined accesses


def vector_copy(lanes: int, source: Callable[[Expr], Expr], target: Callable[[Expr], Expr], **options: Expr) -> Kernel:
    v = var("v", lanes)
    at = ix.add(ix.mul(T, lanes), v)
    store = Store(Y, target(at), load(X, (source(at),), F32), options.get("guard"))
    return in_threads(32, (X, Y), loop(v, LoopKind.VECTOR, store))


def same(e: Expr) -> Expr:
    return e


@pytest.mark.parametrize(
    ("shift", "call_text"),
    [(0, "af_load<4, 4>"), (4, "af_load<4, 4>"), (2, "af_load<4, 2>"), (1, "")],
)
def test_loads_are_as_wide_as_their_alignment(shift: int, call_text: str) -> None:
    x, y = Buffer("x", F32, 256), Buffer("y", F32, 128, written=True)
    v = var("v", 4)
    at = ix.add(ix.mul(T, 4), v)
    kernel = in_threads(32, (x, y), loop(v, LoopKind.VECTOR, Store(y, at, load(x, (ix.add(at, const(shift)),), F32))))
    text = render_cuda(kernel)
    assert call_text in text and ("af_load" in text) == bool(call_text)
    assert "af_store_pack<4, 4>" in text
    data = numbers(256)
    np.testing.assert_array_equal(run(kernel, data)[0], data[shift : shift + 128])


def test_a_buffer_that_is_less_aligned_is_read_in_smaller_pieces() -> None:
    x = Buffer("x", F32, 256, align=8)
    v = var("v", 4)
    at = ix.add(ix.mul(T, 4), v)
    assert "af_load<4, 2>" in render_cuda(
        in_threads(32, (x, Y), loop(v, LoopKind.VECTOR, Store(Y, at, load(x, (at,), F32))))
    )


def test_alignment_is_seen_through_scalars() -> None:
    v, base = var("v", 4), var("base", None, INDEX)
    at = ix.add(base, v)
    kernel = in_threads(
        32, (X, Y), Let(base, ix.mul(T, 4)), loop(v, LoopKind.VECTOR, Store(Y, at, load(X, (at,), F32), None))
    )
    assert "af_load<4, 4>" in render_cuda(kernel)
    data = numbers(256)
    np.testing.assert_array_equal(run(kernel, data)[0][:128], data[:128])


def test_a_lane_that_goes_its_own_way_is_loaded_alone() -> None:
    assert "af_load" not in render_cuda(vector_copy(4, lambda i: ix.mul(i, 2), same))
    assert "af_store_pack" in render_cuda(vector_copy(4, lambda i: ix.mul(i, 2), same))


def test_guards_that_cut_through_a_vector_stay_with_the_lanes() -> None:
    text = render_cuda(vector_copy(4, same, same, guard=ix.less(ix.add(ix.mul(T, 4), var("v", 4)), const(101))))
    assert "af_load" not in text and "af_store_pack" not in text


def test_guards_between_vectors_stand_around_them() -> None:
    kernel = vector_copy(4, same, same, guard=ix.less(ix.add(ix.mul(T, 4), var("v", 4)), const(100)))
    assert "af_load<4, 4>" in render_cuda(kernel) and "if (" in render_cuda(kernel)
    data = numbers(256)
    got = run(kernel, data)[0]
    np.testing.assert_array_equal(got[:100], data[:100])
    assert np.isnan(got[100:]).all()


def test_a_store_that_is_read_again_is_not_put_off() -> None:
    """y is written and then read at the same lane: the joined load must not come first."""
    v = var("v", 4)
    at = ix.add(ix.mul(T, 4), v)
    twice = call("add", load(Y, (at,), F32), load(Y, (at,), F32))
    kernel = in_threads(32, (X, Y), loop(v, LoopKind.VECTOR, Store(Y, at, load(X, (at,), F32)), Store(Y, at, twice)))
    data = numbers(256)
    np.testing.assert_array_equal(run(kernel, data)[0][:128], 2 * data[:128])


def test_lanes_keep_scalars_across_inner_loops() -> None:
    """Columns are lanes; the loop over rows stands around them, so its loads are joined."""
    v, k = var("v", 4), var("k", 2)
    scale, acc = var("scale", None, F32), Buffer("acc", F32, 4, Scope.REGISTER)
    at = ix.add(ix.mul(T, 4), v)
    own = load(acc, (v,), F32)
    element = load(X, (ix.add(ix.mul(k, 128), at),), F32)
    kernel = in_threads(
        32,
        (X, Y),
        Alloc(acc),
        loop(
            v,
            LoopKind.VECTOR,
            Let(scale, call("add", load(X, (at,), F32), const(1.0, F32))),
            Store(acc, v, const(0.0, F32)),
            loop(k, LoopKind.SERIAL, Store(acc, v, call("add", own, call("mul", scale, element)))),
            Store(Y, at, own),
        ),
    )
    text = render_cuda(kernel)
    assert text.count("af_load<4, 4>") == 2 and "scale[v]" in text
    x = numbers(256)
    expected = (x[:128] + 1) * (x[:128].astype(np.float64) + x[128:])
    np.testing.assert_allclose(run(kernel, x)[0][:128], expected, rtol=1e-5, atol=1e-5)


def test_lanes_are_reduced() -> None:
    v, total = var("v", 8), var("total", None, F32)
    kernel = in_threads(
        32,
        (X, Y),
        LaneReduce(total, "max", load(X, (ix.add(ix.mul(T, 8), v),), F32), v),
        Store(Y, T, total),
    )
    assert "af_load<8, 4>" in render_cuda(kernel)
    x = numbers(256)
    x[9] = np.nan
    np.testing.assert_array_equal(run(kernel, x)[0][:32], x.reshape(32, 8).max(1))


def test_streaming_stores_reach_memory() -> None:
    x = Buffer("x", F32, 256)
    kernel = thread_map(256, lambda i: load(x, (i,), F32), (x,), F32, 32, 4, stream=True)
    assert "af_store_pack_stream<4, 4>" in render_cuda(kernel)
    data = numbers(256)
    np.testing.assert_array_equal(run(kernel, data)[0], data)
    find_nvrtc().compile(cuda_source(kernel), "sm_80")


# ---- temporaries


def test_what_is_used_twice_is_computed_once_and_text_stays_small() -> None:
    value: Expr = load(X, (T,), F32)
    for _ in range(40):
        value = call("add", value, call("exp", call("neg", value)))
    text = render_cuda(in_threads(32, (X, Y), Store(Y, T, value)))
    assert len(text) < 6000 and text.count("af_exp") == 40


def test_a_load_of_one_branch_is_made_in_that_branch_only() -> None:
    """x[t+250] is used twice, but exists for few threads: hoisted out of the select it would leave the buffer."""
    far = load(X, (ix.add(T, const(250)),), F32)
    both = call("mul", far, call("add", far, const(1.0, F32)))
    value = select(ix.less(T, const(6)), both, const(0.0, F32))
    kernel = in_threads(32, (X, Y), Store(Y, T, call("add", value, value)))
    x = numbers(256)
    got = run(kernel, x)[0][:32]
    expected = np.zeros(32, np.float32)
    expected[:6] = 2 * x[250:] * (x[250:] + 1)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert render_cuda(kernel).count("x[") == 1


def test_nested_selects_with_shared_loads() -> None:
    near, far = load(X, (T,), F32), load(X, (ix.add(T, const(240)),), F32)
    inner = select(ix.less(T, const(8)), call("mul", far, far), call("mul", near, near))
    value = select(ix.less(T, const(16)), call("add", inner, inner), near)
    kernel = in_threads(32, (X, Y), Store(Y, T, value))
    x = numbers(256)
    t = np.arange(32)
    far_x = x[np.minimum(t + 240, 255)]
    square = np.where(t < 8, far_x * far_x, x[:32] * x[:32])
    np.testing.assert_allclose(run(kernel, x)[0][:32], np.where(t < 16, 2 * square, x[:32]), rtol=1e-5)


def test_names_cannot_break_the_text() -> None:
    x = Buffer("x); evil(", F32, 32)
    y = Buffer("int", F32, 32, written=True)
    v = var("af_kernel", None, F32)
    kernel = in_threads(32, (x, y), Let(v, load(x, (T,), F32)), Store(y, T, call("add", v, v)))
    text = render_cuda(kernel)
    assert "evil(" not in text
    data = numbers(32)
    np.testing.assert_array_equal(run(kernel, data)[0], 2 * data)


# ---- index width and the grid


def test_offsets_beyond_31_bits_take_wide_indices() -> None:
    n = 2**31 + 64
    x = Buffer("x", DType.INT8, n)
    kernel = thread_map(n, lambda i: load(x, (i,), DType.INT8), (x,), DType.INT8, 256)
    assert "const long long g = (long long)blockIdx.x;" in render_cuda(kernel)
    find_nvrtc().compile(cuda_source(kernel), "sm_80")
    assert "const int g" in render_cuda(gelu_map(4096, 4))


def test_a_bound_that_passes_31_bits_before_it_is_compared_takes_wide_indices() -> None:
    big = ix.mul(T, 2**28)
    kernel = in_threads(32, (X, Y), Store(Y, T, const(1.0, F32), ix.less(big, const(2**28 * 3))))
    assert "long long t" in render_cuda(kernel)
    got = run(kernel, numbers(256))[0]
    assert np.isfinite(got[:3]).all() and np.isnan(got[3:]).all()


def test_grids_too_large_for_one_axis_are_split() -> None:
    kernel = Kernel("huge", (Y,), loop(var("g", 2**32), LoopKind.GRID, loop(var("t", 1), LoopKind.THREAD)), 2**32, 1)
    width, height = launch_grid(kernel)
    assert width * height >= 2**32 and width < 2**31 and height < 65536
    assert "blockIdx.y" in render_cuda(kernel)


def test_index_ranges_are_seen_through_scalars() -> None:
    base = var("base", None, INDEX)
    far = ix.mul(base, 2**20)
    kernel = in_threads(
        32, (X, Y), Let(base, ix.mul(T, 2**20)), Store(Y, T, const(1.0, F32), ix.less(far, const(3 * 2**40)))
    )
    assert "long long t" in render_cuda(kernel)
    got = run(kernel, numbers(256))[0]
    assert np.isfinite(got[:3]).all() and np.isnan(got[3:]).all()


def test_a_loops_end_may_be_any_expression() -> None:
    k = var("k", 8)
    end = select(ix.less(T, const(16)), ix.floor_div(T, 2), const(1))
    acc = Buffer("acc", F32, 1, Scope.REGISTER)
    own = load(acc, (const(0),), F32)
    kernel = in_threads(
        32,
        (X, Y),
        Alloc(acc),
        Store(acc, const(0), const(0.0, F32)),
        loop(k, LoopKind.SERIAL, Store(acc, const(0), call("add", own, const(1.0, F32))), end=end),
        Store(Y, T, own),
    )
    t = np.arange(32)
    np.testing.assert_array_equal(run(kernel, numbers(256))[0][:32], np.where(t < 16, t // 2, 1))


# ---- refusals


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((FragmentFill(Buffer("f", F32, 8, Scope.FRAGMENT), const(0.0, F32)),), "matrix units"),
        ((Barrier(Level.TEAM),), "blocks cannot wait"),
        ((ThreadReduce(var("r", None, F32), "sum", const(1.0, F32), Level.TEAM, 32, None),), "across blocks"),
        ((ThreadReduce(var("r", None, F32), "sum", const(1.0, F32), Level.WARP, 24, None),), "not a power of two"),
        ((ThreadReduce(var("r", None, F32), "sum", const(1.0, F32), Level.BLOCK, 64, None),), "without scratch"),
    ],
)
def test_what_cuda_cannot_say_is_refused(body: tuple[Stmt, ...], message: str) -> None:
    kernel = Kernel("odd", (Y,), loop(var("g", 1), LoopKind.GRID, loop(var("t", 64), LoopKind.THREAD, *body)), 1, 64)
    with pytest.raises(VerificationError, match=f"kernel odd cannot be written in CUDA: .*{message}"):
        render_cuda(kernel)


def test_a_store_by_every_thread_alike_is_refused() -> None:
    kernel = Kernel("alike", (Y,), loop(var("g", 4), LoopKind.GRID, Store(Y, var("g", 4), const(1.0, F32))), 4, 64)
    with pytest.raises(VerificationError, match="outside of the loop over threads"):
        render_cuda(kernel)


def test_roles_and_conditions() -> None:
    s = Buffer("s", F32, 32, Scope.SHARED)
    t = var("t", 64)
    kernel = in_threads(
        64,
        (X, Y),
        Role("producer", 32, 32, (Store(s, ix.sub(t, const(32)), load(X, (t,), F32)),)),
        Barrier(Level.BLOCK),
        If(
            ix.less(t, const(32)),
            (Store(Y, t, load(s, (t,), F32)),),
            (Store(Y, t, const(-1.0, F32)),),
        ),
        outside=(Alloc(s),),
    )
    x = numbers(256)
    got = run(kernel, x)[0]
    np.testing.assert_array_equal(got[:32], x[32:64])
    np.testing.assert_array_equal(got[32:64], -1)
