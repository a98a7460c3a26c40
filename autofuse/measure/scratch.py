"""Folders of temporary files that a killed process leaves nothing of for long: the next run removes what no process holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from autofuse.errors import StorageError

_PREFIX = "autofuse-scratch-"
_LOCK = "held"
_YOUNG_SECONDS = 5.0  # between making a folder and locking it, at most


class Scratch:
    """A temporary folder that is locked while its process lives. `notes` says what was left by others."""

    def __init__(self) -> None:
        self.notes = _sweep()
        try:
            self.name = tempfile.mkdtemp(prefix=_PREFIX)
            self._lock: int | None = os.open(Path(self.name) / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise StorageError(
                f"temporary files cannot be written in {tempfile.gettempdir()}: {e.strerror or e}. "
                "Free space there, or set TMPDIR to a folder that can be written."
            ) from e
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Remove the folder. Calling it twice does no harm."""
        if self._lock is not None:
            shutil.rmtree(self.name, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _sweep() -> list[str]:
    """Remove the folders of processes that were killed."""
    gone = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if time.time() - folder.stat().st_mtime > _YOUNG_SECONDS:
                gone += _removed(folder)
    tunes = "a tune that was" if gone == 1 else f"{gone} tunes that were"
    return [f"temporary files of {tunes} killed were removed"] if gone else []


def _removed(folder: Path) -> bool:
    handle = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False  # somebody holds it
    finally:
        os.close(handle)
    return True
