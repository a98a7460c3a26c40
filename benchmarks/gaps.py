"""How far a tune gets in proving its plan: the gap over time, what was measured for it, sums of kernels against whole plans.

    python benchmarks/gaps.py                                            # two models, a minute each, from an empty store
    python benchmarks/gaps.py --budget 30 sample:mlp --out gaps.csv      # others; the course of the gap as a table

Each model is tuned from nothing (records and results in a folder of their own), so that the gap is what this budget can close.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import pandas as pd

import autofuse
from autofuse.search.progress import Event

MODELS = ("sample:squeezenet", "sample:bert_block")


def main() -> None:
    """Tune the models and print what was proven."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each tune")
    parser.add_argument("--out", type=Path, help="a CSV file for the course of the gap")
    wanted = parser.parse_args()
    rows: list[dict[str, object]] = []
    for model in wanted.models:
        rows += course(model, wanted.budget)
    if wanted.out is not None:
        pd.DataFrame(rows).to_csv(wanted.out, index=False)


def course(model: str, budget: float) -> list[dict[str, object]]:
    """Tune one model; the gap whenever it changed."""
    rows: list[dict[str, object]] = []

    def watch(e: Event) -> None:
        if e.gap == e.gap and (not rows or rows[-1]["gap"] != e.gap):
            rows.append(
                {"model": model, "seconds": e.seconds, "gap": e.gap, "measured": e.measured, "kernels": e.kernels}
            )

    with tempfile.TemporaryDirectory(prefix="autofuse-gaps-") as folder:
        os.environ["AUTOFUSE_DATA"] = folder
        result = autofuse.tune(model, device="cpu", budget=budget, output=Path(folder) / "results", progress=watch)
        print(f"\n{model}, {budget:g} s")
        for r in rows[:: max(1, len(rows) // 12)]:
            print(
                f"  {r['seconds']:6.1f} s  gap {float(str(r['gap'])):6.1%}  {r['measured']} of {r['kernels']} kernels measured"
            )
        kernels = result.results.kernels
        studies = kernels.groupby("signature")["study"].first()
        print(f"  studies: {len(studies)}")
        for rule, count in studies.str.replace(r"\d[\d.]*", "N", regex=True).value_counts().items():
            print(f"    {count:4d} {rule}")
        plans = result.trade_offs[result.trade_offs["additive_error"].notna()]
        for p in plans.to_dict(orient="records"):
            again = ", measured again in place" if p["again"] else ""
            print(f"  {p['origin']}: sum {p['estimate_ms']:.4g} ms, whole {p['whole_ms']:.4g} ms{again}")
        for note in result.results.run["notes"]:
            print(f"  Note: {note}")
    return rows


if __name__ == "__main__":
    main()
