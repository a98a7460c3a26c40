"""Every trained model of trained.toml: loaded, run unfused and greedily fused, and compared with onnxruntime without optimisations.

    python benchmarks/trained_numbers.py FOLDER_WITH_UNZIPPED_PACKAGES

A line a file: nodes, those on the host, launches, and for both plans the largest |difference| / max|reference| over all outputs. Exit code 3
where one is beyond the default tolerance.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from autofuse.api.choosing import heuristic_plan
from autofuse.devices.cpu import CpuDevice
from autofuse.engine.assign import assign
from autofuse.engine.engine import Engine
from autofuse.engine.options import heuristic_options
from autofuse.fusion.partition import Partitioner
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model

sys.path.insert(0, str(Path(__file__).parent))
from models import error_of, feeds, trained
from peers import oracle_session

TOLERANCE = 1e-3
"""Of the largest magnitude of the reference, as tunes use it."""


def compare(entry: dict[str, Any], threads: int) -> bool:
    """Print a model's line; whether its numbers agree."""
    start = time.perf_counter()
    model = load_model(entry["model"])
    shapes = {k: tuple(v) for k, v in entry.get("shapes", {}).items()}
    inputs = feeds(import_model(model, shapes), entry)
    graph = import_model(model, shapes, fed=inputs)
    device = CpuDevice(threads)
    options = heuristic_options(device.target, threads, "default")
    unfused = Partitioner(graph, device.target).unfused()
    plans = {
        "unfused": assign(graph, unfused, device.target, threads, "default", options, "unfused"),
        "fused": heuristic_plan(graph, device),
    }
    oracle = oracle_session(model, threads)
    names = {i.name for i in oracle.get_inputs()}
    reference = oracle.run(None, {k: v for k, v in inputs.items() if k in names})
    errors, launches, host = {}, {}, 0
    for name, plan in plans.items():
        with Engine.build(graph, plan, device) as engine:
            errors[name] = error_of(engine.run(inputs), reference)
            launches[name], host = engine.launches, len(engine.host_nodes)
    good = all(e <= TOLERANCE for e in errors.values())
    print(
        f"{entry['name']:48} {len(model.graph.node):4} nodes, {host} on the host, launches {launches['unfused']:3} / {launches['fused']:3}, "
        f"errors {errors['unfused']:.1e} / {errors['fused']:.1e}, {time.perf_counter() - start:.0f} s{'' if good else '  WRONG'}",
        flush=True,
    )
    return good


def main() -> None:
    """Compare all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="names that contain this")
    args = parser.parse_args()
    good = [compare(e, args.threads) for e in trained(args.folder, ("model", "also")) if args.only in e["name"]]
    print(f"{sum(good)} of {len(good)} agree with onnxruntime without optimisations")
    sys.exit(0 if all(good) else 3)


if __name__ == "__main__":
    main()
