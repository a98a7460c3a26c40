"""Record what the kernels of a model take: for each signature that its enumerated regions need, a space of schedules that is fixed beforehand.

    python benchmarks/record_spaces.py sample:squeezenet --most 32 --seconds 420

The space of a signature: every variant with its heuristic schedule, then legal schedules drawn with a fixed seed, a variant after the other, at most
--most in all. They are measured in rounds over all signatures, so that where time ends all have about as many. Written is one file,
results/recorded/NAME.parquet, that `autofuse tune MODEL --replay FILE` and benchmarks/samplers.py search again. The figures are a table of costs for
comparing searches; on a busy machine they are no measure of the kernels. The bounds need the device at its best all the same: --calibration names
records of a quieter time, whose calibration counts too. A recorder that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autofuse.devices.cpu import CpuDevice
from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import RegionProgram
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.base import Variant
from autofuse.kernels.families import family, schedules, variants
from autofuse.kernels.space import Spaces, load_spaces
from autofuse.measure.bench import Bench, Choice
from autofuse.measure.calibrate import NAMES, Reached, key_of
from autofuse.measure.device_bench import DeviceBench
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.recording import Recording, distinct, way_text
from autofuse.measure.records import Records
from autofuse.measure.result import Measurement, Status
from autofuse.search.exact.bounds import Bounds
from autofuse.search.exact.costs import Pricing
from autofuse.search.exact.model import Model
from autofuse.search.exact.regions import enumerate_regions
from autofuse.search.kernel_study import KernelStudies
from autofuse.search.planner import Planner
from autofuse.search.tune import factory_of, identity

MOST_LEGAL = 4000
"""Legal schedules of a variant that the drawn ones are taken from."""
AT_ONCE = 4
"""Signatures whose kernels are compiled side by side."""
A_ROUND = 6
"""Candidates of a signature in one round."""


@dataclass(frozen=True)
class Nothing:
    """A bench that measures nothing."""

    target: Target
    threads: int

    def known(self, signature: str) -> list[Measurement]:
        """See Bench."""
        del signature
        return []


def needed(graph: Graph, bench: Bench, spaces: Spaces) -> tuple[Planner, list[RegionProgram], int]:
    """The distinct programs of all regions that the exact search enumerates, and of the copies between their layouts. Those of the unfused and
    of the greedy plan come first, and the number says how many these are."""
    partitioner = Partitioner(graph, bench.target)
    studies = KernelStudies(bench, spaces)
    planner = Planner(graph, bench, partitioner, studies, "default")
    landmarks = (partitioner.unfused(), partitioner.greedy())
    enumerated = enumerate_regions(partitioner, landmarks)
    pricing = Pricing(studies, Bounds.of(Reached(1e15, 1e18, 1e-12, True), bench.target))
    model = Model(partitioner, enumerated, pricing, planner.program)
    copies = (model.reorder_of(v) for v in range(len(graph.values)))
    found = {c[0].signature: c[0] for c in copies if c is not None}
    for region in (r for p in landmarks for r in p.regions if graph.nodes[r.nodes[0]].kind.has_kernel):
        program = planner.program(region)
        found[program.signature] = program
    first = len(found)
    found.update({c.program.signature: c.program for c in model.choices if c.program is not None})
    return planner, list(found.values()), first


def fixed_space(program: RegionProgram, target: Target, spaces: Spaces, most: int) -> list[Choice]:
    """The candidates of a signature, the same ones in every run: heuristic schedules first, then drawn ones, the variants in turns."""
    mine = [v for v in variants(program, target) if v.family != "view"]
    out: list[Choice] = [(v, family(v.family).heuristic(v, target)) for v in mine]

    def drawn(v: Variant) -> list[Choice]:
        legal = list(itertools.islice(schedules(v, target, spaces), 1, MOST_LEGAL))
        chosen = random.Random(v.key).sample(legal, min(most, len(legal)))
        return [(v, s) for s in chosen]

    turns = itertools.zip_longest(*(drawn(v) for v in mine))
    out += [choice for turn in turns for choice in turn if choice is not None]
    return out[:most]


def record(
    name: str,
    graph: Graph,
    device: CpuDevice,
    spaces: Spaces,
    most: int,
    seconds: float,
    records: Path,
    calibration: Path | None,
) -> Recording:
    """Measure the spaces of a model for so many seconds; the heuristic schedules of the unfused and the greedy plan in any case."""
    start = time.monotonic()
    planner, programs, landmarks = needed(graph, Nothing(device.target, device.threads), spaces)
    space = {p.signature: fixed_space(p, device.target, spaces, most) for p in programs}
    print(f"{name}: {len(programs)} signatures, {sum(map(len, space.values()))} candidates", flush=True)
    rows: list[Measurement] = []
    with Records(identity(device), device.threads, records) as kept:
        if calibration is not None:
            with Records(identity(device), device.threads, calibration) as quiet:
                found = quiet.find(map(key_of, NAMES), "warm")
            kept.add([replace(m, cached=False) for m in found.values()])
        bench = DeviceBench(device, factory_of(device), graph, graph_inputs(graph, 0), kept)
        try:
            reached = bench.reached(time.monotonic() + 60)
            for turn in range(most):
                # The first round takes the heuristic schedules, however many variants there are.
                parts = {p.signature: _part(p, space[p.signature], device.target, turn) for p in programs}
                open_ones = [p for p in programs if parts[p.signature]]
                measured = 0
                for k, group in enumerate(_groups(open_ones)):
                    if (turn or k * AT_ONCE >= landmarks) and time.monotonic() - start > seconds:
                        break
                    bench.compile([c for p in group for c in parts[p.signature]])
                    for p in group:
                        got = bench.kernels(p, planner.constants(p), parts[p.signature], time.monotonic() + 600)
                        rows += [
                            named(m, c)
                            for m, c in zip(got, parts[p.signature], strict=True)
                            if m.status is not Status.SKIPPED
                        ]
                        measured += len(got)
                print(f"  round {turn + 1}: {measured} candidates, {time.monotonic() - start:.0f} s", flush=True)
                if not open_ones or time.monotonic() - start > seconds:
                    break
        finally:
            bench.close()
    timed = {m.signature for m in rows}
    left = sum(bool(space[p.signature]) and p.signature not in timed for p in programs)
    shapes = {graph.values[v].name: graph.values[v].dims for v in graph.inputs}
    return Recording(
        f"benchmarks/record_spaces.py, at most {most} schedules a signature; {left} of {len(programs)} signatures left out for lack of time",
        name,
        graph.structural_hash,
        shapes,
        device.target,
        device.threads,
        "default",
        reached,
        distinct(rows),
    )


def named(m: Measurement, choice: Choice) -> Measurement:
    """A measurement under the name of the candidate that was asked for: another signature may come to the same kernel text, measured before."""
    signature, name, algorithm, layouts = way_text(choice[0])
    return replace(m, signature=signature, family=name, algorithm=algorithm, layouts=layouts, schedule=choice[1].text())


def _part(program: RegionProgram, space: Sequence[Choice], target: Target, turn: int) -> Sequence[Choice]:
    """What of a space is measured in a round: the heuristic schedules first, then some at a time."""
    heuristic = min(len(space), sum(v.family != "view" for v in variants(program, target)))
    first = 0 if turn == 0 else heuristic + (turn - 1) * A_ROUND
    return space[first : heuristic if turn == 0 else first + A_ROUND]


def _groups(programs: Sequence[RegionProgram]) -> list[Sequence[RegionProgram]]:
    return [programs[k : k + AT_ONCE] for k in range(0, len(programs), AT_ONCE)]


def main() -> None:
    """Record each model that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="paths or sample:NAME")
    parser.add_argument("--name", help="the file's name (of one model)")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,224,224", help="of open dimensions")
    parser.add_argument("--most", type=int, default=32, help="schedules of a signature")
    parser.add_argument("--seconds", type=float, default=420.0, help="for one model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--calibration", type=Path, help="a file of records")
    parser.add_argument("--output", type=Path, default=Path("results/recorded"))
    args = parser.parse_args()
    device = CpuDevice(args.threads)
    pairs = (s.rsplit("=", 1) for s in args.shape)
    shapes = {k: tuple(int(d) for d in v.split(",")) for k, v in pairs}
    spaces = load_spaces(device.target.kind)
    for model in args.models:
        graph = import_model(load_model(model), shapes)
        stem = args.name or model.removeprefix("sample:").rsplit("/", 1)[-1].removesuffix(".onnx")
        records = args.output / f".{stem}.sqlite"
        args.output.mkdir(parents=True, exist_ok=True)
        shown = model if model.startswith("sample:") else Path(model).name
        found = record(shown, graph, device, spaces, args.most, args.seconds, records, args.calibration)
        path = args.output / f"{stem}.parquet"
        found.save(path)
        for left in args.output.glob(f"{records.name}*"):
            left.unlink()
        failed = sum(not m.ok for m in found.rows)
        print(f"{path}: {len(found.rows)} rows, {failed} failed, {path.stat().st_size / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    main()
