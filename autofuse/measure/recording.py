"""Recordings: what kernels took, as a table of costs that searches can be run on again, on any machine and with no clock.

A recording holds the device's limits, what it was calibrated to, and a row per kernel and schedule. What it does not hold is not known: no
number stands in for it. One file, a Parquet table with the rest in its metadata.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from autofuse.errors import StorageError
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.measure.bench import layouts_text
from autofuse.measure.calibrate import Reached
from autofuse.measure.result import Measurement, Status

FORMAT = 1
_META = b"autofuse"
_TEXT = ("signature", "family", "algorithm", "layouts", "schedule", "key", "status", "reason")
_KEY_DIGITS = 16

Way = tuple[str, str, str, str]
"""Signature, family, algorithm and layouts: a variant in words."""


def way_text(v: Variant) -> Way:
    """A variant in words."""
    return v.program.signature, v.family, v.algorithm, layouts_text(v)


@dataclasses.dataclass(frozen=True)
class Recording:
    """Costs of one model's kernels on one device. `graph` is the structural hash of the model, `source` where the rows come from."""

    source: str
    model: str
    graph: str
    shapes: Mapping[str, tuple[int, ...]]
    target: Target
    threads: int
    accuracy: str
    reached: Reached
    rows: tuple[Measurement, ...]

    @cached_property
    def _table(self) -> dict[Way, dict[str, Measurement]]:
        found: dict[Way, dict[str, Measurement]] = {}
        for m in self.rows:
            found.setdefault((m.signature, m.family, m.algorithm, m.layouts), {})[m.schedule] = m
        return found

    def find(self, variant: Variant, schedule: Schedule) -> Measurement | None:
        """What a kernel with a schedule took; None where that was not recorded."""
        return self._table.get(way_text(variant), {}).get(schedule.text())

    def schedules(self, variant: Variant) -> tuple[Schedule, ...]:
        """The schedules of a variant that were recorded, in the order of recording."""
        way = way_text(variant)
        if way not in self._schedules:
            self._schedules[way] = tuple(map(Schedule.parse, self._table.get(way, {})))
        return self._schedules[way]

    @cached_property
    def _schedules(self) -> dict[Way, tuple[Schedule, ...]]:
        return {}

    def of_signature(self, signature: str) -> tuple[Measurement, ...]:
        """All rows of a kernel signature."""
        return self._by_signature.get(signature, ())

    @cached_property
    def _by_signature(self) -> dict[str, tuple[Measurement, ...]]:
        found: dict[str, list[Measurement]] = {}
        for m in self.rows:
            found.setdefault(m.signature, []).append(m)
        return {s: tuple(ms) for s, ms in found.items()}

    @cached_property
    def kernels(self) -> int:
        """Distinct kernel texts."""
        return len({m.key for m in self.rows})

    def save(self, path: Path) -> None:
        """Write the file. StorageError where it can't be written."""
        meta = {
            "format": FORMAT,
            "source": self.source,
            "model": self.model,
            "graph": self.graph,
            "shapes": {name: list(dims) for name, dims in self.shapes.items()},
            "target": dataclasses.asdict(self.target),
            "threads": self.threads,
            "accuracy": self.accuracy,
            "reached": dataclasses.asdict(self.reached),
        }
        columns: dict[str, pa.Array] = {
            name: pa.array([_text(m, name) for m in self.rows], pa.string()).dictionary_encode() for name in _TEXT
        }
        columns["ns"] = pa.array([round(1e9 * m.seconds) if m.ok else 0 for m in self.rows], pa.int64())
        table = pa.table(columns).replace_schema_metadata({_META: json.dumps(meta).encode()})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path, compression="zstd", compression_level=19)
        except OSError as e:
            raise StorageError(f"{path}: the recording cannot be written: {e.strerror or e}") from e


def _text(m: Measurement, name: str) -> str:
    value = str(getattr(m, name))
    return value[:_KEY_DIGITS] if name == "key" else value


def load_recording(path: Path) -> Recording:
    """Read the file of a recording. StorageError where it is none."""
    try:
        table = pq.read_table(path)
        meta = json.loads((table.schema.metadata or {})[_META])
        if meta["format"] != FORMAT:
            raise StorageError(f"{path}: a recording of format {meta['format']!r}; this autofuse reads format {FORMAT}")
        rows = tuple(_measurement(r) for r in table.to_pylist())
        return Recording(
            source=str(meta["source"]),
            model=str(meta["model"]),
            graph=str(meta["graph"]),
            shapes={str(k): tuple(int(d) for d in v) for k, v in meta["shapes"].items()},
            target=Target(**meta["target"]),
            threads=int(meta["threads"]),
            accuracy=str(meta["accuracy"]),
            reached=Reached(**meta["reached"]),
            rows=rows,
        )
    except (OSError, KeyError, ValueError, TypeError) as e:
        raise StorageError(
            f"{path} is no recording: {type(e).__name__}: {e}. benchmarks/record_spaces.py makes them."
        ) from e


def _measurement(row: Mapping[str, Any]) -> Measurement:
    status = Status(row["status"])
    ns = int(row["ns"])
    if (status is Status.OK) != (ns > 0):
        raise ValueError(f"status {status.value!r} with {ns} ns")
    return Measurement(
        str(row["key"]),
        str(row["signature"]),
        str(row["family"]),
        str(row["algorithm"]),
        str(row["layouts"]),
        str(row["schedule"]),
        status,
        str(row["reason"]),
        (ns,) if ns else (),
        cached=True,
    )


def distinct(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """The rows with one for each kernel and schedule: the last that was timed, else the last failure."""
    found: dict[tuple[Way, str], Measurement] = {}
    for m in rows:
        name = ((m.signature, m.family, m.algorithm, m.layouts), m.schedule)
        if name not in found or m.ok or not found[name].ok:
            found[name] = m
    return tuple(found.values())
