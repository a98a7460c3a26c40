"""The host: threads, serial and shared launches, forks, the cache of kernels, and the compiler that is found."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from contract import N, chain, chain_expected, kernel, single
from host_loops import F32, Body, map_kernel, program_of

from autofuse.devices.base import BufferRef, Compiled, Launch, Program
from autofuse.devices.cache import KernelCache, content_key
from autofuse.devices.cpu import CpuDevice
from autofuse.devices.cpuinfo import host_info, usable_cores
from autofuse.devices.memory import Memory, OutputPool, is_aligned, together
from autofuse.devices.team import Team
from autofuse.devices.toolchain import find_toolchain, first_lines
from autofuse.errors import CompileError, StorageError, ToolchainError, UsageError
from autofuse.ir.expr import call, const

RNG = np.random.default_rng(19)


def steps(n: int, shared: bool, count: int = 12) -> Program:
    """out = ((x + 1) * 2 + 1) * 2 ... through two buffers of the arena; `shared` makes every second launch large on paper."""

    def body(k: int) -> Body:
        return lambda x: call("add" if k % 2 == 0 else "mul", x, const(1.0 + k % 2, F32))

    base = program_of(map_kernel(n, body(0), (F32,), F32))
    launches = []
    for k in range(count):
        heavy = 10**9 if shared and k % 3 else 1
        made = dataclasses.replace(map_kernel(n, body(k), (F32,), F32), flops=heavy, bytes=1)
        source = BufferRef("input", 0) if k == 0 else BufferRef("arena", 0, (k % 2) * 4 * n)
        target = BufferRef("output", 0) if k == count - 1 else BufferRef("arena", 0, ((k + 1) % 2) * 4 * n)
        launches.append(Launch(made, (source, target), f"step {k}"))
    return Program(tuple(launches), 8 * n, (), base.inputs, base.outputs)


def steps_expected(x: np.ndarray, count: int = 12) -> np.ndarray:
    for k in range(count):
        x = x + np.float32(1) if k % 2 == 0 else x * np.float32(2)
    return x


@pytest.mark.parametrize("threads", (1, 2, 3, 7))
@pytest.mark.parametrize("shared", (False, True))
def test_launches_see_what_earlier_ones_wrote(threads: int, shared: bool) -> None:
    """Serial and shared launches in turn, more threads than cores, many runs: a missing barrier would show."""
    device = CpuDevice(threads)
    n = 16 * 64 * 9
    executable = device.load(steps(n, shared))
    x = RNG.standard_normal(n).astype(np.float32)
    expected = steps_expected(x)
    for _ in range(30):
        np.testing.assert_array_equal(executable.run([x])[0], expected)
    executable.bind([x])
    assert len(executable.time(50)) == 50
    stamps = executable.stamps(20)
    assert stamps.shape == (20, 12) and (stamps >= 0).all() and stamps.sum() > 0
    executable.close()
    device.close()
    device.close()


def test_callers_on_several_threads_take_turns() -> None:
    device = CpuDevice(2)
    n = 16 * 64 * 4
    x = RNG.standard_normal(n).astype(np.float32)
    expected = steps_expected(x)

    def work(_: int) -> bool:
        executable = device.load(steps(n, True))
        same = all(np.array_equal(executable.run([x])[0], expected) for _ in range(20))
        executable.close()
        return same

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
    device.close()


def test_a_team_lives_again_after_a_fork() -> None:
    device = CpuDevice(2)
    n = 16 * 64 * 4
    executable = device.load(steps(n, True))
    x = RNG.standard_normal(n).astype(np.float32)
    expected = steps_expected(x)
    executable.run([x])
    child = os.fork()
    if child == 0:
        ok = np.array_equal(executable.run([x])[0], expected)
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    np.testing.assert_array_equal(executable.run([x])[0], expected)
    device.close()


def test_idle_threads_sleep() -> None:
    """After a run, a team uses no processor time."""
    device = CpuDevice(2)
    executable = device.load(steps(16 * 64 * 4, True))
    executable.run([np.zeros(16 * 64 * 4, np.float32)])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
    device.close()


def test_numbers_of_threads_out_of_range_are_refused() -> None:
    for threads in (0, -1, 1000):
        with pytest.raises(UsageError):
            CpuDevice(threads)
    assert CpuDevice().threads == usable_cores() >= 1


def test_outputs_are_recycled_only_when_dropped() -> None:
    pool = OutputPool()
    a = pool.array((1 << 18,), np.dtype(np.float32))
    address = a.ctypes.data
    view = a[5:].reshape(-1)[::2]
    del a
    gc.collect()
    b = pool.array((1 << 18,), np.dtype(np.float32))
    assert b.ctypes.data != address and is_aligned(b)
    del view
    gc.collect()
    assert pool.array((1 << 18,), np.dtype(np.float32)).ctypes.data == address
    assert is_aligned(pool.array((3, 5), np.dtype(np.int8)))
    assert pool.array((0, 5), np.dtype(np.float32)).shape == (0, 5)


def test_a_damaged_entry_of_the_cache_is_compiled_again(tmp_path: Path) -> None:
    device = CpuDevice(1, KernelCache(tmp_path))
    k = kernel("add", 7.0)
    made = device.compile([k])[0]
    assert isinstance(made, Compiled) and made.resources.seconds > 0
    Path(made.path).write_bytes(b"not a library")
    x = np.arange(N, dtype=np.float32)
    np.testing.assert_array_equal(device.load(single(k)).run([x])[0], x + 7)


def test_a_compiler_error_shows_its_first_lines(tmp_path: Path) -> None:
    class Wrong(CpuDevice):
        def text(self, kernel: object) -> str:
            return "this is no C++;"

    made = Wrong(1, KernelCache(tmp_path)).compile([kernel("add", 1.0)])[0]
    assert isinstance(made, CompileError) and "kernel add" in str(made) and "error" in str(made)
    assert len(first_lines("\n".join(f"line {k}" for k in range(100))).splitlines()) == 12


# ---- the cache


def test_cache_entries_and_pruning(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, limit=1000)
    keys = [content_key("entry", str(k)) for k in range(5)]
    for age, key in enumerate(keys):
        path = cache.put(key, ".so", bytes(300))
        os.utime(path, (1000 + age, 1000 + age))
    assert (cache.info().entries, cache.info().bytes) == (5, 1500)
    assert cache.get(keys[0], ".so") is not None  # used now, so it is the last to go
    assert cache.get(keys[0], ".other") is None
    assert cache.prune() == 600
    assert [cache.get(k, ".so") is not None for k in keys] == [True, False, False, True, True]
    cache.discard(keys[0], ".so")
    cache.discard(keys[0], ".so")
    assert cache.clear() == 600 and cache.info().entries == 0


def test_cache_is_shared_by_writers(tmp_path: Path) -> None:
    """Readers see a whole entry or none, whoever writes it at the same time."""
    key, size, wrong = content_key("shared"), 1 << 20, []

    def write(byte: int) -> None:
        cache = KernelCache(tmp_path)
        for _ in range(20):
            cache.put(key, ".so", bytes([byte]) * size)
            found = cache.get(key, ".so")
            data = found.read_bytes() if found is not None else b""
            if len(data) != size or len(set(data[:: size // 64])) != 1:
                wrong.append(len(data))

    threads = [threading.Thread(target=write, args=(b,)) for b in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [f"{key}.so"]


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="AUTOFUSE_CACHE"):
        KernelCache(tmp_path / "file").put(content_key("x"), ".so", b"x")


def test_cache_moves_with_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFUSE_CACHE", str(tmp_path / "elsewhere"))
    assert KernelCache().root == tmp_path / "elsewhere" / "kernels"


def test_keys_delimit_their_parts() -> None:
    assert content_key("ab", "c") != content_key("a", "bc") != content_key("abc")


# ---- the compiler


def test_the_compiler_that_was_asked_for_is_used_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_toolchain()
    assert found.kind in ("gcc", "clang") and found.version
    monkeypatch.setenv("CXX", "no-such-compiler-here")
    with pytest.raises(ToolchainError, match="toolchain"):
        find_toolchain()
    monkeypatch.setenv("CXX", " ".join(found.command))
    assert find_toolchain().identity == found.identity


def test_host_limits() -> None:
    info = host_info()
    assert info.vector_bytes in (16, 32, 64) and info.l1 >= 8192 and info.l2 >= info.l1 and info.cores >= 1
    assert len(info.key) == 16
    assert CpuDevice(3).target.cores == 3


def test_chain_with_several_threads() -> None:
    x = RNG.standard_normal((4, N // 4)).astype(np.float32)
    device = CpuDevice(2)
    for found, expected in zip(device.load(chain()).run([x]), chain_expected(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: there is nowhere else to go")
def test_workers_keep_off_the_callers_core() -> None:
    """A worker that shares the caller's core halves the speed of a run, so its mask leaves that core out."""
    allowed = os.sched_getaffinity(0)
    device = CpuDevice(2)
    n = 16 * 64 * 9
    executable = device.load(steps(n, True))
    before = set(os.listdir("/proc/self/task"))
    executable.run([np.ones(n, np.float32)])
    workers = [int(t) for t in set(os.listdir("/proc/self/task")) - before]
    assert workers
    for w in workers:
        mask = os.sched_getaffinity(w)
        assert mask < allowed and len(mask) == len(allowed) - 1
    executable.close()
    device.close()


