"""Col2Im: the blocks of a tensor's columns added up where they overlap."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F16, F32, like
from autofuse.ops.declare import Call, Op, Sample, Unsupported


def _col2im(c: Call) -> Sequence[ValueId]:
    """In gather form: an element sums, over the taps of a block, the columns whose tap lands on it.

    Element e of an axis is tap k of column q where e = stride q + dilation k - pad.
    """
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    image, block = c.ints(1), c.ints(2)
    if image is None or block is None or len(image) != len(block) or len(shape) != 3:
        raise Unsupported(f"columns of shape {shape} without an image and a block of equal rank")
    rank = len(image)
    strides = [int(s) for s in c.attr("strides") or [1] * rank]
    dilations = [int(d) for d in c.attr("dilations") or [1] * rank]
    pads = [int(p) for p in c.attr("pads") or [0] * (2 * rank)]
    counts = [
        (n + pads[k] + pads[k + rank] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1
        for k, n in enumerate(image)
    ]
    taps = prod(block)
    if taps < 1 or shape[1] % taps or shape[2] != prod(counts) or min(counts) < 1:
        raise Unsupported(f"columns of shape {shape} for blocks of {block} in an image of {image}")

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        n, channel, *e = out
        column, tests = [], []
        for k, (at, tap) in enumerate(zip(e, reduced, strict=True)):
            reached = ix.add(at, const(pads[k]), ix.mul(tap, -dilations[k]))
            if strides[k] > 1:
                tests.append(call("eq", ix.floor_mod(reached, strides[k]), const(0)))
            column.append(ix.floor_div(reached, strides[k]))
        inside = ix.in_range(column, counts)
        for t in tests:
            inside = ix.both(inside, t)
        row = ix.add(ix.mul(channel, taps), ix.flatten(reduced, block))
        found = read(0, (n, row, ix.flatten(column, counts)))
        return select(inside, found, like(found, 0))

    return [b.reduce([x], (shape[0], shape[1] // taps, *image), block, Combine.SUM, body, dtype)]


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


COLUMNS: tuple[Op, ...] = (
    Op(
        "Col2Im",
        _col2im,
        (
            Sample(((F32, (2, 12, 16)), _ints(4, 5), _ints(2, 3)), {"pads": [0, 1, 1, 0]}, 18, constant=(1, 2)),
            Sample(((F32, (1, 8, 6)), _ints(5, 6), _ints(2, 2)), {"strides": [2, 2]}, 18, constant=(1, 2)),
            Sample(
                ((F32, (1, 12, 4)), _ints(6, 6), _ints(2, 3)),
                {"dilations": [2, 1], "strides": [3, 3]},
                18,
                constant=(1, 2),
            ),
            Sample(((F16, (1, 8, 8)), _ints(3, 3, 3), _ints(2, 2, 2)), opset=18, constant=(1, 2)),
            Sample(((F32, (2, 3, 5)), _ints(7), _ints(3)), opset=18, constant=(1, 2)),
        ),
        since=18,
    ),
)
