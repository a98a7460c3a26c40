"""What autofuse is compared with besides autofuse.measure.peers: OpenVINO, and onnxruntime as an oracle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto

SETTLE_SECONDS = 0.003
"""Pause after a peer's run, in which its spinning threads fall asleep: they would take the cores from what is timed next."""


def oracle_session(model: ModelProto, threads: int) -> Any:
    """An onnxruntime session on the CPU without any optimisation: what numbers are compared with."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class OpenVino:
    """OpenVINO with the latency hint, in float32: without its default of quantising activations where weights are stored as int8."""

    name = "openvino"

    def __init__(self, model: ModelProto, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import openvino

        core = openvino.Core()
        read = core.read_model(model.SerializeToString())
        named = {name: p for p in read.inputs for name in p.get_names() if name in inputs}
        if any(p.partial_shape.is_dynamic for p in named.values()):
            read.reshape({p: list(inputs[name].shape) for name, p in named.items()})
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        self.request = core.compile_model(read, "CPU", settings).create_infer_request()
        self.inputs = {name: inputs[name] for name in named}
        self.run()

    def run(self) -> None:
        """One run."""
        self.request.infer(self.inputs, share_inputs=True, share_outputs=True)

    def time(self, repeats: int) -> list[int]:
        """Nanoseconds of each run. Afterwards its spinning threads are given time to fall asleep."""
        out = []
        for _ in range(repeats):
            start = time.perf_counter_ns()
            self.run()
            out.append(time.perf_counter_ns() - start)
        time.sleep(SETTLE_SECONDS)
        return out
