"""200 kernels of different text and equal speed race on the real CPU: a tie is right. Then one of them does 5 % less work: it is to be found.

    python benchmarks/racing.py                  # 20 races of each kind, at most 240 s of racing
    python benchmarks/racing.py --repeats 3 --seconds 30

All kernels are generated, compiled and timed as a tune does it (in this process); their texts differ by a comment, so that each is a library
of its own. Exit code 3 where fewer than 19 of 20 ties were reported, or the planted one was found fewer than 18 times of 20; 2 where time
was too short for that many races.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from autofuse.devices.cpu import CpuDevice
from autofuse.engine.lowering import Ready
from autofuse.fusion.region import RegionProgram, Step, Tensor
from autofuse.ir.dtype import DType
from autofuse.ir.expr import call, load
from autofuse.ir.stage import Stage, axes_of
from autofuse.kernels.base import Lowered, Variant
from autofuse.kernels.families import family, lower, variants
from autofuse.loops.ir import Kernel
from autofuse.measure.noise import calibrated
from autofuse.measure.programs import Repetition, packed_inputs, timing_program
from autofuse.measure.protocol import Done, Shoot
from autofuse.measure.racing import RaceRules, race
from autofuse.measure.worker import Worker, _KernelRun

ROWS = 20
"""The planted kernel has one row less: 5 % less work."""
ROW = 128
TIMES = 64
"""Repetitions of the kernel in one run, so that a run takes some 100 us."""


class MarkedDevice(CpuDevice):
    """A CPU whose kernel texts end with a comment, by which kernels of equal schedules differ."""

    def text(self, kernel: Kernel) -> str:
        return f"{super().text(kernel)}\n// {kernel.family}\n"


def program(rows: int) -> RegionProgram:
    """out = exp(-in): arithmetic on what lies in the nearest cache, so that nothing but the work decides."""
    axes = axes_of((rows, ROW))
    stage = Stage(axes, call("exp", call("neg", load(0, axes, DType.FLOAT32))), DType.FLOAT32)
    return RegionProgram((Tensor(DType.FLOAT32, stage.shape, False),), (Step(stage, (0,)),), (1,))


def marked(device: CpuDevice, rows: int, mark: str) -> tuple[Variant, Lowered]:
    """The region's first variant with its heuristic schedule, under a name of its own."""
    variant = next(v for v in variants(program(rows), device.target) if v.family != "view")
    lowered = lower(variant, family(variant.family).heuristic(variant, device.target), device.target)
    (launch,) = lowered.launches
    kernel = replace(launch.kernel, family=f"{launch.kernel.family} {mark}")
    return variant, replace(lowered, launches=(replace(launch, kernel=kernel),))


class Field:
    """Kernels that are loaded and can be shot at: `shoot` for a race."""

    def __init__(self, device: CpuDevice) -> None:
        self.device = device
        self.worker = Worker(lambda reply: None)
        self.count = 0

    def add(self, made: Sequence[tuple[Variant, Lowered]]) -> list[int]:
        """Compile side by side and load; the handles in order."""
        failed = [c for c in self.device.compile([x.launches[0].kernel for _, x in made]) if isinstance(c, Exception)]
        if failed:
            raise failed[0]
        handles = []
        for variant, lowered in made:
            inputs = [
                np.random.default_rng(0).standard_normal(t.shape).astype(np.float32) for t in variant.program.inputs
            ]
            loaded = self.device.load(timing_program(Ready.of(variant, lowered), inputs, Repetition(TIMES, 1)))
            loaded.bind(packed_inputs(variant, inputs))
            loaded.time(2)
            self.worker._keep(self.count, _KernelRun(loaded, 1))
            handles.append(self.count)
            self.count += 1
        return handles

    def shoot(self, handles: Sequence[int], rounds: int, repeats: int) -> Mapping[int, Sequence[int]]:
        reply = self.worker.serve(Shoot(tuple(handles), rounds, repeats))
        if not isinstance(reply, Done) or not isinstance(reply.value, dict):
            raise RuntimeError(f"a kernel failed: {reply}")
        return reply.value


def main() -> int:
    """Race, print a line a race and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=20, help="races of each kind")
    parser.add_argument("--seconds", type=float, default=240.0, help="of racing, compilation not counted")
    parser.add_argument("--output", type=Path, help="write what was seen as JSON")
    args = parser.parse_args()
    device = MarkedDevice(threads=1)
    field = Field(device)
    start = time.monotonic()
    handles = field.add([marked(device, ROWS, f"candidate {k}") for k in range(args.candidates)])
    (copy,) = field.add([marked(device, ROWS, "candidate 0")])
    (fast,) = field.add([marked(device, ROWS - 1, "planted")])
    seconds = time.monotonic() - start
    print(f"{args.candidates} kernels compiled and loaded in {seconds:.0f} s", flush=True)
    got = field.shoot([handles[0], copy], 40, 5)
    noise = calibrated([list(got[handles[0]]), list(got[copy])], 5)
    assert noise is not None
    print(f"noise: {noise.text()}; a run takes {noise.ns / 1000:.0f} us", flush=True)
    rules = RaceRules(notable=noise.notable)
    facts: dict[str, object] = {"noise": noise.facts(), "candidates": args.candidates}
    end = time.monotonic() + args.seconds
    random = np.random.default_rng(0)
    lines: dict[str, list[dict[str, object]]] = {"equal": [], "planted": []}
    for k in range(args.repeats):
        for kind in lines:
            if time.monotonic() > end:
                break
            entrants = list(handles)
            if kind == "planted":
                entrants[int(random.integers(len(entrants)))] = fast
            began = time.monotonic()
            done = race(entrants, field.shoot, rules, enough=_late(end + 5.0))
            right = done.found == fast if kind == "planted" else done.found is None
            row: dict[str, object] = {
                "right": right,
                "found": done.found,
                "equal": len(done.tied),
                "finalists": len(done.finals),
                "final_rounds": max((len(v) for v in done.finals.values()), default=0),
                "dropped_at_first_shot": sum(w == "first shot" for w in done.dropped.values()),
                "planted_left_at": done.dropped.get(fast, "") if kind == "planted" else "",
                "seconds": time.monotonic() - began,
            }
            lines[kind].append(row)
            print(f"{kind:8} {k + 1:2}: {'right' if right else 'WRONG'} {json.dumps(row)}", flush=True)
    code = 0
    for kind, need in (("equal", 0.95), ("planted", 0.9)):
        good, tried = sum(bool(r["right"]) for r in lines[kind]), len(lines[kind])
        what = "ties reported" if kind == "equal" else "times the planted one (5 % less work) was found"
        print(f"{what}: {good} of {tried} (at least {math.ceil(need * args.repeats)} of {args.repeats} are asked for)")
        if tried < args.repeats:
            code = code or 2
        elif good < need * tried:
            code = 3
    if args.output:
        args.output.write_text(json.dumps({**facts, "races": lines}, indent=1))
    return code


def _late(end: float) -> Callable[[], bool]:
    return lambda: time.monotonic() > end


if __name__ == "__main__":
    sys.exit(main())
