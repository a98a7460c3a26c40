"""The ways in which something is made to go wrong, as context managers."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from autofuse.devices.base import Device
from autofuse.devices.cpu import CpuDevice
from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import program_of
from autofuse.kernels.families import family, lower, variants
from tests.faults.scene import Scene, short_limits

sys.path.insert(0, str(Path(__file__).parent.parent / "measure"))
from faulty import FaultyDevice, FaultyFactory

# ---- candidates


def candidate(kind: str) -> Callable[[Scene], contextlib.AbstractContextManager[None]]:
    """Every kernel of the exponential misbehaves, under every schedule."""

    @contextlib.contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        graph, target = scene.graph, CpuDevice(threads=1).target
        unfused = Partitioner(graph, target).unfused().regions
        region = next(r for r in unfused if [graph.nodes[n].op for n in r.nodes] == ["Exp"])
        program = program_of(graph, region)
        v = next(v for v in variants(program, target) if v.family != "view")
        kernel = lower(v, family(v.family).heuristic(v, target), target).launches[0].kernel
        faults = {-kernel.flops: kind}

        def opened(name: str, threads: int | None) -> Device:
            del name, threads
            return FaultyDevice(1, faults)

        scene.records.unlink()  # a kernel that is known is not tried again
        made = mock.patch("autofuse.search.tune.factory_of", lambda device: FaultyFactory(faults))
        with mock.patch("autofuse.api.tuning.open_device", opened), made, short_limits():
            yield

    return inject


# ---- the compiler

_WRAPPER = """#!/bin/sh
case " $* " in *" --version "*) exec g++ --version;; esac
n=$(ls {calls} | wc -l); : > {calls}/$$
if [ $n -ge {after} ]; then {act}; fi
exec g++ "$@"
"""


def compiler(act: str, after: int, **constants: float) -> Callable[[Scene], contextlib.AbstractContextManager[None]]:
    """A compiler that does something else from its `after`-th call on; nothing is compiled yet. `constants` are of autofuse.devices.toolchain."""

    @contextlib.contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        calls, wrapper = scene.folder / "calls", scene.folder / "compiler"
        calls.mkdir()
        wrapper.write_text(_WRAPPER.format(calls=calls, after=after, act=act.format(wrapper=wrapper)))
        wrapper.chmod(0o755)
        scene.environment = {"CXX": str(wrapper), "AUTOFUSE_CACHE": str(scene.folder / "empty")}
        with contextlib.ExitStack() as stack:
            for name, value in constants.items():
                stack.enter_context(mock.patch(f"autofuse.devices.toolchain.{name}", value))
            yield

    return inject


def environment(**values: str) -> Callable[[Scene], contextlib.AbstractContextManager[None]]:
    """Other variables; {folder} stands for the scene's."""

    @contextlib.contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        scene.environment = {k: v.format(folder=scene.folder) for k, v in values.items()}
        yield

    return inject


# ---- files that cannot be written


@dataclass
class _Rule:
    part: str
    number: int
    left: int


_RULES: list[_Rule] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _RULES:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(flags, int) else "w" in (mode or "")
        if not writes:
            return
    elif event in ("os.mkdir", "os.rename"):
        path = arguments[1] if event == "os.rename" else arguments[0]
    else:
        return
    for rule in _RULES:
        if rule.part in os.fspath(path if isinstance(path, str | os.PathLike) else ""):
            if rule.left > 0:
                rule.left -= 1
                continue
            raise OSError(rule.number, os.strerror(rule.number), os.fspath(path))


@contextlib.contextmanager
def _denied(part: str, number: int, after: int) -> Iterator[None]:
    if not getattr(sys, "_autofuse_faults", False):
        sys.addaudithook(_hook)
        sys._autofuse_faults = True  # type: ignore[attr-defined]
    rule = _Rule(part, number, after)
    _RULES.append(rule)
    try:
        yield
    finally:
        _RULES.remove(rule)


def disk(
    part: str, number: int = errno.ENOSPC, after: int = 0
) -> Callable[[Scene], contextlib.AbstractContextManager[None]]:
    """Writing to paths with `part` in them fails, from the `after`-th time on; {folder} stands for the scene's folder."""

    @contextlib.contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        if "cache" in part:
            scene.environment = {"AUTOFUSE_CACHE": str(scene.folder / "new-cache")}
        with _denied(part.format(folder=scene.folder), number, after):
            yield

    return inject


