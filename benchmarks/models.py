"""Tune models and compare the best plan with its own unfused plan, onnxruntime, OpenVINO and (--torch) torch.compile, interleaved in one run.

    python benchmarks/models.py sample:squeezenet sample:resnet50 --budget 60s --output results/benchmark
    python benchmarks/models.py --trained FOLDER_WITH_UNZIPPED_PACKAGES
    python benchmarks/models.py --samples --exact          # a plan tuned under --accuracy exact runs in the same rounds

Every model runs in a process of its own. Written are models.json (with raw nanoseconds, versions and settings), models.md (the table) and
models.svg (each model's ratio to the better peer, with its spread).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

import autofuse
from autofuse.api.choosing import heuristic_plan
from autofuse.devices.cpu import CpuDevice
from autofuse.devices.toolchain import find_toolchain
from autofuse.engine.engine import Engine
from autofuse.engine.plan import Plan
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.graph import Graph
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.peers import OnnxRuntime

sys.path.insert(0, str(Path(__file__).parent))
from boundary import boundary
from memory import row as row_of_memory
from model_tables import plot, summary, table
from peers import OpenVino, TorchCompile, has_torch, oracle_session

SAMPLES = (
    "squeezenet",
    "shufflenet",
    "inception_v2",
    "alexnet",
    "inception_v1",
    "densenet121",
    "resnet50",
    "zfnet512",
    "vgg19",
)
PAUSE_SECONDS = 0.025
"""Before every timed run of every party: the threads of the one before, which spin for a while, have then let go of the cores."""
CHAINS = ("gelu", "layernorm", "rmsnorm", "softmax", "swiglu", "rotary", "groupnorm")


def trained(folder: Path, kinds: Sequence[str] = ("model",)) -> list[dict[str, Any]]:
    """The entries of trained.toml whose files lie below a folder; of kind "model" are those that are timed, of kind "also" the others."""
    table = tomllib.loads((Path(__file__).parent / "trained.toml").read_text())
    files = sorted(folder.rglob("*.onnx"))
    found = []
    for entry in (e for kind in kinds for e in table[kind]):
        match = next((f for f in files if str(f).endswith("/" + entry["file"])), None)
        if match is None:
            print(f"{entry['name']}: no file ends with {entry['file']}", file=sys.stderr)
        else:
            found.append({**entry, "model": str(match)})
    return found


def feeds(graph: Graph, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Inputs in the range that the model allows; integers below the limits that are given."""
    inputs = graph_inputs(graph, 0)
    rng = np.random.default_rng(0)
    for name, top in entry.get("limits", {}).items():
        inputs[name] = rng.integers(0, top, inputs[name].shape).astype(inputs[name].dtype)
    for name, value in entry.get("feeds", {}).items():
        inputs[name] = np.full(inputs[name].shape, value, inputs[name].dtype)
    return inputs


def unfused(results: autofuse.Results) -> Plan:
    """The fastest plan of the unfused partition: its schedules were tuned with the same care."""
    table = results.trade_offs
    rows = table[(table["status"] == "ok") & table["step"].isin(["unfused", "tuned"])]
    return results.plans[str(rows.sort_values("median_ms").iloc[0]["plan"])]


def settled(results: autofuse.Results) -> float | None:
    """Seconds of tuning after which a plan was at hand that ends within 5 % of the best one, by the final measurements."""
    table = results.trade_offs
    table = table[table["status"] == "ok"].sort_values("elapsed_seconds")
    good = table[table["median_ms"] <= 1.05 * table["median_ms"].min()]
    return float(good.iloc[0]["elapsed_seconds"]) if len(good) else None


def error_of(outputs: Mapping[str, np.ndarray], reference: list[np.ndarray]) -> float:
    """The largest |difference| / max|reference| over all outputs."""
    worst = 0.0
    for mine, theirs in zip(outputs.values(), reference, strict=True):
        scale = float(np.max(np.abs(theirs.astype(np.float64)), initial=0.0))
        gap = float(np.max(np.abs(mine.astype(np.float64) - theirs.astype(np.float64)), initial=0.0))
        worst = max(worst, gap / max(scale, 1e-30) if gap else 0.0)
    return worst


