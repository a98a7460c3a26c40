"""Memory of saved plans beside onnxruntime's: activations with scratch, and prepared weights beside the model's own.

    python benchmarks/memory.py results/benchmark/tunes [--threads 2] [--output results/memory]

Every result folder below is one row. What is ours is counted: an engine's arenas, its threads' scratch memory, its prepared constants.
What is onnxruntime's is measured in a process of its own: the growth of the peak resident memory (VmHWM, reset through
/proc/self/clear_refs) over three runs, without the outputs. Its weights are kept out of its arena there
(session.use_device_allocator_for_initializers), since chunks that packing has freed would hide what activations take; for the same reason
free memory goes back to the system before the runs.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

import autofuse
from autofuse.devices.cpu import CpuDevice
from autofuse.engine.engine import Engine
from autofuse.engine.plan import check_plan
from autofuse.errors import AutofuseError
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.measure.inputs import graph_inputs

MOST_ACTIVATIONS, MOST_WEIGHTS = 1.25, 2.5
"""The targets: activations and scratch against onnxruntime's, prepared weights against the model's."""
_RUNS = 3


def weights_of(model: ModelProto) -> int:
    """Bytes of a model's initializers and constants."""
    tensors = list(model.graph.initializer)
    tensors += [a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.HasField("t")]
    return sum(math.prod(t.dims) * onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in tensors)


def _status(name: str) -> int:
    text = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name + ":"))
    return int(text.split()[1]) * 1024


def measure_onnxruntime(model: str, inputs: str, threads: int) -> int:
    """Bytes by which the peak of resident memory grows in three runs, outputs left aside. For a process of its own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with np.load(inputs) as archive:
        feeds = {i.name: archive[i.name] for i in session.get_inputs()}
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before, files = _status("VmRSS"), _status("RssFile")
    for _ in range(_RUNS):
        outputs = session.run(None, feeds)
    # pages of libraries that are touched for the first time are no memory of the model's
    grown = _status("VmHWM") - before - max(0, _status("RssFile") - files)
    # two runs' outputs live at once: the last one's until the next has made its own
    return int(grown - 2 * sum(o.nbytes for o in outputs if isinstance(o, np.ndarray)))


def onnxruntime_bytes(model: ModelProto, inputs: Mapping[str, np.ndarray], threads: int) -> int | None:
    """The same from here; None where it fails."""
    with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
        path, feeds = Path(folder) / "model.onnx", Path(folder) / "inputs.npz"
        onnx.save(model, path)
        np.savez(feeds, **{str(k): v for k, v in inputs.items()})
        command = [sys.executable, __file__, "--one", str(path), "--inputs", str(feeds), "--threads", str(threads)]
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(64 << 10), "MALLOC_TRIM_THRESHOLD_": str(64 << 10)}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else None


def row(name: str, model: ModelProto, engine: Engine, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What one engine needs, and onnxruntime for the same model."""
    return {
        "model": name,
        "activations": engine.peak_bytes,
        "activations_ort": onnxruntime_bytes(model, inputs, engine.device.threads),
        "prepared": engine.weight_bytes,
        "weights": weights_of(model),
    }


def cells(r: Mapping[str, Any]) -> list[str]:
    """Activations ours / onnxruntime's with their ratio, weights prepared / the model's with theirs; "!" marks a missed target."""

    def pair(a: int, b: int | None, most: float) -> str:
        if not b or b <= 0:
            return f"{a / 1e6:.1f} / –"
        return f"{a / 1e6:.1f} / {b / 1e6:.1f} ({a / b:.2f}x{'' if a <= most * b else ' !'})"

    return [
        pair(r["activations"], r["activations_ort"], MOST_ACTIVATIONS),
        pair(r["prepared"], r["weights"], MOST_WEIGHTS),
    ]


HEAD = ("activations and scratch MB ours/onnxruntime", "weights MB prepared/model")


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    head = ("model", *HEAD)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join([r["model"], *cells(r)]) + " |" for r in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """A row for each result folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "results", nargs="*", type=Path, help="folders with result folders of `sample:` models or files in them"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--inputs", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(measure_onnxruntime(args.one, args.inputs, args.threads))
        return
    device = CpuDevice(args.threads)
    rows: list[dict[str, Any]] = []
    for run in sorted(p for folder in args.results for p in folder.rglob("run.json")):
        facts = json.loads(run.read_text())
        try:
            model = load_model(facts["model"])
            graph = import_model(model, {k: tuple(v) for k, v in facts["shapes"].items()})
            plan = autofuse.open_results(run.parent).plan
            check_plan(plan, graph, device.target, device.threads)
        except AutofuseError as error:
            print(f"{facts['model']}: {error}", file=sys.stderr)
            continue
        with Engine.build(graph, plan, device) as engine:
            rows.append(row(facts["model"], model, engine, graph_inputs(graph, 0)))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "memory.json").write_text(json.dumps(rows, indent=1))
        (args.output / "memory.md").write_text(table(rows))


if __name__ == "__main__":
    main()
