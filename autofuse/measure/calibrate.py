"""What the device reaches: the bandwidth of a copy from memory, within the last cache and within those next to the cores, the arithmetic
of a register-tiled product, the cost of a launch.

All are kernels of the usual families with results that numpy knows at once. They are measured once per device and kept in the records.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from autofuse.devices.base import Device
from autofuse.engine.lowering import ready
from autofuse.engine.options import estimate, rates
from autofuse.errors import LaunchError
from autofuse.fusion.region import RegionProgram, Step, Tensor
from autofuse.ir.dtype import DType
from autofuse.ir.expr import call, load, var
from autofuse.ir.stage import Combine, Stage, axes_of
from autofuse.ir.target import Target
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import family, lower, variants
from autofuse.loops.ir import Kernel
from autofuse.measure.inputs import generator_of
from autofuse.measure.programs import (
    Repetition,
    packed_inputs,
    region_bytes,
    repetition,
    timing_program,
    unpacked_outputs,
)
from autofuse.measure.result import Measurement, Status

SIGNATURE = "calibration"
NEEDED = ("copy", "cached", "product", "launch")
NAMES = (*NEEDED, "shared")
CACHED = 4.0
"""How many times faster than from memory the caches are taken to be where that was not measured."""
_IMPOSSIBLE = 100.0
STEADY = 1.25
"""A calibration that is slower than the best by more than this was disturbed."""
_PRODUCT = 768
_ROW = 1024
_LAUNCH_ELEMENTS = 16
_LAUNCHES = 1024
_RUNS = 9


@dataclass(frozen=True)
class Reached:
    """Bytes a second, FLOPs a second, seconds a launch; `measured` is False where a rough assumption stands in.

    `cached` is the bandwidth within the caches next to the cores, of all cores together (on CUDA: within the L2)."""

    bandwidth: float
    flops: float
    launch: float
    measured: bool
    cached: float = 0.0
    """0 where it is not known."""
    shared: float = 0.0
    """The bandwidth within the last cache, where that is larger than those next to the cores; 0 where it is not known."""
    steady: bool = field(default=True, compare=False)
    """Whether what was measured now came near the best that was ever seen: no neighbour was busy."""


def key_of(name: str) -> str:
    """The key of a calibration in the records."""
    return f"{SIGNATURE}:{name}:1"


def reached(rows: Mapping[str, Measurement], target: Target, threads: int) -> Reached:
    """The rates that calibration rows (by name) amount to; the usual rates of such a device for those that are missing.

    The best run of each counts: these are what the device can do, not what it did while something else was running.
    """
    assumed = rates(target, threads)
    best = {name: min(m.samples_ns) * 1e-9 for name, m in rows.items() if m.ok and plausible(m, target, threads)}
    return Reached(
        rows["copy"].bytes_model / best["copy"] if "copy" in best else assumed.bytes,
        rows["product"].flops / best["product"] if "product" in best else assumed.flops,
        best.get("launch", assumed.launch),
        all(name in best for name in NEEDED),
        rows["cached"].bytes_model / best["cached"] if "cached" in best else CACHED * assumed.bytes,
        rows["shared"].bytes_model / best["shared"] if "shared" in best else 0.0,
    )


def plausible(m: Measurement, target: Target, threads: int) -> bool:
    """Whether a calibration can be true: none is a hundred times faster than such a device, by any of its samples. A record that was
    damaged would otherwise be the best for ever."""
    assumed = rates(target, threads)
    if not m.samples_ns:
        return False
    seconds = min(m.samples_ns) * 1e-9
    return (
        m.bytes_model / seconds <= CACHED * _IMPOSSIBLE * assumed.bytes
        and m.flops / seconds <= _IMPOSSIBLE * assumed.flops
    )


def merged(new: Measurement, old: Measurement | None) -> Measurement:
    """A calibration with the fastest runs of two; those of another kernel text say nothing."""
    if (
        old is None
        or not old.ok
        or (old.family, old.algorithm, old.schedule) != (new.family, new.algorithm, new.schedule)
    ):
        return new
    return replace(new, samples_ns=tuple(sorted((*new.samples_ns, *old.samples_ns))[: len(new.samples_ns)]))


def near_best(new: Measurement, old: Measurement | None) -> bool:
    """Whether a calibration came near the best that was seen; true where there is none."""
    if old is None or not old.ok or not new.ok or old.schedule != new.schedule:
        return new.ok
    return statistics.median(new.samples_ns) <= STEADY * statistics.median(old.samples_ns)


def calibrate(device: Device) -> dict[str, Measurement]:
    """Measure all of them on a device; LaunchError where numbers are wrong."""
    return {name: _measure(device, name, program) for name, program in _programs(device.target).items()}


def calibration_kernels(target: Target, threads: int) -> list[Kernel]:
    """All the kernels, to be compiled side by side beforehand."""
    chosen = [_chosen(p, target, threads) for p in _programs(target).values()]
    return [x.kernel for variant, schedule in chosen for x in lower(variant, schedule, target).launches]


def _programs(target: Target) -> dict[str, RegionProgram]:
    # The last cache's size on either side of the copy, so that little stays in it from run to run.
    elements = max(1 << 22, target.l3 // 4)
    # Both sides of the cached copy fill half of the caches that hold it.
    near = max(1 << 14, target.l2 * (1 if target.is_cuda else target.cores) // 16)
    found = {
        "copy": negation(elements - elements % _ROW),
        "cached": negation(near - near % _ROW),
        "product": product(_PRODUCT),
        "launch": negation(_LAUNCH_ELEMENTS),
    }
    if not target.is_cuda and target.l3 >= 4 * target.cores * target.l2:
        # Too large for the caches next to the cores, and half of the last one.
        far = target.l3 // 16
        found["shared"] = negation(far - far % _ROW)
    return found


def _chosen(program: RegionProgram, target: Target, threads: int) -> tuple[Variant, Schedule]:
    found = [v for v in variants(program, target) if v.family != "view" and not v.tolerant]
    if not found:
        raise LaunchError(f"no kernel family can calibrate {target.kind}")
    # The last of the cheapest: specialised families stand behind the general ones.
    variant = min(reversed(found), key=lambda v: estimate(v, target, threads))
    return variant, family(variant.family).heuristic(variant, target)


def negation(elements: int) -> RegionProgram:
    """out = -in over a number of float32 elements (a plain copy would need no kernel at all)."""
    axes = axes_of((elements // _ROW, _ROW) if elements >= _ROW else (elements,))
    stage = Stage(axes, call("neg", load(0, axes, DType.FLOAT32)), DType.FLOAT32)
    return RegionProgram((Tensor(DType.FLOAT32, stage.shape, False),), (Step(stage, (0,)),), (1,))


def product(n: int) -> RegionProgram:
    """A square matrix product in float32; the second operand is a constant, as weights are."""
    i, j = axes_of((n, n))
    k = var("r0", n)
    body = call("mul", load(0, (i, k), DType.FLOAT32), load(1, (k, j), DType.FLOAT32))
    stage = Stage((i, j), body, DType.FLOAT32, (k,), Combine.SUM)
    tensors = (Tensor(DType.FLOAT32, (n, n), False), Tensor(DType.FLOAT32, (n, n), True))
    return RegionProgram(tensors, (Step(stage, (0, 1)),), (2,))


def _measure(device: Device, name: str, program: RegionProgram) -> Measurement:
    target = device.target
    variant, schedule = _chosen(program, target, device.threads)
    inputs = [generator_of(name, k).standard_normal(t.shape).astype(np.float32) for k, t in enumerate(program.inputs)]
    repeat = Repetition(_LAUNCHES, 1)
    if name != "launch":
        repeat = repetition(variant, estimate(variant, target, device.threads), 0)
    executable = device.load(timing_program(ready(device, variant, schedule), inputs, repeat))
    try:
        packed = packed_inputs(variant, inputs)
        (got,) = unpacked_outputs(variant, executable.run(packed))
        error = _error(inputs, got)
        if not error <= 1e-3:
            raise LaunchError(
                f"the calibration kernel {name!r} is off by {error:.3g}: the device or compiler is at fault"
            )
        executable.bind(packed)
        executable.time(2)
        samples = tuple(max(1, ns // repeat.times) for ns in executable.time(_RUNS))
    finally:
        executable.close()
    return Measurement(
        key_of(name),
        SIGNATURE,
        variant.family,
        variant.algorithm,
        "",
        schedule.text(),
        Status.OK,
        samples_ns=samples,
        error=error,
        flops=program.flops,
        bytes_model=region_bytes(variant),
    )


def _error(inputs: list[np.ndarray], got: np.ndarray) -> float:
    wanted = -inputs[0] if len(inputs) == 1 else inputs[0] @ inputs[1]
    worst = float(np.max(np.abs(got - wanted)))
    return worst / float(np.max(np.abs(wanted))) if math.isfinite(worst) else math.inf
