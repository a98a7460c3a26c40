"""The tables of a tune as pandas data frames: plans, kernels, baselines, raw samples. docs/data-dictionary.md describes every column."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from autofuse.report import pareto
from autofuse.report.frame import columns, typed
from autofuse.search.outcome import KernelRow, PlanRow, TuneOutcome

MS = 1e-6
"""Milliseconds in a nanosecond."""

STEPS = ("unfused", "tuned", "fused", "other-algorithm")
"""The steps in which gains are told apart, in their order."""

TRADE_OFF_COLUMNS = columns(
    "trial:i plan step origin status best:b pareto:b median_ms:f p10_ms:f p90_ms:f runs:i gain:f launches:i bytes_model:i "
    "bytes_measured:f flops:i floor_ms:f share_of_floor:f bound peak_bytes:i compile_seconds:f error:f regions:i "
    "estimate_ms:f whole_ms:f in_place_ms:f additive_error:f again:b elapsed_seconds:f reason repeats:i samples_ns noisy region_ns plan_json"
)
RAW_COLUMNS = ("samples_ns", "noisy", "region_ns", "plan_json")
"""Columns that only the parquet file has: they are no reading matter."""


def quantiles(samples_ns: Sequence[int]) -> tuple[float, float, float]:
    """p10, median and p90 in milliseconds; NaN where nothing was measured."""
    if not len(samples_ns):
        return (float("nan"),) * 3
    low, middle, high = np.quantile(np.asarray(samples_ns, dtype=np.float64), (0.1, 0.5, 0.9)) * MS
    return float(low), float(middle), float(high)


def trade_off_table(outcome: TuneOutcome) -> pd.DataFrame:
    """A row per plan that was tried, in the order of trying."""
    rows = [_plan_row(p, outcome) for p in outcome.plans]
    table = typed(rows, TRADE_OFF_COLUMNS)
    table["pareto"] = pareto.flags(table)
    table["gain"] = _reference_ms(table) / table["median_ms"]
    return table


def _plan_row(p: PlanRow, outcome: TuneOutcome) -> dict[str, object]:
    low, middle, high = quantiles(p.samples_ns)
    return {
        "trial": p.trial,
        "plan": p.plan.key,
        "step": p.step,
        "origin": p.plan.origin,
        "status": p.status,
        "best": p.status == "ok" and p.plan.key == outcome.best.key,
        "pareto": False,
        "gain": float("nan"),
        "median_ms": middle,
        "p10_ms": low,
        "p90_ms": high,
        "runs": len(p.samples_ns),
        "launches": p.launches,
        "bytes_model": p.bytes_model,
        "bytes_measured": float("nan"),
        "flops": p.flops,
        "floor_ms": p.floor_ns * MS,
        "share_of_floor": p.floor_ns * MS / middle if middle else float("nan"),
        "bound": p.bound,
        "peak_bytes": p.peak_bytes,
        "compile_seconds": p.compile_seconds,
        "error": p.error,
        "regions": len(p.plan.regions),
        "estimate_ms": p.estimate_ns * MS if p.estimate_ns else float("nan"),
        "whole_ms": p.whole_ns * MS if p.whole_ns else float("nan"),
        "in_place_ms": sum(p.region_ns) * MS if p.region_ns else float("nan"),
        "additive_error": p.off,
        "again": p.again,
        "elapsed_seconds": p.elapsed_seconds,
        "reason": p.reason,
        "repeats": p.repeats,
        "samples_ns": list(p.samples_ns),
        "noisy": list(p.noisy),
        "region_ns": list(p.region_ns),
        "plan_json": json.dumps(p.plan.to_json()),
    }


def reference_row(table: pd.DataFrame) -> pd.Series | None:
    """The plan that gains are told against: the fastest of step "unfused"; where a tolerant algorithm is the only one at hand, the
    plan of the unfused partition stands in. None where neither ran."""
    good = table[table["status"] == "ok"]
    for rows in (good[good["step"] == "unfused"], good[good["origin"] == "unfused"]):
        if len(rows):
            return rows.sort_values("median_ms", kind="stable").iloc[0]
    return None


def _reference_ms(table: pd.DataFrame) -> float:
    row = reference_row(table)
    return float("nan") if row is None else float(row["median_ms"])


KERNEL_COLUMNS = columns(
    "signature family algorithm layouts schedule key status median_us:f p10_us:f p90_us:f runs:i flops:i bytes_model:i "
    "floor_us:f share_of_floor:f gflops:f gbytes_per_s:f bound error:f compile_seconds:f registers:i spill_bytes:i "
    "shared_bytes:i cached:b study reason repeats:i samples_ns noisy"
)


def kernel_table(outcome: TuneOutcome) -> pd.DataFrame:
    """A row per kernel and schedule that was tried."""
    return typed([_kernel_row(k) for k in outcome.kernels], KERNEL_COLUMNS)


def _kernel_row(k: KernelRow) -> dict[str, object]:
    low, middle, high = (1000 * x for x in quantiles(k.samples_ns))
    ns = 1000 * middle
    return {
        "signature": k.signature,
        "family": k.family,
        "algorithm": k.algorithm,
        "layouts": k.layouts,
        "schedule": k.schedule,
        "key": k.key,
        "status": k.status,
        "median_us": middle,
        "p10_us": low,
        "p90_us": high,
        "runs": len(k.samples_ns),
        "flops": k.flops,
        "bytes_model": k.bytes_model,
        "floor_us": k.floor_ns / 1000,
        "share_of_floor": k.floor_ns / ns if ns else float("nan"),
        "gflops": k.flops / ns if ns else float("nan"),
        "gbytes_per_s": k.bytes_model / ns if ns else float("nan"),
        "bound": k.bound,
        "error": k.error,
        "compile_seconds": k.compile_seconds,
        "registers": k.registers,
        "spill_bytes": k.spill_bytes,
        "shared_bytes": k.shared_bytes,
        "cached": k.cached,
        "study": k.study,
        "reason": k.reason,
        "repeats": k.repeats,
        "samples_ns": list(k.samples_ns),
        "noisy": list(k.noisy),
    }


SAMPLE_COLUMNS = columns("kind name run:i ns:i noisy:b")


def sample_table(trade_offs: pd.DataFrame, kernels: pd.DataFrame, baselines: dict[str, list[int]]) -> pd.DataFrame:
    """Every raw sample in long form: plans by key, kernels by key, baselines by name."""
    sources: list[tuple[str, str, Sequence[int], set[int]]] = []
    for kind, name, table in (("plan", "plan", trade_offs), ("kernel", "key", kernels)):
        marks = table["noisy"] if "noisy" in table else [()] * len(table)  # folders of earlier versions have none
        found = zip(table[name], table["samples_ns"], marks, strict=True)
        sources += [(kind, str(k), s, {int(x) for x in noisy}) for k, s, noisy in found]
    sources += [("baseline", name, s, set()) for name, s in baselines.items()]
    rows = [
        {"kind": kind, "name": name, "run": run, "ns": int(ns), "noisy": run in noisy}
        for kind, name, samples, noisy in sources
        for run, ns in enumerate(samples)
    ]
    return typed(rows, SAMPLE_COLUMNS)


def is_tie(a: pd.Series, b: pd.Series) -> bool:
    """Whether two rows' medians each lie within the other's p10 to p90. For rows of different tunes, whose samples make no pairs."""
    inside = [float(x["p10_ms"]) <= float(y["median_ms"]) <= float(x["p90_ms"]) for x, y in ((a, b), (b, a))]
    return all(inside)


STEP_COLUMNS = columns("step plan median_ms:f p10_ms:f p90_ms:f launches:i bytes_model:i error:f gain:f gain_here:f")


def step_table(trade_offs: pd.DataFrame) -> pd.DataFrame:
    """The best plan of each step, in the order of the steps: what tuning, fusion and other algorithms each gain.

    `gain` is over the unfused plan, `gain_here` over the best of the steps before.
    """
    good = trade_offs[trade_offs["status"] == "ok"]
    rows: list[dict[str, object]] = []
    first = before = _reference_ms(trade_offs)
    for step in STEPS:
        mine = good[good["step"] == step]
        if not len(mine):
            continue
        row = mine.sort_values("median_ms", kind="stable").iloc[0]
        median = float(row["median_ms"])
        rows.append(
            {
                "step": step,
                "plan": row["plan"],
                "median_ms": median,
                "p10_ms": float(row["p10_ms"]),
                "p90_ms": float(row["p90_ms"]),
                "launches": int(row["launches"]),
                "bytes_model": int(row["bytes_model"]),
                "error": float(row["error"]),
                "gain": first / median,
                "gain_here": before / median,
            }
        )
        before = min(before, median) if before == before else median
    return typed(rows, STEP_COLUMNS)
