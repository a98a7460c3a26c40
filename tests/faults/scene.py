"""A model, records, results and kernels of a first tune, in a folder of its own, and tunes in it with something wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper

from autofuse.cli.main import main
from autofuse.devices.cpu import CpuDevice
from autofuse.engine.engine import Engine
from autofuse.engine.plan import load_plan
from autofuse.importer.importing import import_model
from autofuse.ir.graph import Graph
from autofuse.measure.device_bench import Limits
from autofuse.measure.inputs import graph_inputs
from autofuse.measure.oracle import whole_reference
from autofuse.report.places import find_results
from autofuse.report.results import open_results

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    """What a command gave back."""

    code: int
    out: str
    err: str


def model() -> onnx.ModelProto:
    """A softmax written out: five nodes, two reductions, and a constant factor."""
    nodes = [
        helper.make_node("Mul", ["x", "c"], ["s"]),
        helper.make_node("ReduceMax", ["s"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["s", "m"], ["d"]),
        helper.make_node("Exp", ["d"], ["e"]),
        helper.make_node("ReduceSum", ["e", "axes"], ["t"], keepdims=1),
        helper.make_node("Div", ["e", "t"], ["y"]),
    ]
    stored = [
        helper.make_tensor("c", TensorProto.FLOAT, [1], [0.5]),
        helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [16, 64]) for n in "xy")
    graph = helper.make_graph(nodes, "softmax", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@dataclass
class Scene:
    """A folder. `environment` is what its tunes see besides."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    streams: dict[str, IO[str]] = field(default_factory=dict)
    """What stands in for stdout ("out") and stderr ("err") of its commands."""

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def records(self) -> Path:
        return self.folder / "data" / "records.sqlite"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def result(self) -> Path:
        """The one result folder."""
        return find_results(self.results)

    @property
    def graph(self) -> Graph:
        return import_model(onnx.load(self.model), {})

    def variables(self) -> dict[str, str]:
        """The environment of its tunes."""
        fixed = {
            "AUTOFUSE_DATA": str(self.records.parent),
            "AUTOFUSE_CACHE": str(self.cache),
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        return {**os.environ, "PYTHONPATH": str(ROOT), **fixed, **self.environment}

    def words(self, budget: float, *more: str) -> list[str]:
        """A tune's command line."""
        return [
            *("tune", str(self.model), "--device", "cpu", "--threads", "1", "--budget", f"{budget}s"),
            *("--output", str(self.results), *more),
        ]

    def tune(self, budget: float, *more: str) -> Done:
        """A tune in this process."""
        return self.command(*self.words(budget, *more))

    def command(self, *words: str) -> Done:
        """Any command in this process."""
        out, err = (self.streams.get(name, io.StringIO()) for name in ("out", "err"))
        with (
            mock.patch.dict(os.environ, self.variables(), clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main(list(words))
            except SystemExit as e:
                code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        said = [x.getvalue() if isinstance(x, io.StringIO) else "" for x in (out, err)]
        return Done(code, *said)

    def started(self, budget: float, *more: str, **how: object) -> subprocess.Popen[bytes]:
        """A tune in a process of its own."""
        command = [sys.executable, "-m", "autofuse.cli.main", *self.words(budget, *more)]
        given = {
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.PIPE,
            "env": self.variables(),
            "cwd": self.folder,
            **how,
        }
        return subprocess.Popen(command, start_new_session=True, **given)  # type: ignore[call-overload, no-any-return]

    # ---- what must hold

    def rows(self) -> dict[str, str]:
        """The status of every recorded kernel, read without autofuse."""
        if not self.records.exists():
            return {}
        with contextlib.closing(sqlite3.connect(self.records)) as c:
            return dict(c.execute("SELECT key, status FROM measurements"))

    def check_best(self) -> None:
        """The results are whole, and their plan gives the reference's numbers."""
        found = open_results(self.result)
        assert len(found.trade_offs) and found.best is not None and len(found.regions) and len(found.values)
        assert len(found.kernels) >= 0 and len(found.verdicts) >= 0
        graph = self.graph
        inputs = graph_inputs(graph)
        wanted = whole_reference(graph, inputs)
        with Engine.build(graph, load_plan(self.result / "plan.json"), CpuDevice(threads=1)) as engine:
            for name, got in engine.run(inputs).items():
                np.testing.assert_allclose(got, wanted[name], rtol=1e-3, atol=1e-4)

    def notes(self) -> str:
        """What the last tune noted."""
        return "\n".join(json.loads((self.result / "run.json").read_text())["notes"])

    def check_records(self) -> None:
        """The records are a whole database."""
        with contextlib.closing(sqlite3.connect(self.records)) as c:
            assert c.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def first_scene(folder: Path) -> Scene:
    """A scene in which one tune was made, from nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    scene = Scene(folder)
    onnx.save(model(), scene.model)
    done = scene.tune(2.0)
    assert done.code == 0, done.err
    scene.check_best()
    return scene


def copied(scene: Scene, folder: Path) -> Scene:
    """The same in another folder."""
    shutil.copytree(scene.folder, folder)
    return Scene(folder)


@contextlib.contextmanager
def short_limits() -> Iterator[None]:
    """Candidates that hang are given up after two seconds."""
    limits = Limits(prepare=60, open=2.5, shoot=2.5, model=60)
    with (
        mock.patch("autofuse.measure.device_bench.Limits", lambda: limits),
        mock.patch("autofuse.measure.client._REST_SECONDS", 0.5),
    ):
        yield


def sound(done: Done) -> None:
    """It ended with a code that is documented, and not by a fault of autofuse itself."""
    assert done.code in (0, 1, 2, 3, 130, 141), (done.code, done.err)
    assert "Traceback" not in done.err and "fault in autofuse itself" not in done.err, done.err


# ---- kills


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    out: list[int] = []
    for child in re.findall(r"\d+", _read(f"/proc/{pid}/task/{pid}/children")):
        out += [int(child), *descendants(int(child))]
    tasks: list[str] = []
    with contextlib.suppress(OSError):  # it may end at any moment
        tasks = os.listdir(f"/proc/{pid}/task")
    for task in tasks:
        for child in re.findall(r"\d+", _read(f"/proc/{pid}/task/{task}/children")):
            if int(child) not in out:
                out += [int(child), *descendants(int(child))]
    return out


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def role(pid: int) -> str:
    """What a process is, by its command line."""
    words = _read(f"/proc/{pid}/cmdline").replace("\0", " ")
    return "worker" if "autofuse.measure.worker" in words else "tune" if "autofuse.cli.main" in words else "compiler"


def kill_one(scene: Scene, wanted: str, after: float, budget: float, measuring: bool = False) -> tuple[str, int, str]:
    """Start a tune, kill -9 one of its processes after a while (counted from its start, or from that of its worker); what was killed, the exit
    code, and what was said."""
    process = scene.started(budget)
    deadline = time.monotonic() + after
    killed = "nothing"
    while process.poll() is None:
        mine = descendants(process.pid)
        time.sleep(0.005)
        if measuring and any(role(p) == "worker" for p in mine):
            deadline, measuring = time.monotonic() + after, False
        if measuring:
            continue
        if time.monotonic() < deadline:
            continue
        found = [p for p in (process.pid, *mine) if role(p) == wanted]
        if not found and time.monotonic() < deadline + 3.0:
            continue  # a compiler lives for a moment only
        chosen = found[-1] if found else process.pid
        with contextlib.suppress(OSError):
            killed = role(chosen)
            os.kill(chosen, signal.SIGKILL)
        break
    try:
        _, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    return killed, process.returncode, (err or b"").decode(errors="replace")
