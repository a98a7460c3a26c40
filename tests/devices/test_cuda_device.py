"""The CUDA device's own logic, on a stand-in for CuPy. On a machine with a GPU, benchmarks/gpu.py runs the real one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_loops import F32, gelu_map, matmul, program_of
from fake_cupy import CudaError, FakeCupy

from autofuse.devices import cuda
from autofuse.devices.base import BufferRef, Compiled, Launch, Port, Program
from autofuse.devices.cache import KernelCache
from autofuse.devices.cuda import CudaDevice, device_count
from autofuse.errors import InputError, LaunchError, ToolchainError

Install = Callable[[FakeCupy], FakeCupy]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    def put(fake: FakeCupy) -> FakeCupy:
        monkeypatch.setitem(sys.modules, "cupy", fake)  # type: ignore[arg-type]
        cuda._cupy.cache_clear()
        return fake

    yield put
    cuda._cupy.cache_clear()


def load(fake: FakeCupy, program: Program, folder: Path) -> cuda.CudaExecutable:
    device = CudaDevice(cache=KernelCache(folder))
    for launch, c in zip(program.launches, device.compile([x.kernel for x in program.launches]), strict=True):
        assert isinstance(c, Compiled)
        fake.kernels[c.path] = launch.kernel
    executable = device.load(program)
    assert isinstance(executable, cuda.CudaExecutable)
    return executable


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def chain() -> Program:
    """Two launches with an intermediate in the arena, and a constant."""
    first, second = gelu_map(64, 4), matmul(32, 32, 32)
    return Program(
        (
            Launch(gelu_map(1024, 4), (BufferRef("input"), BufferRef("arena", 0, 128)), "gelu"),
            Launch(second, (BufferRef("arena", 0, 128), BufferRef("constant"), BufferRef("output")), "product"),
            Launch(first, (BufferRef("input"), BufferRef("output", 1, 64)), "part"),
        ),
        128 + 4096,
        (numbers(32, 32),),
        (Port("x", F32, (32, 32)),),
        (Port("y", F32, (32, 32)), Port("z", F32, (80,))),
    )


def test_a_program_runs_again_and_again(install: Install, tmp_path: Path) -> None:
    fake = install(FakeCupy())
    executable = load(fake, chain(), tmp_path)
    for scale in (1, 2):
        x = scale * numbers(32, 32)
        y, z = executable.run([x])
        g = x * np.tanh(x + 1.5)
        np.testing.assert_allclose(y, g.astype(np.float64) @ numbers(32, 32), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(z[16:], g.reshape(-1)[:64], rtol=1e-5, atol=1e-6)
        assert np.isnan(z[:16]).all(), "what no kernel writes stays poisoned"
    executable.close()
    executable.close()
    with pytest.raises(LaunchError, match="closed"):
        executable.run([x])


def test_times_have_an_entry_a_run_and_a_launch(install: Install, tmp_path: Path) -> None:
    executable = load(install(FakeCupy()), chain(), tmp_path)
    executable.bind([numbers(32, 32)])
    assert executable.time(3) == [250_000] * 3
    stamps = executable.stamps(2)
    assert stamps.shape == (2, 3) and stamps.dtype == np.int64 and (stamps == 250_000).all()


def test_large_shared_memory_is_asked_for(install: Install, tmp_path: Path) -> None:
    kernel = matmul(128, 128, 128, tile=128, depth=64, own=4)
    executable = load(install(FakeCupy()), program_of(kernel), tmp_path)
    a, b = numbers(128, 128), numbers(128, 128).T
    (c,) = executable.run([a.reshape(-1), np.ascontiguousarray(b).reshape(-1)])
    np.testing.assert_allclose(c.reshape(128, 128), a.astype(np.float64) @ b, rtol=1e-3, atol=1e-3)


def test_the_target_is_the_gpus(install: Install) -> None:
    install(FakeCupy())
    device = CudaDevice()
    t = device.target
    assert (t.kind, t.arch, t.name, t.cores, t.shared_memory) == ("cuda", "sm_90", "Fake GPU", 132, 227 * 1024)
    assert device.uuid == bytes(range(16)).hex()


def test_wrong_inputs_and_places_are_refused(install: Install, tmp_path: Path) -> None:
    fake = install(FakeCupy())
    executable = load(fake, program_of(gelu_map(64, 4)), tmp_path)
    with pytest.raises(InputError, match="takes 1 inputs"):
        executable.run([])
    with pytest.raises(InputError, match="must be float32 of shape"):
        executable.run([np.zeros(63, np.float32)])
    outside = Program((Launch(gelu_map(64, 4), (BufferRef("arena"), BufferRef("arena", 0, 256))),), 256, (), (), ())
    with pytest.raises(LaunchError, match="needs bytes 256 to 512 of arena 0, which has 256"):
        load(fake, outside, tmp_path)
    askew = Program((Launch(gelu_map(64, 4), (BufferRef("arena"), BufferRef("arena", 0, 260))),), 1024, (), (), ())
    with pytest.raises(LaunchError, match="relies on an alignment of 64"):
        load(fake, askew, tmp_path)


def test_missing_parts_name_the_mend(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeCupy(gpus=0))
    assert device_count() == 0
    with pytest.raises(ToolchainError, match=r"CUDA finds 0.*nvidia-smi"):
        CudaDevice()
    monkeypatch.setitem(sys.modules, "cupy", None)
    cuda._cupy.cache_clear()
    with pytest.raises(ToolchainError, match=r'pip install "autofuse\[cuda12\]"'):
        CudaDevice()


def test_errors_of_cuda_are_launch_errors(install: Install, tmp_path: Path) -> None:
    fake = install(FakeCupy())
    executable = load(fake, program_of(gelu_map(64, 4)), tmp_path)

    def broken(*_: object) -> None:
        raise CudaError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    fake.cuda.runtime.memcpyAsync = broken
    with pytest.raises(LaunchError, match="cudaErrorIllegalAddress"):
        executable.run([np.zeros(64, np.float32)])
    small = install(FakeCupy(limit=1000))
    with pytest.raises(LaunchError, match="memory is full"):
        load(small, program_of(gelu_map(4096, 4)), tmp_path)


def test_the_stand_in_has_nothing_that_cupy_lacks() -> None:
    """Needs CuPy, but no GPU."""
    cupy = pytest.importorskip("cupy")
    fake = FakeCupy()
    for name in vars(fake.cuda.runtime):
        assert hasattr(cupy.cuda.runtime, name), name
    for name in vars(fake.cuda):
        assert hasattr(cupy.cuda, name), name
    for name in ("begin_capture", "end_capture", "synchronize"):
        assert hasattr(cupy.cuda.Stream, name), name
    assert "Stream.ptr" in cupy.cuda.Stream.__doc__  # an instance's attribute
    for name in ("num_regs", "max_dynamic_shared_size_bytes"):
        assert hasattr(cupy.RawKernel, name), name
    assert hasattr(cupy.RawModule, "get_function") and hasattr(cupy.cuda.Graph, "launch")
