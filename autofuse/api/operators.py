"""The operator table: what becomes of every operator of the ONNX standard, worked out from the declarations and their samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, defs, helper

from autofuse.devices.cuda_targets import cuda_target
from autofuse.errors import VerificationError
from autofuse.fusion.legality import check
from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import Region, program_of
from autofuse.importer import functions
from autofuse.importer.proto import domain_of, walk_nodes
from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.expr import Expr, call, const
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.stage import Combine, Kind
from autofuse.ir.target import Target
from autofuse.kernels.families import variants
from autofuse.ops.builder import Builder
from autofuse.ops.common import reduce_axes
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.linear import matmul
from autofuse.ops.table import OPERATORS

KERNELS, DEFINITION, CONTROL, HOST = "kernels", "definition", "control flow", "host"
"""How an operator runs: by its declaration; by the standard's function body, whose parts have kernels; with its subgraphs as engines of
their own; in onnx's reference evaluator."""

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

REFUSALS = (Unsupported, VerificationError, ValueError, IndexError, KeyError, TypeError)
"""What a declaration raises where it does not apply to a type or a shape."""

TARGETS = (
    Target("cpu", "cpp", "x86-64-avx512", "a CPU with AVX-512", 64, 32, 2, 1, 1, 4 << 20, 32, 32 << 10, 1 << 20, 32 << 20, 256),
    cuda_target("sm_80"),
)  # fmt: skip
"""The machines that the table holds for: fixed ones, so that it does not depend on where it is printed."""

ALONE = 6
"""So many of an operator's samples are asked for the families that compute them."""

PROBED = 2
"""Samples of an operator that are tried in company: the first ones show its usual forms."""


@dataclass(frozen=True)
class OperatorRow:
    """An operator. `types` are those of its first input that have kernels, `kernels` the families that compute it on its own,
    `fuses` those that compute it together with a neighbour, `parts` the operators of its definition where that is what runs."""

    domain: str
    name: str
    since: int
    runs: str
    types: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    fuses: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def operator_table() -> tuple[OperatorRow, ...]:
    """Every operator of the standard and every declared one, by domain and name. It takes some seconds the first time."""
    keys = {*_schemas(), *OPERATORS}
    return tuple(sorted((_row(*key) for key in keys), key=lambda r: (r.domain, r.name)))


def markdown(rows: Sequence[OperatorRow]) -> str:
    """The table as the page of the documentation, docs/operators.md."""
    counts = {how: sum(r.runs == how for r in rows) for how in (KERNELS, DEFINITION, CONTROL, HOST)}
    lines = [
        "# Operators",
        "",
        "Written by `autofuse doctor --ops --markdown > docs/operators.md`; a test compares the two.",
        "",
        f"{counts[KERNELS]} operators have kernels by their declaration, {counts[DEFINITION]} by the standard's own definition in terms of",
        f"those, {counts[CONTROL]} are control flow whose branches and bodies are engines of their own, and {counts[HOST]} run in onnx's",
        "reference evaluator. A use of an operator that its declaration has no kernel for runs there too; `autofuse explain` says why.",
        "",
        "- *since*: the first version of the operator's domain that has it.",
        "- *types*: the element types of the first input for which there are kernels.",
        "- *kernels*: the kernel families that compute the operator on its own, on a CPU or a GPU.",
        "- *fuses into*: the families of kernels that it shares with a neighbour: an element-wise operation, a reduction or a contraction",
        "  before or after it.",
    ]
    for domain in dict.fromkeys(r.domain for r in rows):
        lines += [
            "",
            f"## {domain}",
            "",
            "| operator | since | runs as | types | kernels | fuses into |",
            "|---|---|---|---|---|---|",
        ]
        for r in rows:
            if r.domain == domain:
                how = f"{r.runs}: {', '.join(r.parts)}" if r.parts else r.runs
                cells = (r.name, str(r.since), how, ", ".join(r.types), ", ".join(r.kernels), ", ".join(r.fuses))
                lines.append("| " + " | ".join(c or "-" for c in cells) + " |")
    return "\n".join(lines) + "\n"


# ---- one row


