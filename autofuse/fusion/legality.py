"""The rules of fusion: each says why some nodes may not share a kernel. RULES is the table, in the order of asking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofuse.fusion.chain import Chain, chain_of
from autofuse.fusion.form import Form, analyse
from autofuse.fusion.inline import is_expensive
from autofuse.fusion.region import YES, Region, RegionProgram, Verdict, program_of
from autofuse.fusion.scatter import scatter_of
from autofuse.ir.expr import Apply, Expr, Load, children, loads, variables, walk
from autofuse.ir.graph import Graph, NodeId
from autofuse.ir.stage import Kind, Stage
from autofuse.ir.target import Target

MAX_EXPRESSION = 2000
"""Operations in one kernel's expressions: beyond it compile time grows faster than what fusion saves."""

MAX_NODES = 100
"""Nodes in one region: analysis and compile time stay bounded on endless chains."""

MAX_REPEATED = 4
"""How many times as much arithmetic a fused prologue may do as on its own, where it is not dear."""

APART = {
    Kind.HOST: "it runs on the host, outside any kernel",
    Kind.CONTROL: "it decides at run time which graph runs, or how often: the graphs inside are engines of their own",
}
"""Kinds of nodes that are regions of their own, and why."""


@dataclass(frozen=True)
class Candidate:
    """A set of nodes that asks to become a region."""

    graph: Graph
    region: Region
    target: Target


Rule = Callable[[Candidate], Verdict]


def has_kernel(c: Candidate) -> Verdict:
    """Host operators and those that run graphs of their own are no part of a kernel."""
    for kind, reason in APART.items():
        bad = tuple(n for n in c.region.nodes if c.graph.nodes[n].kind is kind)
        if bad and len(c.region.nodes) > 1:
            return Verdict(False, kind.value, reason, bad)
    return YES


def convex(c: Candidate) -> Verdict:
    """No path may leave the region and come back: the kernel would wait for itself."""
    members = set(c.region.nodes)
    first, last = c.region.nodes[0], c.region.nodes[-1]
    tainted: set[NodeId] = set()
    for n in range(first, last + 1):
        node = c.graph.nodes[n]
        sources = [c.graph.producer[v].id for v in node.inputs if v in c.graph.producer]
        if n in members:
            through = [s for s in sources if s in tainted]
            if through:
                return Verdict(
                    False, "convexity", "a path between the two leads through a node outside", (through[0], n)
                )
        elif any(s in members or s in tainted for s in sources):
            tainted.add(n)
    return YES


def arguments(c: Candidate) -> Verdict:
    """A launch takes a limited number of arguments."""
    count = len(c.region.inputs) + len(c.region.outputs)
    if count > c.target.max_parameters:
        reason = f"the kernel would take {count} arguments, the device allows {c.target.max_parameters}"
        return Verdict(False, "arguments", reason, found=count, allowed=c.target.max_parameters)
    return YES


def few_nodes(c: Candidate) -> Verdict:
    """A region has a bounded number of nodes."""
    count = len(c.region.nodes)
    if count > MAX_NODES:
        reason = f"it would have {count} nodes, {MAX_NODES} are allowed"
        return Verdict(False, "size", reason, found=count, allowed=MAX_NODES)
    return YES


def aligned(c: Candidate) -> Verdict:
    """All parts must share one domain (see autofuse.fusion.form), or be two contractions in a row (see autofuse.fusion.chain)."""
    if not all(c.graph.nodes[n].kind.has_kernel for n in c.region.nodes):
        return YES
    program = program_of(c.graph, c.region)
    form: Form | Chain | Verdict = analyse(program)
    if _two_products(program):
        if c.target.is_cuda:
            reason = "no CUDA kernel computes two contractions"
            form = Verdict(False, "contractions", reason, _products(program))
        else:
            form = chain_of(program)
    if isinstance(form, Verdict):
        blamed = tuple(c.region.nodes[k] for k in form.nodes if k < len(c.region.nodes))
        return Verdict(False, form.rule, form.reason, blamed)
    return YES


def bounded(c: Candidate) -> Verdict:
    """The expressions of one kernel stay below a size that compilers handle."""
    form = _form(c)
    if form is None:
        return YES
    if isinstance(form, Chain):
        expressions = [*form.expressions]
    else:
        expressions = [*(a.body for a in form.anchors), *(o.value for o in form.outputs)]
        scatter = scatter_of(form.program)
        if scatter is not None:
            expressions += scatter.expressions
    size = sum(1 for e in expressions for _ in walk(e))
    if size > MAX_EXPRESSION:
        reason = f"its expressions would have {size} operations, {MAX_EXPRESSION} are allowed"
        return Verdict(False, "size", reason, found=size, allowed=MAX_EXPRESSION)
    return YES


