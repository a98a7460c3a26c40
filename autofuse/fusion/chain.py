"""Chains: a product, maps and reductions along the rows of what it gives, and a second product that sums over those rows.

Attention is the best known one: scores = Q K^T, a softmax over them, and weights times V. A chain is told by how its values are indexed, not by
operators. The region falls into three parts, cut at the first product's sums (the scores) and at the second one's operand that depends on them (the
weights); each part has a form of its own (autofuse.fusion.form), and the forms are laid over one domain: `batch` axes, `queries` (the rows whose
keys and values are the same), the `key` axis along which rows are reduced, the first product's `depth`, and the second one's `column`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from autofuse.fusion.form import Anchor, Form, Index, Output, analyse
from autofuse.fusion.region import Region, RegionProgram, Step, Tensor, Verdict, program_of
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, Var, loads, rewrite, var, variables
from autofuse.ir.graph import Graph, NodeId
from autofuse.ir.stage import Combine, Kind, Stage
from autofuse.ir.target import Target

TYPES = (DType.FLOAT32, DType.FLOAT64)
"""Types of scores and weights."""

_NOT_REDUCED = "two contractions share a kernel only where rows of the first are reduced before the second"


@dataclass(frozen=True)
class Chain:
    """Loads have the region's input numbers as sources and logical indices. `scores` stands for the first product's sum in the bodies of `anchors`
    and in `weight`, which is the second product's factor; `total` for the second one's sum in `outputs`."""

    program: RegionProgram
    batch: tuple[Var, ...]
    queries: tuple[Var, ...]
    key: Var
    depth: tuple[Var, ...]
    column: Var
    query_factor: Expr
    key_factor: Expr
    scores: Var
    anchors: tuple[Anchor, ...]
    weight: Expr
    value_factor: Expr
    total: Var
    outputs: tuple[Output, ...]

    @property
    def dtype(self) -> DType:
        """The type of scores, weights and both sums."""
        return self.scores.dtype

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Everything that is computed."""
        factors = (self.query_factor, self.key_factor, self.weight, self.value_factor)
        return (*factors, *(a.body for a in self.anchors), *(o.value for o in self.outputs))


class _Refused(Exception):
    def __init__(self, reason: str, *nodes: int) -> None:
        super().__init__(reason)
        self.verdict = Verdict(False, "contractions", reason, nodes)


@lru_cache(maxsize=1 << 12)
def chain_of(program: RegionProgram) -> Chain | Verdict:
    """The chain that a region is, or why it is none. Verdict nodes are step positions."""
    try:
        return _chain(program)
    except _Refused as refused:
        return refused.verdict


def _chain(program: RegionProgram) -> Chain:
    products = [k for k, s in enumerate(program.steps) if s.kind is Kind.CONTRACT]
    if len(products) != 2:
        raise _Refused("more than two contractions share no kernel", *products)
    if any(not isinstance(s.stage, Stage) for s in program.steps):
        raise _Refused("a contraction shares no kernel with what is computed alone", *products)
    first, second = products
    scores = program.first_number[first]
    depending = [o for o in program.steps[second].operands if scores in _needs(program, (o,), ())[1]]
    if len(set(depending)) != 1 or depending[0] == scores:
        raise _Refused(_NOT_REDUCED, *products)
    weights = depending[0]
    if {scores, weights} & set(program.outputs):
        raise _Refused("what passes between two contractions of one kernel can't be delivered by it", *products)
    before = _part(program, (scores,), ())
    middle = _part(program, (weights,), (scores,))
    after = _part(program, program.outputs, (weights,))
    kinds = [s.kind for p in (before, middle, after) for s in p.steps]
    if kinds.count(Kind.CONTRACT) != 2:
        raise _Refused("what passes between two contractions of one kernel is read elsewhere too", *products)
    forms = [analyse(p) for p in (before, middle, after)]
    for form in forms:
        if isinstance(form, Verdict):
            raise _Refused(f"no two contractions in one kernel: {form.reason}", *products)
    return _Laid(program, products, *(f for f in forms if isinstance(f, Form))).chain()


MOST_WASTE = 1.25
"""How much longer than the queries whole vectors of them may be where a chain is fused without measuring."""

