"""What a kernel family supplies: variants of a region, their schedules, and the lowering to loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autofuse.fusion.region import RegionProgram
from autofuse.ir.layout import Layout
from autofuse.ir.target import Target
from autofuse.kernels.preparation import Prepared
from autofuse.loops.ir import Kernel

Choice = int | str


@dataclass(frozen=True)
class Schedule:
    """The tile sizes and other choices of one variant, sorted by name."""

    choices: tuple[tuple[str, Choice], ...]

    @staticmethod
    def of(choices: Mapping[str, Choice]) -> Schedule:
        return Schedule(tuple(sorted(choices.items())))

    @staticmethod
    def parse(text: str) -> Schedule:
        """The schedule that was written as text."""
        pairs = (part.split("=", 1) for part in text.split(" ") if "=" in part)
        return Schedule.of({k: int(v) if v.lstrip("-").isdigit() else v for k, v in pairs})

    @property
    def values(self) -> dict[str, Choice]:
        return dict(self.choices)

    def integer(self, name: str) -> int:
        """A numeric choice."""
        return int(self.values[name])

    def flag(self, name: str) -> bool:
        """A choice of 0 or 1; off where a schedule was made before there was that choice."""
        return bool(self.values.get(name, 0))

    def text(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.choices) or "-"


@dataclass(frozen=True)
class Variant:
    """One way to implement a region program: the family and algorithm, and the layout of every input and output.

    An input that is a constant of the model is prepared in the layout given here when the engine is built, or as
    `prepared` says, by input number, where a layout is not enough; other inputs must arrive in it. `tolerant` marks algorithms
    that spread non-finite numbers or round more than the direct one; those of `lower_precision` store or compute in a narrower type
    than the model's.
    """

    family: str
    algorithm: str
    program: RegionProgram
    input_layouts: tuple[Layout, ...]
    output_layouts: tuple[Layout, ...]
    tolerant: bool = False
    prepared: tuple[tuple[int, Prepared], ...] = ()
    lower_precision: bool = False

    def suits(self, accuracy: str) -> bool:
        """Whether an accuracy allows it: exact nothing tolerant, and only fast a lower precision."""
        return not (self.tolerant and accuracy == "exact") and not (self.lower_precision and accuracy != "fast")

    def preparation(self, k: int) -> str:
        """Stable text of what is done to input k when it is a constant."""
        special = dict(self.prepared).get(k)
        return special.text() if special is not None else self.input_layouts[k].text()

    def elements(self, k: int) -> int:
        """How many elements input k has in memory."""
        shape = self.program.inputs[k].shape
        special = dict(self.prepared).get(k)
        return special.elements(shape) if special is not None else self.input_layouts[k].size(shape)

    def pack(self, k: int, array: np.ndarray) -> np.ndarray:
        """Input k as this variant wants it in memory: a constant prepared, any other tensor in its layout."""
        special = dict(self.prepared).get(k)
        return special.apply(array) if special is not None else self.input_layouts[k].pack(array)

    @property
    def key(self) -> str:
        """Stable text: signature, algorithm and layouts."""
        ins = ",".join(l.text() for l in self.input_layouts)
        outs = ",".join(l.text() for l in self.output_layouts)
        return f"{self.program.signature}:{self.family}/{self.algorithm}:{ins}->{outs}"


@dataclass(frozen=True)
class Scratch:
    """Global memory that passes values between the launches of one region."""

    bytes: int


Argument = tuple[str, int]
"""("input", k), ("output", k) or ("scratch", k): what a kernel parameter is, in terms of the region."""


@dataclass(frozen=True)
class RegionLaunch:
    """A kernel with its parameters in terms of the region's inputs, outputs and scratch buffers."""

    kernel: Kernel
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Lowered:
    """The launches of one region, in order."""

    launches: tuple[RegionLaunch, ...]
    scratch: tuple[Scratch, ...] = ()


class Family(Protocol):
    """A kernel family. It is stateless; everything it knows comes in as arguments."""

    name: str

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """Every way in which the family can implement the region on the target (none where it can't)."""

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """The names, besides the choices, that the constraints of the family's search space may use."""

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """A good schedule without measuring."""

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """The loops. The kernels are verified."""
