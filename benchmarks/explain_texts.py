"""What `estimate`, `explain` and `compare` print on three models, with the command lines, as one file.

python benchmarks/explain_texts.py --output docs/explain.md               # resnet50, a BERT block, an export with leftovers: 8 minutes at most
python benchmarks/explain_texts.py --models exported --budget 5 --output /tmp/explain.md    # a small version: half a minute
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "importer"))

from exported import exported

from autofuse.errors import AutofuseError
from autofuse.report.results import Results, open_results
from autofuse.search.exact.reasons import BOUNDED, FUSED, OPEN, SLOWER

MODELS = {"resnet50": "sample:resnet50", "bert_block": "sample:bert_block", "exported": "exported.onnx"}
MOST_LINES = 90
"""Longer texts (kernels side by side, mostly) are cut there, which is said."""


@dataclass
class Writer:
    """Runs commands in a folder and keeps what they printed."""

    folder: Path
    device: str
    seconds: float
    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.lines += [text, ""]

    def run(self, *words: str, shown: bool = True, most: int = MOST_LINES) -> bool:
        """Run a command; its command line and what it prints on stdout (and stderr, for people) go into the text."""
        print("autofuse", *words, file=sys.stderr, flush=True)
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "autofuse.cli.main", *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
            timeout=self.seconds,
        )
        took = time.monotonic() - start
        if shown or done.returncode:
            quoted = " ".join(f"'{w}'" if any(c in w for c in "#% ") else w for w in words)
            text = [x.rstrip() for x in done.stdout.splitlines()]
            said = [x.rstrip() for x in done.stderr.splitlines() if x.strip()]
            if len(text) > most:
                text = [*text[:most], f"[... {len(text) - most} more lines]"]
            self.lines += [f"    $ autofuse {quoted}", *(f"    {x}".rstrip() for x in [*text, *said]), ""]
            self.lines += [f"(exit code {done.returncode}, {took:.1f} s)", ""]
        return done.returncode == 0


def edges_to_show(r: Results) -> list[str]:
    """The dearest edge of each class that has a price, and a fused one."""
    found = []
    rows = r.verdicts.sort_values("price_us", ascending=False)
    for state in (SLOWER, BOUNDED, OPEN, FUSED):
        mine = rows[(rows["state"] == state) & rows["other_us"].notna()]
        if len(mine):
            found.append(f"e{mine.iloc[0]['edge']}")
    return found


def section(w: Writer, name: str, budget: float) -> None:
    """One model: estimate, a tune, explain, another tune to compare with."""
    model = MODELS[name]
    on = ("--device", w.device)
    w.say(f"## {name}")
    if name == "exported":
        onnx.save(exported(), w.folder / model)
        w.say(
            "Conv, then bias and activation written channels last between two Transposes, twice; copies and casts (`tests/importer/exported.py`)."
        )
    w.run("estimate", model, *on)
    if name == "exported":
        w.run("explain", model, *on, "--cleaned", "cleaned.onnx")
    if not w.run("tune", model, *on, "--budget", f"{budget:.0f}s", "--output", "results", shown=False):
        return
    w.say(f"After `autofuse tune {model} --budget {budget:.0f}s --output results`:")
    folder = next(
        p
        for p in sorted((w.folder / "results").iterdir())
        if p.name.startswith(Path(model.removeprefix("sample:")).stem)
    )
    shown = str(folder.relative_to(w.folder))
    w.run("explain", shown)
    try:
        wanted = edges_to_show(open_results(folder))
    except AutofuseError as error:
        wanted = []
        w.say(f"The results cannot be read: {error}")
    for edge in wanted[:3]:
        w.run("explain", shown, edge, most=60)
    other = ("tune", model, *on, "--budget", f"{max(5.0, budget / 4):.0f}s", "--accuracy", "exact", "--output", "other")
    if name == "exported":
        other = ("tune", "cleaned.onnx", *on, "--budget", f"{budget:.0f}s", "--output", "other")
    if w.run(*other, shown=False):
        w.say(f"Compared with `autofuse {' '.join(other)}`:")
        against = next(
            p
            for p in sorted((w.folder / "other").iterdir())
            if p.name.startswith(Path(other[1].removeprefix("sample:")).stem)
        )
        w.run("compare", shown, str(against.relative_to(w.folder)))


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument(
        "--budget", type=float, default=60.0, help="seconds of each tune (a quarter for what is compared)"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        w = Writer(Path(folder), given.device, 10 * given.budget + 300)
        w.say("# estimate, explain and compare, as printed")
        w.say(
            "Written by `python benchmarks/explain_texts.py --output docs/explain.md`. Texts beyond some lines are cut, which is said."
        )
        for name in given.models:
            section(w, name, given.budget)
        given.output.write_text("\n".join(w.lines).rstrip() + "\n")
    print(f"{given.output}: {len(w.lines)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
