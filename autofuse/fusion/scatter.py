"""Scatters with the maps before them: initial values, places and updates may be computed as they are read."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

from autofuse.fusion.inline import Inliner
from autofuse.fusion.region import YES, RegionProgram, Step, Verdict
from autofuse.ir.expr import Expr
from autofuse.ir.stage import Kind, Scatter, Stage


def scatter_verdict(program: RegionProgram) -> Verdict:
    """Whether a region with a scatter in it is one of maps, then the scatter, which alone is delivered."""
    last = len(program.steps) - 1
    others = tuple(k for k, s in enumerate(program.steps) if s.kind is not Kind.MAP)
    if others != (last,):
        reason = "what a scatter has written is read only when all of it is done"
        return Verdict(False, "scatter", reason, tuple(k for k in range(last + 1) if k in others or k == last))
    if program.outputs != (program.first_number[last],):
        made = tuple(k for k in range(last) if program.first_number[k] in program.outputs)
        return Verdict(False, "outputs", "a kernel of updates delivers nothing but what they are written to", made)
    return YES


@lru_cache(maxsize=1 << 12)
def scatter_of(program: RegionProgram) -> Scatter | None:
    """The scatter of a region with all maps before it inlined: its loads are from the region's inputs. None for another region."""
    step = program.steps[-1]
    if not isinstance(step.stage, Scatter) or not scatter_verdict(program):
        return None
    inliner = Inliner(program, lambda number, index: None)

    def over_inputs(e: Expr) -> Expr:
        return inliner.body(e, step.operands, {})

    s = step.stage
    return dataclasses.replace(
        s, initial=over_inputs(s.initial), index=tuple(over_inputs(i) for i in s.index), value=over_inputs(s.value)
    )


def initial_program(program: RegionProgram) -> RegionProgram:
    """The region with its scatter replaced by the map of the initial values."""
    step = program.steps[-1]
    assert isinstance(step.stage, Scatter)
    start = Stage(step.stage.axes, step.stage.initial, step.stage.dtype)
    return RegionProgram(program.inputs, (*program.steps[:-1], Step(start, step.operands)), program.outputs)