def test_memory_is_private_and_asks_for_large_pages() -> None:
    """Shared memory gets no large pages where a system gives it none, and is written by processes that were forked."""
    memory = Memory(3 << 20)
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [k for k, l in enumerate(lines) if "-" in l.split(" ")[0] and len(l.split(" ")[1]) == 4]
    for k in starts:
        low, high = (int(x, 16) for x in lines[k].split(" ")[0].split("-"))
        if low <= memory.address < high:
            assert lines[k].split(" ")[1] == "rw-p"
            assert " hg" in next(l for l in lines[k:] if l.startswith("VmFlags:"))
            assert memory.address % (2 << 20) == 0 and memory.address + (4 << 20) <= high
            return
    raise AssertionError("the memory is no mapping of this process")


def test_small_arrays_lie_together() -> None:
    """Each at a multiple of 64 bytes, with its values, none over another; large ones are not copied."""
    large = np.zeros(3 << 20, np.uint8)
    arrays = [RNG.standard_normal((3, k)).astype(np.float32) for k in (1, 0, 17, 64)] + [
        large,
        np.arange(5, dtype=np.int8),
    ]
    found = together(arrays)
    assert found[4] is large
    small = [a for a in found if a is not large]
    for a, b in zip(arrays, found, strict=True):
        assert b.dtype == a.dtype and b.shape == a.shape and np.array_equal(a, b)
    assert all(is_aligned(a) and a.flags.c_contiguous for a in small)
    ends = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in small if a.nbytes)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert ends[-1][1] - ends[0][0] <= sum(a.nbytes + 64 for a in small)
    assert together([large]) == [large]


@pytest.mark.skipif(usable_cores() < 2, reason="one core has no other to exchange lines with")
def test_a_line_is_exchanged_between_two_cores_and_the_caller_may_use_all_again() -> None:
    before = os.sched_getaffinity(0)
    found = [Team(2).exchange() for _ in range(5)]
    assert 5 < min(found) < 20_000
    assert os.sched_getaffinity(0) == before


def test_one_thread_exchanges_nothing() -> None:
    assert Team(1).exchange() == 0
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert Team(2).exchange() == 0
    finally:
        os.sched_setaffinity(0, before)
