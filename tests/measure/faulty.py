"""A host device whose kernels misbehave on demand: the faults that a candidate may have, injected by the kernel's grid."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterable, Sequence

import numpy as np

from autofuse.devices.base import Compiled, Executable, Program
from autofuse.devices.cpu import CpuDevice
from autofuse.errors import CompileError
from autofuse.loops.ir import Kernel, Rendered

FAULTS = (
    *(
        "crash",
        "segv",
        "ill",
        "kill",
        "exit",
        "hang",
        "late",
        "late-hang",
        "wrong",
        "nan",
        "unstable",
        "poison",
        "special",
    ),
    *("memory", "greedy-memory", "compile", "garbage", "forged", "dies-later"),
)


class FaultyExecutable:
    """An executable that fails in one of the ways when it is run."""

    def __init__(self, inner: Executable, fault: str) -> None:
        self.inner = inner
        self.fault = fault
        self.shots = 0
        self.runs = 0

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = self.inner.run(inputs)
        match self.fault:
            case "crash":
                os.abort()
            case "segv" | "ill" | "kill":
                os.kill(os.getpid(), {"segv": signal.SIGSEGV, "ill": signal.SIGILL, "kill": signal.SIGKILL}[self.fault])
            case "exit":
                os._exit(0)
            case "nan":
                outputs[0] = np.full_like(outputs[0], np.nan)
            case "unstable":
                self.runs += 1
                outputs[0] = outputs[0] * (1 + 5e-4 * self.runs)
            case "greedy-memory":
                taken = []
                while True:
                    taken.append(np.empty(1 << 28, np.uint8))
            case "garbage":
                os.write(int(sys.argv[1]), b"this is no message " * 100)
            case "forged":
                said = pickle.dumps(42)
                os.write(int(sys.argv[1]), struct.pack("!i", len(said)) + said)
            case "dies-later":
                threading.Timer(0.02, os._exit, (3,)).start()
            case "hang":
                while True:
                    time.sleep(0.05)
            case "wrong":
                outputs[0] = outputs[0] * 1.01
            case "special":
                outputs[0] = np.nan_to_num(outputs[0])
            case "memory":
                np.ones(1 << 50)
        return outputs

    def bind(self, inputs: Sequence[np.ndarray]) -> None:
        self.inner.bind(inputs)

    def time(self, repeats: int) -> list[int]:
        self.shots += 1
        if self.fault == "late" and self.shots > 2:
            os.abort()
        while self.fault == "late-hang" and self.shots > 2:
            time.sleep(0.05)
        return self.inner.time(repeats)

    def stamps(self, repeats: int) -> np.ndarray:
        return self.inner.stamps(repeats)

    def close(self) -> None:
        self.inner.close()


class FaultyDevice(CpuDevice):
    """`faults` maps a kernel's grid, or its FLOPs negated, to what its programs do."""

    def __init__(self, threads: int = 1, faults: dict[int, str] | None = None) -> None:
        super().__init__(threads)
        self.faults = faults or {}

    def _fault(self, kernels: Sequence[Kernel | Rendered]) -> str:
        own = [k for k in kernels if k.family != "fill"]
        found = [self.faults.get(k.grid) or self.faults.get(-k.flops) for k in own]
        return next((f for f in found if f), "")

    def compile(self, kernels: Iterable[Kernel | Rendered]) -> list[Compiled | Exception]:
        batch = list(kernels)
        made = super().compile(batch)
        bad = [self._fault([k]) == "compile" for k in batch]
        return [CompileError("the compiler refused it") if b else m for b, m in zip(bad, made, strict=True)]

    def load(self, program: Program) -> Executable:
        fault = self._fault([x.kernel for x in program.launches])
        if fault == "poison":
            # A kernel that leaves its outputs alone: what poison was there stays.
            kept = tuple(x for x in program.launches if x.kernel.family == "fill")
            program = dataclasses.replace(program, launches=kept or program.launches[:1])
        inner = super().load(program)
        return FaultyExecutable(inner, fault) if fault else inner


class FaultyFactory:
    """Makes the same faulty device in the worker."""

    def __init__(self, faults: dict[int, str], threads: int = 1) -> None:
        self.faults = faults
        self.threads = threads

    def __call__(self) -> FaultyDevice:
        return FaultyDevice(self.threads, self.faults)
