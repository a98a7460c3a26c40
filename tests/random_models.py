"""Holding a random model to its float64 reference, unfused and under other partitions, and finding the least of it that differs."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autofuse.devices.base import Device
from autofuse.engine.assign import assign
from autofuse.engine.engine import Engine
from autofuse.engine.options import heuristic_options
from autofuse.errors import AutofuseError
from autofuse.fusion.partition import Partition, Partitioner, verify_partition
from autofuse.importer.importing import import_model
from autofuse.importer.rebuild import compact
from autofuse.importer.reference import run_node, run_reference
from autofuse.ir.dtype import DType
from autofuse.ir.graph import Graph, Node, ValueId
from autofuse.measure.reference import Tolerance
from tests.graphs import Drawn, random_model

DISTURBED = 3
"""How many times the reference is evaluated with a rounding error put on every value."""
EPSILON = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT64: 2.0**-52}
ROUNDINGS = 8
"""How many roundings of its type a value may be off."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Reference:
    """What must come out: the float64 values, and the same with every value on the way a little off."""

    values: Sequence[np.ndarray]
    others: Sequence[Sequence[np.ndarray]]

    def difference(self, found: Sequence[np.ndarray], dtypes: Sequence[DType]) -> str:
        """What is wrong with outputs; empty where nothing is.

        An element may be off by the tolerance of its type and by a few times what rounding on the way moves the reference itself.
        An integer or boolean may differ only where that changes it too.
        """
        for k, (x, y, dtype) in enumerate(zip(found, self.values, dtypes, strict=True)):
            others = [o[k] for o in self.others]
            if x.shape != y.shape or x.dtype != dtype.numpy:
                return f"output {k}: {x.dtype}{list(x.shape)} instead of {dtype.value}{list(y.shape)}"
            bad = _off(x, y, others, dtype) if dtype.is_float else (x != y) & np.all([o == y for o in others], axis=0)
            if np.any(bad):
                at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(bad)))
                a, b = np.atleast_1d(x)[at], np.atleast_1d(y)[at]
                return (
                    f"output {k}: {int(np.sum(bad))} of {y.size} elements differ; the first at {at}: {a} instead of {b}"
                )
        return ""


