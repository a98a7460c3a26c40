"""What a variant computes and moves at least, whatever its schedule: the ground of lower bounds.

Products with padding are not counted, as kernels skip them. Vectors are whole: an axis of 55 elements costs 64 in vectors of 16. An algorithm
counts its own products (Winograd has fewer), and half of its transforms, since shared sums may save as much. What is prepared when an engine is
built is read as it lies in memory.
"""

from __future__ import annotations

import math
from functools import lru_cache

from autofuse.fusion.chain import Chain, chain_of
from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram, Step, Verdict
from autofuse.ir.dtype import DType
from autofuse.ir.expr import loads, variables
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.attention_host import whole_products as attention_products
from autofuse.kernels.base import Variant
from autofuse.kernels.contract_layouts import vector_axis
from autofuse.kernels.contract_roles import contraction, vanishing
from autofuse.kernels.dot_problem import dot_problem
from autofuse.kernels.padding_share import share_of_products
from autofuse.kernels.winograd_shape import whole_products
from autofuse.kernels.winograd_transform import setting

_NARROW = {True: 16.0, False: 4.0}
"""How many times faster than float32 products of narrower types may be, on CUDA (matrix units) and on the host (dot instructions)."""


def least_products(variant: Variant, target: Target) -> float:
    """The arithmetic of a variant's contractions in float32 operations.

    Other arithmetic is not counted: the weights of exp and its like are rough.
    """
    program = variant.program
    if variant.family == "dot_host":
        return _dot_products(variant, target)
    steps = [s for s in program.steps if s.kind is Kind.CONTRACT]
    total = sum(_counted(program, s, target.is_cuda) for s in steps)
    if variant.family == "attention_host":
        return attention_products(variant, target) if all(_wide(program, s) for s in steps) else total
    if len(steps) != 1 or not _wide(program, steps[0]):
        return total
    if variant.family == "winograd_host" and setting(program, target) is not None:
        return float(whole_products(variant, target))
    if variant.family == "contract_host":
        return total * _whole_vectors(variant, target)
    return total


def _dot_products(variant: Variant, target: Target) -> float:
    """The products of bytes in whole vectors and quads, at the rate of dot instructions; what zero points ask for is left out."""
    p = dot_problem(variant, target)
    points = p.row_extent * math.prod(a.extent or 1 for a in p.grid) * p.vectors * p.lanes
    return 2.0 * points * p.depth / _NARROW[False]


def _counted(program: RegionProgram, step: Step, is_cuda: bool) -> float:
    counted = step.stage.flops * share_of_products(program, step)
    return counted / (1.0 if _wide(program, step) else _NARROW[is_cuda])


def _wide(program: RegionProgram, step: Step) -> bool:
    return all(program.tensor(o).dtype in (DType.FLOAT32, DType.FLOAT64) for o in step.operands)


def _whole_vectors(variant: Variant, target: Target) -> float:
    """How many lanes are computed for each element along the vector axis."""
    found = contraction(variant.program)
    if found is None or not variant.algorithm.startswith("direct-"):
        return 1.0
    axis = vector_axis(found, variant)[1]
    if any(axis in variables(c) for f in found.factors for c in vanishing(f)):
        return 1.0  # the last vector may lie in the padding of some products whole
    n = axis.extent or 1
    lanes = target.lanes(found.dtype.itemsize)
    return -(-n // lanes) * lanes / n


def least_bytes(variant: Variant) -> int:
    """The bytes that a region must read and write: its outputs, and of each input no more than its points ask for (a Gather reads few rows)."""
    program = variant.program
    prepared = {k for k, _ in variant.prepared}
    total = 0.0
    for k, (t, layout, asked) in enumerate(zip(program.inputs, variant.input_layouts, _asked(program), strict=True)):
        elements = variant.elements(k) if k in prepared and t.constant else min(layout.size(t.shape), asked)
        total += elements * t.dtype.itemsize
    for n, layout in zip(program.outputs, variant.output_layouts, strict=True):
        t = program.tensor(n)
        total += layout.size(t.shape) * t.dtype.itemsize
    return int(total)


@lru_cache(maxsize=1 << 14)
def _asked(program: RegionProgram) -> tuple[float, ...]:
    """How many elements of each input are read at most, each time counted; infinity where that is not known."""
    form = analyse(program)
    if isinstance(form, Verdict):
        chain = chain_of(program)
        if isinstance(chain, Chain):
            return _asked_by_chain(chain)
    if not isinstance(form, Form) or not (form.anchors or form.outputs):
        return (math.inf,) * len(program.inputs)
    asked = [0.0] * len(program.inputs)
    every = form.row_points * form.reduced_points
    bodies = [(a.body, every) for a in form.anchors]
    bodies += [(o.value, every if o.full else form.row_points) for o in form.outputs]
    for body, points in bodies:
        for ld in loads(body):
            if isinstance(ld.source, int):
                asked[ld.source] += points
    return tuple(asked)


def _asked_by_chain(chain: Chain) -> tuple[float, ...]:
    asked = [0.0] * len(chain.program.inputs)
    rows = math.prod(a.extent or 0 for a in (*chain.batch, *chain.queries))
    scores = rows * (chain.key.extent or 0)
    delivered = rows * (chain.column.extent or 0)
    depth = math.prod(a.extent or 0 for a in chain.depth)
    bodies = [(e, scores * depth) for e in (chain.query_factor, chain.key_factor)]
    bodies += [(e, scores) for e in (*(a.body for a in chain.anchors), chain.weight)]
    bodies += [
        (chain.value_factor, delivered * (chain.key.extent or 0)),
        *((o.value, delivered) for o in chain.outputs),
    ]
    for body, points in bodies:
        for ld in loads(body):
            if isinstance(ld.source, int):
                asked[ld.source] += points
    return tuple(asked)
