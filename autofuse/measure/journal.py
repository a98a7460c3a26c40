"""The journal of tunes: which ones began, how they ended, and the best plan of each so far.

It is part of the records. A tune that was killed leaves a row that says so: the next tune of the same model begins with its best plan. It also
tells measurements that can be relied on (of a tune that ended, on a machine that was as fast at its end as ever) from others.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from autofuse.engine.plan import Plan, plan_from_json
from autofuse.errors import PlanError, StorageError
from autofuse.measure.records import Records

RUNNING, ENDED, CUT_SHORT = "running", "ended", "cut short"
_MOST_PLANS = 3

T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """What earlier tunes of a model left: their best plans, the newest first, and in words what was cut short."""

    plans: tuple[Plan, ...] = ()
    notes: tuple[str, ...] = ()


class Journal:
    """One tune's part in the journal. Where nothing can be written, nothing is, and `notes` says so once; a tune does not end for it."""

    def __init__(self, records: Records | None, model: str, graph: str, accuracy: str) -> None:
        self._records = records
        self._model = model
        self._graph = graph
        self._accuracy = accuracy
        self._read: list[str] = []
        self._steady: dict[str, bool] = {}
        self.tune = uuid.uuid4().hex
        self.notes: list[str] = []

    # ---- what was

    def begin(self) -> Found:
        """Read what earlier tunes left and write down that this one has begun."""
        records = self._records
        if records is None:
            return Found()
        records.tune = self.tune
        found = self._do(self._find, Found(), "read")
        if records.writable:
            self._do(self._start, None)
        return found

    def _find(self, c: sqlite3.Connection) -> Found:
        assert self._records is not None
        who = (self._graph, self._records.device, self._records.threads, self._accuracy)
        same = "graph=? AND device=? AND threads=? AND accuracy=?"
        notes: list[str] = []
        rows = c.execute(
            f"SELECT tune, process, began_at FROM tunes WHERE {same} AND state=?", (*who, RUNNING)
        ).fetchall()
        for tune, process, began in rows:
            if _is_alive(str(process)):
                continue
            kernels = c.execute("SELECT COUNT(*) FROM measurements WHERE tune=?", (tune,)).fetchone()[0]
            plans = c.execute("SELECT COUNT(*) FROM plans WHERE tune=?", (tune,)).fetchone()[0]
            best = "its best plan is measured first" if plans else "it had no plan yet"
            notes.append(
                f"an earlier tune of this model, begun {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(began))}, was cut short: {best}; "
                f"{kernels} kernels that it measured are kept"
            )
            if self._records.writable:
                c.execute("UPDATE tunes SET state=? WHERE tune=?", (CUT_SHORT, tune))
        live = {str(t) for t, process, _ in rows if _is_alive(str(process))}
        plans_found: dict[str, Plan] = {}
        for tune, text in c.execute(f"SELECT tune, plan FROM plans WHERE {same} ORDER BY rowid DESC", who):
            if tune in live:
                continue
            self._read.append(str(tune))
            try:
                plan = plan_from_json(json.loads(text), f"{self._records.path}: the plan of tune {tune}")
            except (PlanError, ValueError, TypeError) as e:
                notes.append(f"a plan in the records could not be used: {e}")
                continue
            if len(plans_found) < _MOST_PLANS:
                plans_found.setdefault(plan.key, plan)
        return Found(tuple(plans_found.values()), tuple(notes))

    def _start(self, c: sqlite3.Connection) -> None:
        assert self._records is not None
        r = self._records
        c.execute(
            "INSERT INTO tunes VALUES (?,?,?,?,?,?,?,?,?,0)",
            (
                self.tune,
                self._model,
                self._graph,
                r.device,
                r.threads,
                self._accuracy,
                _process(),
                time.time(),
                RUNNING,
            ),
        )

    # ---- what is

    def keep(self, plan: Plan, samples: Sequence[int]) -> None:
        """The best plan so far."""
        r = self._records
        if r is None or not r.writable:
            return
        values = (self.tune, self._graph, r.device, r.threads, self._accuracy, plan.key)
        text = json.dumps(plan.to_json(), separators=(",", ":"))
        row = (*values, text, json.dumps(list(samples)))

        def do(c: sqlite3.Connection) -> None:
            c.execute("INSERT OR REPLACE INTO plans VALUES (?,?,?,?,?,?,?,?)", row)

        self._do(do, None)

    def end(self, steady: bool) -> None:
        """This tune ended: its best plan stands for those that it began with. `steady`: the machine was as fast as ever while it measured."""
        r = self._records
        if r is None or not r.writable:
            return

        def do(c: sqlite3.Connection) -> None:
            c.execute("UPDATE tunes SET state=?, steady=? WHERE tune=?", (ENDED, int(steady), self.tune))
            if c.execute("SELECT COUNT(*) FROM plans WHERE tune=?", (self.tune,)).fetchone()[0]:
                c.executemany("DELETE FROM plans WHERE tune=?", [(t,) for t in self._read])

        self._do(do, None)

    def is_steady(self, tune: str) -> bool:
        """Whether what a tune measured can be relied on: this one, or one that ended on a steady machine."""
        if tune == self.tune:
            return True
        if tune not in self._steady:

            def ask(c: sqlite3.Connection) -> bool:
                row = c.execute("SELECT steady FROM tunes WHERE tune=? AND state=?", (tune, ENDED)).fetchone()
                return bool(row and row[0])

            self._steady[tune] = self._records is not None and bool(tune) and self._do(ask, False, "read")
        return self._steady[tune]

    def _do(self, act: Callable[[sqlite3.Connection], T], otherwise: T, verb: str = "written") -> T:
        assert self._records is not None
        try:
            return self._records.act(verb, act)
        except StorageError as e:
            if str(e) not in self.notes:
                self.notes.append(str(e))
            return otherwise


def _process() -> str:
    return f"{os.getpid()} {_started(os.getpid())} {_boot()}"


def _is_alive(process: str) -> bool:
    """Whether a process is running: its number may have been given to another since, and the machine started anew."""
    number, _, rest = process.partition(" ")
    return number.isdigit() and rest == f"{_started(int(number))} {_boot()}"


def _started(number: int) -> str:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "?"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "?"
