"""The host's C++ compiler: finding it, its flags, and running it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autofuse.errors import CompileError, ToolchainError

_SHOWN_LINES = 12
COMPILE_SECONDS = 120.0
"""A compiler that takes longer is ended, with all that it has started; it gets no more processor time than that, either."""
COMPILE_BYTES = 4 << 30
"""Address space of a compiler: what needs more is no kernel but an accident."""
_LIMITED = ("/bin/sh", "-c", 'ulimit -t "$0"; test "$1" = 0 || ulimit -v "$1"; shift; exec "$@"')


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler.

    `command` is how it is called, `kind` is "gcc" or "clang" (zig's is clang), `version` its first line about itself.
    """

    command: tuple[str, ...]
    kind: str
    version: str

    @property
    def is_zig(self) -> bool:
        return "ziglang" in self.command

    def flags(self, vector_bytes: int = 0) -> tuple[str, ...]:
        """Flags for a shared library of kernels.

        -ffp-contract=fast: a*b+c may become one fused multiply-add, also across statements; it rounds once instead
        of twice and is the only liberty that is taken with floating point. Signed integers wrap (-fwrapv), as tensors'
        do. `errno` and floating-point traps are never looked at. `vector_bytes` is the width that the compiler shall
        prefer when it vectorises on its own.
        """
        common = (
            "-std=c++17",
            "-O3",
            "-march=native",
            "-fPIC",
            "-shared",
            "-fwrapv",
            "-fno-strict-aliasing",
            "-ffp-contract=fast",
            "-fno-math-errno",
            "-fno-trapping-math",
            "-fno-exceptions",
            "-fno-rtti",
            "-fvisibility=hidden",
            "-w",
        )
        width = (f"-mprefer-vector-width={vector_bytes * 8}",) if vector_bytes >= 32 else ()
        # zig would trap on undefined behaviour, and link its own libc++, which kernels don't use
        own = ("-fno-sanitize=all", "-nostdlib++") if self.is_zig else ()
        return common + width + own

    @property
    def identity(self) -> str:
        """What machine code depends on besides text and flags: the compiler, in words."""
        return f"{self.kind} {self.version}"


@lru_cache(maxsize=8)
def _find(cxx: str | None, path: str | None) -> Toolchain:
    del path  # part of the cache's key only
    tried: list[str] = []
    for command in _candidates(cxx):
        found = _identify(command)
        if found is not None:
            return found
        tried.append(shlex.join(command))
    raise ToolchainError(
        f"no C++ compiler was found (tried {', '.join(tried) or 'g++, clang++'}). "
        'Install g++ or clang++, set CXX, or run: pip install "autofuse[toolchain]"'
    )


def find_toolchain() -> Toolchain:
    """The host's compiler: $CXX, g++, clang++, else ziglang's clang.

    Raises ToolchainError, which names the mend, where there is none.
    """
    return _find(os.environ.get("CXX"), os.environ.get("PATH"))


def _candidates(cxx: str | None) -> list[tuple[str, ...]]:
    if cxx:
        # what was asked for is used or refused, never silently replaced
        return [tuple(shlex.split(cxx))]
    out: list[tuple[str, ...]] = [(name,) for name in ("g++", "clang++") if shutil.which(name)]
    if importlib.util.find_spec("ziglang") is not None:
        out.append((sys.executable, "-m", "ziglang", "c++"))
    return out


def _identify(command: tuple[str, ...]) -> Toolchain | None:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0 or not done.stdout.strip():
        return None
    first = done.stdout.strip().splitlines()[0]
    kind = "clang" if re.search("clang", done.stdout, re.IGNORECASE) else "gcc"
    return Toolchain(command, kind, first)


def compile_shared(
    toolchain: Toolchain,
    source: Path,
    output: Path,
    flags: Sequence[str],
    includes: Sequence[Path] = (),
    what: str = "",
    libraries: Sequence[str] = ("-lm",),
) -> None:
    """Compile one source file into a shared library; `what` names it for people.

    Raises CompileError, which shows the compiler's first lines.
    """
    paths = [f"-I{folder}" for folder in includes]
    command = [*toolchain.command, *flags, *paths, str(source), "-o", str(output), *libraries]
    name = what or source.name
    code, said = _compiled(toolchain, command, name)
    if _was_ended(code, said):
        # Somebody ended it, or the system did for want of memory: that says nothing of the kernel, so it is tried once more.
        code, said = _compiled(toolchain, command, name)
    if code != 0:
        raise CompileError(f"{name}: {toolchain.version} refused it:\n{first_lines(said)}")


def _compiled(toolchain: Toolchain, command: Sequence[str], name: str) -> tuple[int, str]:
    """Run a compiler within limits of time and memory; its exit code and what it said.

    It is ended with all that it started: a driver that is killed alone leaves the compiler proper running, on a core that
    kernels are timed on.
    """
    memory = 0 if toolchain.is_zig else COMPILE_BYTES >> 10
    limited = [*_LIMITED, str(int(COMPILE_SECONDS)), str(memory), *command]
    try:
        process = subprocess.Popen(
            limited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as e:
        raise ToolchainError(
            f"{shlex.join(toolchain.command)} cannot be started: {e.strerror or e}. Install g++ or clang++, or set CXX."
        ) from e
    with process, contextlib.ExitStack() as unfinished:
        unfinished.callback(_end_all, process)
        try:
            out, said = process.communicate(timeout=COMPILE_SECONDS)
        except subprocess.TimeoutExpired as e:
            raise CompileError(f"{name}: {toolchain.command[0]} did not finish in {COMPILE_SECONDS:.0f} s") from e
        unfinished.pop_all()
    code = process.returncode
    if code in (126, 127):
        raise ToolchainError(
            f"{shlex.join(toolchain.command)} cannot be started: {first_lines(said, 1).strip()}. "
            "It was there before: install it again, or set CXX to another compiler."
        )
    return code, said or out or ("" if code >= 0 else f"it was ended by signal {-code}")


def _end_all(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _was_ended(code: int, said: str) -> bool:
    """Whether a compiler was killed from outside."""
    return code == -signal.SIGKILL or (code != 0 and "Killed signal terminated program" in said)


def first_lines(text: str, count: int = _SHOWN_LINES) -> str:
    """The first lines of a compiler's output, errors first."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    chosen = (errors + [line for line in lines if line not in errors])[:count]
    return "\n".join(f"  {line[:300]}" for line in chosen) or "  (no message)"
