"""What to run when a GPU is at hand: the device's contract, every sample's heuristic plan, memory-bound chains against a copy.

    python benchmarks/gpu.py                                    the whole, on the GPU; needs no network
    python benchmarks/gpu.py --device cuda-emulated --tiny      rehearses it on a CPU: numbers, no times

Every model runs in a process of its own, as a fault on a GPU ends the process that made it. Written are gpu.json (with raw nanoseconds) and gpu.md.
Exit code 1 where anything failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from autofuse.api.choosing import Choice, heuristic_plan
from autofuse.api.devices import open_device
from autofuse.api.loading import LoadedEngine
from autofuse.api.verifying import verify_engine
from autofuse.devices.base import Compiled, Device
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.engine.lowering import Ready
from autofuse.errors import AutofuseError, InputError
from autofuse.fusion.region import RegionProgram
from autofuse.importer.importing import import_model
from autofuse.importer.samples import basic, chains
from autofuse.importer.samples import build as build_sample
from autofuse.importer.samples import names as sample_names
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.families import family, lower, variants
from autofuse.measure.calibrate import negation, product
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.programs import Repetition, packed_inputs, region_bytes, timing_program, unpacked_outputs
from autofuse.measure.reference import Tolerance
from autofuse.search.rows import boundary_bytes

Row = dict[str, Any]
COPY_ELEMENTS = 1 << 26
"""256 MiB on either side: no cache holds it."""
ROUNDS = 30
MODEL_SECONDS = 600

TINY: dict[str, Callable[[], ModelProto]] = {
    "mlp": lambda: basic.mlp(4, (24, 16, 10)),
    "softmax": lambda: basic.softmax(6, 50),
    "chain_gelu": lambda: chains.gelu(8, 64),
    "chain_layernorm": lambda: chains.layernorm(8, 64),
    "chain_rmsnorm": lambda: chains.rmsnorm(8, 64),
    "chain_softmax": lambda: chains.softmax(2, 8, 40),
    "chain_swiglu": lambda: chains.swiglu(8, 64),
    "chain_rotary": lambda: chains.rotary(2, 8, 16),
    "chain_groupnorm": lambda: chains.groupnorm(8, 4, 8, 4),
}


def model_of(name: str, tiny: bool) -> ModelProto:
    """A sample in its usual size, or one small enough to be emulated."""
    return TINY[name]() if tiny else build_sample(name)


def chosen(program: RegionProgram, device: Device) -> tuple[Variant, Schedule]:
    """The last family's variant, which is the most specialised, under its heuristic schedule."""
    variant = [v for v in variants(program, device.target) if v.family != "view"][-1]
    return variant, family(variant.family).heuristic(variant, device.target)


def contract(device: Device, tiny: bool) -> list[Row]:
    """What the engine relies on, tried on a map and a product."""
    rows: list[Row] = []
    timed = not isinstance(device, EmulatedCudaDevice)
    for name, program in (("negation", negation(1 << (12 if tiny else 20))), ("product", product(32 if tiny else 512))):
        variant, schedule = chosen(program, device)
        lowered = lower(variant, schedule, device.target)
        compiled = device.compile([x.kernel for x in lowered.launches])
        for x, c in zip(lowered.launches, compiled, strict=True):
            ok = isinstance(c, Compiled)
            detail = f"{c.resources.registers} registers, {c.resources.spill_bytes} bytes spilled" if ok else str(c)
            rows.append({"check": f"{name}: {x.kernel.family} compiles", "ok": ok, "detail": detail})
        rng = np.random.default_rng(1)
        given = [[rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs] for _ in range(2)]
        given[1][1:] = given[0][1:]  # constants stay
        executable = device.load(timing_program(Ready.of(variant, lowered), given[0], Repetition(2, 1)))
        try:
            for k, inputs in enumerate(given):
                (got,) = unpacked_outputs(variant, executable.run(packed_inputs(variant, inputs)))
                wanted = -inputs[0] if len(inputs) == 1 else inputs[0].astype(np.float64) @ inputs[1]
                error = float(np.abs(got - wanted).max() / np.abs(wanted).max())
                rows.append({"check": f"{name}: run {k + 1}", "ok": error < 1e-5, "detail": f"error {error:.1e}"})
            try:
                executable.run([np.zeros(3, np.int8)])
                rows.append({"check": f"{name}: a wrong input is refused", "ok": False, "detail": "it was accepted"})
            except InputError as e:
                rows.append({"check": f"{name}: a wrong input is refused", "ok": True, "detail": str(e)})
            if timed:
                executable.bind(packed_inputs(variant, given[0]))
                times, stamps = executable.time(5), executable.stamps(3)
                fine = len(times) == 5 and min(times) > 0 and stamps.shape == (3, 2 * len(lowered.launches))
                detail = f"{min(times) / 1e3:.1f} us a run, stamps sum to {stamps.sum(1).min() / 1e3:.1f} us"
                rows.append({"check": f"{name}: times", "ok": fine, "detail": detail})
        finally:
            executable.close()
            executable.close()
    return rows


