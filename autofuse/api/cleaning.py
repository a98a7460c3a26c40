"""A model without its export's leftovers, written only once its numbers are shown to be the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from autofuse.api.arguments import Model, Shapes, complete_inputs
from autofuse.api.verifying import REFUSALS, oracles
from autofuse.errors import AutofuseError, MismatchError, StorageError
from autofuse.importer.cleaning import Cleaned, Leftover, clean
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model

TRIALS = 2
"""Sets of inputs on which the two models are compared."""
ROUNDING = 1e-5
"""How far, of an output's largest magnitude, transposed kernels of the oracle may be apart: they add up in another order at most."""
_LARGEST = 2_000_000_000


@dataclass(frozen=True)
class CleanedFile:
    """What was written. `exact` says that every output was equal bit for bit, else `error` is the largest relative difference."""

    path: Path
    removed: tuple[Leftover, ...]
    kept: tuple[tuple[str, str], ...]
    oracle: str
    exact: bool
    error: float
    nodes_before: int
    nodes_after: int

    def as_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "path": str(self.path),
            "removed": [{"kind": r.kind, "nodes": list(r.nodes), "reason": r.reason} for r in self.removed],
            "kept": [{"node": n, "reason": r} for n, r in self.kept],
            "oracle": self.oracle,
            "exact": self.exact,
            "error": self.error,
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
        }

    def __str__(self) -> str:
        how = "equal bit for bit" if self.exact else f"equal within rounding ({self.error:.1e})"
        return (
            f"{self.path}: {self.nodes_after} nodes of {self.nodes_before}, {len(self.removed)} leftovers removed; every output is {how} "
            f"by {self.oracle}"
        )


def write_cleaned(
    model: Model,
    path: str | os.PathLike[str],
    shapes: Shapes | None = None,
    cleaner: Callable[[ModelProto], Cleaned] = clean,
) -> CleanedFile:
    """Clean a model, compare its outputs with the original's, and write it. `shapes` binds open dimensions for that comparison.

    MismatchError where an output differs, AutofuseError where no oracle can run the two: nothing is written then.
    """
    proto = load_model(model)
    target = Path(path)
    if isinstance(model, str | os.PathLike) and target.exists() and Path(os.fspath(model)).exists():
        if target.samefile(os.fspath(model)):
            raise StorageError(f"{target} is the model itself; write the cleaned one to another file")
    found = cleaner(proto)
    oracle, exact, error = _verified(proto, found.model, shapes or {})
    _write(found.model, target)
    return CleanedFile(
        target, found.removed, found.kept, oracle, exact, error, len(proto.graph.node), len(found.model.graph.node)
    )


def _verified(before: ModelProto, after: ModelProto, shapes: Shapes) -> tuple[str, bool, float]:
    """The oracle, whether all outputs are equal bit for bit, and the largest difference relative to an output's magnitude."""
    graph = import_model(before, dict(shapes))
    _same_interface(before, after)
    refused: dict[str, str] = {}
    for name, run in oracles():
        exact, worst = True, 0.0
        try:
            pairs = [(run(before, x), run(after, x)) for x in (complete_inputs(graph, None, k) for k in range(TRIALS))]
        except REFUSALS as error:
            refused[name] = str(error).partition("\n")[0][:300]
            continue
        for wanted, got in pairs:
            for output, ref in wanted.items():
                equal, error_of = _difference(output, ref, got[output], name)
                exact, worst = exact and equal, max(worst, error_of)
        return name, exact, worst
    told = "; ".join(f"{name}: {why}" for name, why in refused.items())
    raise AutofuseError(
        f"no oracle can run both models ({told}), so the cleaned one can't be verified and was not written"
    )


def _same_interface(before: ModelProto, after: ModelProto) -> None:
    for what, a, b in (
        ("inputs", before.graph.input, after.graph.input),
        ("outputs", before.graph.output, after.graph.output),
    ):
        if [i.SerializeToString() for i in a] != [i.SerializeToString() for i in b]:
            raise MismatchError(f"the cleaned model's {what} are not the original's: it was not written")


def _difference(output: str, ref: np.ndarray, got: np.ndarray, oracle: str) -> tuple[bool, float]:
    """Whether an output is equal bit for bit, and its difference; MismatchError where it is another value."""
    if ref.dtype != got.dtype or ref.shape != got.shape:
        raise MismatchError(
            f"output {output!r} of the cleaned model is {got.dtype}{list(got.shape)}, of the original {ref.dtype}{list(ref.shape)} "
            f"(by {oracle}): it was not written"
        )
    if ref.tobytes() == got.tobytes() or np.array_equal(ref, got):
        return True, 0.0
    worst = float("inf")
    if ref.dtype.kind == "f" or ref.dtype.isbuiltin == 2:
        a, b = ref.astype(np.float64), got.astype(np.float64)
        if np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(a[np.isinf(a)], b[np.isinf(a)]):
            finite = np.isfinite(a) & np.isfinite(b)
            scale = float(np.abs(a[finite]).max(initial=0.0))
            worst = float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / (scale or 1.0)
            if worst <= ROUNDING and np.array_equal(np.isfinite(a), np.isfinite(b)):
                return worst == 0.0, worst
    raise MismatchError(
        f"output {output!r} of the cleaned model differs from the original's by {worst:.2g} of its largest magnitude (by {oracle}): it was "
        "not written. Please report the model: a leftover was taken for what it is not."
    )


def _write(model: ModelProto, path: Path) -> None:
    """Write whole or not at all; weights beyond what one file holds go beside it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if model.ByteSize() >= _LARGEST:
            onnx.save(model, str(path), save_as_external_data=True, location=f"{path.name}.data")
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(model.SerializeToString())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"{path}: the cleaned model cannot be written: {error.strerror or error}") from error
