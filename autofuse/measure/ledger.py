"""The records as a bench uses them: perhaps there are none, and what cannot be read or written ends no tune."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autofuse.errors import StorageError
from autofuse.fusion.region import RegionProgram
from autofuse.measure.records import Records
from autofuse.measure.result import Measurement, Status
from autofuse.measure.seeding import Seeding


class Ledger:
    """Reads and writes measurements. `note` is told, in words, what could not be read; the same may be told twice."""

    def __init__(self, records: Records | None, note: Callable[[str], None]) -> None:
        self._records = records
        self._seeding = Seeding(records) if records is not None else None
        self._note = note
        self._unwritten: dict[tuple[str, str, str], Measurement] = {}
        self._trouble = ""

    # ---- reading

    def find(self, keys: Sequence[str], state: str, signature: str) -> dict[str, Measurement]:
        """The rows of kernels of a signature by key."""
        if self._records is None:
            return {}
        try:
            return self._records.find(keys, state, signature)
        except StorageError as e:
            self._note(str(e))
            return {}

    def of_signature(self, signature: str) -> list[Measurement]:
        """All rows of a signature on this device."""
        if self._records is None:
            return []
        try:
            return self._records.of_signature(signature)
        except StorageError as e:
            self._note(str(e))
            return []

    def seeds(self, program: RegionProgram) -> list[Measurement]:
        """Rows to start from (see Seeding)."""
        if self._seeding is None:
            return []
        try:
            return self._seeding.rows(program)
        except StorageError as e:
            self._note(str(e))
            return []

    @property
    def seeding_notes(self) -> list[str]:
        """What the records of other compilers, drivers and devices were used for, in words."""
        return self._seeding.notes() if self._seeding is not None else []

    # ---- writing

    def describe(self, program: RegionProgram) -> None:
        """Remember what a signature is like."""
        try:
            if self._seeding is not None:
                self._seeding.describe(program)
        except StorageError as e:
            self._note(str(e))

    def store(self, rows: Sequence[Measurement]) -> None:
        """Write rows down. What cannot be written now is tried again with the next rows, and at the end."""
        if self._records is None:
            return
        # What the budget skipped was not observed: it stays open.
        for m in rows:
            if m.key and m.status is not Status.SKIPPED and not m.cached:
                self._unwritten[m.key, m.signature, m.state] = m
        if not self._unwritten:
            return
        try:
            self._records.add(list(self._unwritten.values()))
            self._unwritten.clear()
        except StorageError as e:
            self._trouble = str(e)

    def close(self) -> None:
        """Try once more to write what is not written, and note what that failed for. The records stay open: others use them too."""
        self.store(())
        if self._unwritten:
            self._note(self._trouble)
