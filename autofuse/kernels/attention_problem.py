"""Two contractions in one kernel: what a block of queries keeps in scratch memory, and the products as register tiles know them.

The scores of a block lie key by key, queries side by side: lanes run along the queries, so that rows are reduced lane by lane, and neither keys
nor values have to be turned around. What lies there changes from sweep to sweep: what the first reduction takes in, then what later ones need, in
the end the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from autofuse.fusion.chain import Chain, chain_of
from autofuse.fusion.form import Anchor
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Expr, Var, apply, load, loads, rewrite, var, variables
from autofuse.ir.layout import Layout
from autofuse.ir.target import Target
from autofuse.kernels.access import Binding, Resolver, bind, collapse
from autofuse.kernels.base import Variant
from autofuse.kernels.contract_problem import Problem, Result
from autofuse.kernels.contract_roles import coefficient, padding_as_select
from autofuse.kernels.passes import levels
from autofuse.loops.ir import Buffer, Scope


@dataclass(frozen=True)
class Sweep:
    """A pass over the scores: reduces `anchors` by their bodies, and puts `keep` in the place of what was held (None: nothing)."""

    anchors: tuple[tuple[Anchor, Expr], ...]
    keep: Expr | None


@dataclass(frozen=True)
class Sweeps:
    """What is held first (an expression of the first product's sum), the sweeps over it in terms of `held`, and by what the second
    product's sum is divided in the end (None: by nothing)."""

    held: Var
    first: Expr
    sweeps: tuple[Sweep, ...]
    divisor: Expr | None


def is_late(chain: Chain) -> bool:
    """Whether the weights are divided by something that belongs to whole rows."""
    match chain.weight:
        case Apply("div", (_, divisor)):
            return not {chain.scores, chain.key} & variables(divisor) and not loads(divisor)
        case _:
            return False


def sweeps_of(chain: Chain, late: bool) -> Sweeps:
    """How the weights come about. With `late`, what divides a whole row divides the second product's sum instead."""
    held, mark = var("held", None, chain.dtype), var("mark", None, chain.dtype)
    weight, divisor = chain.weight, None
    if late:
        assert isinstance(weight, Apply)
        weight, divisor = weight.args
    passes = levels(chain.anchors)
    ahead = [a for p in passes for a in p]
    left = [*(a.body for a in ahead), weight]  # what is still to be computed, in terms of what is held

    def settle(e: Expr, old: Expr) -> bool:
        """Hold `e` from now on, if nothing else of what was held is needed."""
        nonlocal left
        after = [_replaced(x, e, mark) for x in left]
        if any(old in variables(x) for x in after):
            return False
        left = [_replaced(x, mark, held) for x in after]
        return True

    first = left[0]
    if len(passes[0]) > 1 or not settle(first, chain.scores):
        first = chain.scores
        settle(first, chain.scores)
    out: list[Sweep] = []
    for anchors in passes:
        bodies, left = left[: len(anchors)], left[len(anchors) :]
        keep = bodies[0] if len(anchors) == 1 and bodies[0] is not held else None
        if keep is not None and not settle(keep, held):
            keep = None
        out.append(Sweep(tuple(zip(anchors, bodies, strict=True)), keep))
    if left[0] is not held:
        out.append(Sweep((), left[0]))
    return Sweeps(held, first, tuple(out), divisor)


def _replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    return rewrite(e, lambda x: new if x is old else None)


@dataclass(frozen=True)
class Block:
    """A block of queries as a kernel sees it: everything as flat addresses.

    `n` is the axis of the queries that lanes run along, `outer` are the others; `start` is the first query of a block of `size`. `query` is
    what the queries' factor is at a point, and lies in `packed` once it was computed; `scores` holds what `sweeps` are about. `factor` is the other
    factor of the second product, `across` tells that lanes run along the queries there too, for neighbouring columns lie apart in memory.
    """

    chain: Chain
    binding: Binding
    sweeps: Sweeps
    n: Var
    outer: tuple[Var, ...]
    start: Var
    size: int
    lanes: int
    query: Expr
    packed: Buffer
    scores: Buffer
    divisors: Buffer
    products: tuple[Problem, Problem]
    across: bool

    @property
    def dtype(self) -> DType:
        return self.chain.dtype

    @property
    def turns(self) -> bool:
        """Whether queries lie term by term in memory, so that vectors of terms are read and turned around."""
        along = self.chain.depth[-1]
        sizes = {ld.dtype.itemsize for ld in loads(self.query)}
        if sizes != {self.dtype.itemsize} or self.lanes < 4 or _neighbours(self.query, self.n):
            return False
        return _neighbours(self.query, along)


@lru_cache(maxsize=256)
def block(variant: Variant, vectors: int, target: Target) -> Block:
    """The block of so many vectors of queries."""
    chain = chain_of(variant.program)
    assert isinstance(chain, Chain)
    program = variant.program
    binding = bind(variant)
    resolve = Resolver(binding.inputs, {})
    sweeps = sweeps_of(chain, variant.algorithm == "late")

    def flat(e: Expr) -> Expr:
        return resolve(padding_as_select(e, program))

    query, keyed, value = flat(chain.query_factor), flat(chain.key_factor), flat(chain.value_factor)
    first = flat(sweeps.first)
    made = [
        Sweep(tuple((a, flat(e)) for a, e in s.anchors), None if s.keep is None else flat(s.keep))
        for s in sweeps.sweeps
    ]
    values = [flat(o.value) for o in chain.outputs]
    offsets = [o.offset(out.index) for o, out in zip(binding.outputs, chain.outputs, strict=True)]
    bodies = [e for s in made for e in (*(b for _, b in s.anchors), s.keep) if e is not None]
    queries, swap = collapse(chain.queries, [query, first, *bodies, *values, *offsets])

    def moved(e: Expr) -> Expr:
        return ix.substitute(e, swap)

    lanes = target.lanes(chain.dtype.itemsize)
    n = max(queries, key=lambda a: (min(a.extent or 1, lanes), queries.index(a)))
    size = vectors * lanes
    keys, depth = chain.key.extent or 1, [a.extent or 1 for a in chain.depth]
    packed = Buffer("packed", chain.dtype, math.prod(depth) * size, Scope.SHARED)
    scores = Buffer("scores", chain.dtype, keys * size, Scope.SHARED)
    divisors = Buffer("divisors", chain.dtype, size, Scope.SHARED)
    start = var("start", n.extent)
    local = ix.sub(n, start)
    in_packed = ix.add(ix.mul(ix.flatten(chain.depth, depth), size), local)
    in_scores = ix.add(ix.mul(chain.key, size), local)

    def product(
        narrow: Expr, wide: Expr, results: tuple[Result, ...], total: Var, along: Var, m: Var, over: tuple[Var, ...]
    ) -> Problem:
        nothing: frozenset[int] = frozenset()
        points = along.extent or 1
        return Problem(binding, narrow, wide, results, total, along, m, (), (), over, points, lanes, 0, nothing)

    kept = Result(scores, in_scores, moved(first), True)
    wide = load(packed, (in_packed,), chain.dtype)
    before = product(keyed, wide, (kept,), chain.scores, n, chain.key, chain.depth)

    across = not _neighbours(value, chain.column)
    row = n if across else var("row", size)
    place: dict[Expr, Expr] = {} if across else {n: ix.add(start, row)}
    here = local if across else row
    total: Expr = chain.total
    if sweeps.divisor is not None:
        total = apply("div", (total, load(divisors, (here,), chain.dtype)), chain.dtype)
    results = tuple(
        Result(
            o.buffer,
            ix.substitute(moved(offset), place),
            ix.substitute(moved(e), {**place, chain.total: total}),
            False,
        )
        for o, offset, e in zip(binding.outputs, offsets, values, strict=True)
    )
    weights = load(scores, (ix.add(ix.mul(chain.key, size), here),), chain.dtype)
    if across:
        after = product(value, weights, results, chain.total, n, chain.column, (chain.key,))
    else:
        after = product(weights, value, results, chain.total, chain.column, row, (chain.key,))
    laid = Sweeps(
        sweeps.held,
        moved(first),
        tuple(
            Sweep(tuple((a, moved(e)) for a, e in s.anchors), None if s.keep is None else moved(s.keep)) for s in made
        ),
        sweeps.divisor,
    )
    outer = tuple(a for a in queries if a is not n)
    return Block(
        chain,
        binding,
        laid,
        n,
        outer,
        start,
        size,
        lanes,
        moved(query),
        packed,
        scores,
        divisors,
        (before, after),
        across,
    )


def _neighbours(e: Expr, axis: Var) -> bool:
    """Whether neighbours along an axis are neighbours in memory, or one and the same."""
    return all(coefficient(ld.index[0], axis) in (0, 1) for ld in loads(e) if isinstance(ld.source, Buffer))


def turned_masks(chain: Chain) -> dict[int, Layout]:
    """Layouts of constants that are read by query and key between the products, with neighbouring queries side by side."""
    found: dict[int, Layout] = {}
    factors = (chain.query_factor, chain.key_factor, chain.value_factor, *(o.value for o in chain.outputs))
    taken = {ld.source for e in factors for ld in loads(e)}
    for body in (*(a.body for a in chain.anchors), chain.weight):
        for ld in loads(body):
            k = ld.source
            if not isinstance(k, int) or k in taken or not chain.program.inputs[k].constant:
                continue
            at = [d for d, i in enumerate(ld.index) if i is chain.queries[-1]]
            if len(at) == 1 and chain.key in ld.index[at[0] :]:
                rest = [d for d in range(len(ld.index)) if d != at[0]]
                layout = Layout.permuted((*rest, at[0]))
                if found.setdefault(k, layout) != layout:
                    taken.add(k)
            else:
                taken.add(k)
    return {k: layout for k, layout in found.items() if k not in taken}
