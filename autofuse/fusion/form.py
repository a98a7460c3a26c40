"""Forms: what a region computes, laid over one common domain.

A domain has row axes and reduced axes. Anchors (reductions, or one contraction) run over the reduced axes for every row; maps before them
are inlined into their bodies, maps after them are evaluated at a row or at a (row, reduced) point. A region has a form when every
tensor that depends on an anchor is read exactly at the point where it is computed; otherwise the analysis says which node
breaks it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from autofuse.fusion.inline import Inliner
from autofuse.fusion.region import YES, RegionProgram, Step, Verdict
from autofuse.fusion.scatter import scatter_verdict
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Var, const, loads, var, variables
from autofuse.ir.stage import Combine, Kind, Stage

Index = tuple[Expr, ...]

ALONE = {
    Kind.SCAN: "a recurrence is computed on its own",
    Kind.SORT: "a sort compares the elements of whole rows again and again",
}
"""Why computations of a kind share a kernel with nothing else."""


@dataclass(frozen=True)
class Anchor:
    """A reduction over the domain's reduced axes for each row. `result` stands for its value in later expressions."""

    number: int
    result: Var
    combine: Combine
    body: Expr
    dtype: DType


@dataclass(frozen=True)
class Output:
    """A tensor that the region delivers: its logical index and its value at a point of the domain.

    `full` outputs have an element per (row, reduced) point, others one per row.
    """

    number: int
    index: Index
    value: Expr
    full: bool
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """A region over its domain. Axes of extent 1 have been replaced by 0, so that every axis here is real.

    Loads in bodies and values have local input numbers as sources and logical indices. A map has no anchors and no reduced axes.
    """

    program: RegionProgram
    kind: Kind
    rows: tuple[Var, ...]
    reduced: tuple[Var, ...]
    anchors: tuple[Anchor, ...]
    outputs: tuple[Output, ...]

    @property
    def row_points(self) -> int:
        return math.prod(a.extent or 0 for a in self.rows)

    @property
    def reduced_points(self) -> int:
        return math.prod(a.extent or 0 for a in self.reduced)

    @property
    def flops(self) -> int:
        return self.program.flops


@lru_cache(maxsize=1 << 14)
def analyse(program: RegionProgram) -> Form | Verdict:
    """The form of a region, or the Verdict that says why it has none. Verdict nodes are step positions."""
    anchors = [k for k, s in enumerate(program.steps) if s.kind is not Kind.MAP]
    kinds = {program.steps[k].kind for k in anchors}
    alone = [k for k in anchors if not isinstance(program.steps[k].stage, Stage)]
    if alone:
        kind = program.steps[alone[0]].kind
        if kind is Kind.SCATTER:
            verdict = scatter_verdict(program)
        else:
            verdict = Verdict(False, kind.value, ALONE[kind], tuple(alone)) if len(program.steps) > 1 else YES
        return Form(program, kind, (), (), (), ()) if verdict else verdict
    if Kind.CONTRACT in kinds and len(anchors) > 1:
        return Verdict(False, "contractions", "a contraction shares no kernel with another reduction", tuple(anchors))
    return _Analysis(program, anchors).run()


class _Refused(Exception):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def _domain(stage: Stage) -> tuple[dict[Expr, Expr], tuple[Var, ...], tuple[Var, ...]]:
    """Fresh domain axes for a stage; axes of extent 1 become 0."""
    mapping: dict[Expr, Expr] = {}
    rows: list[Var] = []
    reduced: list[Var] = []
    for group, prefix, out in ((stage.axes, "i", rows), (stage.reduce_axes, "r", reduced)):
        for a in group:
            if a.extent == 1:
                mapping[a] = const(0)
            else:
                fresh = var(f"{prefix}{len(out)}", a.extent)
                mapping[a] = fresh
                out.append(fresh)
    return mapping, tuple(rows), tuple(reduced)


