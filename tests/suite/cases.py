"""The cases of onnx's own backend suite, and what comes of one through autofuse's backend."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, OptionalProto, SequenceProto, TensorProto, TypeProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import autofuse
from autofuse.devices.base import Device
from autofuse.engine.engine import Engine
from autofuse.errors import AutofuseError
from autofuse.importer.hosts import FAILURES
from autofuse.importer.reference import run_reference
from autofuse.loops.ir import Kernel, Rendered

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
"""The kinds of cases that the onnx wheel brings. Those of "real" are nine networks, all of them in the wheel too."""

BFLOAT16_ULPS = 2.0**-6
"""The relative tolerance that onnx's own runner grants bfloat16."""

DataSet = tuple[Sequence[Any], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Case:
    """One case. Its model and data are read when they are asked for."""

    kind: str
    test: TestCase

    @property
    def name(self) -> str:
        return self.test.name

    def load(self) -> tuple[ModelProto, list[DataSet]]:
        """The model, and its inputs with the outputs that onnx expects."""
        if self.test.model is not None:
            return self.test.model, [(_arrays(a), _arrays(b)) for a, b in self.test.data_sets or ()]
        if self.test.model_dir is not None:
            folder = Path(self.test.model_dir)
            model = onnx.load(folder / "model.onnx")
            return model, [_data_set(model, f) for f in sorted(folder.glob("test_data_set*"))]
        path = Path(onnx.__file__).parent.parent / str(self.test.url)
        model = onnx.load(path)
        stored = {t.name for t in model.graph.initializer}
        fed = [Runner.generate_dummy_data(i) for i in model.graph.input if i.name not in stored]
        expected = [
            _read(path.with_name(f"{path.stem}_output_{k}.pb"), o.type) for k, o in enumerate(model.graph.output)
        ]
        return model, [(fed, expected)]


@dataclass(frozen=True)
class Outcome:
    """What came of a case. `error` is empty where it passed; `host` names the operators that ran outside kernels."""

    error: str
    host: tuple[str, ...] = ()
    kernels: tuple[Kernel | Rendered, ...] = ()
    seconds: float = 0.0


@lru_cache(maxsize=1)
def all_cases() -> tuple[Case, ...]:
    """Every case of every kind, by kind and name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return tuple(
            Case(kind, t) for kind in KINDS for t in sorted(load_model_tests(kind=kind), key=lambda t: str(t.name))
        )


def part_of(cases: Sequence[Case], part: int, parts: int) -> Sequence[Case]:
    """Every `parts`-th case from position `part` on: each part has its share of all operators."""
    return cases[part::parts]


def run_case(case: Case, device: Device) -> Outcome:
    """Run a case; an error of any kind that operators and kernels raise is its outcome.

    Where all of it is kernels, numpy evaluates the very same graph and must agree with onnx too: it is what kernels are checked
    against when they are tuned.
    """
    start = time.perf_counter()
    engines: dict[int, Engine] = {}
    error = ""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            _run(case, device, engines)
    except (AutofuseError, AssertionError, *FAILURES) as e:
        error = " ".join(f"{type(e).__name__}: {e}".split())
    host = tuple(sorted({x.what for e in engines.values() for x in e.launch_log if x.host}))
    kernels = tuple(dict.fromkeys(k for e in engines.values() for k in e.kernels))
    for e in engines.values():
        e.close()
    return Outcome(error, host, kernels, time.perf_counter() - start)


def _run(case: Case, device: Device, engines: dict[int, Engine]) -> None:
    model, data_sets = case.load()
    prepared = autofuse.onnx_backend.prepare(model, device)
    for fed, expected in data_sets:
        found = prepared.run(fed)
        ran = {id(e): e for e in prepared.engines.all()}
        engines.update(ran)
        compare(found, expected, case)
        graph = next(iter(ran.values())).graph
        if case.kind != "real" and not any(x.host for e in ran.values() for x in e.launch_log):
            named = dict(zip(prepared.names, fed, strict=False))
            inputs = {graph.values[v].name: named[graph.values[v].name] for v in graph.inputs}
            compare(run_reference(graph, inputs), expected, case)


def compare(found: Sequence[Any], expected: Sequence[Any], case: Case) -> None:
    """Types, shapes and values, by the rules of onnx's runner and within the case's tolerance. AssertionError where they differ."""
    assert len(found) == len(expected), f"{len(found)} outputs, {len(expected)} expected"
    for x, y in zip(found, expected, strict=True):
        if isinstance(y, (list, tuple)):
            assert isinstance(x, (list, tuple)), f"a {type(x).__name__}, a sequence expected"
            compare(x, y, case)
        elif y is None:
            assert x is None, f"a {type(x).__name__}, nothing expected"
        else:
            _compare_arrays(np.asarray(x), np.asarray(y), case)


def _compare_arrays(x: np.ndarray, y: np.ndarray, case: Case) -> None:
    rtol = case.test.rtol
    if y.dtype.kind in "OUS":
        x, y = x.astype(object), y.astype(object)
    elif y.dtype.kind == "V":  # numpy cannot compute with ml_dtypes' small types
        assert x.dtype == y.dtype, f"{x.dtype}, {y.dtype} expected"
        rtol = max(rtol, BFLOAT16_ULPS) if y.dtype.name == "bfloat16" else rtol
        x, y = x.astype(np.float32), y.astype(np.float32)
    Runner.assert_similar_outputs([y], [x], rtol, case.test.atol)


def _arrays(values: Sequence[Any]) -> list[Any]:
    return [numpy_helper.to_array(v) if isinstance(v, TensorProto) else v for v in values]


def _data_set(model: ModelProto, folder: Path) -> DataSet:
    return list(_files(folder, "input", model.graph.input)), list(_files(folder, "output", model.graph.output))


def _files(folder: Path, prefix: str, infos: Sequence[Any]) -> Iterator[Any]:
    for k in range(len(list(folder.glob(f"{prefix}_*.pb")))):
        yield _read(folder / f"{prefix}_{k}.pb", infos[k].type)


def _read(path: Path, kind: TypeProto) -> Any:
    data = path.read_bytes()
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(OptionalProto.FromString(data))
        case _:
            return numpy_helper.to_array(TensorProto.FromString(data))