@lru_cache(maxsize=1)
def _schemas() -> Mapping[tuple[str, str], tuple[Any, int]]:
    """The newest schema of every operator and the first version that had it."""
    first: dict[tuple[str, str], int] = {}
    for s in defs.get_all_schemas_with_history():
        key = (s.domain, s.name)
        first[key] = min(s.since_version, first.get(key, s.since_version))
    return {(s.domain, s.name): (s, first[s.domain, s.name]) for s in defs.get_all_schemas()}


def _row(domain: str, name: str) -> OperatorRow:
    shown = domain or "ai.onnx"
    schema, since = _schemas().get((domain, name), (None, 0))
    op = OPERATORS.get((domain, name))
    if op is not None:
        kernels, fuses = _families(op)
        return OperatorRow(shown, name, since or op.since, KERNELS, _types(op, schema), kernels, fuses)
    if not domain and name in CONTROL_FLOW:
        return OperatorRow(shown, name, since, CONTROL)
    parts = _definition(schema)
    return OperatorRow(shown, name, since, DEFINITION if parts else HOST, parts=parts)


def _definition(schema: Any) -> tuple[str, ...]:
    """The operators of a function body, where every one of them has kernels; none where there is no such body."""
    node = helper.make_node(schema.name, [f"i{k}" for k in range(schema.min_input)], ["o"], domain=schema.domain)
    body = _body(node, schema.since_version, [_first_type(schema, k) for k in range(schema.min_input)])
    if body is None:
        return ()
    names = dict.fromkeys((domain_of(n), n.op_type) for n in walk_nodes(body.nodes))
    return tuple(name for _, name in names if name != "Constant") if all(map(_has_kernels, names)) else ()


def _has_kernels(key: tuple[str, str]) -> bool:
    """Whether an operator of a function body leaves nothing to the host."""
    if key in OPERATORS or key == ("", "Constant") or (not key[0] and key[1] in CONTROL_FLOW):
        return True
    return key in _schemas() and bool(_definition(_schemas()[key][0]))


def _first_type(schema: Any, k: int) -> TypeProto:
    """A type that the standard allows for an input: float where it may be, else the first of the list."""
    variable = schema.inputs[min(k, len(schema.inputs) - 1)].type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable), [variable])
    text = "float" if "tensor(float)" in allowed else allowed[0].removeprefix("tensor(").removesuffix(")")
    code = dict(TensorProto.DataType.items()).get(text.upper(), TensorProto.FLOAT)
    return helper.make_tensor_type_proto(code, [2, 2, 4, 4])


def _body(node: NodeProto, opset: int, types: Sequence[TypeProto]) -> functions.Body | None:
    try:
        return functions.standard_body(node, opset, types)
    except (RuntimeError, ValueError):  # a body that depends on more than types and default attributes
        return None


# ---- types


def _types(op: Op, schema: Any) -> tuple[str, ...]:
    """The types of the first input that a sample can be changed to and still has kernels."""
    return tuple(
        d.value
        for d in DType
        if d is not DType.STRING and any(_accepts(op, s, schema, d) for s in op.samples if any(_dtypes(s)))
    )


def _dtypes(sample: Sample) -> list[DType | None]:
    """The element type of each input of a sample."""
    return [
        None if x is None else from_numpy(x.dtype if isinstance(x, np.ndarray) else DType(x[0]).numpy)
        for x in sample.inputs
    ]


def _accepts(op: Op, sample: Sample, schema: Any, dtype: DType) -> bool:
    have = _dtypes(sample)
    first = next(k for k, d in enumerate(have) if d is not None)
    same = [k for k, d in enumerate(have) if d is have[first]]
    if schema is not None:
        variables = [schema.inputs[min(k, len(schema.inputs) - 1)].type_str for k in range(len(have))]
        if not _allowed(schema, variables[first], dtype):
            return False
        same = [k for k, v in enumerate(variables) if v == variables[first]]
    changed: dict[int, DType] = dict.fromkeys(same, dtype)
    try:
        _emitted(op, sample, changed)
    except REFUSALS:
        return False
    return True


def _allowed(schema: Any, variable: str, dtype: DType) -> bool:
    """Whether the standard allows a type for a type variable."""
    text = f"tensor({TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(dtype.numpy)).lower()})"
    found = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable), [variable])
    return text in found


# ---- families