def boundary_engine(model: ModelProto, inputs: Mapping[str, np.ndarray], device: CpuDevice, output: Path) -> Engine:
    """What reads the model's inputs and writes outputs of its sizes, tuned for a few seconds, with its inputs bound."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"boundary-{model.graph.name}.onnx"
    onnx.save(boundary(model), path)
    tuned = autofuse.tune(path, "cpu", "10s", threads=device.threads, output=output / "tunes")
    graph = import_model(load_model(path))
    engine = Engine.build(graph, tuned.plan, device)
    engine.bind({v.name: inputs[v.name].reshape(v.dims) for v in (graph.values[i] for i in graph.inputs)})
    return engine


def measure(
    entry: Mapping[str, Any],
    budget: str,
    threads: int,
    rounds: int,
    output: Path,
    exact: bool = False,
    torch: bool = False,
) -> dict[str, Any]:
    """Tune one model, check it, and time everything in interleaved rounds."""
    model = load_model(entry["model"])
    shapes = {k: tuple(v) for k, v in entry.get("shapes", {}).items()}
    graph = import_model(model, shapes)
    inputs = feeds(graph, entry)
    tuned = autofuse.tune(
        entry["model"], "cpu", budget, shapes=shapes or None, inputs=inputs, threads=threads, output=output / "tunes"
    )
    results = autofuse.open_results(tuned.folder)
    device = CpuDevice(threads)
    plans = {"best": results.plan, "unfused": unfused(results), "heuristic": heuristic_plan(graph, device)}
    error_exact = None
    if exact:
        # kernels that the first tune has measured are not measured again
        strict = autofuse.tune(
            entry["model"],
            "cpu",
            budget,
            shapes=shapes or None,
            inputs=inputs,
            threads=threads,
            output=output / "tunes",
            accuracy="exact",
        ).results
        plans["exact"] = strict.plan
        error_exact = float(strict.trade_offs.set_index("plan").loc[strict.plan.key, "error"])
    engines = {k: Engine.build(graph, p, device) for k, p in plans.items()}
    oracle = oracle_session(model, threads)
    names = {i.name for i in oracle.get_inputs()}
    reference = oracle.run(None, {k: v for k, v in inputs.items() if k in names})
    error = error_of(engines["best"].run(inputs), reference)
    memory = row_of_memory(entry["name"], model, engines["best"], inputs)
    for e in engines.values():
        e.bind(inputs)
    peers: dict[str, OnnxRuntime | OpenVino | TorchCompile] = {
        "onnxruntime": OnnxRuntime(model.SerializeToString(), inputs, threads)
    }
    failures: dict[str, str] = {}
    try:
        peers["openvino"] = OpenVino(model, inputs, threads)
    except RuntimeError as e:  # OpenVINO refuses some models
        failures["openvino"] = str(e).splitlines()[0]
    if torch:
        try:
            peers["torch"] = TorchCompile(model, inputs, threads)
        except RuntimeError as said:  # onnx2torch reads some models only
            failures["torch"] = str(said).splitlines()[0]
    if entry.get("memory_bound"):
        engines["copy"] = boundary_engine(model, inputs, device, output)
    times: dict[str, list[int]] = {k: [] for k in (*engines, *peers)}
    parties = list({**engines, **peers}.items())
    exchange: list[int] = []
    for k in range(rounds):
        exchange.append(device.team.exchange())  # virtual cores move: all parties are slower while they are apart
        for name, timed in parties[k % len(parties) :] + parties[: k % len(parties)]:
            time.sleep(PAUSE_SECONDS)
            times[name] += timed.time(2)[1:]  # the first run brings caches and threads back
    row = {
        "model": entry["name"],
        "nodes": len(model.graph.node),
        "host_nodes": len(engines["best"].host_nodes),
        "launches_unfused": engines["unfused"].launches,
        "launches_best": engines["best"].launches,
        "bytes_unfused": engines["unfused"].bytes_model,
        "bytes_best": engines["best"].bytes_model,
        "error": error,
        "error_float64": float(results.trade_offs.set_index("plan").loc[results.plan.key, "error"]),
        "error_exact": error_exact,
        "memory": memory,
        "floor_ms": float(results.regions["floor_us"].sum()) / 1e3,
        "tune_seconds": results.run["seconds"],
        "seconds_to_5_percent": settled(results),
        "times_ns": times,
        "exchange_ns": exchange,
        "failures": failures,
    }
    for e in engines.values():
        e.close()
    return row


def about(threads: int) -> dict[str, Any]:
    """What was measured with what."""
    found: dict[str, Any] = {"threads": threads, "precision": "float32 everywhere", "python": sys.version.split()[0]}
    for package in ("autofuse", "onnx", "onnxruntime", "openvino", "torch", "onnx2torch", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "from the source tree" if package == "autofuse" else "not installed"
    device = CpuDevice(threads)
    found["cpu"] = {"name": device.target.name, "arch": device.target.arch, "cores": device.target.cores}
    found["compiler"] = find_toolchain().identity
    return found


def entries(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What is to be measured."""
    found = [{"name": m, "model": m} for m in args.models]
    if args.samples:
        found += [{"name": f"sample:{s}", "model": f"sample:{s}"} for s in SAMPLES]
    if args.chains:
        found += [{"name": f"sample:chain_{s}", "model": f"sample:chain_{s}", "memory_bound": True} for s in CHAINS]
    return found + (trained(args.trained) if args.trained else [])


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """The table and the plot of what models.json holds."""
    (folder / "models.md").write_text(table(found["rows"]) + "\n" + summary(found["rows"]))
    plot(found["rows"], folder / "models")


