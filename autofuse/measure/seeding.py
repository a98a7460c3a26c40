"""Where a kernel study may start: rows of its signature from elsewhere, and of the signatures that are nearest to it.

Seeds are candidates, never results: each is compiled and measured here before it counts.
"""

from __future__ import annotations

from collections import Counter

from autofuse.fusion.region import RegionProgram
from autofuse.measure.kinship import Traits, nearest
from autofuse.measure.records import Records
from autofuse.measure.result import Measurement

KIN = 4
"""Signatures that a study learns from."""
A_SIGNATURE = 3
"""Rows that are taken of each."""


class Seeding:
    """Seeds from records. Traits are read once per group of comparable signatures."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._known: dict[str, dict[str, Traits]] = {}
        self.foreign: Counter[str] = Counter()
        """Seeds by where they were measured, in words; those of this very place are not counted."""

    def describe(self, program: RegionProgram) -> None:
        """Remember the traits of a signature that is being measured."""
        traits = Traits.of(program)
        group = self._group(traits.group)
        if program.signature not in group:
            self._records.describe(program.signature, traits.group, traits.text())
            group[program.signature] = traits

    def rows(self, program: RegionProgram) -> list[Measurement]:
        """Rows to start from, the most telling first: of the same signature elsewhere, then of the nearest ones, here or elsewhere."""
        traits = Traits.of(program)
        others = ((s, t) for s, t in self._group(traits.group).items() if s != program.signature)
        found = self._elsewhere(program.signature)
        for signature, _ in nearest(traits, others, KIN):
            here = [m for m in self._records.of_signature(signature) if m.ok]
            found += _best(here) if here else self._elsewhere(signature)
        return found

    def notes(self) -> list[str]:
        """What was taken from elsewhere, in words."""
        return [
            f"{count} kernels of the records were measured with {origin}: they served as seeds and were measured again"
            for origin, count in self.foreign.items()
        ]

    def _group(self, name: str) -> dict[str, Traits]:
        found = self._known.get(name)
        if found is None:
            read = ((signature, Traits.read(text)) for signature, text in self._records.described(name))
            found = self._known[name] = {signature: t for signature, t in read if t is not None}
        return found

    def _elsewhere(self, signature: str) -> list[Measurement]:
        rows = [(m, origin) for m, origin in self._records.elsewhere(signature) if m.ok]
        first = rows[0][1] if rows else ""
        chosen = _best([m for m, origin in rows if origin == first])
        if chosen:
            self.foreign[first] += len(chosen)
        return chosen


def _best(rows: list[Measurement]) -> list[Measurement]:
    """The fastest rows, each of another algorithm or layout before a second one of the same."""
    ranked = sorted(rows, key=lambda m: m.seconds)
    firsts = list({(m.family, m.algorithm, m.layouts): m for m in reversed(ranked)}.values())
    return sorted(firsts, key=lambda m: m.seconds)[:A_SIGNATURE]