def _families(op: Op) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The kernel families that compute samples of an operator alone, and those that compute them with a neighbour."""
    alone: set[str] = set()
    fused: set[str] = set()
    for target in TARGETS:
        for k, sample in enumerate(op.samples[:ALONE]):
            try:
                graph = _emitted(op, sample, {})
            except REFUSALS:
                continue
            for region in Partitioner(graph, target).unfused().regions:
                alone |= _offered(graph, region, target)
            if k < PROBED:
                for pair in _pairs(op, sample):
                    fused |= _together(pair, target)
    return tuple(sorted(alone)), tuple(sorted(fused))


def _offered(graph: Graph, region: Region, target: Target) -> set[str]:
    """The families that can compute a region, by name without the device."""
    if any(graph.nodes[n].kind is Kind.HOST for n in region.nodes):
        return set()
    return {v.family.partition("_")[0] for v in variants(program_of(graph, region), target)}


def _together(graph: Graph, target: Target) -> set[str]:
    """The families for all nodes of a graph as one region; none where the rules of fusion forbid it."""
    region = Region.of(graph, range(len(graph.nodes)))
    if any(n.kind is Kind.HOST for n in graph.nodes) or not check(graph, region, target):
        return set()
    return _offered(graph, region, target)


Neighbour = Callable[[Builder, ValueId], ValueId]


def _map(b: Builder, v: ValueId) -> ValueId:
    return b.elementwise([v], lambda e: call("maximum", e, const(0, e.dtype)))


def _reduction(b: Builder, v: ValueId) -> ValueId:
    return reduce_axes(b, v, [len(b.shape(v)) - 1], Combine.MAX)


def _contraction(b: Builder, v: ValueId) -> ValueId:
    depth = b.shape(v)[-1]
    return matmul(b, v, b.constant(np.ones((depth, depth), b.dtype(v).numpy)))


def _wider(b: Builder, v: ValueId) -> ValueId:
    """A reduction that gives v's shape: the input has one more axis."""
    source = b.input("wide", b.dtype(v), (*b.shape(v), 7))

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...], read: Any) -> Expr:
        found: Expr = read(0, (*i, *r))
        return found

    return b.reduce([source], b.shape(v), [7], Combine.MAX, body, b.dtype(v))


def _pairs(op: Op, sample: Sample) -> Iterator[Graph]:
    """The sample with a neighbour after its first output, and with one before its first float input."""
    for after in (_map, _reduction, _contraction):
        yield from _tried(op, sample, after=after)
    for before in (_map, _wider, _contraction):
        yield from _tried(op, sample, before=before)


def _tried(op: Op, sample: Sample, before: Neighbour | None = None, after: Neighbour | None = None) -> Iterator[Graph]:
    try:
        graph = _emitted(op, sample, {}, before, after)
    except REFUSALS:
        return
    # a neighbour that found nothing to hold on to, or an operator that is no node of its own, proves nothing
    origins = {n.origin for n in graph.nodes}
    if len(origins) == 2:
        yield graph


def _emitted(
    op: Op,
    sample: Sample,
    changed: Mapping[int, DType],
    before: Neighbour | None = None,
    after: Neighbour | None = None,
) -> Graph:
    """The graph of a sample, with other types for some inputs and perhaps a neighbour. Raises one of REFUSALS where it does not apply."""
    b = Builder()
    ids: list[ValueId | None] = []
    for k, (spec, have) in enumerate(zip(sample.inputs, _dtypes(sample), strict=True)):
        if spec is None or have is None:
            ids.append(None)
            continue
        dtype = changed.get(k, have)
        shape = spec.shape if isinstance(spec, np.ndarray) else spec[1]
        if k in sample.constant:
            array = spec if isinstance(spec, np.ndarray) else np.ones(shape)
            ids.append(b.constant(array.astype(dtype.numpy)))
            continue
        v = b.input(f"x{k}", dtype, tuple(shape))
        if before is not None and dtype is DType.FLOAT32 and shape and 0 not in shape:
            b.origin = 1
            v, before = before(b, v), None
        ids.append(v)
    b.origin = 0
    attributes = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in sample.attributes.items()}
    made = op.emit(Call(op.name, op.domain, sample.opset, tuple(ids), attributes, (True,) * sample.outputs, b))
    outputs = [v for v in made if v is not None]
    if after is not None and b.dtype(outputs[0]) is DType.FLOAT32 and b.shape(outputs[0]):
        b.origin = 1
        outputs[0] = after(b, outputs[0])
    return b.graph([(f"y{k}", v) for k, v in enumerate(outputs)])
