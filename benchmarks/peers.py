"""The runtimes that autofuse is compared with, each at its documented settings for latency."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto

SETTLE_SECONDS = 0.003
"""Pause after a peer's run, in which its spinning threads fall asleep: they would take the cores from what is timed next."""


def onnxruntime_session(model: ModelProto, threads: int, optimised: bool = True) -> Any:
    """A CPU session with all optimisations, or (as an oracle) with none."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class OnnxRuntime:
    """onnxruntime with all optimisations."""

    name = "onnxruntime"

    def __init__(self, model: ModelProto, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        self.session = onnxruntime_session(model, threads)
        wanted = {i.name for i in self.session.get_inputs()}
        self.inputs = {k: v for k, v in inputs.items() if k in wanted}
        self.run()

    def run(self) -> None:
        """One run."""
        self.session.run(None, self.inputs)


class OpenVino:
    """OpenVINO with the latency hint, in float32."""

    name = "openvino"

    def __init__(self, model: ModelProto, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import openvino

        core = openvino.Core()
        read = core.read_model(model.SerializeToString())
        named = {name: p for p in read.inputs for name in p.get_names() if name in inputs}
        if any(p.partial_shape.is_dynamic for p in named.values()):
            read.reshape({p: list(inputs[name].shape) for name, p in named.items()})
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        self.request = core.compile_model(read, "CPU", settings).create_infer_request()
        self.inputs = {name: inputs[name] for name in named}
        self.run()

    def run(self) -> None:
        """One run."""
        self.request.infer(self.inputs, share_inputs=True, share_outputs=True)


def timed(peer: OnnxRuntime | OpenVino) -> int:
    """Nanoseconds of one run after a settling pause."""
    time.sleep(SETTLE_SECONDS)
    start = time.perf_counter_ns()
    peer.run()
    return time.perf_counter_ns() - start
