"""What the search needs of a device, as a contract: tests replay recorded answers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from autofuse.engine.plan import Plan
from autofuse.fusion.region import RegionProgram
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.measure.calibrate import Reached
from autofuse.measure.result import Measurement, Opened, Status

Choice = tuple[Variant, Schedule]


def layouts_text(variant: Variant) -> str:
    """The layouts of a variant in short: inputs -> outputs."""
    ins = ",".join(x.text() for x in variant.input_layouts)
    return f"{ins}->{','.join(x.text() for x in variant.output_layouts)}"


class Bench(Protocol):
    """What the search needs of a device. Tests replay recorded answers behind it."""

    @property
    def target(self) -> Target: ...

    @property
    def threads(self) -> int: ...

    @property
    def oracle(self) -> str:
        """What the outputs of plans are compared with, in words ("" before `prepare`)."""

    @property
    def checks_first_plan(self) -> bool:
        """True where the model is too large for numpy: the first plan's outputs are the reference, so its kernels must be checked before."""

    def kernels(
        self,
        program: RegionProgram,
        constants: Mapping[int, np.ndarray],
        choices: Sequence[Choice],
        deadline: float,
        again: int = 0,
    ) -> list[Measurement]:
        """Check and time the choices, interleaved; one Measurement each, in order. Known ones are not measured again, but for the first
        `again` of them.

        `deadline` is a time of time.monotonic(): what is not timed by then is `skipped`.
        """

    def compile(self, choices: Sequence[Choice]) -> None:
        """Compile what will be measured next, many kernels side by side. What fails is told when it is measured."""

    def known(self, signature: str) -> list[Measurement]:
        """What earlier tunes measured of a kernel signature on this device."""

    def seeds(self, program: RegionProgram) -> list[Measurement]:
        """What was measured of it elsewhere (another compiler, driver, number of threads or device), and of the kernels that are most like
        it, the most telling first. They are worth trying here, and nothing more."""

    def prepare(self) -> None:
        """Compute what plans are compared with, and set `oracle`."""

    def reached(self, deadline: float) -> Reached:
        """What the device can do at best; assumed, not measured, where it is not known and the deadline has passed."""

    def open(self, plan: Plan) -> tuple[int, Opened]:
        """Build the engine of a plan and check its outputs. The handle is good where the status is ok."""

    def open_peer(self, name: str, model: bytes | str) -> tuple[int, Opened]:
        """Load the model into another runtime."""

    def shoot(self, handles: Sequence[int], rounds: int, repeats: int) -> dict[int, list[int]]:
        """Nanoseconds of whole runs, interleaved. A handle that failed is left out, and `failure` says why."""

    def failure(self, handle: int) -> tuple[Status, str] | None:
        """Why a handle failed while it was timed."""

    def stamps(self, handle: int, repeats: int) -> np.ndarray | None:
        """Nanoseconds of each launch of an engine."""

    def exchange(self) -> int:
        """Nanoseconds that a cache line takes between the cores of the host's threads, there and back; 0 where nothing is known of it."""

    def release(self, handle: int) -> None:
        """Free a handle."""

    def close(self) -> None:
        """End all processes."""