LEAST_SCORES = 1 << 16
"""Scores from which on a chain is fused without measuring: caches hold fewer, and separate kernels take as long (measured)."""


def pays(graph: Graph, nodes: Iterable[NodeId], target: Target) -> bool:
    """Whether a chain that is legal likely runs faster as one kernel: lanes along the queries are filled, and there are scores to be spared.

    Constants apart are prepared in the order in which a product reads them: keys and values must be none.
    """
    chain = chain_of(program_of(graph, Region.of(graph, nodes)))
    if not isinstance(chain, Chain):
        return False
    read = [ld.source for e in (chain.key_factor, chain.value_factor) for ld in loads(e)]
    if any(isinstance(k, int) and chain.program.inputs[k].constant for k in read):
        return False
    lanes = target.lanes(chain.dtype.itemsize)
    queries = math.prod(a.extent or 1 for a in chain.queries)
    rows = queries * math.prod(a.extent or 1 for a in chain.batch)
    return -(-queries // lanes) * lanes <= MOST_WASTE * queries and rows * (chain.key.extent or 1) >= LEAST_SCORES


def _needs(program: RegionProgram, wanted: Iterable[int], given: Sequence[int]) -> tuple[set[int], set[int]]:
    """The steps that some numbers are computed by, and all numbers on the way, those `given` taken as they are."""
    position = {n: k for k, n in enumerate(program.first_number)}
    steps: set[int] = set()
    seen: set[int] = set()
    stack = list(wanted)
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in given or n < len(program.inputs):
            continue
        steps.add(position[n])
        stack += program.steps[position[n]].operands
    return steps, seen


def _part(program: RegionProgram, outputs: tuple[int, ...], given: tuple[int, ...]) -> RegionProgram:
    """The program of what is computed for some numbers. Its inputs are the region's and then those `given`."""
    inputs = list(program.inputs)
    local = {k: k for k in range(len(inputs))}
    for n in given:
        local[n] = len(inputs)
        inputs.append(Tensor(program.tensor(n).dtype, program.tensor(n).shape, False))
    steps: list[Step] = []
    for k in sorted(_needs(program, outputs, given)[0]):
        step = program.steps[k]
        local[program.first_number[k]] = len(inputs) + len(steps)
        steps.append(Step(step.stage, tuple(local[o] for o in step.operands)))
    return RegionProgram(tuple(inputs), tuple(steps), tuple(local[n] for n in outputs))


class _Laid:
    """Lays the three forms over the domain of the one in the middle."""

    def __init__(self, program: RegionProgram, products: list[int], before: Form, middle: Form, after: Form) -> None:
        self.program, self.products = program, products
        self.before, self.middle, self.after = before, middle, after
        self.passed = len(program.inputs)  # the number of what is handed from one part to the next

    def refuse(self, reason: str) -> _Refused:
        return _Refused(reason, *self.products)

    def chain(self) -> Chain:
        program, middle = self.program, self.middle
        if middle.kind is not Kind.REDUCE or not middle.anchors:
            raise self.refuse(_NOT_REDUCED)
        if len(middle.reduced) != 1:
            raise self.refuse("rows between two contractions of one kernel are reduced over one axis only")
        (key,) = middle.reduced
        (weights,) = middle.outputs
        if any(a.combine.is_arg for a in middle.anchors):
            raise self.refuse("positions of an extreme are computed in no kernel of two contractions")
        scores = var("scores", None, self.before.outputs[0].dtype)
        depth, query, keyed = self._first(key)
        column, value, total, outputs = self._second(weights, key)
        types = {scores.dtype, weights.dtype, total.dtype, self.before.anchors[0].result.dtype}
        if len(types) != 1 or scores.dtype not in TYPES:
            found = ", ".join(sorted(t.value for t in types))
            raise self.refuse(f"two contractions share a kernel in float32 or float64 throughout, found {found}")
        anchors = tuple(replace(a, body=self._with_scores(a.body, scores)) for a in middle.anchors)
        weight = self._with_scores(weights.value, scores)
        if any(a.result.dtype is not scores.dtype for a in anchors):
            raise self.refuse("rows between two contractions of one kernel are reduced in the type of the scores")
        shared = variables(keyed) | variables(value)
        queries = tuple(a for a in middle.rows if a not in shared)
        if not queries:
            raise self.refuse("no two rows of the first contraction share the second's operand: nothing is used twice")
        batch = tuple(a for a in middle.rows if a in shared)
        return Chain(
            program, batch, queries, key, depth, column, query, keyed, scores, anchors, weight, value, total, outputs
        )

    def _with_scores(self, e: Expr, scores: Var) -> Expr:
        """An expression of the middle with the scores as a variable: they are all read at the point of the domain."""
        at = self._scores_at()
        return rewrite(
            e, lambda x: scores if isinstance(x, Load) and x.source == self.passed and x.index == at else None
        )

    def _scores_at(self) -> Index:
        bodies = [*(a.body for a in self.middle.anchors), self.middle.outputs[0].value]
        found = {ld.index for e in bodies for ld in loads(e) if ld.source == self.passed}
        fills = [ld for e in bodies for ld in loads(e) if ld.source == self.passed and ld.fill is not None]
        if len(found) != 1 or fills:
            raise self.refuse("between two contractions of one kernel scores are read at other points than their own")
        return found.pop()

    def _placed(self, index: Index, at: Index) -> dict[Expr, Expr]:
        """Where the axes of a form lie for which `index` is `at`."""
        where: dict[Expr, Expr] = {}
        for i, place in zip(index, at, strict=True):
            if isinstance(i, Var) and i not in where:
                where[i] = place
            elif not (isinstance(i, Const) and isinstance(place, Const) and i.value == place.value):
                raise self.refuse("the parts of two contractions in one kernel do not lie over one domain")
        return where

    def _first(self, key: Var) -> tuple[tuple[Var, ...], Expr, Expr]:
        """The first product: its depth, the factor of the queries and that of the keys."""
        form = self.before
        (anchor,), (output,) = form.anchors, form.outputs
        if output.value is not anchor.result or anchor.combine is not Combine.SUM:
            raise self.refuse("the first of two contractions in one kernel is a plain sum of products")
        where = self._placed(output.index, self._scores_at())
        depth = tuple(var(f"depth{k}", a.extent) for k, a in enumerate(form.reduced))
        where.update(zip(form.reduced, depth, strict=True))
        a, b = (ix.substitute(e, where) for e in self._factors(anchor))
        if key in variables(a):
            a, b = b, a
        if key in variables(a) or key not in variables(b):
            raise self.refuse("the reduced axis does not belong to one operand of the first contraction")
        return depth, a, b

    def _second(self, weights: Output, key: Var) -> tuple[Var, Expr, Var, tuple[Output, ...]]:
        """The second product: its column, its other factor, its sum and what is delivered."""
        form = self.after
        (anchor,) = form.anchors
        factors = self._factors(anchor)
        mine = [f for f in factors if isinstance(f, Load) and f.source == self.passed and f.fill is None]
        if len(mine) != 1 or anchor.combine is not Combine.SUM:
            raise self.refuse("the second of two contractions in one kernel is a plain sum of products")
        value = next(f for f in factors if f is not mine[0])
        where = self._placed(mine[0].index, weights.index)
        if [where.get(a) for a in form.reduced] != [key]:
            raise self.refuse("the second contraction sums over another axis than the rows between are reduced over")
        columns = [a for a in form.rows if a not in where]
        if len(columns) != 1:
            raise self.refuse("the second of two contractions in one kernel has one axis of its own")
        column = var("column", columns[0].extent)
        total = var("total", None, anchor.result.dtype)
        where.update({columns[0]: column, anchor.result: total})
        others = [value, *(o.value for o in form.outputs)]
        if any(ld.source == self.passed for e in others for ld in loads(e)):
            raise self.refuse("what passes between two contractions of one kernel is read elsewhere too")
        outputs = tuple(
            replace(o, index=tuple(ix.substitute(i, where) for i in o.index), value=ix.substitute(o.value, where))
            for o in form.outputs
        )
        return column, ix.substitute(value, where), total, outputs

    def _factors(self, anchor: Anchor) -> tuple[Expr, Expr]:
        match anchor.body:
            case Apply("mul", (a, b)):
                return a, b
            case _:
                raise self.refuse("a contraction that shares a kernel with another is a plain sum of products")
