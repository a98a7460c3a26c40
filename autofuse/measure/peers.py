"""Other runtimes, measured beside autofuse's plans in the same rounds. They are optional and never needed to tune."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from autofuse.errors import ToolchainError, UsageError

PEERS = ("onnxruntime",)
_SETTLE_SECONDS = 0.003


def check_peer(name: str) -> None:
    """UsageError for an unknown peer, ToolchainError for one that is not installed."""
    if name not in PEERS:
        raise UsageError(f"unknown baseline {name!r}; there is: {', '.join(PEERS)}")
    if importlib.util.find_spec(name) is None:
        raise ToolchainError(f"the baseline {name} is not installed; run: pip install {name}")


class OnnxRuntime:
    """onnxruntime on the CPU at its default optimisation level, with a number of threads."""

    def __init__(self, model: bytes | str, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        wanted = {i.name for i in self._session.get_inputs()}
        self._inputs = {n: a for n, a in inputs.items() if n in wanted}
        self._outputs = [o.name for o in self._session.get_outputs()]
        self._session.run(self._outputs, self._inputs)

    def time(self, repeats: int) -> list[int]:
        """Nanoseconds of each run. Afterwards its spinning threads are given time to fall asleep."""
        out = []
        for _ in range(repeats):
            start = time.perf_counter_ns()
            self._session.run(self._outputs, self._inputs)
            out.append(time.perf_counter_ns() - start)
        time.sleep(_SETTLE_SECONDS)
        return out

    def close(self) -> None:
        """Free the session."""
        self._session = None


def open_peer(name: str, model: bytes | str, inputs: Mapping[str, np.ndarray], threads: int) -> OnnxRuntime:
    """A peer ready to be timed."""
    check_peer(name)
    return OnnxRuntime(model, inputs, threads)
