"""Inputs for a region or a model, drawn where its operators are defined.

The range of every input follows from how its elements are used: in an index they must stay in bounds, under a logarithm or a square
root they must be positive, as a divisor away from zero. Uses are followed through the chain of stages; where several apply, the
tightest wins.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.fusion.region import RegionProgram, Step
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Const, Expr, Load, walk
from autofuse.ir.graph import Graph
from autofuse.ir.stage import Alone, Scatter, Stage

_POSITIVE = frozenset({"log", "sqrt", "acosh"})
_UNIT = frozenset({"asin", "acos", "atanh"})


@dataclass(frozen=True)
class Range:
    """Numbers from low to high. `index` marks an integer range that must be kept: it holds positions."""

    low: float
    high: float
    index: bool = False

    def meet(self, other: Range) -> Range:
        """The tighter of two; ranges of positions win."""
        if self.index != other.index:
            return self if self.index else other
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Range(low, high, self.index) if low <= high else other


ANYTHING = Range(-math.inf, math.inf)


def steps_of(graph: Graph) -> list[tuple[Step, tuple[int, ...]]]:
    """All kernels' steps of a graph with value numbers as operands and the numbers of their results (Host nodes left out)."""
    return [(Step(n.compute, n.inputs), n.outputs) for n in graph.nodes if isinstance(n.compute, Stage | Alone)]


def ranges_of_program(program: RegionProgram) -> dict[int, Range]:
    """The range of each input of a region, by local number."""
    steps = []
    for s, first in zip(program.steps, program.first_number, strict=True):
        count = 1 if isinstance(s.stage, Stage) else len(s.stage.shapes)
        steps.append((s, tuple(range(first, first + count))))
    shapes = {n: program.tensor(n).shape for n in range(len(program.inputs))}
    shapes |= {n: program.tensor(n).shape for _, made in steps for n in made}
    return _ranges(steps, shapes)


def ranges_of_graph(graph: Graph) -> dict[int, Range]:
    """The range of each value of a graph that some use restricts."""
    shapes = {v.id: v.shape or () for v in graph.values}
    steps = [(s, tuple(outs)) for s, outs in steps_of(graph)]
    return _ranges(steps, shapes)


def _ranges(steps: Sequence[tuple[Step, Sequence[int]]], shapes: Mapping[int, tuple[int, ...]]) -> dict[int, Range]:
    """Walk the steps backwards: what is asked of a result is asked of the operands that it merely moves or scales."""
    found: dict[int, Range] = {}
    for step, made in reversed(steps):
        shape_of = [shapes.get(o, ()) for o in step.operands]
        if isinstance(step.stage, Scatter):
            for slot, r in _written(step.stage, shape_of).items():
                operand = step.operands[slot]
                found[operand] = found[operand].meet(r) if operand in found else r
        if not isinstance(step.stage, Stage):
            continue
        wanted = found.get(made[0], ANYTHING)
        for slot, r in _uses(step.stage, shape_of, wanted).items():
            operand = step.operands[slot]
            found[operand] = found[operand].meet(r) if operand in found else r
    return found


def _written(scatter: Scatter, shapes: Sequence[tuple[int, ...]]) -> dict[int, Range]:
    """What a scatter asks of its slots: places inside of its output."""
    asked = _Asked(shapes)
    for i, n in zip(scatter.index, scatter.shape, strict=True):
        asked.ask(i, Range(0, max(n - 1, 0), True))
    for e in scatter.expressions:
        asked.of_loads_and_functions(e)
    return asked.found


def _uses(stage: Stage, shapes: Sequence[tuple[int, ...]], wanted: Range) -> dict[int, Range]:
    """What a stage's body asks of each of its slots, given what is asked of its result."""
    asked = _Asked(shapes)
    if wanted is not ANYTHING:
        asked.ask(stage.body, wanted)
    asked.of_loads_and_functions(stage.body)
    return asked.found


