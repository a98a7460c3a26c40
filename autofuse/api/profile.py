"""Where the time of a run goes, kernel by kernel."""

from __future__ import annotations

import numpy as np
import pandas as pd

from autofuse.api.arguments import Arrays
from autofuse.engine.engine import Engine
from autofuse.report.frame import columns, typed
from autofuse.report.structure import operators_text

PROFILE_COLUMNS = columns(
    "launch:i region:i operators implementation time_us:f p10_us:f p90_us:f time_share:f bytes:i flops:i "
    "gbytes_per_s:f gflops:f"
)


def profile(engine: Engine, inputs: Arrays, repeats: int = 20) -> pd.DataFrame:
    """A row per launch, in the order of running: median time in place over `repeats` runs, bytes by the model, rates reached.

    A launch inside of a control-flow node stands for all the times that it is made in a run: time, bytes and arithmetic are their sums.
    """
    engine.bind(inputs)
    engine.stamps(max(1, repeats // 5))  # the first runs warm caches and wake the threads
    stamps = engine.stamps(repeats)
    low, middle, high = np.quantile(stamps, (0.1, 0.5, 0.9), axis=0) if stamps.size else np.zeros((3, 0))
    total = float(middle.sum())
    rows: list[dict[str, object]] = []
    for k, entry in enumerate(engine.counted):
        planned = engine.plan.regions[entry.position]
        kernel, ns = entry.launch.kernel, float(middle[k])
        nbytes, flops = kernel.bytes * entry.times, kernel.flops * entry.times
        inside = f": {entry.launch.label}" if planned.family == "control" else ""
        rows.append(
            {
                "launch": k,
                "region": entry.position,
                "operators": operators_text(engine.graph, planned.region.nodes),
                "implementation": planned.label + inside,
                "time_us": ns / 1000,
                "p10_us": float(low[k]) / 1000,
                "p90_us": float(high[k]) / 1000,
                "time_share": ns / total if total else float("nan"),
                "bytes": nbytes,
                "flops": flops,
                "gbytes_per_s": nbytes / ns if ns else float("nan"),
                "gflops": flops / ns if ns else float("nan"),
            }
        )
    return typed(rows, PROFILE_COLUMNS)
