"""Damaged records: putting a file aside, and taking over what can be read of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock beside a file, so that of several tunes that find it damaged only one mends it."""
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def put_aside(path: str) -> str:
    """Rename a database with its log; gives the new name."""
    aside = f"{path}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    os.replace(path, aside)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(path + suffix, aside + suffix)
    return aside


def salvage(fresh: sqlite3.Connection, aside: str) -> int:
    """Copy the rows of all tables of `fresh` that can be read in a damaged file; gives how many measurements there were.

    A table is read from its first row on as far as that goes, and from its last one back.
    """
    try:
        old = sqlite3.connect(aside, timeout=1.0)
    except sqlite3.Error:
        return 0
    found = 0
    try:
        old.execute("PRAGMA writable_schema=ON")  # lets a file be read that is shorter than it should be
        for (table,) in fresh.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
            wanted = [row[1] for row in fresh.execute(f"PRAGMA table_info({table})")]
            rows = _rows(old, table, wanted)
            marks = ",".join("?" * len(wanted))
            for row in rows:
                with contextlib.suppress(sqlite3.IntegrityError):
                    done = fresh.execute(f"INSERT OR IGNORE INTO {table} ({', '.join(wanted)}) VALUES ({marks})", row)
                    found += done.rowcount if table == "measurements" else 0
    except sqlite3.DatabaseError:
        pass
    finally:
        old.close()
    return found


def _rows(old: sqlite3.Connection, table: str, wanted: list[str]) -> list[tuple[object, ...]]:
    """The rows of a table by rowid, each once."""
    rows: dict[int, tuple[object, ...]] = {}
    with contextlib.suppress(sqlite3.DatabaseError):
        have = {row[1] for row in old.execute(f"PRAGMA table_info({table})")}
        chosen = ", ".join(c if c in have else "''" for c in wanted)
        if not have:
            return []
        for order in ("ASC", "DESC"):
            with contextlib.suppress(sqlite3.DatabaseError):
                for row in old.execute(f"SELECT rowid, {chosen} FROM {table} NOT INDEXED ORDER BY rowid {order}"):
                    if row[0] in rows:
                        break
                    rows[row[0]] = row[1:]
    return list(rows.values())
