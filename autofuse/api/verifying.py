"""Checking a model's numbers against an oracle that nobody here wrote."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from autofuse.api.arguments import Arrays
from autofuse.api.loading import LoadedEngine
from autofuse.errors import AutofuseError
from autofuse.measure.oracle import compare_model
from autofuse.measure.reference import Tolerance

ONNXRUNTIME = "onnxruntime, optimisations off"
REFERENCE = "onnx.reference"


@dataclass(frozen=True)
class Verification:
    """The outcome. `oracle` names what the numbers were compared with, `refused` the oracles that could not run the model and why."""

    ok: bool
    oracle: str
    error: float
    reason: str
    outputs: dict[str, float]
    refused: dict[str, str]


REFUSALS = (
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    NotImplementedError,
)
"""What oracles raise on a model that they cannot run."""


def verify_engine(engine: LoadedEngine, proto: ModelProto, inputs: Arrays, tolerance: Tolerance) -> Verification:
    """Run the engine and the oracle on the same inputs and compare every output. AutofuseError where no oracle can run the model."""
    got = engine.run(inputs)
    refused: dict[str, str] = {}
    for name, run in oracles():
        try:
            wanted = run(proto, inputs)
        except REFUSALS as error:
            refused[name] = str(error).partition("\n")[0][:300]
            continue
        check = compare_model(engine.graph, got, wanted, tolerance)
        return Verification(check.ok, name, check.error, check.reason, _errors(got, wanted), refused)
    told = "; ".join(f"{name}: {why}" for name, why in refused.items())
    raise AutofuseError(f"no oracle can run this model ({told}), so its numbers cannot be verified")


Oracle = Callable[[ModelProto, Arrays], dict[str, np.ndarray]]


def oracles() -> list[tuple[str, Oracle]]:
    """Those that are there, the one to prefer first."""
    found: list[tuple[str, Oracle]] = []
    if importlib.util.find_spec("onnxruntime") is not None:
        found.append((ONNXRUNTIME, run_onnxruntime))
    found.append((REFERENCE, run_onnx_reference))
    return found


def run_onnxruntime(proto: ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """onnxruntime with every optimisation off: some of them change numbers."""
    import onnxruntime  # an optional package: only verify asks for it
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    errors = tuple(e for e in vars(state).values() if isinstance(e, type) and issubclass(e, Exception))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        wanted = {i.name for i in session.get_inputs()}
        results: list[Any] = session.run(names, {k: v for k, v in inputs.items() if k in wanted})
    except errors as error:
        raise RuntimeError(str(error)) from error
    return {n: np.asarray(r) for n, r in zip(names, results, strict=True)}


def run_onnx_reference(proto: ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """The evaluator that the standard's own tests run on."""
    evaluator = ReferenceEvaluator(proto)
    results = evaluator.run(None, dict(inputs))
    return {n: np.asarray(r) for n, r in zip(evaluator.output_names, results, strict=True)}


def _errors(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest deviation of each output, relative to the oracle's largest magnitude; NaN where that has no meaning."""
    found: dict[str, float] = {}
    for name, ref in wanted.items():
        mine = got.get(name)
        numeric = ref.dtype.kind in "fiub" or ref.dtype.isbuiltin == 2
        if mine is None or not numeric or np.shape(mine) != ref.shape or not ref.size:
            found[name] = float("nan")
            continue
        a, b = np.asarray(mine, dtype=np.float64), ref.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        scale = float(np.abs(b[finite]).max()) if finite.any() else 0.0
        worst = float(np.abs(a[finite] - b[finite]).max()) if finite.any() else 0.0
        found[name] = worst / scale if scale else worst
    return found
