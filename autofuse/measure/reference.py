"""The float64 reference of a region, and the comparison of a kernel's outputs with it.

The reference evaluates the region's stages one after the other in numpy, in float64, without rounding to the stored types in between; where
the model itself casts to a half type or a narrow one, it rounds. Contractions
go through einsum, so a whole reference costs little even for large ones and every element of every output is compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autofuse.fusion.region import RegionProgram
from autofuse.ir.dtype import NARROW_FLOATS, DType
from autofuse.ir.expr import Apply, Expr, walk
from autofuse.ir.stage import Sort, Stage
from autofuse.measure.inputs import generator_of
from autofuse.ops.alone import evaluate_alone
from autofuse.ops.evaluate import evaluate, evaluate_expr

_RELATIVE = {DType.FLOAT16: 1e-2, DType.BFLOAT16: 4e-2, **dict.fromkeys(NARROW_FLOATS, 4e-2)}
AMONG_RUNS = 0.1
"""The part of the tolerance by which two runs on the same inputs may differ: sums may be added up in another order."""
_SHAKE = 1e-4
_SHAKES = 4


@dataclass(frozen=True)
class Tolerance:
    """|error| may be at most relative x max|reference| + absolute. None takes the default of the type: 1e-3, fp16 1e-2, bf16 and below 4e-2."""

    relative: float | None = None
    absolute: float | None = None
    fast: bool = False
    """Where lower precision is allowed, 1e-2 takes the place of 1e-3."""
    scale: float = 1.0
    """Of both: two runs of one kernel may differ by less than a kernel and the reference."""

    def of(self, dtype: DType) -> tuple[float, float]:
        """Relative and absolute tolerance for a type."""
        relative = self.relative if self.relative is not None else _RELATIVE.get(dtype, 1e-2 if self.fast else 1e-3)
        return relative * self.scale, (self.absolute if self.absolute is not None else 1e-5) * self.scale


@dataclass(frozen=True)
class Check:
    """The outcome of a comparison: `error` is max|error| / max|reference| over all float outputs."""

    ok: bool
    error: float
    reason: str = ""


def evaluate_program(program: RegionProgram, inputs: Sequence[np.ndarray], wide: bool = True) -> dict[int, np.ndarray]:
    """Every local number of a region, by numpy. Half types are widened first where `wide` asks."""
    values: dict[int, np.ndarray] = dict(enumerate(inputs))
    for step, first in zip(program.steps, program.first_number, strict=True):
        given = [values[o] for o in step.operands]
        if isinstance(step.stage, Stage):
            values[first] = evaluate(step.stage, given, wide)
        else:
            values |= dict(enumerate(evaluate_alone(step.stage, given, wide), first))
    return values


def reference_outputs(program: RegionProgram, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The region's outputs in float64 (integers and booleans in their own type)."""
    values = evaluate_program(program, inputs)
    return [values[n] for n in program.outputs]


