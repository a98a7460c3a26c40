"""Ctrl-C and its kin: they end the search, never the writing of what it found."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST = 3


class Interrupts:
    """While it is open, a request to end raises KeyboardInterrupt until `finish` was called; from then on it is only remembered in `came`, and
    a third one ends the process all the same. SIGTERM and SIGHUP count as Ctrl-C. Outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.came = 0
        self._finishing = False
        self._before: dict[signal.Signals, object] = {}

    def finish(self) -> None:
        """What was found is being written down."""
        self._finishing = True

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """For what may be cut short while all else is written down, and catches KeyboardInterrupt itself."""
        before, self._finishing = self._finishing, False
        try:
            yield
        finally:
            self._finishing = before

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for s in _SIGNALS:
                before = signal.getsignal(s)
                if before is not signal.SIG_IGN:  # nohup stays nohup
                    self._before[s] = before
                    signal.signal(s, self._on)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for s, before in self._before.items():
            signal.signal(s, before)  # type: ignore[arg-type]
        self._before.clear()

    def _on(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.came += 1
        if not self._finishing or self.came >= _MOST:
            raise KeyboardInterrupt
