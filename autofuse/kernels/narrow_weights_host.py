"""Products with weights stored in half a float32, for `--accuracy fast`: where the weights' bytes are what a product waits for.

The arithmetic stays in float32; only the stored weight is rounded, to bfloat16 (a shift to read) or float16 (three bits more).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from autofuse.fusion.region import RegionProgram, Step
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, Load, cast_to, load, rewrite
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Stage
from autofuse.ir.target import Target
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.contract_host import ContractHost
from autofuse.kernels.contract_roles import contraction

TYPES = {"bf16": DType.BFLOAT16, "f16": DType.FLOAT16}
FEW_ROWS = 16
"""With more rows each weight is used so often that its bytes do not count."""
MANY_BYTES = 1 << 20
"""Weights with fewer bytes stay in a core's cache."""


@dataclass(frozen=True)
class Narrow:
    """A constant rounded to a narrower type, in a layout."""

    type: str
    layout: str

    def elements(self, shape: tuple[int, ...]) -> int:
        """As many elements of the constant's own type as take the same bytes."""
        return -(-Layout.parse(self.layout).size(shape) // 2)

    def saving(self, shape: tuple[int, ...]) -> float:
        """No multiplication is saved."""
        del shape
        return 1.0

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The constant as it lies in memory."""
        return Layout.parse(self.layout).pack(array.astype(TYPES[self.type].numpy))

    def text(self) -> str:
        """Short and stable."""
        return f"{self.type} {self.layout}"


class NarrowWeightsHost:
    """Contractions of few rows with a large constant."""

    name = "narrow_weights_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """Each type for each direct variant."""
        k = _weights(program)
        if target.is_cuda or k is None:
            return
        for name, dtype in TYPES.items():
            for v in ContractHost().variants(_stored(program, k, dtype), target):
                how = ((k, Narrow(name, v.input_layouts[k].text())),)
                algorithm = f"{name}-{v.algorithm}"
                yield Variant(
                    self.name, algorithm, program, v.input_layouts, v.output_layouts, True, how, lower_precision=True
                )

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """Those of contract_host."""
        return ContractHost().facts(_direct(variant), target)

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """That of contract_host."""
        return ContractHost().heuristic(_direct(variant), target)

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """The kernel of contract_host on weights of the narrow type."""
        return ContractHost().lower(_direct(variant), schedule, target)


def _weights(program: RegionProgram) -> int | None:
    """The large float32 constant that a contraction of few rows reads."""
    found = [
        k
        for k, t in enumerate(program.inputs)
        if t.constant and t.dtype is DType.FLOAT32 and len(t.shape) >= 2 and 4 * math.prod(t.shape) >= MANY_BYTES
    ]
    if len(found) != 1 or not all(isinstance(s.stage, Stage) for s in program.steps):
        return None
    c = contraction(program)
    if c is None or c.form.row_points * c.form.reduced_points > FEW_ROWS * math.prod(program.inputs[found[0]].shape):
        return None
    return found[0]


def _stored(program: RegionProgram, k: int, dtype: DType) -> RegionProgram:
    """The program that reads input k in another type, and casts what it reads."""
    inputs = tuple(replace(t, dtype=dtype) if j == k else t for j, t in enumerate(program.inputs))
    return replace(program, inputs=inputs, steps=tuple(_reading(s, k, dtype) for s in program.steps))


def _reading(s: Step, k: int, dtype: DType) -> Step:
    slots = {j for j, o in enumerate(s.operands) if o == k}
    if not slots or not isinstance(s.stage, Stage):
        return s

    def narrow(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.source in slots and e.dtype is DType.FLOAT32 and e.fill is None:
            assert isinstance(e.source, int)
            return cast_to(load(e.source, e.index, dtype), DType.FLOAT32)
        return None

    return Step(replace(s.stage, body=rewrite(s.stage.body, narrow)), s.operands)


def _direct(variant: Variant) -> Variant:
    """The variant of contract_host that computes the same from weights of the narrow type."""
    name, algorithm = variant.algorithm.split("-", 1)
    k = variant.prepared[0][0]
    program = _stored(variant.program, k, TYPES[name])
    return Variant(ContractHost.name, algorithm, program, variant.input_layouts, variant.output_layouts)