def special_inputs(program: RegionProgram, inputs: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The inputs with a NaN and infinities planted in the first float input that is no constant; None where there is none."""
    for k, (t, a) in enumerate(zip(program.inputs, inputs, strict=True)):
        if t.dtype.is_float and not t.constant and a.size >= 4:
            planted = a.copy()
            where = generator_of(program.signature, "special").choice(a.size, 3, replace=False)
            planted.reshape(-1)[where] = np.asarray([np.nan, np.inf, -np.inf], a.dtype)
            return [planted if j == k else x for j, x in enumerate(inputs)]
    return None


def compare_outputs(
    program: RegionProgram,
    inputs: Sequence[np.ndarray],
    got: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
    tolerance: Tolerance,
    special: bool = False,
) -> Check:
    """Compare all outputs of a region. With `special` integers are passed over, as their casts of NaN and Inf mean nothing."""
    worst = 0.0
    for k, (n, mine, ref) in enumerate(zip(program.outputs, got, wanted, strict=True)):
        dtype = program.tensor(n).dtype
        where = f"output {k} of {len(program.outputs)}" if len(program.outputs) > 1 else "the output"
        if mine.shape != ref.shape:
            return Check(False, math.inf, f"{where} has shape {mine.shape}, the reference {ref.shape}")
        if dtype.is_float and not dtype.is_narrow:
            error, reason = compare_floats(mine, ref, dtype, Tolerance(*tolerance.of(_coarsest(program, dtype))))
            worst = max(worst, error)
            if reason:
                return Check(False, error, f"{where}: {reason}")
        elif dtype.is_float or not special:
            plain = mine.astype(np.float64) if dtype.is_float else mine
            reason = _compare_discrete(program, inputs, n, plain, ref, tolerance)
            if reason:
                return Check(False, math.inf, f"{where}: {reason}")
    return Check(True, worst)


def unstable(
    program: RegionProgram, first: Sequence[np.ndarray], second: Sequence[np.ndarray], tolerance: Tolerance
) -> str:
    """How two runs on the same inputs differ, "" where they don't: a kernel that races gives right numbers now and then."""
    for n, a, b in zip(program.outputs, first, second, strict=True):
        dtype = program.tensor(n).dtype
        if a.tobytes() == b.tobytes():
            continue
        if not dtype.is_float or dtype.is_narrow:
            return "its numbers differ from run to run on the same inputs"
        among = replace(tolerance, scale=AMONG_RUNS).of(_coarsest(program, dtype))
        _, reason = compare_floats(b, a.astype(np.float64), dtype, Tolerance(*among))
        if reason:
            return f"its numbers differ from run to run on the same inputs: {reason}"
    return ""


@lru_cache(maxsize=1 << 12)
def _coarsest(program: RegionProgram, dtype: DType) -> DType:
    """The type whose tolerance an output has: its own, or that of a half type which the region casts to on the way, as such a cast may go
    to either of two neighbours where its operand is computed."""
    bodies = [s.stage.body for s in program.steps if isinstance(s.stage, Stage)]
    kinds = {e.dtype for body in bodies for e in walk(body) if isinstance(e, Apply) and e.fn == "cast"} | {dtype}
    return next((t for t in (DType.BFLOAT16, DType.FLOAT16) if t in kinds), dtype)


def compare_floats(mine: np.ndarray, ref: np.ndarray, dtype: DType, tolerance: Tolerance) -> tuple[float, str]:
    """The largest error over max|reference|, and what is wrong ("" where nothing is). What overflows the type counts as infinite."""
    if ref.size == 0:
        return 0.0, ""
    x = mine.astype(np.float64)
    top = _largest(dtype)
    y = np.where(np.abs(ref) > top, np.copysign(np.inf, ref), ref)
    finite = np.isfinite(y)
    with np.errstate(invalid="ignore"):
        difference = np.where(finite, np.abs(x - y), 0.0)
    scale = float(np.max(np.abs(y), where=finite, initial=0.0))
    relative, absolute = tolerance.of(dtype)
    limit = relative * scale + absolute
    # A difference that is NaN is not below any limit.
    bad = ~(difference <= limit)
    odd = ~finite & ~((np.isnan(x) & np.isnan(y)) | (x == y))
    near = (
        ~finite
        & np.isinf(y)
        & np.isfinite(x)
        & (np.abs(x) >= top * (1 - relative))
        & (np.abs(ref) <= top * (1 + relative))
    )
    odd &= ~near
    largest = float(np.max(difference, initial=0.0))
    error = (
        math.inf if math.isnan(largest) else largest / scale if scale > 0 else (largest if largest > absolute else 0.0)
    )
    wrong = bad | odd
    if not wrong.any():
        return error, ""
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = ", ".join(str(int(i)) for i in at)
    count = int(wrong.sum())
    return error, (
        f"{count} of {ref.size} elements are off by more than {limit:.3g}; the first at [{place}]: "
        f"{x[at]!r:.24} instead of {ref[at]!r:.24}"
    )


def _largest(dtype: DType) -> float:
    match dtype:
        case DType.FLOAT16:
            return 65504.0
        case DType.BFLOAT16:
            return 3.3895e38
        case DType.FLOAT32:
            return float(np.finfo(np.float32).max)
        case _:
            return float(np.finfo(np.float64).max)


def _compare_discrete(
    program: RegionProgram,
    inputs: Sequence[np.ndarray],
    number: int,
    mine: np.ndarray,
    ref: np.ndarray,
    tolerance: Tolerance,
) -> str:
    """Integers, booleans and narrow floats: equal, or different only where the float64 reference itself is near a tie."""
    differ = (mine != ref) & ((mine == mine) | (ref == ref))
    if not differ.any():
        return ""
    at = np.nonzero(differ)
    ok = _near_tie(program, inputs, number, mine, ref, at, tolerance)
    if ok.all():
        return ""
    first = int(np.argmin(ok))
    place = ", ".join(str(int(i[first])) for i in at)
    return f"{int((~ok).sum())} of {ref.size} elements differ; the first at [{place}]: {mine[differ][first]} instead of {ref[differ][first]}"


def _near_tie(
    program: RegionProgram,
    inputs: Sequence[np.ndarray],
    number: int,
    mine: np.ndarray,
    ref: np.ndarray,
    at: tuple[np.ndarray, ...],
    tolerance: Tolerance,
) -> np.ndarray:
    """Which of the elements `at` differ only because two float values are nearly equal."""
    count = len(at[0]) if at else 1
    if any(isinstance(s.stage, Sort) for s in program.steps):
        return np.zeros(count, bool)  # it is alone: both sorted the very same numbers
    if not any(program.tensor(k).dtype.is_float for k in range(len(program.inputs))) and not _has_float_step(program):
        return np.zeros(count, bool)
    step, _ = program.defined_by.get(number, (None, 0)) if number >= len(program.inputs) else (None, 0)
    if (
        step is not None
        and isinstance(step.stage, Stage)
        and step.stage.combine is not None
        and step.stage.combine.is_arg
    ):
        values = evaluate_program(program, inputs)
        operands = [values[o] for o in step.operands]
        a = _body_at(step.stage, operands, at, mine[at])
        b = _body_at(step.stage, operands, at, ref[at])
        relative, absolute = tolerance.of(step.stage.body.dtype)
        inside = (mine[at] >= 0) & (mine[at] < math.prod(x.extent or 0 for x in step.stage.reduce_axes))
        near = np.asarray(np.abs(a - b) <= relative * np.maximum(np.abs(a), np.abs(b)) + absolute)
        return np.asarray(inside & near)
    low = ref[at].astype(np.float64)
    high = low.copy()
    for k in range(_SHAKES):
        shaken = _shaken(inputs, program, k)
        again = evaluate_program(program, shaken)[number][at].astype(np.float64)
        low, high = np.minimum(low, again), np.maximum(high, again)
    x = mine[at].astype(np.float64)
    return np.asarray((x >= low) & (x <= high))


def _has_float_step(program: RegionProgram) -> bool:
    return any(isinstance(s.stage, Stage) and s.stage.body.dtype.is_float for s in program.steps)


def _shaken(inputs: Sequence[np.ndarray], program: RegionProgram, k: int) -> list[np.ndarray]:
    """The float inputs, each element moved a little: what changes the outcome of a cast was near its edge."""
    out = []
    for j, a in enumerate(inputs):
        if program.inputs[j].dtype.is_float:
            sign = generator_of(program.signature, "shake", k, j).choice([-1.0, 1.0], a.shape)
            out.append(a.astype(np.float64) * (1 + _SHAKE * sign))
        else:
            out.append(a)
    return out


def _body_at(
    stage: Stage, operands: Sequence[np.ndarray], at: tuple[np.ndarray, ...], position: np.ndarray
) -> np.ndarray:
    """The body of an arg-reduction at output elements and flat positions within its reduced axes."""
    env: dict[Expr, np.ndarray] = dict(zip(stage.axes, at, strict=True))
    rest = np.asarray(position, np.int64)
    for axis in reversed(stage.reduce_axes):
        env[axis] = rest % max(axis.extent or 0, 1)
        rest = rest // max(axis.extent or 0, 1)
    with np.errstate(all="ignore"):
        value = evaluate_expr(stage.body, env, operands, True)
    return np.broadcast_to(np.asarray(value, np.float64), np.shape(position))
