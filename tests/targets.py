"""Targets for tests that compile nothing."""

from __future__ import annotations

from autofuse.ir.target import Target

HOST = Target(
    kind="cpu",
    dialect="cpp",
    arch="x86-64-avx512",
    name="test",
    vector_bytes=64,
    vector_registers=32,
    cores=2,
    max_threads_per_block=1,
    warp=1,
    shared_memory=1 << 20,
    registers_per_thread=32,
    l1=32 << 10,
    l2=1 << 20,
    l3=32 << 20,
    max_parameters=256,
)
