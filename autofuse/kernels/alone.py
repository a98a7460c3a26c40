"""What the families of computations that stand alone share: recognising them, their operands, rows along an axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, cast_to, const, load
from autofuse.ir.stage import Determinant, Running, Sort
from autofuse.kernels.access import Binding, bind, plain_layouts
from autofuse.kernels.base import Variant
from autofuse.loops.ir import Buffer

T = TypeVar("T", Sort, Running, Determinant)


def only(program: RegionProgram, kind: type[T]) -> T | None:
    """The computation of a program that is one of that type and nothing else."""
    stage = program.steps[0].stage
    return stage if len(program.steps) == 1 and isinstance(stage, kind) else None


def one_of(variant: Variant, kind: type[T]) -> T:
    """The computation of a variant that is known to be one of that type."""
    found = only(variant.program, kind)
    assert found is not None
    return found


def variant_for(family: str, algorithm: str, program: RegionProgram) -> Variant:
    """A variant with row-major layouts everywhere."""
    ins, outs = plain_layouts(program)
    return Variant(family, algorithm, program, ins, outs)


@dataclass(frozen=True)
class Operands:
    """The buffers of a computation: its inputs in the order of its slots, and those of its outputs that something reads."""

    binding: Binding
    inputs: tuple[Buffer, ...]
    outputs: Mapping[int, Buffer]


def operands_of(variant: Variant) -> Operands:
    """The buffers of a variant of a program with one step."""
    binding = bind(variant)
    program = variant.program
    inputs = tuple(binding.inputs[k].buffer for k in program.steps[0].operands)
    first = program.first_number[0]
    made = {n - first: o.buffer for n, o in zip(program.outputs, binding.outputs, strict=True)}
    return Operands(binding, inputs, made)


@dataclass(frozen=True)
class Rows:
    """A tensor as rows along one axis: `outer` x `inner` of them, each of `length` elements that lie `inner` apart."""

    outer: int
    length: int
    inner: int

    @staticmethod
    def along(shape: tuple[int, ...], axis: int) -> Rows:
        return Rows(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))

    @property
    def count(self) -> int:
        return self.outer * self.inner

    def offset(self, row: Expr, position: Expr, length: int | None = None) -> Expr:
        """The flat offset of an element of a row, in a tensor whose rows are `length` long (by default as long as these)."""
        n = self.length if length is None else length
        outer, inner = ix.floor_div(row, max(self.inner, 1)), ix.floor_mod(row, max(self.inner, 1))
        return ix.add(ix.mul(outer, n * self.inner), ix.mul(position, self.inner), inner)


def read(buffer: Buffer, offset: Expr) -> Expr:
    """An element in the type in which it is computed with."""
    return cast_to(load(buffer, (offset,), buffer.dtype), buffer.dtype.compute)


def cell(buffer: Buffer) -> Expr:
    """The value of a buffer of one element."""
    return load(buffer, (const(0),), buffer.dtype)