class _Analysis:
    def __init__(self, program: RegionProgram, anchors: list[int]) -> None:
        self.program = program
        self.anchor_steps = anchors
        self.at: dict[int, Index] = {}  # where each tensor is computed, in the domain
        self.results: dict[int, Var] = {}
        self.read_at: dict[int, Index] = {}  # where the first reduction to read all of a tensor reads it
        self.depends: set[int] = set()  # tensors that depend on an anchor
        self.shapes: dict[tuple[int, ...], list[Index]] = {}
        self.inliner = Inliner(program, self._leaf)

    def _leaf(self, number: int, index: Index) -> Expr | None:
        result = self.results.get(number)
        if result is None:
            return None
        if index != self.at[number]:
            raise _Refused(
                Verdict(False, "alignment", "a reduced value is read at another row than its own", (number,))
            )
        return result

    def run(self) -> Form | Verdict:
        try:
            return self._run()
        except _Refused as refused:
            return refused.verdict

    def _run(self) -> Form | Verdict:
        program = self.program
        if not self.anchor_steps:
            return self._map_form()
        first = program.steps[self.anchor_steps[0]].stage
        assert isinstance(first, Stage)
        mapping, self.rows, self.reduced = _domain(first)
        self.contract = program.steps[self.anchor_steps[0]].kind is Kind.CONTRACT
        anchors: list[Anchor] = []
        for position, step in enumerate(program.steps):
            number = program.first_number[position]
            stage = step.stage
            assert isinstance(stage, Stage)
            if stage.combine is not None:
                where = mapping if not anchors else self._align(step, position)
                anchors.append(self._anchor(step, number, position, where))
            elif any(o in self.depends for o in step.operands):
                where = self._align(step, position)
                self._place(number, tuple(where[a] for a in stage.axes), stage.shape)
                self.depends.add(number)
        outputs = tuple(self._output(n) for n in program.outputs)
        kind = Kind.CONTRACT if self.contract else Kind.REDUCE
        return Form(program, kind, self.rows, self.reduced, tuple(anchors), outputs)

    def _map_form(self) -> Form | Verdict:
        program = self.program
        shapes = {program.tensor(n).shape for n in program.outputs}
        if len(shapes) > 1:
            return Verdict(False, "shapes", f"outputs of one kernel differ in shape: {sorted(shapes)}")
        shape = shapes.pop()
        axes = tuple(var(f"i{k}", n) if n != 1 else const(0) for k, n in enumerate(shape))
        rows = tuple(a for a in axes if isinstance(a, Var))
        outputs = []
        for n in program.outputs:
            value = self.inliner.read(n, axes)
            outputs.append(Output(n, axes, value, False, program.tensor(n).dtype, shape))
        return Form(program, Kind.MAP, rows, (), (), tuple(outputs))

    # ---- where things are computed

    def _place(self, number: int, at: Index, shape: tuple[int, ...]) -> None:
        self.at[number] = at
        places = self.shapes.setdefault(shape, [])
        if at not in places:
            places.append(at)

    def _anchor(self, step: Step, number: int, position: int, where: dict[Expr, Expr]) -> Anchor:
        stage = step.stage
        assert isinstance(stage, Stage) and stage.combine is not None
        at = tuple(where[a] for a in stage.axes)
        free = frozenset(v for a in at for v in variables(a))
        if free & set(self.reduced):
            raise _Refused(Verdict(False, "rows", "a reduction keeps an axis that another one reduces", (position,)))
        over = frozenset(v for a in stage.reduce_axes for v in variables(where[a]))
        if over != frozenset(self.reduced) or math.prod(a.extent or 0 for a in stage.reduce_axes) != math.prod(
            a.extent or 0 for a in self.reduced
        ):
            raise _Refused(Verdict(False, "rows", "two reductions run over different axes", (position,)))
        if stage.combine.is_arg and _row_major(where, stage.reduce_axes) is not _row_major({}, self.reduced):
            raise _Refused(
                Verdict(False, "rows", "positions are counted in another order than the domain's", (position,))
            )
        body = self.inliner.body(stage.body, step.operands, dict(where))
        # Tensors that the first reduction reads one element a point tell where full-size values live.
        for ld in loads(stage.body):
            if isinstance(ld.source, int) and ld.fill is None:
                index = tuple(ix.substitute(i, where) for i in ld.index)
                source = step.operands[ld.source]
                shape = self.program.tensor(source).shape
                if self._covers(index, shape):
                    self.read_at.setdefault(source, index)
                    if index not in self.shapes.setdefault(shape, []):
                        self.shapes[shape].append(index)
                if source not in self.at and source >= len(self.program.inputs) and self._covers(index, shape):
                    self.at[source] = index
        result = var(f"a{number}", None, stage.acc_dtype if not stage.combine.is_arg else DType.INT64)
        self._place(number, at, stage.shape)
        self.results[number] = result
        self.depends.add(number)
        return Anchor(number, result, stage.combine, body, stage.dtype)

    def _covers(self, index: Index, shape: tuple[int, ...]) -> bool:
        """Whether an index runs through the whole tensor exactly once as the whole domain is run through."""
        used = [i for i in index if isinstance(i, Var)]
        rest = [i for i in index if not isinstance(i, Var)]
        if any(not (isinstance(i, Const) and i.value == 0) for i in rest) or len(set(used)) != len(used):
            return False
        if any(isinstance(i, Var) and i.extent != n for i, n in zip(index, shape, strict=True)):
            return False
        return set(used) == set(self.rows) | set(self.reduced)

    def _candidates(self, step: Step, stage: Stage) -> list[dict[Expr, Expr]]:
        """Ways to place a step's axes (and reduced axes) in the domain, the likeliest first."""
        axes = (*stage.axes, *stage.reduce_axes)
        shape = tuple(a.extent or 0 for a in axes)
        found: list[dict[Expr, Expr]] = []
        for ld in loads(stage.body):
            if not isinstance(ld.source, int) or ld.fill is not None:
                continue
            source = step.operands[ld.source]
            known = self.at if source in self.at else self.read_at
            for at in [known[source]] if source in known else []:
                inverse = _invert(ld.index, at, axes)
                if inverse is not None:
                    found.append(inverse)
                source_shape = self.program.tensor(source).shape
                if math.prod(source_shape) == math.prod(shape):
                    flat = ix.unflatten(ix.flatten(at, source_shape), shape)
                    found.append(dict(zip(axes, flat, strict=True)))
        for at in self.shapes.get(shape, ()):
            found.append(dict(zip(axes, at, strict=True)))
        for other, places in list(self.shapes.items()):
            if math.prod(other) == math.prod(shape) and other != shape:
                for at in places:
                    found.append(dict(zip(axes, ix.unflatten(ix.flatten(at, other), shape), strict=True)))
        return found

    def _align(self, step: Step, position: int) -> dict[Expr, Expr]:
        stage = step.stage
        assert isinstance(stage, Stage)
        for where in self._candidates(step, stage):
            if self._agrees(step, stage, where):
                return where
        raise _Refused(
            Verdict(
                False, "alignment", "it reads a value at other points than where this kernel computes it", (position,)
            )
        )

    def _agrees(self, step: Step, stage: Stage, where: dict[Expr, Expr]) -> bool:
        """Whether every anchor-dependent operand is read exactly where it is computed, and the step's points are covered once."""
        for ld in loads(stage.body):
            source = step.operands[ld.source] if isinstance(ld.source, int) else -1
            if source in self.depends:
                if ld.fill is not None:
                    return False
                if tuple(ix.substitute(i, where) for i in ld.index) != self.at[source]:
                    return False
        free = frozenset(v for a in (*stage.axes, *stage.reduce_axes) for v in variables(where[a]))
        if self.contract and free & set(self.reduced):
            return False
        if stage.combine is not None:
            kept = frozenset(v for a in stage.axes for v in variables(where[a]))
            if kept & set(self.reduced) or free - kept != frozenset(self.reduced):
                return False
        points = math.prod(a.extent or 0 for a in (*stage.axes, *stage.reduce_axes))
        return points == math.prod(v.extent or 0 for v in free)

    def _output(self, number: int) -> Output:
        tensor = self.program.tensor(number)
        at = self.at.get(number)
        if at is None:
            step, _ = self.program.defined_by[number]
            if number < len(self.program.inputs) or not isinstance(step.stage, Stage):
                raise _Refused(Verdict(False, "outputs", "an input is asked for as an output"))
            places = self.shapes.get(tensor.shape, [])
            if not places:
                raise _Refused(
                    Verdict(False, "outputs", "a value computed before the reduction has another shape than its domain")
                )
            at = places[0]
        free = frozenset(v for a in at for v in variables(a))
        full = bool(free & set(self.reduced))
        if full and self.contract:
            raise _Refused(Verdict(False, "outputs", "an operand of a contraction can't be delivered by it"))
        if math.prod(v.extent or 0 for v in free) != math.prod(tensor.shape):
            raise _Refused(Verdict(False, "outputs", "an output isn't computed once an element"))
        return Output(number, at, self.inliner.read(number, at), full, tensor.dtype, tensor.shape)


def _row_major(where: dict[Expr, Expr], axes: tuple[Var, ...]) -> Expr:
    """The row-major position of axes as they are placed; those that have no place stand for themselves."""
    return ix.flatten((where.get(a, a) for a in axes), (a.extent or 0 for a in axes))


def _invert(index: Index, at: Index, axes: tuple[Var, ...]) -> dict[Expr, Expr] | None:
    """The axes for which `index` equals `at`, where every axis occurs alone in some dimension, or its quotient and remainder do in two."""
    where: dict[Expr, Expr] = {}
    parts: dict[tuple[Expr, int], dict[str, Expr]] = {}
    for i, place in zip(index, at, strict=True):
        match i:
            case Var() if i not in where:
                where[i] = place
            case Apply("floor_div" | "floor_mod" as fn, (Var() as whole, Const(value=d))):
                parts.setdefault((whole, int(d)), {})[fn] = place
            case _:
                pass
    for (split, by), found in parts.items():
        if len(found) == 2:
            where.setdefault(split, ix.add(ix.mul(found["floor_div"], by), found["floor_mod"]))
    for a in axes:
        if a not in where:
            if a.extent != 1:
                return None
            where[a] = const(0)
    return where