@contextlib.contextmanager
def records_full(scene: Scene) -> Iterator[None]:
    """The database can't grow."""
    del scene
    from autofuse.measure.records import Records

    connect = Records._connect

    def limited(self: Records) -> sqlite3.Connection:
        c = connect(self)
        pages = c.execute("PRAGMA page_count").fetchone()[0]
        c.execute(f"PRAGMA max_page_count={pages}")
        c.execute(
            "CREATE TEMP TRIGGER IF NOT EXISTS full BEFORE INSERT ON measurements BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        )
        return c

    with mock.patch.object(Records, "_connect", limited):
        yield


@contextlib.contextmanager
def records_read_only(scene: Scene) -> Iterator[None]:
    """The database can be read, not written."""
    from autofuse.measure.records import Records

    def refused(self: Records) -> sqlite3.Connection:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    del scene
    with mock.patch.object(Records, "_connect", refused):
        yield


@contextlib.contextmanager
def records_locked(scene: Scene) -> Iterator[None]:
    """Somebody holds the database from when it was opened on."""
    from autofuse.measure.records import Records

    other = sqlite3.connect(scene.records, isolation_level=None, check_same_thread=False)
    connect = Records._connect

    def then_locked(self: Records) -> sqlite3.Connection:
        c = connect(self)
        c.execute("PRAGMA busy_timeout=200")
        other.execute("BEGIN IMMEDIATE")
        return c

    with mock.patch.object(Records, "_connect", then_locked), mock.patch("autofuse.measure.records._BUSY_SECONDS", 0.2):
        try:
            yield
        finally:
            other.rollback()
            other.close()


# ---- files that are not what they should be


def changed(change: Callable[[Scene], None]) -> Callable[[Scene], contextlib.AbstractContextManager[None]]:
    """Something is changed before the tune."""

    @contextlib.contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        change(scene)
        yield

    return inject


def sql(statement: str) -> Callable[[Scene], contextlib.AbstractContextManager[None]]:
    """Something is changed in the records."""

    def change(scene: Scene) -> None:
        with contextlib.closing(sqlite3.connect(scene.records)) as c, c:
            c.execute(statement)

    return changed(change)


# ---- time and signals


@contextlib.contextmanager
def clock_backwards(scene: Scene) -> Iterator[None]:
    """Every look at the clock finds an earlier time."""
    del scene
    now = [time.time()]

    def earlier() -> float:
        now[0] -= 1000.0
        return now[0]

    with mock.patch("time.time", earlier):
        yield


def signalled(
    number: signal.Signals, at: str, times: int = 1
) -> Callable[[Scene], contextlib.AbstractContextManager[None]]:
    """A signal comes when the progress says `at`, or "" when results are written."""

    @contextlib.contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        del scene
        from autofuse.report import folder
        from autofuse.search.session import Session

        tell, write = Session.tell, folder.replace_files
        left = [times]

        def act() -> None:
            while left[0]:
                left[0] -= 1
                signal.raise_signal(number)

        def told(self: Session, text: str, done: int = 0, total: int = 0) -> None:
            tell(self, text, done, total)
            if at and at in text:
                act()

        def written(*arguments: Any) -> None:
            if not at:
                act()
            write(*arguments)

        # where the tests run in the background of a shell, Ctrl-C is ignored from the start
        before = signal.signal(number, signal.default_int_handler)
        try:
            with mock.patch.object(Session, "tell", told), mock.patch("autofuse.report.folder.replace_files", written):
                yield
        finally:
            signal.signal(number, before)

    return inject


@contextlib.contextmanager
def terminal_gone(scene: Scene) -> Iterator[None]:
    """The terminal of the progress is closed."""
    del scene

    def broken(self: object, event: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with mock.patch("autofuse.cli.progress._Lines.__call__", broken):
        yield


def reader_gone(stream: str) -> Callable[[Scene], contextlib.AbstractContextManager[None]]:
    """What is printed to stdout ("out") or stderr ("err") goes to a pipe that nobody reads."""

    @contextlib.contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        reading, writing = os.pipe()
        os.close(reading)
        broken = os.fdopen(writing, "w")
        scene.streams = {stream: broken}
        try:
            yield
        finally:
            scene.streams = {}
            with contextlib.suppress(BrokenPipeError):
                broken.close()

    return inject


def out_of_memory_at(text: str) -> Callable[[Scene], contextlib.AbstractContextManager[None]]:
    """The tune's own process gets no memory at some point of the search."""

    @contextlib.contextmanager
    def inject(scene: Scene) -> Iterator[None]:
        del scene
        from autofuse.search.session import Session

        tell = Session.tell

        def told(self: Session, what: str, done: int = 0, total: int = 0) -> None:
            tell(self, what, done, total)
            if text in what:
                raise MemoryError

        with mock.patch.object(Session, "tell", told):
            yield

    return inject


@contextlib.contextmanager
def worker_killed(scene: Scene) -> Iterator[None]:
    """The measuring process is killed again and again while it serves."""
    del scene
    from autofuse.measure.client import WorkerClient

    exchange = WorkerClient._exchange
    count = [0]

    def killed(self: WorkerClient, request: object, limit: float) -> object:
        count[0] += 1
        if count[0] % 7 == 0 and self._process is not None:
            threading.Timer(0.002, self._process.kill).start()
        return exchange(self, request, limit)  # type: ignore[arg-type]

    with mock.patch.object(WorkerClient, "_exchange", killed):
        yield


@contextlib.contextmanager
def two_at_once(scene: Scene) -> Iterator[None]:
    """Another tune of the same model, into the same folder."""
    other = scene.started(1.0)
    try:
        yield
        _, said = other.communicate(timeout=120)
        assert other.returncode == 0, (said or b"").decode(errors="replace")
    finally:
        if other.poll() is None:
            other.kill()
