"""The tables of the records' file: made where they are missing, and brought up to date where an earlier version made them."""

from __future__ import annotations

import sqlite3

VERSION = 1
"""Of the table's meaning: rows of another version are passed over."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS measurements (
    key TEXT NOT NULL, device TEXT NOT NULL, threads INTEGER NOT NULL, state TEXT NOT NULL,
    version INTEGER NOT NULL, signature TEXT NOT NULL, family TEXT NOT NULL, algorithm TEXT NOT NULL, layouts TEXT NOT NULL,
    schedule TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL, samples_ns TEXT NOT NULL, error REAL,
    compile_seconds REAL NOT NULL, registers INTEGER NOT NULL, spill_bytes INTEGER NOT NULL, shared_bytes INTEGER NOT NULL,
    flops INTEGER NOT NULL, bytes_model INTEGER NOT NULL, measured_at REAL NOT NULL, environment TEXT NOT NULL DEFAULT '',
    repeats INTEGER NOT NULL DEFAULT 1, noisy TEXT NOT NULL DEFAULT '[]', tune TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (key, signature, device, threads, state)
)
"""
_JOURNAL = (
    """
    CREATE TABLE IF NOT EXISTS tunes (
        tune TEXT PRIMARY KEY, model TEXT NOT NULL, graph TEXT NOT NULL, device TEXT NOT NULL, threads INTEGER NOT NULL,
        accuracy TEXT NOT NULL, process TEXT NOT NULL, began_at REAL NOT NULL, state TEXT NOT NULL, steady INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS plans (
        tune TEXT NOT NULL, graph TEXT NOT NULL, device TEXT NOT NULL, threads INTEGER NOT NULL, accuracy TEXT NOT NULL,
        plan_key TEXT NOT NULL, plan TEXT NOT NULL, samples_ns TEXT NOT NULL, PRIMARY KEY (tune)
    )
    """,
)
"""Tables of autofuse.measure.journal."""
_SIGNATURES = (
    "CREATE TABLE IF NOT EXISTS signatures (signature TEXT PRIMARY KEY, family TEXT NOT NULL, traits TEXT NOT NULL)"
)
_INDEX = "CREATE INDEX IF NOT EXISTS by_signature ON measurements (signature, device, threads, state)"
COLUMNS = (
    "key, state, version, signature, family, algorithm, layouts, schedule, status, reason, samples_ns, error, "
    "compile_seconds, registers, spill_bytes, shared_bytes, flops, bytes_model, repeats, noisy, tune"
)
_ADDED = {
    "environment": "TEXT NOT NULL DEFAULT ''",
    "repeats": "INTEGER NOT NULL DEFAULT 1",
    "noisy": "TEXT NOT NULL DEFAULT '[]'",
    "tune": "TEXT NOT NULL DEFAULT ''",
}
"""Columns that tables of earlier versions lack."""


def prepare(c: sqlite3.Connection) -> None:
    """Make the tables that are not there, and bring those of earlier versions up to date; all rows stay. sqlite3.DatabaseError where the
    file holds something else."""
    with c:
        for statement in (_SCHEMA, _SIGNATURES, *_JOURNAL):
            c.execute(statement)
    _add_columns(c)
    # A table of this name from elsewhere has other columns; better to notice now than at the first insert.
    have = {row[1] for row in c.execute("PRAGMA table_info(measurements)")}
    missing = set(COLUMNS.split(", ")) - have
    if missing:
        raise sqlite3.DatabaseError(f"its table has no column {min(missing)}")
    _key_by_signature(c)
    with c:
        c.execute(_INDEX)


def _add_columns(c: sqlite3.Connection) -> None:
    """Bring a table of an earlier version up to date; all its rows stay."""
    there = {str(row[1]) for row in c.execute("PRAGMA table_info(measurements)")}
    if not {"key", "samples_ns"} <= there:
        return
    for name, kind in _ADDED.items():
        if name not in there:
            try:
                with c:
                    c.execute(f"ALTER TABLE measurements ADD COLUMN {name} {kind}")
            except sqlite3.OperationalError as e:
                if "duplicate column" not in str(e):  # another tune was faster
                    raise


def _key_by_signature(c: sqlite3.Connection) -> None:
    """Tables of earlier versions have one row for a text, whichever signature it was measured for last; all of them stay."""

    def keyed() -> bool:
        return any(row[1] == "signature" and row[5] for row in c.execute("PRAGMA table_info(measurements)"))

    if keyed():
        return
    with c:
        c.execute("BEGIN IMMEDIATE")
        if keyed():  # another tune was faster
            return
        names = f"device, threads, environment, {COLUMNS}, measured_at"
        c.execute("ALTER TABLE measurements RENAME TO measurements_by_text")
        c.execute(_SCHEMA)
        c.execute(f"INSERT INTO measurements ({names}) SELECT {names} FROM measurements_by_text")
        c.execute("DROP TABLE measurements_by_text")
