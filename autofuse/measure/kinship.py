"""How alike two kernel signatures are: what was found for one is a first guess for the other.

Traits are what is kept of a region program besides its hash: its form without any numbers, the kinds of its reductions, and all extents.
Two programs of one form are as far apart as the logarithms of their extents; other forms are comparable where the reductions are of the
same kinds and ranks, at a distance that grows with every step and operator that only one of them has.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from autofuse.fusion.region import RegionProgram
from autofuse.ir.stage import Kind, Stage

FAR = 4.0
"""Beyond this distance nothing is learnt: extents differ by a factor of 16 on average."""
OTHER_FORM, A_STEP, AN_OPERATOR = 1.0, 0.25, 0.1
"""What another form, a step and an operator that one of two programs lacks add to the distance."""


@dataclass(frozen=True)
class Traits:
    """`group` is what two programs must share to be compared at all; `form` is a hash of the text without numbers."""

    group: str
    form: str
    steps: int
    operators: tuple[str, ...]
    extents: tuple[int, ...]
    anchors: tuple[int, ...]
    """Extents of the steps that reduce, contract, scan or sort; of all steps where there are only maps."""

    def text(self) -> str:
        """As it is kept."""
        return json.dumps([self.group, self.form, self.steps, self.operators, self.extents, self.anchors])

    @staticmethod
    def of(program: RegionProgram) -> Traits:
        """The traits of a region program."""
        heavy = [s for s in program.steps if s.kind is not Kind.MAP] or list(program.steps[-1:])
        anchors = [_extents(s.stage) for s in heavy]
        kinds = [f"{s.kind.value}{len(e)}" for s, e in zip(heavy, anchors, strict=True)]
        types = sorted({program.tensor(n).dtype.value for s in heavy for n in s.operands})
        form = re.sub(r"\d+(\.\d+)?", "#", program.text)
        operators = sorted(set(re.findall(r"[a-z_]+(?=\()", form)))
        return Traits(
            " ".join([*kinds, *types]),
            hashlib.sha256(form.encode()).hexdigest()[:16],
            len(program.steps),
            tuple(operators),
            tuple(x for s in program.steps for x in _extents(s.stage)),
            tuple(x for e in anchors for x in e),
        )

    @staticmethod
    def read(text: str) -> Traits | None:
        """Traits that were kept; None where the text is of another version or foreign."""
        try:
            group, form, steps, operators, extents, anchors = json.loads(text)
            return Traits(
                str(group),
                str(form),
                int(steps),
                tuple(map(str, operators)),
                tuple(map(int, extents)),
                tuple(map(int, anchors)),
            )
        except (ValueError, TypeError):
            return None


def _extents(stage: object) -> tuple[int, ...]:
    if isinstance(stage, Stage):
        return (*stage.shape, *(a.extent or 0 for a in stage.reduce_axes))
    shapes: Iterable[Iterable[int]] = getattr(stage, "shapes", ())
    return tuple(x for shape in shapes for x in shape)


def distance(a: Traits, b: Traits) -> float:
    """How far apart two programs are: 0 for equal ones, infinity where nothing can be learnt."""
    if a.group != b.group or len(a.anchors) != len(b.anchors):
        return math.inf
    if a.form == b.form and len(a.extents) == len(b.extents):
        return _apart(a.extents, b.extents)
    others = len(set(a.operators) ^ set(b.operators))
    return OTHER_FORM + A_STEP * abs(a.steps - b.steps) + AN_OPERATOR * others + _apart(a.anchors, b.anchors)


def _apart(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """The mean difference of extents as powers of two."""
    if not a:
        return 0.0
    return sum(abs(math.log2(max(1, x) / max(1, y))) for x, y in zip(a, b, strict=True)) / len(a)


def nearest(mine: Traits, others: Iterable[tuple[str, Traits]], count: int) -> list[tuple[str, float]]:
    """The signatures that are nearest, with their distances, the nearest first."""
    found = sorted((distance(mine, t), signature) for signature, t in others)
    return [(signature, d) for d, signature in found[:count] if d <= FAR]
