"""The messages between a tune and its worker process. They are pickled over a private socket between the two, never stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autofuse.engine.plan import Plan
from autofuse.fusion.region import RegionProgram
from autofuse.kernels.base import Schedule, Variant
from autofuse.measure.programs import Repetition
from autofuse.measure.reference import Tolerance
from autofuse.measure.result import Status


@dataclass(frozen=True)
class Hello:
    """The first message: a pickled function that makes the device, and a limit of address space in bytes (0: none)."""

    device: bytes
    memory: int


@dataclass(frozen=True)
class Prepare:
    """Compute inputs and reference of a region and keep them in the folder of references."""

    program: RegionProgram
    constants: Mapping[int, np.ndarray]
    folder: str


@dataclass(frozen=True)
class OpenKernel:
    """Load a variant under a schedule and check its numbers; with a repetition also make it ready for timing."""

    handle: int
    variant: Variant
    schedule: Schedule
    repetition: Repetition
    folder: str
    tolerance: Tolerance
    special: bool
    """Check on NaN and infinities too."""


@dataclass(frozen=True)
class OpenEngine:
    """Build an engine from a plan and check its outputs. The files hold the pickled graph, the inputs and, if any, the wanted outputs."""

    handle: int
    plan: Plan
    graph_file: str
    inputs_file: str
    wanted_file: str
    tolerance: Tolerance
    outputs_file: str
    """Where to store the outputs ("" for nowhere): they serve as reference of later engines."""


@dataclass(frozen=True)
class OpenPeer:
    """Load the model into another runtime (onnxruntime), to be timed in the same rounds."""

    handle: int
    name: str
    model: bytes | str
    inputs_file: str
    threads: int


@dataclass(frozen=True)
class Shoot:
    """Run each of the handles `repeats` times in each of `rounds` rounds, interleaved; gives a list of nanoseconds each."""

    handles: tuple[int, ...]
    rounds: int
    repeats: int


@dataclass(frozen=True)
class Stamps:
    """Nanoseconds of every launch of an engine: int64 (repeats, launches)."""

    handle: int
    repeats: int


@dataclass(frozen=True)
class WriteReference:
    """Evaluate the whole model in float64 numpy and store its outputs."""

    graph_file: str
    inputs_file: str
    wanted_file: str


@dataclass(frozen=True)
class Calibrate:
    """Measure what the device reaches; gives a Measurement by name."""


@dataclass(frozen=True)
class Close:
    """Free what a handle holds."""

    handle: int


Request = Hello | Prepare | OpenKernel | OpenEngine | OpenPeer | Shoot | Stamps | WriteReference | Calibrate | Close


@dataclass(frozen=True)
class At:
    """On the way: the worker is about to run this handle (so that a crash has a name)."""

    handle: int


@dataclass(frozen=True)
class Done:
    """The answer to a request."""

    value: object


@dataclass(frozen=True)
class Failed:
    """A request that could not be served; the worker lives on."""

    status: Status
    reason: str


Reply = At | Done | Failed
