"""Nests: a form under its layouts, with collapsed axes and everything resolved to buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from autofuse.fusion.form import Anchor, Form
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Var, const, loads, select, variables
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, Resolver, bind, collapse, iterate
from autofuse.kernels.base import Variant
from autofuse.loops.ir import Buffer, Store


@dataclass(frozen=True)
class Nest:
    """A form under its layouts: collapsed axes, and everything to evaluate resolved to buffers."""

    form: Form
    binding: Binding
    rows: tuple[Var, ...]
    reduced: tuple[Var, ...]
    bodies: Mapping[Anchor, Expr]
    values: tuple[Expr, ...]
    offsets: tuple[Expr, ...]
    position: Expr  # of an element within the reduced domain, row-major
    valid: Expr


@lru_cache(maxsize=1 << 12)
def nest_of(variant: Variant, form: Form) -> Nest:
    """Resolve a form: row axes follow the physical order of the first row output's layout."""
    binding = bind(variant)
    where: dict[Expr, Expr] = {}
    rows: tuple[Var, ...] = form.rows
    valid: Expr = ix.TRUE
    for k, o in enumerate(form.outputs):
        named = [i for i in o.index if isinstance(i, Var)]
        if not o.full and set(named) == set(form.rows) and len(named) == len(form.rows):
            it = iterate(variant.output_layouts[k], o.shape)
            where = {a: p for a, p in zip(o.index, it.index, strict=True) if isinstance(a, Var)}
            rows, valid = it.axes, it.valid
            break
    resolve = Resolver(binding.inputs, where)
    bodies = [resolve(a.body, valid) for a in form.anchors]
    values = [resolve(o.value, valid) for o in form.outputs]
    offsets = [
        operand.offset(tuple(resolve(i) for i in o.index))
        for o, operand in zip(form.outputs, binding.outputs, strict=True)
    ]
    position = ix.flatten(form.reduced, tuple(a.extent or 0 for a in form.reduced))
    needed = [position] if any(a.combine.is_arg for a in form.anchors) else []
    everything = [*bodies, *values, *offsets, *needed, valid]
    rows, row_map = collapse(rows, everything)
    everything = [ix.substitute(e, row_map) for e in everything]
    reduced, reduced_map = collapse(form.reduced, everything)

    def settle(e: Expr) -> Expr:
        return ix.substitute(ix.substitute(e, row_map), reduced_map)

    return Nest(
        form,
        binding,
        rows,
        reduced,
        {a: settle(b) for a, b in zip(form.anchors, bodies, strict=True)},
        tuple(settle(v) for v in values),
        tuple(settle(o) for o in offsets),
        settle(position),
        settle(valid),
    )


def stride(nest: Nest, axis: Var | None) -> int:
    """How many of the bodies' loads step by one element along an axis, less those that jump."""
    if axis is None:
        return -1
    score = 0
    for body in nest.bodies.values():
        for ld in loads(body):
            if isinstance(ld.source, Buffer):
                coefficients = dict(ix.terms(ld.index[0])[0])
                step = coefficients.get(axis, 0)
                uses = any(axis in variables(t) for t in coefficients)
                score += 1 if step == 1 else -1 if step or uses else 0
    return score


def store(nest: Nest, k: int, at: Mapping[Expr, Expr], stream: bool = False) -> Store:
    """The statement that delivers output k at a point; padding gets zeros."""
    value = ix.substitute(nest.values[k], at)
    value = select(ix.substitute(nest.valid, at), value, const(0, value.dtype))
    return Store(nest.binding.outputs[k].buffer, ix.substitute(nest.offsets[k], at), value, stream=stream)


def streams(nbytes: int, target: Target) -> bool:
    """Whether stores should go past the caches: a launch that moves so much leaves nothing there for the next one."""
    return 4 * nbytes >= 3 * target.l3 > 0
