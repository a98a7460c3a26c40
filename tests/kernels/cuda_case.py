"""Small programs of every kind that the CUDA families implement, with inputs: what their tests run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, const
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.stage import Stage
from autofuse.ops.builder import Builder
from autofuse.ops.evaluate import evaluate

F32, F16, BF16, F64 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64
I8, I32, I64, U8, BOOL = DType.INT8, DType.INT32, DType.INT64, DType.UINT8, DType.BOOL

Emit = Callable[[Builder], Sequence[ValueId]]


@dataclass(frozen=True)
class Case:
    """A program with its inputs and the outputs that float64 arithmetic gives."""

    program: RegionProgram
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]


def case(emit: Emit, special: Callable[[np.ndarray], np.ndarray] | None = None) -> Case:
    """All nodes that `emit` adds as one region. `special` changes the first input's numbers."""
    b = Builder()
    outputs = emit(b)
    graph = b.graph([(f"out{k}", v) for k, v in enumerate(outputs)])
    region = Region.of(graph, range(len(graph.nodes)), outputs)
    rng = np.random.default_rng(7)
    values: dict[ValueId, np.ndarray] = dict(graph.constants)
    for n, v in enumerate(graph.inputs):
        a = _random(rng, graph.values[v].dtype, graph.values[v].dims)
        values[v] = special(a) if special is not None and n == 0 else a
    inputs = tuple(values[v] for v in region.inputs)
    found = reference(graph, values)
    return Case(program_of(graph, region), inputs, tuple(found[v] for v in region.outputs))


def _random(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    if dtype is BOOL:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        low = 0 if not dtype.is_signed else -9
        return rng.integers(low, 10, shape).astype(dtype.numpy)
    return rng.standard_normal(shape).astype(dtype.numpy)


def reference(
    graph: Graph, values: dict[ValueId, np.ndarray], nodes: Sequence[int] | None = None
) -> dict[ValueId, np.ndarray]:
    """Every value that some nodes (or all) make, in float64 arithmetic."""
    known = dict(values)
    for k in range(len(graph.nodes)) if nodes is None else nodes:
        node = graph.nodes[k]
        assert isinstance(node.compute, Stage)
        known[node.outputs[0]] = evaluate(node.compute, [known[v] for v in node.inputs], wide=True)
    return known


def lit(x: Expr, value: float) -> Expr:
    return const(value, x.dtype)


def gelu(x: Expr) -> Expr:
    return call(
        "mul", call("mul", x, lit(x, 0.5)), call("add", lit(x, 1), call("erf", call("mul", x, lit(x, math.sqrt(0.5)))))
    )
