"""Writes at computed indices: which updates may run side by side, and what one of them does.

An axis of the updates that is an index of the output as it stands keeps its points apart: two updates with different positions along it
never meet. Such axes are dealt out. The others run in order within a thread, so that results don't depend on timing. Where dealing out
leaves too few threads, several share the same updates: each owner goes over all of them and takes those that fall into its part
of the output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autofuse.fusion.scatter import initial_program, scatter_of
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, Var, apply, call, cast_to, const, load, variables
from autofuse.ir.stage import Combine, Scatter
from autofuse.kernels.access import Binding, Resolver, bind
from autofuse.kernels.base import Variant
from autofuse.loops.ir import If, Stmt, Store

FUNCTIONS = {Combine.SUM: "add", Combine.PROD: "mul", Combine.MAX: "maximum", Combine.MIN: "minimum"}
"""The scalar function of each combine."""


@dataclass(frozen=True)
class Updates:
    """The updates of a scatter over buffers.

    `outer` and `inner` are the axes that keep updates apart, before and after the first of the `ordered` ones, which do not.
    `place` is the row-major position within those dimensions of the output that no axis keeps apart, of which there are `places`.
    """

    scatter: Scatter
    binding: Binding
    outer: tuple[Var, ...]
    ordered: tuple[Var, ...]
    inner: tuple[Var, ...]
    place: Expr
    places: int
    offset: Expr
    value: Expr

    @property
    def apart(self) -> int:
        """How many updates may run side by side."""
        return points(self.outer) * points(self.inner)

    @property
    def steps(self) -> int:
        """How many updates follow one another."""
        return points(self.ordered)

    def write(self, at: Mapping[Expr, Expr]) -> tuple[Stmt, ...]:
        """The statements of one update where the axes stand at the given points."""
        offset, value = (ix.substitute(e, at) for e in (self.offset, self.value))
        s = self.scatter
        buffer = self.binding.outputs[0].buffer
        if s.combine is not None:
            old = cast_to(load(buffer, (offset,), buffer.dtype), s.dtype.compute)
            value = call(FUNCTIONS[s.combine], old, cast_to(value, s.dtype.compute))
        return (Store(buffer, offset, cast_to(value, s.dtype)),)

    def owned(self, body: tuple[Stmt, ...], at: Mapping[Expr, Expr], owners: int, owner: Expr) -> tuple[Stmt, ...]:
        """The statements under the condition that the place which they write belongs to one of several owners."""
        if owners == 1:
            return body
        mine = ix.floor_mod(ix.substitute(self.place, at), owners)
        return (If(apply("eq", (mine, owner), DType.BOOL), body),)


def points(axes: tuple[Var, ...]) -> int:
    """How many points some axes have."""
    return math.prod(a.extent or 0 for a in axes)


def updates_of(variant: Variant) -> Updates:
    """The updates of a variant; axes of extent 1 are gone."""
    s, binding = scatter_of(variant.program), bind(variant)
    assert s is not None
    ones: dict[Expr, Expr] = {a: const(0) for a in s.updates if a.extent == 1}
    resolve = Resolver(binding.inputs, ones)
    at = [resolve(i) for i in s.index]
    axes = [a for a in s.updates if a.extent != 1]
    alone = {i for i in at if isinstance(i, Var)}
    ordered = tuple(a for a in axes if a not in alone)
    first = axes.index(ordered[0]) if ordered else len(axes)
    outer = tuple(a for a in axes[:first])
    inner = tuple(a for a in axes[first:] if a in alone)
    shared = [(i, n) for i, n in zip(at, s.shape, strict=True) if not isinstance(i, Var)]
    place = ix.flatten((i for i, _ in shared), (n for _, n in shared))
    places = math.prod(n for _, n in shared)
    return Updates(s, binding, outer, ordered, inner, place, places, binding.outputs[0].offset(at), resolve(s.value))


def initial_variant(variant: Variant, family: str, algorithm: str) -> Variant:
    """The initial values of a scatter as a map of their own, over the same inputs and outputs."""
    program = initial_program(variant.program)
    return Variant(family, algorithm, program, variant.input_layouts, variant.output_layouts)


def moves_with(u: Updates, axis: Var) -> bool:
    """Whether neighbouring updates along an axis write neighbouring elements."""
    parts, _ = ix.terms(u.offset)
    return all(axis not in variables(a) or (a is axis and c == 1) for a, c in parts)
