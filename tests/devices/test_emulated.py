"""Emulated CUDA: right kernels give right numbers, wrong ones are caught with a message that says where."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cuda_loops import F32, edited, gelu_map, matmul, row_reduce, run, thread_map, transpose, without_barrier

from autofuse.devices import emulation_build
from autofuse.devices.base import BufferRef, Launch, Port, Program
from autofuse.devices.cache import KernelCache
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.devices.emulation_build import EmulationCompiler, emulate
from autofuse.errors import CompileError, InputError, LaunchError, UsageError, VerificationError
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import const, load, var
from autofuse.loops.ir import (
    Alloc,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Buffer,
    If,
    Kernel,
    Level,
    LoopKind,
    Scope,
    Stmt,
    Store,
    loop,
)
from autofuse.render.cuda import render_cuda

RNG = np.random.default_rng(3)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("n", "lanes"), [(4096, 4), (4096, 8), (4100, 4), (1003, 1), (1001, 4)])
def test_map_with_and_without_a_tail(n: int, lanes: int) -> None:
    x = numbers(n)
    (y,) = run(gelu_map(n, lanes), x)
    np.testing.assert_allclose(y, x * np.tanh(x + 1.5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_half_types_compute_in_float(dtype: DType) -> None:
    x = numbers(512).astype(dtype.numpy)
    (y,) = run(gelu_map(512, 8, dtype=dtype), x)
    wide = x.astype(np.float32)
    np.testing.assert_allclose(
        y.astype(np.float32), (wide * np.tanh(wide + 1.5)).astype(dtype.numpy).astype(np.float32), rtol=1e-2, atol=1e-3
    )


@pytest.mark.parametrize("threads", [16, 32, 48, 96, 256, 320, 1024])
def test_sum_of_rows_over_any_number_of_threads(threads: int) -> None:
    x = numbers(3, 500)
    (y,) = run(row_reduce(3, 500, threads), x)
    np.testing.assert_allclose(y, x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-4)


def test_a_maximum_keeps_nan() -> None:
    x = numbers(4, 300)
    x[1, 299] = np.nan
    (y,) = run(row_reduce(4, 300, 128, "max", -np.inf), x)
    np.testing.assert_array_equal(y, x.max(1))


@pytest.mark.parametrize(("rows", "columns"), [(32, 48), (17, 33)])
def test_transpose_through_shared_memory(rows: int, columns: int) -> None:
    x = numbers(rows, columns)
    (y,) = run(transpose(rows, columns), x)
    np.testing.assert_array_equal(y.reshape(columns, rows), x.T)


@pytest.mark.parametrize("stages", [0, 2])
def test_matmul(stages: int) -> None:
    a, b = numbers(64, 40), numbers(40, 96)
    (c,) = run(matmul(64, 96, 40, stages=stages), a, b)
    np.testing.assert_allclose(c.reshape(64, 96), a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


# ---- what is wrong is caught


def test_a_missing_barrier_between_write_and_read_is_a_race() -> None:
    broken = without_barrier(transpose(32, 32), 0)
    with pytest.raises(
        LaunchError, match=r"transpose.*race on shared buffer tile, element \d+: thread \d+ .* thread \d+"
    ):
        run(broken, numbers(32, 32))


@pytest.mark.parametrize("stages", [0, 2])
@pytest.mark.parametrize("number", [0, 1])
def test_each_barrier_of_a_matmul_is_needed(stages: int, number: int) -> None:
    """The first makes the tiles visible; without the second a fast thread overwrites what a slow one still reads."""
    with pytest.raises(LaunchError, match=r"race on shared buffer tile_|asynchronous copy into it is under way"):
        run(without_barrier(matmul(32, 32, 32, stages=stages), number), numbers(32, 32), numbers(32, 32))


def test_an_asynchronous_copy_lands_only_at_its_wait() -> None:
    def late(s: Stmt) -> tuple[Stmt, ...]:
        return (AsyncWait(2),) if isinstance(s, AsyncWait) else (s,)

    with pytest.raises(LaunchError, match="while an asynchronous copy into it is under way"):
        run(edited(matmul(32, 32, 32, stages=2), late), numbers(32, 32), numbers(32, 32))


def test_a_guarded_asynchronous_copy_writes_zeros() -> None:
    n, t = 64, var("t", 16)
    x, y = Buffer("x", F32, n), Buffer("y", F32, n, written=True)
    s = Buffer("s", F32, n, Scope.SHARED)
    at, v = ix.mul(t, 4), var("v", 4)
    body = loop(
        t,
        LoopKind.THREAD,
        AsyncCopy(s, at, x, at, 4, ix.less(at, const(40))),
        AsyncCommit(),
        AsyncWait(0),
        Barrier(Level.BLOCK),
        loop(v, LoopKind.VECTOR, Store(y, ix.add(at, v), load(s, (ix.sub(const(63), ix.add(at, v)),), F32))),
    )
    kernel = Kernel("guarded", (x, y), loop(var("g", 1), LoopKind.GRID, Alloc(s), body), 1, 16)
    assert "af_async_copy<4, 4>" in render_cuda(kernel)
    values = numbers(n)
    (got,) = run(kernel, values)
    values[40:] = 0
    np.testing.assert_array_equal(got, values[::-1])


@pytest.mark.parametrize("far", [64, -1])
def test_reading_out_of_bounds_is_caught(far: int) -> None:
    x = Buffer("x", F32, 64)
    kernel = thread_map(64, lambda i: load(x, (ix.add(i, const(far)),), F32), (x,))
    with pytest.raises(LaunchError, match=r"global buffer x has 64 elements: thread \d+ of block \d+ goes to element"):
        run(kernel, numbers(64))


def test_writing_out_of_bounds_is_caught() -> None:
    g, t = var("g", 1), var("t", 32)
    x, y = Buffer("x", F32, 32), Buffer("y", F32, 16, written=True)
    kernel = Kernel(
        "far", (x, y), loop(g, LoopKind.GRID, loop(t, LoopKind.THREAD, Store(y, t, load(x, (t,), F32)))), 1, 32
    )
    with pytest.raises(LaunchError, match="global buffer y has 16 elements"):
        run(kernel, numbers(32))


def test_shared_memory_has_bounds_and_is_poisoned() -> None:
    g, t = var("g", 1), var("t", 32)
    y, s = Buffer("y", F32, 32, written=True), Buffer("s", F32, 8, Scope.SHARED)

    def reading(offset: int) -> Kernel:
        body = loop(t, LoopKind.THREAD, Store(y, t, load(s, (const(offset),), F32)))
        return Kernel("shared", (y,), loop(g, LoopKind.GRID, Alloc(s), body), 1, 32)

    (got,) = run(reading(7))
    assert np.isnan(got).all()
    with pytest.raises(LaunchError, match="shared buffer s has 8 elements"):
        run(reading(8))


def test_registers_have_bounds() -> None:
    g, t = var("g", 1), var("t", 2)
    y, r = Buffer("y", F32, 2, written=True), Buffer("r", F32, 2, Scope.REGISTER)
    body = loop(
        t, LoopKind.THREAD, Alloc(r), Store(r, ix.add(t, const(1)), const(1.0, F32)), Store(y, t, const(0.0, F32))
    )
    with pytest.raises(LaunchError, match="register buffer r has 2 elements"):
        run(Kernel("registers", (y,), loop(g, LoopKind.GRID, body), 1, 2))


def divergent(threads: int, level: Level) -> Kernel:
    """Half of the threads wait for the others, who never come; the IR's verifier would refuse it, so it isn't asked."""
    g, t = var("g", 1), var("t", threads)
    y = Buffer("y", F32, threads, written=True)
    body = loop(
        t, LoopKind.THREAD, If(ix.less(t, const(threads // 2)), (Barrier(level),)), Store(y, t, const(1.0, F32))
    )
    return Kernel("divergent", (y,), loop(g, LoopKind.GRID, body), 1, threads)


@pytest.mark.parametrize(
    ("threads", "level"), [(64, Level.BLOCK), (64, Level.WARP), (32, Level.WARP), (32, Level.BLOCK)]
)
def test_divergence_at_a_barrier_is_caught_and_does_not_hang(threads: int, level: Level) -> None:
    kernel = divergent(threads, level)
    memory = np.zeros(threads, np.float32)
    compiled = EmulationCompiler().build(kernel)
    if threads == 64 and level is Level.WARP:
        emulate(kernel, compiled, [memory.ctypes.data], 0)  # whole warps come or don't: that is no divergence
        return
    for order in range(3):
        with pytest.raises(
            LaunchError, match=r"diverge at a barrier: thread \d+ waits .*line \d+, thread \d+ has ended"
        ):
            emulate(kernel, compiled, [memory.ctypes.data], order)


def test_a_warps_barrier_orders_within_the_warp_only() -> None:
    def exchange(distance: int) -> Kernel:
        """Thread t writes, then reads what its partner wrote."""
        g, t = var("g", 1), var("t", 64)
        y, s = Buffer("y", F32, 64, written=True), Buffer("s", F32, 64, Scope.SHARED)
        partner = ix.floor_mod(ix.add(t, const(distance)), 64)
        if distance < 32:
            partner = ix.add(ix.mul(ix.floor_div(t, 32), 32), ix.floor_mod(ix.add(t, const(distance)), 32))
        body = loop(
            t,
            LoopKind.THREAD,
            Store(s, t, const(2.0, F32)),
            Barrier(Level.WARP),
            Store(y, t, load(s, (partner,), F32)),
        )
        return Kernel("exchange", (y,), loop(g, LoopKind.GRID, Alloc(s), body), 1, 64)

    np.testing.assert_array_equal(run(exchange(1))[0], 2.0)
    with pytest.raises(LaunchError, match="race on shared buffer s"):
        run(exchange(32))


def test_results_that_depend_on_the_order_of_threads_are_caught() -> None:
    """All threads write the same element of global memory: the last one wins."""
    g, t = var("g", 2), var("t", 32)
    x, y = Buffer("x", F32, 64), Buffer("y", F32, 1, written=True)
    at = ix.add(ix.mul(g, 32), t)
    body = loop(t, LoopKind.THREAD, Store(y, const(0), load(x, (at,), F32)))
    with pytest.raises(LaunchError, match="y, element 0, depends on the order of threads"):
        run(Kernel("last", (x, y), loop(g, LoopKind.GRID, body), 2, 32), numbers(64))


def test_a_misaligned_vector_is_caught() -> None:
    kernel = gelu_map(64, 4)
    text = render_cuda(kernel).replace("af_load<4, 4>(x, ", "af_load<4, 4>(x, 1 + ")
    assert text != render_cuda(kernel)
    x, y = np.zeros(80, np.float32), np.zeros(64, np.float32)
    compiled = EmulationCompiler().build(kernel, text)
    with pytest.raises(LaunchError, match="takes 16 bytes at once"):
        emulate(kernel, compiled, [x.ctypes.data // 16 * 16 + 16, y.ctypes.data], 0)


# ---- the device


def test_launches_pass_values_through_the_arena() -> None:
    first, second = gelu_map(64, 4), gelu_map(64, 4)
    program = Program(
        (
            Launch(first, (BufferRef("input", 0), BufferRef("arena", 0, 256))),
            Launch(second, (BufferRef("arena", 0, 256), BufferRef("output", 0))),
        ),
        512,
        (),
        (Port("x", F32, (8, 8)),),
        (Port("y", F32, (4, 16)),),
    )
    executable = EmulatedCudaDevice().load(program)
    x = numbers(8, 8)
    (y,) = executable.run([x])
    once = x * np.tanh(x + 1.5)
    np.testing.assert_allclose(y, (once * np.tanh(once + 1.5)).reshape(4, 16), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="input x must be float32 of shape"):
        executable.run([x.astype(np.float64)])
    with pytest.raises(UsageError, match="cannot be timed"):
        executable.time(1)
    executable.close()


def test_arguments_must_lie_inside_their_place() -> None:
    kernel = gelu_map(64, 4)
    program = Program(
        (Launch(kernel, (BufferRef("input", 0), BufferRef("arena", 0, 64))),), 256, (), (Port("x", F32, (64,)),), ()
    )
    with pytest.raises(LaunchError, match="needs bytes 64 to 320 of arena 0, which has 256"):
        EmulatedCudaDevice().load(program)


def test_a_kernel_that_does_not_compile_takes_its_place_in_the_batch() -> None:
    good = gelu_map(64, 4)
    tile = Buffer("tile", F32, 256, Scope.FRAGMENT)
    broken = edited(good, lambda s: (Alloc(tile), s) if isinstance(s, Store) else (s,))
    results = EmulatedCudaDevice().compile([good, broken])
    assert not isinstance(results[0], Exception)
    assert isinstance(results[1], VerificationError)


def test_the_cache_serves_the_second_time(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    (first,) = EmulatedCudaDevice(cache=cache).compile([gelu_map(96, 4)])
    (second,) = EmulatedCudaDevice(cache=cache).compile([gelu_map(96, 4)])
    assert not isinstance(first, Exception) and not isinstance(second, Exception)
    assert first.key == second.key
    assert first.resources.seconds > 0 and second.resources.seconds == 0


def test_compile_errors_show_the_compilers_lines() -> None:
    with pytest.raises(CompileError, match=r"map: .*refused it"):
        EmulationCompiler().build(gelu_map(64, 4), "nonsense;\n")


def test_fibers_without_assembly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processors other than x86-64 switch stacks by ucontext."""
    monkeypatch.setattr(emulation_build, "_FLAGS", (*emulation_build._FLAGS, "-DAF_PORTABLE_FIBERS"))
    device = EmulatedCudaDevice(compiler=EmulationCompiler(KernelCache(tmp_path)))
    x = numbers(3, 500)
    np.testing.assert_allclose(run(row_reduce(3, 500, 96), x, device=device)[0], x.sum(1), rtol=1e-4, atol=1e-4)
    with pytest.raises(LaunchError, match="race on shared buffer tile"):
        run(without_barrier(transpose(32, 32), 0), numbers(32, 32), device=device)


def test_kernels_may_be_run_by_several_threads() -> None:
    kernel = row_reduce(16, 300, 128)
    x = numbers(16, 300)
    with ThreadPoolExecutor(4) as pool:
        for (y,) in pool.map(lambda _: run(kernel, x), range(8)):
            np.testing.assert_allclose(y, x.sum(1), rtol=1e-4, atol=1e-4)
