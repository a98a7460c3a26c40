"""How the CUDA families' tests run a schedule, and what they compare."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
from cuda_case import Case
from lockstep import run

from autofuse.devices.base import BufferRef, Launch, Port, Program
from autofuse.devices.cuda_targets import cuda_target
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.kernels.base import Argument, Family, Lowered, Schedule, Variant
from autofuse.kernels.space import load_spaces

TARGET = cuda_target("sm_90", "cuda-emulated")


def schedules(family: Family, variant: Variant) -> list[Schedule]:
    """Every schedule that the shipped space allows."""
    return list(load_spaces("cuda").of(family.name).schedules(family.facts(variant, TARGET)))


def allows(family: Family, variant: Variant, schedule: Schedule) -> bool:
    """Whether a schedule is in the shipped space."""
    space = load_spaces("cuda").of(family.name)
    names = {**family.facts(variant, TARGET), **schedule.values}
    known = all(schedule.values[name] in values for name, values in space.choices)
    return known and all(c.holds(names) for c in space.constraints)


def sample(found: list[Schedule], count: int) -> list[Schedule]:
    """Some of them, the same ones each time."""
    return random.Random(1).sample(found, min(count, len(found)))


def compare(outputs: list[np.ndarray], case: Case, about: str) -> None:
    """Outputs against float64 arithmetic; integers exactly."""
    for o, e in zip(outputs, case.expected, strict=True):
        assert o.shape == e.shape, about
        if o.dtype.kind in "biu":
            np.testing.assert_array_equal(o, e.astype(o.dtype), about)
            continue
        close = 2e-2 if o.dtype.itemsize == 2 else 1e-4
        np.testing.assert_allclose(o.astype(np.float64), e, close, close, equal_nan=True, err_msg=about)


def check_schedules(family: Family, case: Case, limit: int = 60) -> None:
    """The heuristic schedule of every variant is in its space, and it and the others give the right numbers."""
    variants = list(family.variants(case.program, TARGET))
    assert variants
    for v in variants:
        found = schedules(family, v)
        first = family.heuristic(v, TARGET)
        assert first in found, f"{v.algorithm}: {first.text()} is not in the space"
        for s in [first, *sample(found, limit)]:
            compare(run(v, family.lower(v, s, TARGET), case.inputs), case, f"{v.algorithm} {s.text()}")


def lowered(family: Family, case: Case) -> Iterator[tuple[Variant, Lowered]]:
    """Every variant under its heuristic schedule."""
    for v in family.variants(case.program, TARGET):
        yield v, family.lower(v, family.heuristic(v, TARGET), TARGET)


def program_of(variant: Variant, lowered: Lowered, inputs: Sequence[np.ndarray]) -> tuple[Program, list[np.ndarray]]:
    """A region's launches as a program of their own, and the inputs that it takes: constants are in it, in their layout."""
    tensors = variant.program.inputs
    constant = [k for k, t in enumerate(tensors) if t.constant]
    given = [k for k, t in enumerate(tensors) if not t.constant]
    offsets: list[int] = []
    size = 0
    for s in lowered.scratch:
        offsets.append(size)
        size += -(-s.bytes // 64) * 64

    def place(argument: Argument) -> BufferRef:
        kind, k = argument
        if kind == "input":
            return BufferRef("constant", constant.index(k)) if k in constant else BufferRef("input", given.index(k))
        return BufferRef("output", k) if kind == "output" else BufferRef("arena", 0, offsets[k])

    launches = tuple(Launch(x.kernel, tuple(place(a) for a in x.arguments)) for x in lowered.launches)
    constants = tuple(variant.input_layouts[k].pack(inputs[k]) for k in constant)
    ports = tuple(Port(f"x{k}", tensors[k].dtype, tensors[k].shape) for k in given)
    made = [variant.program.tensor(n) for n in variant.program.outputs]
    results = tuple(Port(f"y{k}", t.dtype, t.shape) for k, t in enumerate(made))
    return Program(launches, size, constants, ports, results), [inputs[k] for k in given]


def emulate(device: EmulatedCudaDevice, variant: Variant, lowered: Lowered, case: Case) -> list[np.ndarray]:
    """The outputs of the very CUDA text, run on the CPU."""
    program, given = program_of(variant, lowered, case.inputs)
    return device.load(program).run(given)
