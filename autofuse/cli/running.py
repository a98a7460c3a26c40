"""autofuse run and autofuse verify."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import numpy as np
import typer

from autofuse.cli import options
from autofuse.errors import MismatchError, StorageError

if TYPE_CHECKING:
    from onnx import ModelProto

    from autofuse.api.loading import LoadedEngine


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(name="run")(run)
    app.command(name="verify")(verify)


def run(
    model: options.Model,
    plan: options.PlanOption = None,
    device: options.Device = "auto",
    shape: options.Shape = None,
    threads: options.Threads = None,
    inputs: options.Inputs = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write the outputs to this .npz.", show_default=False),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show time and bytes of each kernel.")] = False,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Runs that --profile measures.")] = 30,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Run a model once with its best plan."""
    from autofuse.api.profile import profile as measure
    from autofuse.report import runs

    engine, _, arrays = _open(model, plan, device, shape, threads, inputs, seed)
    with engine:
        outputs = engine.run(arrays)
        if output is not None:
            _save(output, outputs)
        found = measure(engine.engine, arrays, repeats) if profile else None
        whole = sorted(engine.engine.time(repeats)) if profile else []
        median_ms = whole[len(whole) // 2] / 1e6 if whole else float("nan")
    if as_json:
        options.print_json(
            {
                "model": model,
                "device": engine.device.target.name,
                "plan": engine.plan.key,
                "origin": engine.origin,
                "warnings": list(engine.warnings),
                "host_nodes": [n.op for n in engine.engine.host_nodes],
                "median_ms": median_ms,
                "outputs": {k: _facts(v) for k, v in outputs.items()},
                "kernels": None if found is None else found.to_dict(orient="records"),
            }
        )
        return
    options.paper().print(runs.outputs({k: _facts(v) for k, v in outputs.items()}))
    if found is not None:
        options.paper().print(runs.profile(found, median_ms))
    if output is not None:
        options.say(f"outputs: {output}")


def verify(
    model: options.Model,
    plan: options.PlanOption = None,
    device: options.Device = "auto",
    shape: options.Shape = None,
    threads: options.Threads = None,
    inputs: options.Inputs = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol",
            min=0.0,
            help="Tolerance relative to the output's largest magnitude.",
            show_default="1e-3; fp16 1e-2; bf16 4e-2",
        ),
    ] = None,
    atol: Annotated[
        float | None, typer.Option("--atol", min=0.0, help="Absolute tolerance.", show_default="1e-5")
    ] = None,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Compare a model's numbers with an independent oracle, which is named. Exit code 3 where they differ."""
    from autofuse.api.verifying import verify_engine
    from autofuse.measure.reference import Tolerance
    from autofuse.report import runs

    engine, proto, arrays = _open(model, plan, device, shape, threads, inputs, seed)
    with engine:
        found = verify_engine(engine, proto, arrays, Tolerance(rtol, atol, engine.plan.accuracy == "fast"))
    if as_json:
        options.print_json(
            {
                "ok": found.ok,
                "oracle": found.oracle,
                "error": found.error,
                "reason": found.reason,
                "outputs": found.outputs,
                "refused": found.refused,
                "plan": engine.plan.key,
                "origin": engine.origin,
                "device": engine.device.target.name,
            }
        )
    else:
        options.paper().print(runs.verification(found.outputs, found.oracle, found.refused))
    if not found.ok:
        raise MismatchError(f"the numbers differ from {found.oracle}: {found.reason}")
    options.say(f"right: every output agrees with {found.oracle} (largest relative error {found.error:.1e})")


def _open(
    model: str,
    plan: Path | None,
    device: str,
    shape: list[str] | None,
    threads: int | None,
    inputs: Path | None,
    seed: int,
) -> tuple[LoadedEngine, ModelProto, dict[str, np.ndarray]]:
    """The engine, the model and its inputs; what plan it is goes to stderr."""
    import autofuse
    from autofuse.api.arguments import complete_inputs, read_inputs
    from autofuse.importer.load import load_model

    proto = load_model(model)
    given = None if inputs is None else read_inputs(inputs, options.input_names(proto))
    bound = options.shapes(shape)
    if given is not None and not bound:
        # inputs that are given say what the open dimensions are
        bound = {name: given[name].shape for name in options.input_names(proto) if name in given}
    engine = autofuse.load(model, plan, device, bound, threads)
    options.say(f"{engine.origin}, on {engine.device.target.name}")
    for text in engine.warnings:
        options.say(f"warning: {text}")
    return engine, proto, complete_inputs(engine.graph, given, seed)


def _facts(array: object) -> dict[str, object]:
    """An output in a few figures."""
    if not isinstance(array, np.ndarray):
        return {"type": type(array).__name__, "shape": None, "min": None, "max": None, "mean": None}
    numeric = array.dtype.kind in "fiub" or array.dtype.isbuiltin == 2
    numbers = array.astype(np.float64) if numeric else np.zeros(0)
    finite = numbers[np.isfinite(numbers)]
    return {
        "type": str(array.dtype),
        "shape": list(array.shape),
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "mean": float(finite.mean()) if finite.size else None,
        "not_finite": int(numbers.size - finite.size),
    }


def _write_npz(file: IO[bytes], outputs: dict[str, np.ndarray]) -> None:
    """What numpy.savez writes, for any names ("file" is not one that it takes)."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in outputs.items():
            array = np.asarray(value)
            plain = array.astype(str) if array.dtype == object else array
            if (
                array.dtype.isbuiltin == 2
            ):  # numpy's format has no name for such a type: its bytes, as the same reader takes them
                plain = array.view(f"V{array.itemsize}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, plain, allow_pickle=False)


def _save(path: Path, outputs: dict[str, np.ndarray]) -> None:
    """Write an .npz whole or not at all. Names of a model go into the archive as they are; they are no paths there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".npz", dir=path.parent)
        with os.fdopen(handle, "wb") as f:
            _write_npz(f, outputs)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"{path}: the outputs cannot be written: {error.strerror or error}") from error
