"""Run onnx's backend suite on a device, and compile the kernels of its cases with NVRTC.

    python benchmarks/onnx_suite.py --device cpu [--write-list]
    python benchmarks/onnx_suite.py --device cuda-emulated --nvrtc sm_90 [--part k/n]
    python benchmarks/onnx_suite.py --device cpu test_topk test_conv          (cases whose name contains one of these)

Printed are the cases that differ from tests/suite/exceptions.toml and a summary; onnx_suite-DEVICE.json and .md hold everything.
On cuda-emulated the cases that have kernels count: what fails on the CPU too, or runs on the host alone, is named and left out.
`--write-list` brings the list up to date with what came out on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from autofuse.api.devices import open_device
from autofuse.devices.base import Compiled, Device
from autofuse.devices.emulated import EmulatedCudaDevice
from autofuse.devices.nvrtc import CubinCompiler
from autofuse.loops.ir import loops_of
from tests.suite import exceptions
from tests.suite.cases import KINDS, Case, Outcome, all_cases, run_case

CHUNK = 12
"""Cases that a process takes at a time."""


@dataclass(frozen=True)
class Row:
    """One case: what came of it, and what NVRTC refused."""

    kind: str
    name: str
    error: str
    host: tuple[str, ...]
    kernels: int
    refused: tuple[str, ...]
    seconds: float

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.error, self.host)


@dataclass(frozen=True)
class Setup:
    """What a process needs to know. `nvrtc` is an architecture or empty."""

    device: str
    nvrtc: str


_DEVICES: dict[Setup, Device] = {}


def _device(setup: Setup) -> Device:
    if setup not in _DEVICES:
        emulated = setup.device == "cuda-emulated"
        _DEVICES[setup] = EmulatedCudaDevice(setup.nvrtc or "sm_90") if emulated else open_device(setup.device, 1)
    return _DEVICES[setup]


def run_chunk(setup: Setup, positions: Sequence[int]) -> list[Row]:
    """Some cases by their position among all, in a process of its own."""
    device = _device(setup)
    rows: list[Row] = []
    for k in positions:
        case = all_cases()[k]
        o = run_case(case, device)
        refused: list[str] = []
        if setup.nvrtc:
            made = CubinCompiler().compiled([loops_of(k) for k in o.kernels], setup.nvrtc)
            refused = [str(m) for m in made if not isinstance(m, Compiled)]
        rows.append(Row(case.kind, case.name, o.error, o.host, len(o.kernels), tuple(refused), round(o.seconds, 2)))
    return rows


def chosen(args: argparse.Namespace) -> list[int]:
    """The positions of the cases that the arguments ask for."""
    part, parts = (int(x) for x in args.part.split("/"))
    known = exceptions.read()
    found = []
    for k, c in enumerate(all_cases()):
        named = not args.patterns or any(p in c.name for p in args.patterns)
        fails = args.device != "cpu" and any(c.name in t.get(c.kind, {}) for t in (known.fails, known.drawn))
        if named and not fails and c.kind in (args.kind or KINDS):
            found.append(k)
    return found[part - 1 :: parts]


def run_all(setup: Setup, positions: Sequence[int], jobs: int) -> list[Row]:
    """Every case, side by side; a line on stderr for every 200."""
    rows: list[Row] = []
    start = time.perf_counter()
    networks = [k for k in positions if all_cases()[k].kind == "real"]
    rest = [k for k in positions if k not in set(networks)]
    # the long ones first, one at a time
    chunks = [*([k] for k in networks), *(rest[k : k + CHUNK] for k in range(0, len(rest), CHUNK))]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_chunk, setup, chunk) for chunk in chunks]):
            rows += done.result()
            if len(rows) // 200 != (len(rows) - len(done.result())) // 200:
                print(f"{len(rows)} of {len(positions)}, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return sorted(rows, key=lambda r: (KINDS.index(r.kind), r.name))


def complaints(rows: Sequence[Row], device: str) -> list[str]:
    """What is not as the list says; on other devices than the CPU every error and every refused kernel."""
    known = exceptions.read()
    cases = {(c.kind, c.name): c for c in all_cases()}
    out = [f"{r.name}: NVRTC refused a kernel: {text}" for r in rows for text in r.refused]
    for r in rows:
        text = known.complaint(cases[r.kind, r.name], r.outcome) if device == "cpu" else r.error and f"fails: {r.error}"
        if text:
            out.append(f"{r.name} {text}")
    return out


def summary(rows: Sequence[Row], setup: Setup, seconds: float) -> str:
    """Counts by kind, the operators on the host, and how long it took, as Markdown."""
    lines = [
        f"onnx's backend suite on {setup.device}: {seconds:.0f} s",
        "",
        "| kind | cases | pass | with host operators | without kernels | kernels | refused by NVRTC |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in (*KINDS, "all"):
        mine = [r for r in rows if kind in ("all", r.kind)]
        good = [r for r in mine if not r.error]
        cells = [
            kind,
            len(mine),
            len(good),
            sum(bool(r.host) for r in good),
            sum(not r.kernels for r in good),
            sum(r.kernels for r in mine),
            sum(len(r.refused) for r in mine) if setup.nvrtc else "-",
        ]
        if mine:
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    operators = Counter(op for r in rows if not r.error for op in r.host)
    lines += ["", "On the host: " + (", ".join(f"{op} {n}" for op, n in operators.most_common()) or "nothing") + "."]
    slow = sorted(rows, key=lambda r: -r.seconds)[:5]
    lines.append("Slowest: " + ", ".join(f"{r.name} {r.seconds:.0f} s" for r in slow) + ".")
    return "\n".join(lines)


def write_list(rows: Sequence[Row]) -> None:
    """Bring the list up to date."""
    cases = {(c.kind, c.name): c for c in all_cases()}
    pairs: list[tuple[Case, Outcome]] = [(cases[r.kind, r.name], r.outcome) for r in rows]
    exceptions.PATH.write_text(exceptions.text(exceptions.updated(exceptions.read(), pairs)))


def main() -> None:
    """Run, print, write; the exit code is 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda", "cuda-emulated"), default="cpu")
    parser.add_argument("--nvrtc", default="", metavar="ARCH")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--part", default="1/1", metavar="K/N")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write-list", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("results/benchmark"))
    args = parser.parse_args()
    if args.write_list and args.device != "cpu":
        parser.error("the list says what comes out on the CPU: use --device cpu")
    setup = Setup(args.device, args.nvrtc)
    start = time.perf_counter()
    rows = run_all(setup, chosen(args), args.jobs)
    wrong = complaints(rows, args.device)
    text = summary(rows, setup, time.perf_counter() - start)
    print("\n".join([*wrong, "", text]))
    args.output.mkdir(parents=True, exist_ok=True)
    stem = f"onnx_suite-{args.device}"
    data = {
        "device": args.device,
        "nvrtc": args.nvrtc,
        "part": args.part,
        "cases": len(rows),
        "wrong": wrong,
        "rows": [vars(r) for r in rows],
    }
    (args.output / f"{stem}.json").write_text(json.dumps(data, indent=1))
    (args.output / f"{stem}.md").write_text("\n".join([text, "", *(f"- {w}" for w in wrong)]) + "\n")
    if args.write_list:
        write_list(rows)
    sys.exit(1 if wrong and not args.write_list else 0)


if __name__ == "__main__":
    main()
