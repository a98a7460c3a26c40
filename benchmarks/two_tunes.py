"""Two tunes of one model from nothing, each with records and a kernel cache of its own: do their plans differ by more than the noise?

    python benchmarks/two_tunes.py sample:shufflenet --budget 60s

Each tune is a process; then this one runs both plans in paired rounds of random order, and a second copy of the first plan for the noise.
Exit code 3 where the plans differ for sure by more than the first one differs from its copy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import autofuse
from autofuse.devices.cpu import CpuDevice
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.racing import LEVEL

sys.path.insert(0, str(Path(__file__).parent))
from paired import measure, ratio_text

PATIENCE = 240.0
"""Seconds for which a virtual machine may keep the threads' cores apart: both tunes chose by rounds in which they were near."""


def pair(model: str, folders: list[Path], threads: int, seconds: float) -> int:
    """Both plans and a copy of the first, side by side."""
    found = [autofuse.open_results(f) for f in folders]
    for name, r in zip(("first", "second"), found, strict=True):
        best = r.best
        assert best is not None
        print(
            f"{name} tune: plan {r.plan.key}, {best['median_ms']:.3f} ms, {int(best['launches'])} launches, {r.run['seconds']:.0f} s"
        )
        print(f"  {next((n for n in r.run['notes'] if n.startswith('noise:')), 'its noise was not calibrated')}")
        print("".join(f"  {n}\n" for n in r.run["notes"] if n.startswith("a cache line")), end="")
    graph = import_model(load_model(model))
    plans = {"first": found[0].plan, "second": found[1].plan}
    told = re.findall(r"a cache line took (\d+)", " ".join(n for r in found for n in r.run["notes"]))
    nearest = min(map(int, told), default=0)
    seen = measure(graph, plans, graph_inputs(graph, 0), CpuDevice(threads), seconds, PATIENCE, nearest)
    c = seen.against("first", "second", LEVEL)
    same = "they chose the same plan; " if found[0].plan.key == found[1].plan.key else ""
    print(f"noise: {seen.noise.text()}")
    print(f"first against second: {seen.median_ms('first'):.3f} and {seen.median_ms('second'):.3f} ms, {ratio_text(c)}")
    for state, part in seen.by_nearness().items():
        d = part.against("first", "second", LEVEL)
        print(
            f"  with cores {state} ({np.median(part.exchange_ns):.0f} ns there and back): {part.median_ms('first'):.3f} and "
            f"{part.median_ms('second'):.3f} ms, {ratio_text(d)}"
        )
    print(f"{same}{'they differ by less than the noise' if c.tie else 'they DIFFER by more than the noise'}")
    return 0 if c.tie else 3


def main() -> int:
    """Tune twice, then measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="sample:shufflenet")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring both plans")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="keep the two result folders here (else they are thrown away)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "tune":
        tuned = autofuse.tune(args.model, "cpu", args.budget, threads=args.threads, output=args.output)
        print("ROW " + json.dumps(str(tuned.folder)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        base = args.output if args.output is not None else Path(folder)
        found: list[Path] = []
        for k in (1, 2):
            own = Path(folder) / f"store{k}"
            environment = {**os.environ, "AUTOFUSE_DATA": str(own / "data"), "AUTOFUSE_CACHE": str(own / "cache")}
            options = ["--budget", args.budget, "--threads", str(args.threads), "--output", str(base / f"tune{k}")]
            command = [sys.executable, __file__, args.model, "--part", "tune", *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
            lines = [l for l in done.stdout.splitlines() if l.startswith("ROW ")]
            if not lines:
                print(f"tune {k} ended with exit code {done.returncode}", file=sys.stderr)
                return 2
            found.append(Path(json.loads(lines[-1][4:])))
        return pair(args.model, found, args.threads, args.seconds)


if __name__ == "__main__":
    sys.exit(main())
