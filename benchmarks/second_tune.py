"""A second tune: the first one's best plan is back in a tenth of the time, and another model measures only what it does not share.

    python benchmarks/second_tune.py [--models sample:inception_v1 sample:inception_v2] [--budget 120] [--again 6] [--threads N]

Three tunes on records, results and kernels of their own: the first model with the budget, again with a twentieth of it (or --again seconds), so
that all of it fits a tenth, then the second model with the budget. The machine must be quiet, as what is measured on a busy one is measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import autofuse
from autofuse.api.tuning import TuneResult


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs=2, default=["sample:inception_v1", "sample:inception_v2"])
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--again", type=float, help="the second tune's budget in seconds (a twentieth of the first's)")
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autofuse-second-") as folder:
        base = Path(folder)
        os.environ |= {"AUTOFUSE_DATA": str(base / "data"), "AUTOFUSE_CACHE": str(base / "cache")}
        one, seconds = tuned(given.models[0], given.budget, base / "results", given.threads)
        first = measured(base)
        two, again = tuned(given.models[0], given.again or given.budget / 20, base / "results", given.threads)
        second = measured(base, one_before=1)
        back = two.plan.key == one.plan.key
        row = two.results.best
        finals = 0 if row is None else len(row["samples_ns"])
        print(f"{given.models[0]}: {seconds:.1f} s, {sum(first.values())} kernels of {len(first)} signatures")
        print(
            f"again: {again:.1f} s ({again / seconds:.0%}), the same best plan: {'yes' if back else 'no (a tie, or better)'}, "
            f"{finals} samples in the finals; {sum(second.values())} kernels measured, "
            f"{sum(n for s, n in second.items() if s in first)} of them of signatures measured before"
        )
        tuned(given.models[1], given.budget, base / "results", given.threads)
        third = measured(base, one_before=2)
        shared = {s: n for s, n in third.items() if s in first or s in second}
        print(
            f"{given.models[1]}: {sum(third.values())} kernels of {len(third)} signatures measured, "
            f"{sum(shared.values())} of {len(shared)} signatures that were measured before"
        )
        print("tunes on a steady machine:", steady(base))
        sys.exit(0 if back and again <= 0.1 * seconds and not shared else 1)


def tuned(model: str, budget: float, output: Path, threads: int | None) -> tuple[TuneResult, float]:
    """A tune, and the seconds that it took."""
    start = time.monotonic()
    return autofuse.tune(model, device="cpu", budget=budget, output=output, threads=threads), time.monotonic() - start


def measured(base: Path, one_before: int = 0) -> dict[str, int]:
    """The kernels that the tune after so many others measured, by signature."""
    with contextlib.closing(sqlite3.connect(base / "data" / "records.sqlite")) as c:
        tunes = [t for (t,) in c.execute("SELECT tune FROM tunes ORDER BY rowid")]
        rows = c.execute(
            "SELECT signature, COUNT(*) FROM measurements WHERE tune=? AND signature<>'calibration' GROUP BY signature",
            (tunes[one_before],),
        )
        return dict(rows.fetchall())


def steady(base: Path) -> str:
    """Which tunes ran on a steady machine."""
    with contextlib.closing(sqlite3.connect(base / "data" / "records.sqlite")) as c:
        return ", ".join(
            f"{m}: {'yes' if s else 'no'}" for m, s in c.execute("SELECT model, steady FROM tunes ORDER BY rowid")
        )


if __name__ == "__main__":
    main()
