"""What autofuse is compared with besides autofuse.measure.peers: OpenVINO, torch.compile where torch and onnx2torch are installed, and
onnxruntime as an oracle."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, checker, shape_inference, version_converter

SETTLE_SECONDS = 0.003
"""Pause after a peer's run, in which its spinning threads fall asleep: they would take the cores from what is timed next."""
_OPSETS = (11, 13, 16)
"""That onnx2torch is asked to read instead of a model's own."""


def oracle_session(model: ModelProto, threads: int) -> Any:
    """An onnxruntime session on the CPU without any optimisation: what numbers are compared with."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def timed(run: Callable[[], None], repeats: int) -> list[int]:
    """Nanoseconds of each run, and then a pause."""
    out = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        run()
        out.append(time.perf_counter_ns() - start)
    time.sleep(SETTLE_SECONDS)
    return out


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
        return timed(self.run, repeats)


class TorchCompile:
    """torch.compile by inductor, with weights frozen and its own tuning of products, as torch documents for inference on CPUs. onnx2torch makes
    the module; a model that it can't read is tried in newer opsets, too."""

    name = "torch"

    def __init__(self, model: ModelProto, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import torch
        import torch._inductor.config as inductor

        torch.set_num_threads(threads)
        inductor.freezing = True
        self.torch = torch
        weights = {w.name for w in model.graph.initializer}
        self.inputs = [torch.from_numpy(inputs[i.name]) for i in model.graph.input if i.name not in weights]
        self.compiled = torch.compile(_module(model), mode="max-autotune")
        self.run()

    def run(self) -> None:
        """One run."""
        with self.torch.inference_mode():
            self.compiled(*self.inputs)

    def time(self, repeats: int) -> list[int]:
        """Nanoseconds of each run. Afterwards its spinning threads are given time to fall asleep."""
        return timed(self.run, repeats)


def has_torch() -> bool:
    """Whether torch.compile can be compared with."""
    return all(importlib.util.find_spec(m) is not None for m in ("torch", "onnx2torch"))


def _module(model: ModelProto) -> Any:
    import onnx2torch

    said: list[str] = []
    for opset in (None, *_OPSETS):
        try:
            made = model if opset is None else version_converter.convert_version(model, opset)
            return onnx2torch.convert(made).eval()
        except (
            NotImplementedError,
            RuntimeError,
            version_converter.ConvertError,
            checker.ValidationError,
            shape_inference.InferenceError,
        ) as e:
            said.append(str(e).splitlines()[0])
    raise RuntimeError(f"onnx2torch reads it in no opset: {said[0]}")
