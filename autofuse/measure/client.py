"""The parent's side of the worker process: it is started on demand, given a time limit for every request, and replaced when it dies."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from autofuse.devices.base import Device
from autofuse.errors import AutofuseError, ToolchainError
from autofuse.measure.protocol import At, Done, Failed, Hello, Request
from autofuse.measure.result import Status

_START_SECONDS = 120.0
_STOP_SECONDS = 2.0
_REST_SECONDS = 5.0  # for the rest of a message that has begun: what looks like the head of a long one may be garbage
_SEND_SECONDS = 60.0
DeviceFactory = Callable[[], Device]


class TrialFailed(AutofuseError):
    """A request failed: its status and reason. `handle` is what was running, -1 where nothing was. `died` tells whether the process is gone,
    and with it all handles; `killed` whether it was ended from outside (by hand, or by the system for want of memory)."""

    def __init__(self, status: Status, reason: str, handle: int = -1, died: bool = False, killed: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.handle = handle
        self.died = died
        self.killed = killed


class WorkerClient:
    """One worker process at a time. `generation` counts the processes: handles of an older one are gone."""

    def __init__(self, factory: DeviceFactory, threads: int = 1, memory: int = 0) -> None:
        self._device = pickle.dumps(factory)
        self._threads = threads
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log = tempfile.NamedTemporaryFile(prefix="autofuse-worker-", suffix=".log")  # noqa: SIM115  (lives as long as the client)
        self.generation = 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # ---- the process

    def start(self) -> None:
        """Start a worker unless one is alive."""
        if self.alive and self._connection is not None:
            return
        self.stop()
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (os.getcwd(), *sys.path) if p)}
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[name] = str(self._threads)
        self._log.seek(0)
        self._log.truncate()
        try:
            # A session of its own keeps Ctrl-C away from it: the parent decides when it ends.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "autofuse.measure.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as e:
            ours.close()
            raise ToolchainError(f"the measuring process cannot be started: {e.strerror or e}") from e
        finally:
            theirs.close()
        for option, seconds in ((socket.SO_RCVTIMEO, _REST_SECONDS), (socket.SO_SNDTIMEO, _SEND_SECONDS)):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
        self._connection = Connection(ours.detach())
        self.generation += 1
        self._exchange(Hello(self._device, self._memory), _START_SECONDS)

    def stop(self) -> None:
        """End the worker. Calling it twice does no harm."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(_STOP_SECONDS if self._process.poll() is None else 0)
            except subprocess.TimeoutExpired:
                self._kill()
            self._process = None

    def close(self) -> None:
        """End the worker and remove its log."""
        self.stop()
        with contextlib.suppress(OSError):
            self._log.close()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    # ---- requests

    def ask(self, request: Request, limit: float) -> object:
        """The answer to a request. TrialFailed where the worker could not serve it, died over it, or took longer than `limit` seconds
        without a sign of life."""
        self.start()
        return self._exchange(request, limit)

    def _exchange(self, request: Request, limit: float) -> object:
        connection = self._connection
        assert connection is not None
        handle = getattr(request, "handle", -1)
        try:
            connection.send(request)
            deadline = time.monotonic() + limit
            while True:
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    self._abandon()
                    raise TrialFailed(Status.TIMEOUT, f"no answer within {limit:.3g} s", handle, died=True)
                reply = self._received(connection, handle)
                match reply:
                    case At():
                        handle = reply.handle
                        deadline = time.monotonic() + limit
                    case Done():
                        return reply.value
                    case Failed():
                        raise TrialFailed(reply.status, reply.reason, handle)
        except (EOFError, ConnectionError, BrokenPipeError) as e:
            raise self._crashed(handle) from e
        except BlockingIOError as e:
            self._abandon()
            raise TrialFailed(Status.TIMEOUT, "the process took no message", handle, died=True) from e
        except BaseException as e:
            # Ctrl-C in the middle of an exchange leaves an answer on its way that belongs to no later request.
            if not isinstance(e, TrialFailed):
                self._abandon()
            raise

    def _received(self, connection: Connection, handle: int) -> object:
        """A message. A candidate may have written over the memory of its process: what comes then means nothing."""
        try:
            reply: object = connection.recv()
        except (EOFError, ConnectionError):
            raise
        except Exception as e:  # unpickling what is no pickle may raise anything
            self._abandon()
            said = f"the process answered garbage ({type(e).__name__})"
            raise TrialFailed(Status.CRASHED, said, handle, died=True) from e
        if not isinstance(reply, At | Done | Failed):
            self._abandon()
            raise TrialFailed(Status.CRASHED, f"the process answered {type(reply).__name__}", handle, died=True)
        return reply

    def _abandon(self) -> None:
        self._kill()
        self.stop()

    def _crashed(self, handle: int) -> TrialFailed:
        process = self._process
        code: int | None = None
        if process is not None:
            try:
                code = process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._kill()
        said = self._last_words()
        self.stop()
        killed = code == -signal.SIGKILL
        return TrialFailed(Status.CRASHED, f"{_how_it_ended(code)}{said}", handle, died=True, killed=killed)

    def _last_words(self) -> str:
        try:
            lines = [x for x in Path(self._log.name).read_text(errors="replace").splitlines() if x.strip()]
        except OSError:
            return ""
        first = next((x for x in lines if "rror" in x or "terminate" in x), "")
        return f": {first.strip()[:200]}" if first else ""


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "the process stopped answering"
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (as the system does when memory runs out)" if -code == signal.SIGKILL else ""
    return f"the process was ended by {name}{hint}"