def _off(x: np.ndarray, y: np.ndarray, others: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
    relative, absolute = Tolerance().of(dtype)
    with np.errstate(all="ignore"):
        spread = np.max([np.abs(o - y) for o in others], axis=0)
        # Where the reference is not finite, or rounding makes it so, there is nothing to compare.
        sure = np.isfinite(y) & np.isfinite(spread)
        scale = np.max(np.abs(y), where=sure, initial=0.0)
        limit = 0.1 * relative * scale + absolute + 8 * spread
        return np.asarray(sure & ~(np.abs(x.astype(np.float64) - y) <= limit))


def reference(graph: Graph, inputs: Arrays, seed: int) -> Reference:
    """The float64 reference of a graph, and how far rounding moves it."""
    others = [_evaluated(graph, inputs, np.random.default_rng((seed, k))) for k in range(DISTURBED)]
    narrow = run_reference(graph, {n: inputs[n] for n in inputs})
    as_wide = [
        np.asarray(y).astype(np.float64) if graph.values[v].dtype.is_float else y
        for y, v in zip(narrow, graph.outputs, strict=True)
    ]
    return Reference(_evaluated(graph, inputs, None), [*others, as_wide])


def _evaluated(graph: Graph, inputs: Arrays, noise: np.random.Generator | None) -> list[np.ndarray]:
    """All outputs in float64; with `noise`, every value of a node is off by some roundings of its type."""
    values: dict[ValueId, np.ndarray] = {v: inputs[graph.values[v].name] for v in graph.inputs} | dict(graph.constants)
    for n in graph.nodes:
        for v, y in zip(n.outputs, run_node(graph, n, [values[v] for v in n.inputs], True), strict=True):
            dtype = graph.values[v].dtype
            if noise is not None and dtype.is_float and y.size:
                step = ROUNDINGS * EPSILON.get(dtype, 2.0**-24)
                with np.errstate(all="ignore"):
                    size = np.abs(y) + 0.05 * np.max(np.abs(y), where=np.isfinite(y), initial=0.0)
                    y = np.where(y == 0, y, y + step * noise.uniform(-1, 1, y.shape) * size)
            values[v] = y
    return [np.asarray(values[v]) for v in graph.outputs]


def partitions(graph: Graph, device: Device, count: int, seed: int) -> Iterator[Partition]:
    """The unfused and the greedy partition, those that are enumerated next, and one with edges drawn by chance."""
    partitioner = Partitioner(graph, device.target)
    rng = random.Random(seed)
    yield from itertools.islice(partitioner.enumerate(), count - 1)
    yield partitioner.chosen(lambda e: rng.random() < 0.6)


def run(graph: Graph, partition: Partition, device: Device, inputs: Arrays) -> list[np.ndarray]:
    """The outputs of a partition's heuristic plan."""
    options = heuristic_options(device.target, device.threads)
    plan = assign(graph, partition, device.target, device.threads, "default", options)
    names = {graph.values[v].name for v in graph.inputs}
    with Engine.build(graph, plan, device) as engine:
        return list(engine.run({k: a for k, a in inputs.items() if k in names}).values())


def difference(graph: Graph, expected: Reference, inputs: Arrays, device: Device, count: int, seed: int) -> str:
    """The first partition that differs from the reference and how; empty where none does."""
    dtypes = [graph.values[v].dtype for v in graph.outputs]
    for partition in partitions(graph, device, count, seed):
        verify_partition(graph, partition, device.target)
        try:
            wrong = expected.difference(run(graph, partition, device, inputs), dtypes)
        except AutofuseError as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            return f"{wrong}\nunder the partition {[r.nodes for r in partition.regions]}"
    return ""


def check(seed: int, device: Device, count: int = 4, steps: int = 7) -> str:
    """What is wrong with a random model, with the smallest graph that shows it; empty where nothing is.

    The reference is that of the graph as it stands in the model: what the importer's rules made of it must agree as well.
    """
    drawn = random_model(seed, steps)
    plain = import_model(drawn.model, simplify=False)
    graph = import_model(drawn.model)
    expected = reference(plain, drawn.inputs, seed)
    wrong = difference(graph, expected, drawn.inputs, device, count, seed)
    if not wrong:
        return ""
    least = smallest(graph, drawn, device, count)
    again = f"python benchmarks/random_models.py --device {device.target.kind} --seed {seed} --count 1 --steps {steps}"
    return f"random_model({seed}): {wrong}\nagain: {again}\nthe least that differs:\n{least.text()}"


def smallest(graph: Graph, drawn: Drawn, device: Device, count: int) -> Graph:
    """A part of the graph that still differs from its own reference and of which nothing can be left out.

    First one value is looked for that is wrong on its own, in topological order; then every node before it is tried to be replaced by
    its result as an input. The whole graph comes back where no part of it differs: then a rule of the importer is to blame.
    """
    values = _all_values(graph, drawn.inputs)

    def fails(output: ValueId, nodes: Sequence[Node]) -> bool:
        part = subgraph(graph, nodes, output)
        fed = {part.values[v].name: values[_number(part.values[v].name)] for v in part.inputs}
        return bool(difference(part, reference(part, fed, drawn.seed), fed, device, count, drawn.seed))

    for k, last in enumerate(graph.nodes):
        for output in last.outputs:
            nodes = list(graph.nodes[: k + 1])
            if not fails(output, nodes):
                continue
            return subgraph(graph, _without_needless(nodes, partial(fails, output)), output)
    return graph


def _without_needless(nodes: list[Node], fails: Callable[[Sequence[Node]], bool]) -> list[Node]:
    """Drop nodes one by one, the first ones first, as long as the rest still fails; the last one stays."""
    kept = nodes
    for n in nodes[:-1]:
        fewer = [m for m in kept if m is not n]
        if fails(fewer):
            kept = fewer
    return kept


def subgraph(graph: Graph, nodes: Sequence[Node], output: ValueId) -> Graph:
    """Those of the nodes that a value needs; what they read from others becomes an input named by its number."""
    wanted, kept = {output}, []
    for n in reversed(nodes):
        if not wanted.isdisjoint(n.outputs):
            kept.append(n)
            wanted.update(n.inputs)
    kept.reverse()
    made = {v for n in kept for v in n.outputs}
    fed = tuple(sorted(v for v in wanted if v not in made and v not in graph.constants))
    values = list(graph.values)
    for v in fed:
        values[v] = dataclasses.replace(values[v], name=f"v{v}")
    return compact(
        dataclasses.replace(
            graph,
            values=tuple(values),
            nodes=tuple(kept),
            inputs=fed,
            outputs=(output,),
            output_names=("y",),
            parameters={},
        )
    )


def _number(name: str) -> ValueId:
    return int(name[1:])


def _all_values(graph: Graph, inputs: Arrays) -> dict[ValueId, np.ndarray]:
    """Every value in its own type, by numpy."""
    found = {v: inputs[graph.values[v].name] for v in graph.inputs} | dict(graph.constants)
    for n in graph.nodes:
        for v, y in zip(n.outputs, run_node(graph, n, [found[v] for v in n.inputs], True), strict=True):
            found[v] = np.asarray(y).astype(graph.values[v].dtype.numpy)
    return found
