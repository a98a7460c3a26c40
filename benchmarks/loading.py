"""How long it takes until a saved plan runs: import, lowering from records, packing of weights, loading of cached kernels.

    python benchmarks/loading.py resnet50 densenet121 vgg19 [--plans results/benchmark/tunes] [--rounds 5] [--output results/loading]

Each round is a process of its own, so nothing is warm but the disk's cache. The first process compiles what is not compiled and is not
counted. Reading the model (its weights) and importing Python packages are timed apart. Without --plans the heuristic plan is saved and used.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMITS = {"vgg19": 6.0}
LIMIT = 2.0
"""Seconds from a parsed model and a saved plan to an engine that runs."""


def measure(model: str, plan: str, threads: int) -> dict[str, float]:
    """One load in this process."""
    start = time.perf_counter()
    import autofuse
    from autofuse.api.loading import load
    from autofuse.importer.load import load_model

    imported = time.perf_counter()
    proto = load_model(model)
    read = time.perf_counter()
    engine = load(proto, plan=plan, device="cpu", threads=threads)
    loaded = time.perf_counter()
    engine.close()
    assert autofuse
    return {"import": imported - start, "read": read - imported, "load": loaded - read}


def save_heuristic(model: str, path: Path, threads: int) -> None:
    """The plan without measuring, saved."""
    from autofuse.api.choosing import heuristic_plan
    from autofuse.devices.cpu import CpuDevice
    from autofuse.importer.importing import import_model
    from autofuse.importer.load import load_model

    heuristic_plan(import_model(load_model(model), {}), CpuDevice(threads)).save(path)


def main() -> None:
    """A line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet50", "densenet121", "vgg19"], help="names of samples")
    parser.add_argument("--plans", type=Path, help="a folder with result folders of these samples")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one, args.threads)))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
        for name in args.models:
            found = sorted(args.plans.glob(f"{name}-*/*/*/plan.json")) if args.plans else []
            path = found[-1] if found else Path(folder) / f"{name}.json"
            if not found:
                save_heuristic(f"sample:{name}", path, args.threads)
            command = [sys.executable, __file__, "--threads", str(args.threads), "--one", f"sample:{name}", str(path)]
            rounds = []
            for k in range(args.rounds + 1):
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                if k:
                    rounds.append(json.loads(done.stdout.splitlines()[-1]))
            row = {
                "model": name,
                "plan": "tuned" if found else "heuristic",
                "limit": LIMITS.get(name, LIMIT),
                "rounds": rounds,
            }
            rows.append(row)
            load, read, imported = (statistics.median(r[k] for r in rounds) for k in ("load", "read", "import"))
            worst = max(r["load"] for r in rounds)
            print(
                f"{name}: engine from the {row['plan']} plan in {load:.2f} s (worst {worst:.2f} s, target {row['limit']:.0f} s"
                f"{'' if load <= row['limit'] else ', MISSED'}); reading the model {read:.2f} s, importing packages {imported:.2f} s",
                flush=True,
            )
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "loading.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