def main() -> None:
    """Measure each model in a process of its own and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="paths or sample:NAME")
    parser.add_argument("--samples", action="store_true", help="the nine vision samples")
    parser.add_argument("--chains", action="store_true", help="the seven memory-bound chains")
    parser.add_argument("--trained", type=Path, help="a folder in which packages with trained models were unzipped")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("results/benchmark"))
    parser.add_argument(
        "--exact", action="store_true", help="tune under --accuracy exact, too, and run that plan beside the others"
    )
    parser.add_argument("--torch", action="store_true", help="compare with torch.compile, too, where it is installed")
    parser.add_argument(
        "--redraw", type=Path, metavar="FOLDER", help="measure nothing: table and plot of FOLDER's models.json again"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        row = measure(json.loads(args.one), args.budget, args.threads, args.rounds, args.output, args.exact, args.torch)
        print("ROW " + json.dumps(row))
        return
    if args.redraw:
        write(args.redraw, json.loads((args.redraw / "models.json").read_text()))
        return
    if args.torch and not has_torch():
        parser.error("--torch needs torch and onnx2torch: install both")
    args.output.mkdir(parents=True, exist_ok=True)
    facts = about(args.threads) | {"budget": args.budget, "rounds": args.rounds}
    rows: list[dict[str, Any]] = []
    for entry in entries(args):
        options = ["--budget", args.budget, "--threads", str(args.threads), "--rounds", str(args.rounds)]
        options += [f"--{name}" for name in ("exact", "torch") if getattr(args, name)]
        command = [sys.executable, __file__, "--one", json.dumps(entry), *options, "--output", str(args.output)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"}
        )
        lines = [l for l in done.stdout.splitlines() if l.startswith("ROW ")]
        rows.append(
            json.loads(lines[-1][4:]) if lines else {"model": entry["name"], "failed": f"exit code {done.returncode}"}
        )
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        (args.output / "models.json").write_text(json.dumps({"about": facts, "rows": rows}))
        write(args.output, {"rows": rows})
    print(summary(rows), end="")


if __name__ == "__main__":
    main()
