"""Is the winner of a tune significantly slower than the unfused or the greedy plan, measured afresh in a new process?

    python benchmarks/fresh_winners.py --samples --trained FOLDER_WITH_UNZIPPED_PACKAGES --results results/benchmark/tunes
    python benchmarks/fresh_winners.py sample:softmax --budget 10s --results /tmp/tunes       # tuned first where there is no result folder

A model's best plan runs beside its best unfused and its best greedy plan, in paired rounds of random order, and beside a second copy of
itself for the noise. The test is the one that tunes use (docs/architecture.md, The statistics), at one per cent a model. A line a model; exit
code 3 where a winner is significantly slower, 2 where a model could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autofuse
from autofuse.api.choosing import heuristic_plan
from autofuse.devices.cpu import CpuDevice
from autofuse.engine.plan import Plan
from autofuse.fusion.partition import Partition, Partitioner
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Graph
from autofuse.measure.racing import LEVEL
from autofuse.report.naming import device_folder

sys.path.insert(0, str(Path(__file__).parent))
from models import SAMPLES, feeds, trained
from paired import measure, ratio_text


def graph_of(entry: Mapping[str, Any]) -> Graph:
    """A model's graph with its shapes bound, made for what is fed, as tunes make it."""
    model, shapes = load_model(entry["model"]), {k: tuple(v) for k, v in entry.get("shapes", {}).items()}
    return import_model(model, shapes, fed=feeds(import_model(model, shapes), entry))


def folder_of(graph: Graph, device: CpuDevice, results: Path) -> Path | None:
    """The newest result folder for a graph on this device with this number of threads."""
    found = results.glob(f"*-{graph.structural_hash[:8]}/{device_folder(device.target)}/*/run.json")
    mine = [p for p in found if json.loads(p.read_text())["threads"] == device.threads]
    return max(mine, key=lambda p: p.stat().st_mtime).parent if mine else None


def best_of(results: autofuse.Results, partition: Partition) -> Plan | None:
    """The fastest measured plan of a partition; None where none ran."""
    table = results.trade_offs
    for key in table[table["status"] == "ok"].sort_values("median_ms")["plan"]:
        plan = results.plans[str(key)]
        if tuple(sorted(r.region.nodes for r in plan.regions if r.region.nodes)) == partition.key:
            return plan
    return None


def tune(entry: Mapping[str, Any], budget: str, threads: int, results: Path) -> None:
    """A result folder where there is none."""
    shapes = {k: tuple(v) for k, v in entry.get("shapes", {}).items()}
    inputs = feeds(graph_of(entry), entry)
    autofuse.tune(entry["model"], "cpu", budget, shapes=shapes or None, inputs=inputs, threads=threads, output=results)


def one(entry: Mapping[str, Any], threads: int, results: Path, seconds: float) -> dict[str, Any]:
    """Measure one model's winner afresh."""
    graph, device = graph_of(entry), CpuDevice(threads)
    folder = folder_of(graph, device, results)
    if folder is None:
        return {"missing": f"no results in {results}; give a --budget to tune"}
    found = autofuse.open_results(folder)
    partitioner = Partitioner(graph, device.target)
    plans = {
        "best": found.plan,
        "unfused": best_of(found, partitioner.unfused()),
        "greedy": best_of(found, partitioner.greedy()) or heuristic_plan(graph, device),
    }
    others = {k: p for k, p in plans.items() if p is not None and (k == "best" or p.key != found.plan.key)}
    seen = measure(graph, {k: p for k, p in others.items() if p is not None}, feeds(graph, entry), device, seconds)
    out: dict[str, Any] = {"noise": seen.noise.text(), "rounds": seen.rounds, "repeats": seen.repeats, "plans": {}}
    for name, plan in plans.items():
        if plan is None:
            out["plans"][name] = {"text": "did not run"}
        elif name not in others:
            out["plans"][name] = {"text": "is the best plan", "slower": False}
        else:
            row = {"ms": seen.median_ms(name), "samples_ns": seen.samples[name]}
            if name != "best":
                c = seen.against("best", name, LEVEL / 2)
                row |= {"text": ratio_text(c), "ratio": c.ratio, "slower": c.winner == "b"}
            out["plans"][name] = row
    return out


def child(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """This script in a new process."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, env=environment)


def main() -> int:
    """A process a model; a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="paths or sample:NAME")
    parser.add_argument("--samples", action="store_true", help="the nine vision samples")
    parser.add_argument("--trained", type=Path, help="a folder in which packages with trained models were unzipped")
    parser.add_argument(
        "--results", type=Path, default=Path("results/benchmark/tunes"), help="where tunes have written"
    )
    parser.add_argument("--budget", help="tune a model that has no results for so long (else it is left out)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring, a model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write all samples as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--tune", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tune:
        tune(json.loads(args.tune), args.budget, args.threads, args.results)
        return 0
    if args.one:
        print("ROW " + json.dumps(one(json.loads(args.one), args.threads, args.results, args.seconds)))
        return 0
    found: list[dict[str, Any]] = [{"name": m, "model": m} for m in args.models]
    found += [{"name": f"sample:{s}", "model": f"sample:{s}"} for s in (SAMPLES if args.samples else ())]
    found += trained(args.trained) if args.trained else []
    settings = ["--threads", str(args.threads), "--results", str(args.results), "--seconds", str(args.seconds)]
    rows, slower, failed = {}, 0, 0
    for entry in found:
        if args.budget and folder_of(graph_of(entry), CpuDevice(args.threads), args.results) is None:
            child(["--tune", json.dumps(entry), "--budget", args.budget, *settings])
        done = child(["--one", json.dumps(entry), *settings])
        lines = [l for l in done.stdout.splitlines() if l.startswith("ROW ")]
        row = json.loads(lines[-1][4:]) if lines else {"missing": f"it ended with exit code {done.returncode}"}
        rows[entry["name"]] = row
        if "missing" in row:
            failed += 1
            print(f"{entry['name']:42} {row['missing']}", flush=True)
            continue
        worse = [k for k, p in row["plans"].items() if p.get("slower")]
        slower += bool(worse)
        against = "; ".join(f"against {k}: {row['plans'][k]['text']}" for k in ("unfused", "greedy"))
        said = f"SLOWER than {' and '.join(worse)}" if worse else "not slower"
        print(f"{entry['name']:42} {row['plans']['best']['ms']:8.2f} ms  {said:12}  {against}", flush=True)
        print(f"{'':42} {row['noise']}", flush=True)
    print(
        f"{len(found)} models: {slower} winners significantly slower than the unfused or the greedy plan, {failed} not measured"
    )
    if args.output:
        args.output.write_text(json.dumps(rows))
    return 3 if slower else (2 if failed else 0)


if __name__ == "__main__":
    sys.exit(main())
