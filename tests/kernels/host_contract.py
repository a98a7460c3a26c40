"""Builds small contractions, runs a variant's kernel on the host and compares it with float64 arithmetic."""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autofuse.devices.toolchain import compile_shared, find_toolchain
from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.ir.dtype import from_numpy
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.target import Target
from autofuse.kernels.base import Family, Schedule, Variant
from autofuse.kernels.space import load_spaces
from autofuse.ops.builder import Builder
from autofuse.ops.declare import Call
from autofuse.ops.evaluate import evaluate
from autofuse.ops.table import find
from autofuse.render.cpp import PRELUDE, render_cpp


def target(vector_bytes: int = 64) -> Target:
    """A host with vectors of that many bytes; narrower ones than the machine's run too."""
    registers = 32 if vector_bytes == 64 else 16
    return Target(
        "cpu", "cpp", "test", "test", vector_bytes, registers, 2, 1, 1, 1 << 20, 0, 1 << 15, 1 << 20, 1 << 25, 1 << 20
    )


@dataclass(frozen=True)
class Case:
    """A graph that is one region, its inputs, and what it must give."""

    graph: Graph
    region: Region
    program: RegionProgram
    arrays: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]


class Maker:
    """Builds a graph from operators of the table, with random constants."""

    def __init__(self, dtype: type = np.float32) -> None:
        self.b = Builder()
        self.rng = np.random.default_rng(7)
        self.dtype = np.dtype(dtype)

    def numbers(self, shape: Sequence[int], scale: float = 1.0) -> np.ndarray:
        if self.dtype.kind in "iu":
            return self.rng.integers(-9, 9, shape).astype(self.dtype)
        return (self.rng.standard_normal(shape) * scale).astype(self.dtype)

    def input(self, *shape: int) -> ValueId:
        return self.b.input(f"x{len(self.b.inputs)}", from_numpy(self.dtype), shape)

    def weights(self, *shape: int) -> ValueId:
        return self.b.constant(self.numbers(shape, 0.3))

    def op(self, name: str, *inputs: ValueId, **attributes: object) -> ValueId:
        found = find("", name)
        assert found is not None
        made = found.emit(Call(name, "", 21, inputs, attributes, (True,), self.b))[0]
        assert made is not None
        return made

    def case(self, *outputs: ValueId) -> Case:
        graph = self.b.graph([(f"y{k}", v) for k, v in enumerate(outputs)])
        region = Region.of(graph, range(len(graph.nodes)))
        values: dict[ValueId, np.ndarray] = dict(graph.constants)
        for v in graph.inputs:
            values[v] = self.numbers(graph.values[v].dims)
        inputs = tuple(values[v] for v in region.inputs)
        for n in graph.nodes:
            assert len(n.outputs) == 1
            values[n.outputs[0]] = evaluate(n.compute, [values[i] for i in n.inputs], wide=True)  # type: ignore[arg-type]
        expected = tuple(values[v] for v in region.outputs)
        return Case(graph, region, program_of(graph, region), inputs, expected)


def aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Uninitialised memory on a 64-byte boundary, filled with a poison."""
    raw = np.full(size * dtype.itemsize + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size * dtype.itemsize].view(dtype)


def run(variant: Variant, schedule: Schedule, family: Family, inputs: Sequence[np.ndarray], t: Target, folder: Path):
    """The outputs' memory after one run of the variant's kernel."""
    (launch,) = family.lower(variant, schedule, t).launches
    text = render_cpp(launch.kernel, t.vector_bytes)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text)
    toolchain = find_toolchain()
    compile_shared(toolchain, source, library, (*toolchain.flags(t.vector_bytes), "-O1"), [PRELUDE])
    memory: dict[tuple[str, int], np.ndarray] = {}
    for k, a in enumerate(inputs):
        packed = variant.pack(k, a).reshape(-1)
        memory["input", k] = aligned(packed.size, packed.dtype)
        memory["input", k][:] = packed
    program = variant.program
    for k, (n, layout) in enumerate(zip(program.outputs, variant.output_layouts, strict=True)):
        tensor = program.tensor(n)
        memory["output", k] = aligned(layout.size(tensor.shape), tensor.dtype.numpy)
    scratch = aligned(max(64, launch.kernel.shared_bytes), np.dtype(np.uint8))
    arguments = (ctypes.c_void_p * len(launch.arguments))(*(memory[a].ctypes.data for a in launch.arguments))
    call = ctypes.CDLL(str(library)).af_kernel
    call(arguments, ctypes.c_int64(0), ctypes.c_int64(launch.kernel.grid), ctypes.c_void_p(scratch.ctypes.data))
    return [memory["output", k] for k in range(len(program.outputs))]


def check(case: Case, family: Family, variant: Variant, schedule: Schedule, t: Target, folder: Path) -> None:
    """Run, compare with the reference, and see that the lanes of padding hold zeros."""
    got = run(variant, schedule, family, case.arrays, t, folder)
    for memory, layout, expected in zip(got, variant.output_layouts, case.expected, strict=True):
        about = f"{variant.key.split(':', 1)[1]} {schedule.text()}"
        array = layout.unpack(memory, expected.shape)
        if array.dtype.kind in "iu":
            np.testing.assert_array_equal(array, expected.astype(array.dtype), about)
        else:
            loose = 8e-3 if array.dtype.itemsize == 2 else 1e-4 if array.dtype.itemsize == 4 else 1e-11
            top = float(np.abs(expected).max())
            np.testing.assert_allclose(array.astype(np.float64), expected, loose, loose * top, err_msg=about)
        padding = layout.pack(np.ones(expected.shape, np.int8)).reshape(-1) == 0
        assert not memory.reshape(-1)[padding].astype(np.float64).any(), f"padding is not zero: {about}"


def schedules(family: Family, variant: Variant, t: Target, count: int, seed: int = 0) -> list[Schedule]:
    """The heuristic schedule and some random ones that the shipped search space allows."""
    rng = random.Random(seed)
    space = load_spaces("cpu").of(family.name)
    facts = dict(family.facts(variant, t))
    out = [family.heuristic(variant, t)]
    for _ in range(400):
        if len(out) > count:
            break
        values = {name: rng.choice(choices) for name, choices in space.choices}
        if all(c.holds({**facts, **values}) for c in space.constraints):
            out.append(Schedule.of(values))
    return out


def in_space(family: Family, variant: Variant, schedule: Schedule, t: Target) -> list[str]:
    """The names of the constraints that a schedule breaks."""
    facts = {**family.facts(variant, t), **schedule.values}
    return [c.name for c in load_spaces("cpu").of(family.name).constraints if not c.holds(facts)]
