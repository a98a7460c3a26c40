"""The cache of compiled kernels: content-addressed files that several processes share.

An entry is a file named by its key (a SHA-256 of everything that the machine code depends on) and a suffix. It is
written under another name and renamed, so a reader sees all of it or nothing. A library ends in a seal, its own digest (loaders
pass over what follows): what a crash of the machine or a failing disk left of one is never loaded, as it may load and end
the process when it runs. Where a library cannot be written, it is kept for this process in a temporary folder. A file's
modification time is the time of its last use, which is what pruning goes by. Removing an entry that a process has loaded does
no harm: the file lives until it is closed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from autofuse.errors import StorageError

DEFAULT_LIMIT = 2 << 30
_SCAN_EVERY = 64  # writes of one process between two looks at the cache's size
_STALE_SECONDS = 3600.0  # a temporary file this old was left by a process that died
_TEMPORARY = ".writing-"
_MARK = b"autofuse seal 1:"


@dataclass(frozen=True)
class CacheInfo:
    """What a cache holds. `bytes` counts file contents."""

    root: Path
    entries: int
    bytes: int
    limit: int


def default_root() -> Path:
    """The folder of the cache: $AUTOFUSE_CACHE, else autofuse under $XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("AUTOFUSE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "autofuse"


def content_key(*parts: str | bytes) -> str:
    """The SHA-256 of the parts, each delimited by its length so that no two lists of parts collide."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def _seal(data: bytes) -> bytes:
    return _MARK + hashlib.sha256(data).digest()


def _is_sealed(path: Path) -> bool:
    """Whether a file ends in the digest of what is before it."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    end = len(data) - len(_MARK) - hashlib.sha256().digest_size
    return end > 0 and data[end:] == _seal(data[:end])


class KernelCache:
    """A folder of compiled kernels, at most about `limit` bytes large."""

    def __init__(self, root: Path | None = None, limit: int = DEFAULT_LIMIT) -> None:
        self.root = (root if root is not None else default_root()) / "kernels"
        self.limit = limit
        self.trouble = ""
        """Why entries are kept for this process only, where they are."""
        self._writes = itertools.count(1)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._kept: dict[str, Path] = {}

    def _path(self, key: str, suffix: str) -> Path:
        return self.root / key[:2] / f"{key}{suffix}"

    def get(self, key: str, suffix: str) -> Path | None:
        """The file of an entry, marked as used now; None where there is none."""
        path = self._path(key, suffix)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:
            # a cache that can only be read still serves
            return path if path.is_file() else None
        return path

    def put(self, key: str, suffix: str, data: bytes) -> Path:
        """Add an entry and give back its file. Raises StorageError where the disk is full or not writable."""
        path = self._path(key, suffix)
        temporary: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
            with os.fdopen(handle, "wb") as f:
                f.write(data)
            os.chmod(temporary, 0o755)
            os.replace(temporary, path)
        except OSError as e:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            raise self._failed("written", e) from e
        if next(self._writes) % _SCAN_EVERY == 0:
            self.prune()
        return path

    def get_file(self, key: str, suffix: str) -> Path | None:
        """The file of an entry that `put_file` made; None where there is none, or where it is not whole any more."""
        kept = self._kept.get(key + suffix)
        if kept is not None and kept.is_file():
            return kept
        path = self.get(key, suffix)
        if path is None or _is_sealed(path):
            return path
        with contextlib.suppress(StorageError):
            self.discard(key, suffix)
        return None

    def put_file(self, key: str, suffix: str, source: Path) -> Path:
        """Add a finished library's contents as an entry, with its seal. Where the cache cannot be written, the library is kept for this
        process only, and `trouble` says so."""
        try:
            data = source.read_bytes()
        except OSError as e:
            raise StorageError(f"the compiled kernel {source} cannot be read: {e.strerror or e}") from e
        sealed = data + _seal(data)
        try:
            return self.put(key, suffix, sealed)
        except StorageError as e:
            self.trouble = f"{e} Until then kernels are compiled anew in every run."
            return self._keep(key, suffix, sealed, e)

    def _keep(self, key: str, suffix: str, data: bytes, error: StorageError) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="autofuse-kernels-")
        path = Path(self._folder.name) / f"{key}{suffix}"
        try:
            path.write_bytes(data)
        except OSError as e:
            raise StorageError(f"{error} Temporary files cannot be written, either: {e.strerror or e}.") from e
        self._kept[key + suffix] = path
        return path

    def discard(self, key: str, suffix: str) -> None:
        """Remove an entry (a damaged one, say); none there is no error."""
        try:
            self._path(key, suffix).unlink(missing_ok=True)
        except OSError as e:
            raise self._failed("changed", e) from e

    def info(self) -> CacheInfo:
        """How many entries there are and how large they are together."""
        files = self._files()
        return CacheInfo(self.root, len(files), sum(size for _, size, _ in files), self.limit)

    def prune(self, limit: int | None = None) -> int:
        """Remove the least recently used entries until at most `limit` bytes are left (by default the cache's own limit).

        Gives the bytes freed.
        """
        allowed = self.limit if limit is None else limit
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        freed = 0
        for _, size, path in files:
            if total - freed <= allowed:
                break
            freed += self._remove(path, size)
        self._sweep()
        return freed

    def clear(self) -> int:
        """Remove all entries; gives the bytes freed."""
        return self.prune(-1)

    def _files(self) -> list[tuple[float, int, Path]]:
        """(last use, size, path) of every entry. Files that go away meanwhile are left out."""
        out: list[tuple[float, int, Path]] = []
        try:
            for path in self.root.glob("*/*"):
                if path.name.startswith(_TEMPORARY):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    out.append((stat.st_mtime, stat.st_size, path))
        except OSError as e:
            raise self._failed("read", e) from e
        return out

    def _remove(self, path: Path, size: int) -> int:
        try:
            path.unlink()
        except FileNotFoundError:
            return 0  # another process pruned it first
        except OSError as e:
            raise self._failed("changed", e) from e
        return size

    def _sweep(self) -> None:
        """Remove what processes that died while writing have left."""
        now = time.time()
        for path in self.root.glob(f"*/{_TEMPORARY}*"):
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()

    def _failed(self, verb: str, e: OSError) -> StorageError:
        return StorageError(
            f"the kernel cache in {self.root} cannot be {verb}: {e.strerror or e}. "
            "Free space there, or set AUTOFUSE_CACHE to a folder that can be written."
        )
