"""Regions that need no kernel: their output is memory that exists, or is written in place by the producers of its parts.

`alias`: the output is a contiguous part of the input (Reshape, Squeeze, Slice of the outermost axis). `in_place`: the output is the
inputs laid end to end (Concat along the outermost axis that is not 1), so that producers may write straight into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import RegionProgram
from autofuse.fusion.views import alias_of, pieces_of
from autofuse.ir.stage import Kind
from autofuse.ir.target import Target
from autofuse.kernels.base import Choice, Lowered, Schedule, Variant
from autofuse.kernels.layouts import map_layouts


class View:
    """No launches at all."""

    name = "view"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """`alias` or `in_place`, for every combination of layouts in which addresses agree."""
        form = analyse(program)
        if not isinstance(form, Form) or form.kind is not Kind.MAP or len(program.outputs) != 1:
            return
        for ins, outs in map_layouts(program, target):
            if alias_of(program, ins, outs[0]) is not None:
                yield Variant(self.name, "alias", program, ins, outs)
            elif pieces_of(program, ins, outs[0]) is not None:
                yield Variant(self.name, "in_place", program, ins, outs)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """None."""
        del variant, target
        return {}

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Nothing to choose."""
        del variant, target
        return Schedule(())

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """No launches."""
        del variant, schedule, target
        return Lowered(())
