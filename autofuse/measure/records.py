"""Records: what was ever measured on this machine, in one SQLite table that all tunes share.

A row is a kernel (the digest of its texts, flags and compiler) of a signature on a device with a number of threads in a cache state; its
environment names the compiler or driver. Two signatures that come to the same text have a row each: right numbers of one say nothing of the other.
Adding a choice to a search space leaves all other rows valid. Rows of another device or environment of
the same kind are never taken for measured: they are seeds, and are measured again. The file is in WAL mode, so that several tunes may read and
write at once, and every row is on the disk before the next candidate is tried. Rows that make no sense are passed over. A damaged file is
put aside, never deleted, and the rows that can still be read in it are taken over; one that can't be written is read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from autofuse.errors import StorageError
from autofuse.measure.mending import alone, put_aside, salvage
from autofuse.measure.result import Measurement, Status
from autofuse.measure.schema import COLUMNS, VERSION, prepare

_BUSY_SECONDS = 10.0
_SOON_SECONDS = 0.2  # the wait for a file that was found to be locked before
_CHUNK = 400  # SQLite takes at most 999 parameters a statement in old builds

_HERE = "device=? AND threads=? AND environment IN ('', ?)"
"""The rows that hold as they are. Those of the time before environments were written down are trusted by their keys."""

_CIRCUMSTANCES = (Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY)
_REPLACED = ("status", "reason", "samples_ns", "measured_at", "environment", "repeats", "noisy", "tune")
_UNLESS_OK = (
    f" ON CONFLICT DO UPDATE SET {', '.join(f'{c}=excluded.{c}' for c in _REPLACED)} WHERE measurements.status <> 'ok'"
)

T = TypeVar("T")


def default_path() -> Path:
    """The file of the records: in $AUTOFUSE_DATA, else in autofuse under $XDG_DATA_HOME or ~/.local/share."""
    chosen = os.environ.get("AUTOFUSE_DATA")
    if chosen:
        return Path(chosen).expanduser() / "records.sqlite"
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "autofuse" / "records.sqlite"


class Records:
    """The table. One instance serves one process; `device`, `threads` and `environment` say whose rows it reads and writes."""

    def __init__(self, device: str, threads: int, path: Path | str | None = None, environment: str = "") -> None:
        """Open or create. `path` ":memory:" keeps nothing. StorageError where the file can be neither read nor made."""
        self.device = device
        self.threads = threads
        self.environment = environment
        self.path = str(path) if path is not None else str(default_path())
        self.tune = ""
        """What the rows that are written belong to (see Journal)."""
        self.notes: list[str] = []
        self.writable = True
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = self._open()

    # ---- opening

    def _open(self) -> sqlite3.Connection:
        if self.path == ":memory:":
            return self._connect()
        try:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            with alone(Path(self.path)):
                try:
                    return self._connect()
                except sqlite3.OperationalError:
                    raise
                except sqlite3.DatabaseError:
                    self._mend()
                    return self._connect()
        except sqlite3.OperationalError as e:
            return self._read_only(e)
        except (sqlite3.DatabaseError, OSError) as e:
            if isinstance(e, OSError):
                return self._read_only(e)
            raise self._failed("opened", e) from e

    def _connect(self) -> sqlite3.Connection:
        c = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, check_same_thread=False)
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(c.close)
            c.execute("PRAGMA journal_mode=WAL")
            # A commit is on the disk when it returns, whatever happens to the machine next.
            c.execute("PRAGMA synchronous=FULL")
            found = c.execute("PRAGMA quick_check(1)").fetchone()
            if found is None or found[0] != "ok":
                raise sqlite3.DatabaseError(str(found[0] if found else "no answer"))
            prepare(c)
            unfinished.pop_all()
        return c

    def _mend(self) -> None:
        """Put a damaged file aside and take over the rows that can be read."""
        aside = put_aside(self.path)
        fresh = self._connect()
        try:
            with fresh:
                rows = salvage(fresh, aside)
        finally:
            fresh.close()
        self.notes.append(
            f"{self.path} was damaged: it was renamed to {aside}; {rows} rows of it could be read and are kept"
            + ("" if rows else ", and measuring starts afresh")
        )

    def _read_only(self, error: Exception) -> sqlite3.Connection:
        """What can be read serves, even where nothing can be written."""
        if not Path(self.path).is_file():
            raise self._failed("opened", error) from error
        where = Path(self.path).absolute().as_uri()
        for mode in ("mode=ro", "immutable=1"):
            c = sqlite3.connect(f"{where}?{mode}", timeout=_SOON_SECONDS, check_same_thread=False, uri=True)
            try:
                c.execute(f"SELECT {COLUMNS}, measured_at FROM measurements LIMIT 1").fetchall()
            except sqlite3.DatabaseError:
                c.close()
                continue
            self.writable = False
            self.notes.append(f"{self._failed('written', error)} What is in them is used; this tune adds nothing.")
            return c
        raise self._failed("opened", error) from error

    # ---- reading

    @property
    def _here(self) -> tuple[str, int, str]:
        return self.device, self.threads, self.environment

    def find(self, keys: Iterable[str], state: str, signature: str) -> dict[str, Measurement]:
        """The rows of these kernels of a signature on this device, by key. Rows that can't be understood are left out."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Measurement] = {}
        for k in range(0, len(wanted), _CHUNK):
            part = wanted[k : k + _CHUNK]
            marks = ",".join("?" * len(part))
            rows = self._ask(
                f"SELECT {COLUMNS} FROM measurements WHERE {_HERE} AND state=? AND signature=? AND key IN ({marks})",
                (*self._here, state, signature, *part),
            )
            for m in filter(None, map(_measurement, rows)):
                found[m.key] = m
        return found

    def of_signature(self, signature: str) -> list[Measurement]:
        """Every row of a kernel signature on this device, the oldest first."""
        rows = self._ask(
            f"SELECT {COLUMNS} FROM measurements WHERE {_HERE} AND signature=? ORDER BY measured_at",
            (*self._here, signature),
        )
        return [m for m in map(_measurement, rows) if m is not None]

    def elsewhere(self, signature: str) -> list[tuple[Measurement, str]]:
        """Rows of a signature that do not hold here, with where they are from in words: of another driver or compiler, number of
        threads, or device of the same kind. Those of this device come first."""
        rows = self._ask(
            f"SELECT {COLUMNS}, device, threads, environment FROM measurements WHERE signature=? AND device LIKE ? "
            f"AND NOT ({_HERE}) ORDER BY device=? DESC, threads=? DESC, measured_at",
            (signature, f"{self.device.partition('|')[0]}|%", *self._here, self.device, self.threads),
        )
        found = []
        for *row, device, threads, environment in rows:
            m = _measurement(tuple(row))
            if m is not None:
                found.append((m, self._origin(str(device), int(str(threads)), str(environment))))
        return found

    def _origin(self, device: str, threads: int, environment: str) -> str:
        if device != self.device:
            return f"another device ({device.replace('|', ' ')})"
        if threads != self.threads:
            return f"{threads} threads"
        return f"another compiler or driver ({environment})"

    def describe(self, signature: str, family: str, traits: str) -> None:
        """Keep what tells how alike signatures are. `family` limits what is compared."""

        def write(c: sqlite3.Connection) -> None:
            with c:
                c.execute("INSERT OR REPLACE INTO signatures VALUES (?, ?, ?)", (signature, family, traits))

        self._guard("written", write)

    def described(self, family: str) -> list[tuple[str, str]]:
        """The signatures of a family with their traits."""
        rows = self._ask("SELECT signature, traits FROM signatures WHERE family=?", (family,))
        return [(str(signature), str(traits)) for signature, traits in rows]

    def count(self) -> int:
        """Rows of this device."""
        rows = self._ask("SELECT COUNT(*) FROM measurements WHERE device=?", (self.device,))
        return int(str(rows[0][0])) if rows else 0

    def _ask(self, statement: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        def ask(c: sqlite3.Connection) -> list[tuple[object, ...]]:
            return c.execute(statement, values).fetchall()

        return self._guard("read", ask)

    # ---- writing

    def add(self, rows: Sequence[Measurement]) -> None:
        """Write rows; a newer measurement of the same kernel replaces the older one. StorageError says what is lost.

        A failure that circumstances may have caused (a timeout, a crash, no memory) does not replace a time that was measured.
        """
        fresh = [m for m in rows if not m.cached]
        if not fresh or not self.writable:
            return
        names = ("device", "threads", "environment", *COLUMNS.split(", "), "measured_at")
        marks = ",".join("?" * len(names))
        into = f"INTO measurements ({', '.join(names)}) VALUES ({marks})"
        now = time.time()

        def write(c: sqlite3.Connection) -> None:
            with c:
                for m in fresh:
                    how, unless = ("INSERT", _UNLESS_OK) if m.status in _CIRCUMSTANCES else ("INSERT OR REPLACE", "")
                    values = (*self._here, *_columns(m), self.tune, now)
                    c.execute(f"{how} {into}{unless}", values)

        self._guard("written", write, f"; {len(fresh)} measured kernels are not remembered for the next tune")

    def act(self, verb: str, do: Callable[[sqlite3.Connection], T]) -> T:
        """Do something else with the file, in a transaction. StorageError where that fails."""

        def within(c: sqlite3.Connection) -> T:
            with c:
                return do(c)

        return self._guard(verb, within)

    def _guard(self, verb: str, act: Callable[[sqlite3.Connection], T], lost: str = "") -> T:
        with self._lock:
            if self._connection is None:
                raise StorageError(f"{self.path}: the records are closed{lost}")
            try:
                done = act(self._connection)
            except sqlite3.Error as e:
                # Whoever holds the file may hold it for long: it is asked again and again, but not waited for.
                self._patience(_SOON_SECONDS)
                raise self._failed(verb, e, lost) from e
            self._patience(_BUSY_SECONDS)
            return done

    def _patience(self, seconds: float) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA busy_timeout={round(seconds * 1000)}")

    def _failed(self, verb: str, e: Exception, lost: str = "") -> StorageError:
        return StorageError(
            f"the records in {self.path} cannot be {verb}: {getattr(e, 'strerror', None) or e}{lost}. "
            "Free space there, or set AUTOFUSE_DATA to a folder that can be written."
        )

    def close(self) -> None:
        """Close the file. Calling it twice does no harm."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __enter__(self) -> Records:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _columns(m: Measurement) -> tuple[object, ...]:
    error = None if math.isnan(m.error) else m.error
    return (
        *(m.key, m.state, VERSION, m.signature, m.family, m.algorithm, m.layouts, m.schedule),
        *(m.status.value, m.reason, json.dumps(m.samples_ns), error, m.compile_seconds),
        *(m.registers, m.spill_bytes, m.shared_bytes, m.flops, m.bytes_model, m.repeats, json.dumps(m.noisy)),
    )


def _measurement(row: tuple[object, ...]) -> Measurement | None:
    """A row as a Measurement, or None where another version or something foreign wrote it."""
    key, state, version, signature, family, algorithm, layouts, schedule, status, reason, samples, error, *rest = row
    if version != VERSION:
        return None
    try:
        numbers = json.loads(str(samples))
        if not isinstance(numbers, list) or not all(type(n) is int and n > 0 for n in numbers):
            return None
        ok = Status(str(status))
        if ok is Status.OK and not numbers:
            return None
        deviation = float("nan") if error is None else float(str(error))
        seconds = float(str(rest[0]))
        registers, spill, shared, flops, nbytes, repeats = (int(str(x)) for x in rest[1:7])
        noisy = json.loads(str(rest[7]))
        if not isinstance(noisy, list) or not all(type(n) is int and 0 <= n < len(numbers) for n in noisy):
            return None
    except ValueError:
        return None
    return Measurement(
        key=str(key),
        signature=str(signature),
        family=str(family),
        algorithm=str(algorithm),
        layouts=str(layouts),
        schedule=str(schedule),
        status=ok,
        reason=str(reason),
        samples_ns=tuple(numbers),
        error=deviation,
        compile_seconds=seconds,
        registers=registers,
        spill_bytes=spill,
        shared_bytes=shared,
        flops=flops,
        bytes_model=nbytes,
        state=str(state),
        repeats=max(1, repeats),
        noisy=tuple(noisy),
        cached=True,
        tune=str(rest[8]),
    )
