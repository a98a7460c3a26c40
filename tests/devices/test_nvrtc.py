"""NVRTC compiles the text that emulation runs, for real architectures and without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_loops import gelu_map, matmul, row_reduce, transpose

from autofuse.devices import nvrtc
from autofuse.devices.base import Compiled
from autofuse.devices.cache import KernelCache
from autofuse.devices.cuda_targets import cuda_target
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.devices.nvrtc import CubinCompiler, find_nvrtc, resources_of
from autofuse.errors import CompileError, ToolchainError, UsageError
from autofuse.ir.dtype import DType
from autofuse.loops.ir import Alloc, Buffer, Kernel, Scope, statements
from autofuse.render.cuda import dynamic_shared_bytes

KERNELS = {
    "map": gelu_map(4096, 4),
    "half map": gelu_map(4096, 8, dtype=DType.FLOAT16),
    "bfloat map": gelu_map(4096, 8, dtype=DType.BFLOAT16),
    "tail": gelu_map(1003, 1),
    "rows": row_reduce(4, 1000, 256),
    "rows of 96": row_reduce(4, 1000, 96, "max"),
    "transpose": transpose(64, 48),
    "matmul": matmul(64, 64, 32),
    "double buffering": matmul(64, 64, 32, stages=2),
}


@pytest.fixture
def compiler(tmp_path: Path) -> CubinCompiler:
    return CubinCompiler(KernelCache(tmp_path))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_without_spills(compiler: CubinCompiler, name: str, arch: str) -> None:
    kernel = KERNELS[name]
    cubin = compiler.cubin(kernel, arch)
    assert cubin.path.read_bytes()[:4] == b"\x7fELF"
    r = cubin.resources
    assert 0 < r.registers <= 255 and r.spill_bytes == 0 and r.seconds > 0
    exact = sum(b.size * b.dtype.itemsize for b in _shared(kernel))
    assert exact <= r.shared_bytes <= kernel.shared_bytes


def _shared(kernel: Kernel) -> list[Buffer]:
    return [s.buffer for s in statements(kernel.body) if isinstance(s, Alloc) and s.buffer.scope is Scope.SHARED]


def test_a_second_compilation_comes_from_the_cache(compiler: CubinCompiler) -> None:
    first = compiler.cubin(KERNELS["rows"], "sm_90")
    second = compiler.cubin(KERNELS["rows"], "sm_90")
    assert second.key == first.key and second.path == first.path
    assert second.resources.seconds == 0 and second.resources.registers == first.resources.registers


def test_the_key_tells_architectures_apart(compiler: CubinCompiler) -> None:
    assert compiler.key("x", "sm_80") != compiler.key("x", "sm_90")


def test_large_shared_memory_is_asked_for_at_launch(compiler: CubinCompiler) -> None:
    large = matmul(128, 128, 128, tile=128, depth=64, own=4)
    assert dynamic_shared_bytes(large) == large.shared_bytes == 2 * 128 * 64 * 4
    assert compiler.cubin(large, "sm_80").resources.shared_bytes == large.shared_bytes


def test_a_refused_text_shows_the_compilers_lines() -> None:
    with pytest.raises(CompileError, match=r"wrong\.cu: NVRTC .* refused it for sm_80:\n.*error"):
        find_nvrtc().compile("int x = y;", "sm_80", "wrong.cu")


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(CompileError, match="refused it for sm_1"):
        find_nvrtc().compile("", "sm_1")


def test_the_device_checks_a_batch_for_several_architectures() -> None:
    found = EmulatedCudaDevice().nvrtc_check([KERNELS["map"], KERNELS["rows"]], ("sm_80", "sm_90"))
    assert set(found) == {"sm_80", "sm_90"}
    assert all(isinstance(c, Compiled) for batch in found.values() for c in batch)


def test_the_mend_is_named_where_nvrtc_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_libraries", lambda: ["/nowhere/libnvrtc.so.12"])
    find_nvrtc.cache_clear()
    try:
        with pytest.raises(ToolchainError, match=r'pip install "autofuse\[cuda12\]"'):
            find_nvrtc()
    finally:
        find_nvrtc.cache_clear()


def test_reports_of_ptxas_are_read() -> None:
    log = (
        "ptxas info    : Compiling entry function 'af_kernel' for 'sm_90'\n"
        "ptxas info    : Function properties for af_kernel\n"
        "ptxas         .     16 bytes stack frame, 24 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem\n"
    )
    r = resources_of(log)
    assert (r.registers, r.spill_bytes, r.shared_bytes) == (255, 24, 1024)
    with pytest.raises(CompileError, match="no report"):
        resources_of("")


def test_targets_of_architectures() -> None:
    assert cuda_target("sm_90").shared_memory == 227 * 1024
    assert cuda_target("sm_80", "cuda-emulated").is_cuda
    assert cuda_target("sm_80").lanes(2) == 8
    with pytest.raises(UsageError, match="sm_80"):
        cuda_target("sm_1")
