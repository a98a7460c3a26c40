"""Replacing the files of a folder together: a reader finds all of the old ones or all of the new ones, whenever the writer is killed.

New files are written and flushed into a folder beside their places, `.new-*`. Renaming it to `.ready` decides: from then on the new files are the
folder's, and whoever comes next, reader or writer, puts them into their places where the writer could not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_NEW = ".new-"
_READY = ".ready"
_GONE = "gone.json"
_STALE_SECONDS = 3600.0


def replace_files(folder: Path, files: Mapping[str, bytes], gone: Sequence[str] = ()) -> None:
    """Write files by their names below a folder, and remove those that match `gone` and are not among them. OSError where that fails: then
    nothing has changed."""
    _sweep(folder)
    new = Path(tempfile.mkdtemp(prefix=_NEW, dir=folder))
    with contextlib.ExitStack() as unfinished:
        unfinished.callback(shutil.rmtree, new, ignore_errors=True)
        for name, data in files.items():
            path = new / name
            path.parent.mkdir(exist_ok=True)
            _flushed(path, data)
        _flushed(new / _GONE, json.dumps(list(gone)).encode())
        for inner in {(new / name).parent for name in files}:
            _flush_folder(inner)
        with _alone(folder):
            _settle(folder)
            os.replace(new, folder / _READY)
            _flush_folder(folder)
            _settle(folder)
        unfinished.pop_all()


def settle(folder: Path) -> None:
    """Finish a replacement that was cut short, if there is one. Where nothing can be written, nothing is done."""
    if (folder / _READY).is_dir():
        with contextlib.suppress(OSError), _alone(folder):
            _settle(folder)


def _settle(folder: Path) -> None:
    """Put ready files into their places, run.json last; may be cut short and done again at any point."""
    ready = folder / _READY
    if not ready.is_dir():
        return
    names = sorted(str(p.relative_to(ready)) for p in ready.rglob("*") if p.is_file() and p.name != _GONE)
    record = ready / _GONE
    if record.is_file():
        # While the record of what goes is there, no file has left: so what matches and is not ready is old.
        patterns = json.loads(record.read_text())
        for path in {p for pattern in patterns for p in folder.glob(pattern)}:
            if str(path.relative_to(folder)) not in names:
                path.unlink(missing_ok=True)
        record.unlink()
    for name in names:
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        os.replace(ready / name, target)
    _flush_folder(folder)
    shutil.rmtree(ready)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed have left."""
    for old in folder.glob(f"{_NEW}*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(old, ignore_errors=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name and rename it: a reader sees the old file or the new one, and so does one after a crash of the machine."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    with contextlib.ExitStack() as unfinished:
        unfinished.callback(_dropped, Path(temporary))
        _flushed(Path(temporary), data)
        os.replace(temporary, path)
        unfinished.pop_all()


def _dropped(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _flushed(path: Path, data: bytes) -> None:
    with open(path, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.chmod(path, 0o644)


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