class _Asked:
    """The ranges that expressions ask of the slots which they read; `shapes` are the slots'."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.found: dict[int, Range] = {}

    def ask(self, e: Expr, r: Range) -> None:
        """Ask that a subexpression lies in a range; follow what moves a value without computing."""
        match e:
            case Load(source=int() as slot):
                self.found[slot] = self.found[slot].meet(r) if slot in self.found else r
            case Apply("cast", (a,)):
                self.ask(a, r)
            case Apply("select", (_, a, b)):
                # Negative positions count from the end: select(x < 0, x + n, x) asks x alone to be in range.
                self.ask(b, r)
                if not r.index:
                    self.ask(a, r)
            case Apply("maximum" | "minimum", (a, b)):
                for part in (a, b):
                    self.ask(part, r)
            case Apply("mul", (a, b)) if a is b and r.low >= 0:
                pass  # a square is never negative
            case Apply("add" | "mul", (a, b)) if not r.index:
                # Both parts in the range keep a sum or product of positive numbers positive.
                if r.low >= 0:
                    for part in (a, b):
                        self.ask(part, Range(r.low, math.inf))
            case Apply("add" | "sub", (a, Const())) if r.index:
                self.ask(a, r)
            case _:
                pass

    def of_loads_and_functions(self, root: Expr) -> None:
        """Ask for indices inside of tensors and for arguments where functions are defined."""
        for e in walk(root):
            match e:
                case Load(source=int() as slot):
                    for i, n in zip(e.index, self.shapes[slot], strict=False):
                        self.ask(i, Range(0, max(n - 1, 0), True))
                case Apply(fn, (a,)) if fn in _POSITIVE:
                    self.ask(a, Range(1.0 if fn == "acosh" else 0.05, math.inf))
                case Apply("log1p", (a,)):
                    self.ask(a, Range(-0.9, math.inf))
                case Apply(fn, (a,)) if fn in _UNIT:
                    self.ask(a, Range(-0.95, 0.95))
                case Apply("pow", (_, Const(value=power))) if float(power).is_integer():
                    pass
                case Apply("pow", (a, _)):
                    self.ask(a, Range(0.05, math.inf))
                case Apply(
                    "div" | "trunc_div" | "floor_mod" | "trunc_mod" | "fmod" | "float_mod" | "floor_div", (_, b)
                ):
                    self.ask(b, Range(0.5 if b.dtype.is_float else 1, math.inf))
                case _:
                    pass


def draw(dtype: DType, shape: tuple[int, ...], r: Range, generator: np.random.Generator) -> np.ndarray:
    """Random numbers of a type: floats of about unit variance, small integers, fair booleans, all within the range."""
    if dtype is DType.BOOL:
        return np.asarray(generator.integers(0, 2, shape)).astype(bool)
    if dtype.is_integer:
        low = max(r.low, -4 if dtype.is_signed else 0)
        high = min(r.high, max(low + 8, 8))
        low, high = max(low, dtype.min_value), min(high, dtype.max_value)
        if r.index:
            low, high = r.low, r.high
        return np.asarray(generator.integers(int(low), int(high), shape, endpoint=True)).astype(dtype.numpy)
    if not dtype.has_zero:
        return np.abs(np.asarray(generator.standard_normal(shape))).astype(dtype.numpy)
    if r == ANYTHING:
        return np.asarray(generator.standard_normal(shape)).astype(dtype.numpy)
    low = r.low if math.isfinite(r.low) else min(-2.0, r.high - 2.0)
    high = r.high if math.isfinite(r.high) else max(2.0, low + 2.0)
    return np.asarray(generator.uniform(low, high, shape)).astype(dtype.numpy)


def generator_of(*parts: object) -> np.random.Generator:
    """A random generator seeded by the parts: the same everywhere."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def program_inputs(
    program: RegionProgram, constants: Mapping[int, np.ndarray] | None = None, seed: int = 0
) -> list[np.ndarray]:
    """Inputs of a region. `constants` are a model's own values by local number; they are used where they can tell kernels apart."""
    ranges = ranges_of_program(program)
    given = constants if constants is not None else {}
    out: list[np.ndarray] = []
    for k, t in enumerate(program.inputs):
        generator = generator_of(program.signature, seed, k)
        own = given.get(k)
        if own is not None and own.shape == t.shape and own.dtype == t.dtype.numpy:
            out.append(_varied(own, t.dtype, generator))
        else:
            out.append(draw(t.dtype, t.shape, ranges.get(k, ANYTHING), generator))
    return out


def _varied(own: np.ndarray, dtype: DType, generator: np.random.Generator) -> np.ndarray:
    """A constant as it is, or with its elements told apart: where all are equal, a kernel that swaps channels would pass."""
    if not dtype.is_float or own.size < 2:
        return own
    first = own.reshape(-1)[0]
    if not (own == first).all():
        return own
    scale = float(first) if float(first) else 1e-3
    return np.asarray(scale * generator.uniform(0.5, 1.5, own.shape)).astype(dtype.numpy)


def graph_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a model by name, drawn where its operators allow."""
    ranges = ranges_of_graph(graph)
    out: dict[str, np.ndarray] = {}
    for v in graph.inputs:
        value = graph.values[v]
        if value.dtype is DType.STRING or value.shape is None:
            continue
        if v in graph.parameters:
            out[value.name] = graph.parameters[v].copy()
            continue
        generator = generator_of("graph", seed, value.name)
        out[value.name] = draw(value.dtype, value.dims, ranges.get(v, ANYTHING), generator)
    return out