def not_repeated(c: Candidate) -> Verdict:
    """A producer must not be computed anew, again and again, for each element of its consumer.

    A contraction reads every operand element many times, a window several times; index arithmetic (views, padding) is free, a few
    cheap operations are tolerable, anything dear is not.
    """
    form = _form(c)
    if form is None:
        return YES
    if isinstance(form, Chain):
        return _not_repeated_in_chain(c, form)
    for a in form.anchors:
        arithmetic = [e for e in walk(a.body) if e.dtype.is_float and not _is_free(e)]
        elements = sum(_size(form, ld.source) for ld in loads(a.body))
        repeats = form.row_points * form.reduced_points / max(elements, 1)
        contract = form.kind is Kind.CONTRACT
        extra = len(arithmetic) - (1 if contract else 0)
        if repeats <= MAX_REPEATED:
            continue
        if contract and any(_tensors(form, factor) > 1 for factor in children(a.body)):
            return Verdict(
                False, "recomputation", "a contraction would read several tensors for one operand", c.region.nodes[:1]
            )
        if extra > (0 if contract else 2) or any(is_expensive(e) for e in arithmetic):
            reason = f"a producer would be computed about {repeats:.0f} times over"
            return Verdict(False, "recomputation", reason, c.region.nodes[:1], repeats, MAX_REPEATED)
    return YES


def _not_repeated_in_chain(c: Candidate, chain: Chain) -> Verdict:
    """Keys and values are read for every block of queries: nothing is computed on the way. What is dear between the products is about scores."""
    blamed = c.region.nodes[:1]
    for what, factor in (("keys", chain.key_factor), ("values", chain.value_factor)):
        if not _is_read(factor):
            reason = f"the {what} of two contractions in one kernel would be computed anew for each block of rows"
            return Verdict(False, "recomputation", reason, blamed)
    own = {chain.scores, *(a.result for a in chain.anchors)}
    for e in (x for root in (*(a.body for a in chain.anchors), chain.weight) for x in walk(root)):
        if is_expensive(e) and not own & variables(e):
            return Verdict(False, "recomputation", "a mask would be computed anew for each score", blamed)
    return YES


def _is_read(e: Expr) -> bool:
    """Whether an expression is an element of one tensor, perhaps in another type."""
    match e:
        case Load(fill=None):
            return True
        case Apply("cast", (a,)):
            return _is_read(a)
        case _:
            return False


def _products(program: RegionProgram) -> tuple[int, ...]:
    return tuple(k for k, s in enumerate(program.steps) if s.kind is Kind.CONTRACT)


def _two_products(program: RegionProgram) -> bool:
    """Whether a region may be a chain: what has fewer contractions is laid over one domain, what has more is nothing."""
    return len(_products(program)) == 2 and all(isinstance(s.stage, Stage) for s in program.steps)


def _is_free(e: object) -> bool:
    return not isinstance(e, Apply) or e.fn in ("select", "cast", "bitcast")


def _tensors(form: Form, factor: Expr) -> int:
    """How many loads of activations one factor of a contraction has."""
    return sum(1 for ld in loads(factor) if not _constant(form, ld.source))


def _constant(form: Form, source: object) -> bool:
    return isinstance(source, int) and form.program.inputs[source].constant


def _size(form: Form, source: object) -> int:
    size = 1
    if isinstance(source, int):
        for n in form.program.inputs[source].shape:
            size *= n
    return size


def _form(c: Candidate) -> Form | Chain | None:
    if not all(c.graph.nodes[n].kind.has_kernel for n in c.region.nodes):
        return None
    program = program_of(c.graph, c.region)
    form = chain_of(program) if _two_products(program) else analyse(program)
    return None if isinstance(form, Verdict) else form


PLACE_RULES: tuple[Rule, ...] = (has_kernel, few_nodes, convex)
"""Rules about where in the graph the nodes stand."""

PROGRAM_RULES: tuple[Rule, ...] = (arguments, aligned, bounded, not_repeated)
"""Rules about what the nodes compute: equal programs get equal verdicts, but for the nodes to blame."""

RULES: tuple[Rule, ...] = (*PLACE_RULES, *PROGRAM_RULES)


def check(graph: Graph, region: Region, target: Target, rules: tuple[Rule, ...] = RULES) -> Verdict:
    """The first refusal, or a yes."""
    candidate = Candidate(graph, region, target)
    for rule in rules:
        verdict = rule(candidate)
        if not verdict:
            return verdict
    return YES
