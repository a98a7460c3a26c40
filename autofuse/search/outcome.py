"""What a tune hands to the report: everything that was tried, with raw samples and reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Edge
from autofuse.fusion.region import Verdict
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.measure.noise import Noise
from autofuse.search.exact.reasons import Reason


@dataclass(frozen=True)
class PlanRow:
    """One plan that was tried. Times are nanoseconds of whole runs; empty samples where `status` is not "ok".

    status: ok, wrong, crashed, timeout, compile-failed, out-of-memory. `step` tells gains apart: unfused, tuned (unfused partition
    with tuned schedules), fused, other-algorithm. `estimate_ns` is the sum of its kernels' measured times (0 where unknown).
    `bound` is what holds most of its time: memory, launch or compute.
    """

    plan: Plan
    trial: int
    step: str
    status: str
    reason: str
    samples_ns: tuple[int, ...]
    launches: int
    bytes_model: int
    flops: int
    floor_ns: float
    bound: str
    peak_bytes: int
    compile_seconds: float
    error: float
    estimate_ns: float
    elapsed_seconds: float
    region_ns: tuple[float, ...] = ()
    """Median nanoseconds of each region in place, in the plan's order (empty where not profiled)."""
    whole_ns: float = 0.0
    """The median when the plan was tried, beside which the estimate was made; 0 where it did not run."""
    off: float = float("nan")
    """By how much the estimate was off that, relative to it; NaN where a kernel of the plan had not been measured."""
    again: bool = False
    """Whether its kernels were measured again in place for that."""
    repeats: int = 1
    """Samples of one round, which lie side by side."""
    noisy: tuple[int, ...] = ()
    """Positions of samples that were taken while the machine was noisier than it had been."""


@dataclass(frozen=True)
class KernelRow:
    """One kernel and schedule that was tried. `key` is the digest of its text, flags and compiler."""

    signature: str
    family: str
    algorithm: str
    layouts: str
    schedule: str
    key: str
    status: str
    reason: str
    samples_ns: tuple[int, ...]
    flops: int
    bytes_model: int
    floor_ns: float
    bound: str
    error: float
    compile_seconds: float
    registers: int
    spill_bytes: int
    shared_bytes: int
    cached: bool
    """True where an earlier tune measured it."""
    study: str = ""
    """Where the study of its signature stands: why it was closed, or how many candidates were tried."""
    repeats: int = 1
    noisy: tuple[int, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """What the device reaches: bytes a second of a copy, FLOPs a second of a register-tiled loop, seconds of an empty launch; bytes a second
    within the caches next to the cores, and within the last one (0 where that is not known)."""

    bandwidth: float
    flops: float
    launch: float
    cached: float = 0.0
    shared: float = 0.0


@dataclass(frozen=True, eq=False)
class TuneOutcome:
    """A finished (or interrupted) tune. `plans` are in the order in which they were tried; `best` is the plan to use."""

    graph: Graph
    model: str
    shapes: dict[str, tuple[int, ...]]
    target: Target
    threads: int
    accuracy: str
    seed: int
    command: str
    best: Plan
    best_text: dict[str, str]
    """Kernel text of the best engine by kernel key."""
    plans: tuple[PlanRow, ...]
    kernels: tuple[KernelRow, ...]
    refusals: dict[Edge, Verdict]
    calibration: Calibration
    baselines: dict[str, tuple[int, ...]]
    """Raw nanoseconds of peers measured in the same rounds (onnxruntime where asked for)."""
    seconds: float
    interrupted: bool
    notes: tuple[str, ...]
    inputs: dict[str, np.ndarray]
    noise: Noise | None = None
    """What a plan differs from itself on this machine; None where time was too short to see."""
    reasons: dict[Edge, Reason] = field(default_factory=dict)
    """Why edges are not fused and what the other choice costs, as far as time allowed to ask the solver."""
    objectives: tuple[str, ...] = ("latency",)
    """What was asked for; the best plan has least of the first."""
