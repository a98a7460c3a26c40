"""Random models over the operator table: unfused, greedy and other partitions against the float64 reference.

    python benchmarks/random_models.py --device cpu --count 2000 [--seed 0] [--partitions 4] [--steps 7] [--jobs 2]

Printed is every model that differs, with the smallest graph that shows it and the command that repeats it, and a line with the result.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from autofuse.api.devices import open_device
from autofuse.devices.base import Device
from tests.random_models import check

CHUNK = 10


@dataclass(frozen=True)
class Setup:
    """The device, and how large and how often."""

    device: str
    partitions: int
    steps: int


@lru_cache(maxsize=1)
def _device(name: str) -> Device:
    return open_device(name, 1)


def run_chunk(setup: Setup, seeds: Sequence[int]) -> list[str]:
    """What is wrong with each of some models."""
    return [check(seed, _device(setup.device), setup.partitions, setup.steps) for seed in seeds]


def main() -> None:
    """Run them all; the exit code is 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda", "cuda-emulated"), default="cpu")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    setup = Setup(args.device, args.partitions, args.steps)
    seeds = range(args.seed, args.seed + args.count)
    start, done, wrong = time.perf_counter(), 0, 0
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        chunks = [seeds[k : k + CHUNK] for k in range(0, len(seeds), CHUNK)]
        for future in as_completed([pool.submit(run_chunk, setup, chunk) for chunk in chunks]):
            found = future.result()
            done += len(found)
            for text in filter(None, found):
                wrong += 1
                print(f"\n{text}", flush=True)
            if done % 100 == 0:
                print(f"{done} of {args.count}, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    print(
        f"{args.count} random models (seeds {seeds[0]} to {seeds[-1]}) on {args.device}, {args.partitions} partitions each: "
        f"{wrong} differ, {time.perf_counter() - start:.0f} s"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
