"""Compile every CUDA kernel of the greedy heuristic engines with NVRTC, without a GPU, and report what they need.

    python benchmarks/nvrtc_models.py --samples --chains --trained FOLDER --arch sm_80 --arch sm_90

Written is nvrtc.json; printed is a table: distinct kernels, refused ones, most registers, spilled kernels, most shared memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from autofuse.devices.base import Compiled
from autofuse.devices.cuda_targets import cuda_target
from autofuse.devices.nvrtc import CubinCompiler
from autofuse.engine.assign import assign
from autofuse.engine.build import Segment, segments
from autofuse.engine.lowering import plainly
from autofuse.engine.options import heuristic_options
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.loops.ir import Kernel

sys.path.insert(0, str(Path(__file__).parent))
from models import CHAINS, SAMPLES, trained


def kernels_of(entry: dict[str, Any], arch: str) -> list[Kernel]:
    """The distinct kernels of a model's greedy heuristic plan."""
    graph = import_model(load_model(entry["model"]), {k: tuple(v) for k, v in entry.get("shapes", {}).items()})
    target = cuda_target(arch)
    plan = assign(graph, Partitioner(graph, target).greedy(), target, 1, "default", heuristic_options(target, 1))
    steps = [s for s in segments(graph, plan, plainly(target)) if isinstance(s, Segment)]
    return list(dict.fromkeys(launch.kernel for s in steps for launch in s.program.launches))


def main() -> None:
    """Compile and print a row per model and architecture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--samples", action="store_true")
    parser.add_argument("--chains", action="store_true")
    parser.add_argument("--trained", type=Path)
    parser.add_argument("--arch", action="append", default=[])
    parser.add_argument("--output", type=Path, default=Path("results/benchmark"))
    args = parser.parse_args()
    entries: list[dict[str, Any]] = [{"name": m, "model": m} for m in args.models]
    if args.samples:
        entries += [{"name": f"sample:{s}", "model": f"sample:{s}"} for s in SAMPLES]
    if args.chains:
        entries += [{"name": f"sample:chain_{s}", "model": f"sample:chain_{s}"} for s in CHAINS]
    if args.trained:
        entries += trained(args.trained)
    compiler = CubinCompiler()
    rows: list[dict[str, Any]] = []
    print("| model | arch | kernels | refused | registers | spilling kernels | shared bytes |")
    print("|---|---|---|---|---|---|---|")
    for entry in entries:
        for arch in args.arch or ["sm_80", "sm_90"]:
            made = compiler.compiled(kernels_of(entry, arch), arch)
            good = [m.resources for m in made if isinstance(m, Compiled)]
            row = {
                "model": entry["name"],
                "arch": arch,
                "kernels": len(made),
                "refused": [str(m) for m in made if not isinstance(m, Compiled)],
                "registers": max((r.registers for r in good), default=0),
                "spilling": sum(r.spill_bytes > 0 for r in good),
                "shared": max((r.shared_bytes for r in good), default=0),
            }
            rows.append(row)
            cells = [
                row["model"],
                arch,
                row["kernels"],
                len(row["refused"]),
                row["registers"],
                row["spilling"],
                row["shared"],
            ]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "nvrtc.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