def copy_bandwidth(device: Device) -> float:
    """Bytes a second of a copy from and to memory."""
    program = negation(COPY_ELEMENTS)
    variant, schedule = chosen(program, device)
    inputs = [np.ones(t.shape, np.float32) for t in program.inputs]
    lowered = lower(variant, schedule, device.target)
    executable = device.load(timing_program(Ready.of(variant, lowered), inputs, Repetition(4, 1)))
    try:
        executable.bind(packed_inputs(variant, inputs))
        executable.time(2)
        return 4 * region_bytes(variant) / (float(np.median(executable.time(ROUNDS))) * 1e-9)
    finally:
        executable.close()


def measure(name: str, device_name: str, tiny: bool) -> Row:
    """One sample under its heuristic plan: numbers against an oracle, then times where there are any."""
    device = open_device(device_name)
    proto = model_of(name, tiny)
    graph = import_model(proto)
    start = time.perf_counter()
    plan = heuristic_plan(graph, device)
    engine = LoadedEngine(proto, graph, device, Choice(plan, "heuristic", {}, []), [])
    built = time.perf_counter() - start
    inputs = graph_inputs(graph)
    try:
        found = verify_engine(engine, proto, inputs, Tolerance())
        row: Row = {
            "model": name,
            "ok": found.ok,
            "oracle": found.oracle,
            "error": found.error,
            "reason": found.reason,
            "launches": engine.engine.launches,
            "host_nodes": len(engine.engine.host_nodes),
            "bytes_model": engine.engine.bytes_model,
            "boundary_bytes": boundary_bytes(graph),
            "build_seconds": built,
            "times_ns": [],
        }
        if not isinstance(device, EmulatedCudaDevice):
            engine.engine.bind(inputs)
            engine.engine.time(3)
            row["times_ns"] = engine.engine.time(ROUNDS)
            row["launch_ns"] = np.median(engine.engine.stamps(5), axis=0).astype(int).tolist()
        return row
    finally:
        engine.close()


def table(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    bandwidth = report["bandwidth"]
    lines = [f"# {report['device']}, {report['arch']}", ""]
    if bandwidth:
        lines += [f"A copy moves {bandwidth / 1e9:.0f} GB/s.", ""]
    lines += ["| check | result | |", "|---|---|---|"]
    lines += [f"| {r['check']} | {'ok' if r['ok'] else 'FAILED'} | {r['detail']} |" for r in report["contract"]]
    lines += [
        "",
        "| model | numbers | error | oracle | launches | host | MB moved | ms | floor ms | times the floor |",
        "|" + "---|" * 10,
    ]
    for r in report["models"]:
        if "failed" in r:
            lines.append(f"| {r['model']} | FAILED: {r['failed']} |" + " |" * 8)
            continue
        times = r["times_ns"]
        ms = float(np.median(times)) / 1e6 if times else None
        floor = r["boundary_bytes"] / bandwidth * 1e3 if bandwidth else None
        cells = [
            r["model"],
            "ok" if r["ok"] else f"WRONG: {r['reason']}",
            f"{r['error']:.1e}",
            r["oracle"],
            str(r["launches"]),
            str(r["host_nodes"]),
            f"{r['bytes_model'] / 1e6:.2f}",
            "–" if ms is None else f"{ms:.3f}",
            "–" if floor is None else f"{floor:.3f}",
            "–" if ms is None or not floor else f"{ms / floor:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def separately(name: str, device: str, tiny: bool) -> Row:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--device", device, *(["--tiny"] if tiny else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MODEL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"model": name, "failed": f"no result within {MODEL_SECONDS} s"}
    rows = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if rows:
        return dict(json.loads(rows[-1][4:]))
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return {"model": name, "failed": last[:300]}


def main() -> int:
    """Run everything and write the report; 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="samples (default: all)")
    parser.add_argument("--device", choices=("cuda", "cuda-emulated"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small samples, as emulation is slow")
    parser.add_argument("--output", type=Path, default=Path("results/gpu"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        try:
            print("ROW " + json.dumps(measure(args.one, args.device, args.tiny)))
        except AutofuseError as e:
            print("ROW " + json.dumps({"model": args.one, "failed": f"{type(e).__name__}: {e}"[:500]}))
        return 0
    device = open_device(args.device)
    emulated = isinstance(device, EmulatedCudaDevice)
    report: dict[str, Any] = {
        "device": device.target.name,
        "arch": device.target.arch,
        "tiny": args.tiny,
        "contract": contract(device, args.tiny),
        "bandwidth": None if emulated else copy_bandwidth(device),
        "models": [],
    }
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.models or (list(TINY) if args.tiny else sample_names()):
        row = separately(name, args.device, args.tiny)
        report["models"].append(row)
        print(table({**report, "contract": [], "models": [row]}).splitlines()[-1], flush=True)
        # written after each model: what is there stays if a later one ends the session
        (args.output / "gpu.json").write_text(json.dumps(report))
        (args.output / "gpu.md").write_text(table(report))
    print(f"\n{table(report)}\nwritten to {args.output}")
    return 0 if all(r.get("ok", False) for r in (*report["contract"], *report["models"])) else 1


if __name__ == "__main__":
    raise SystemExit(main())
