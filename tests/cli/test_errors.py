"""Bad use, failures and interruptions: a message, an exit code, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run

import autofuse
from autofuse.errors import CompileError, LaunchError, MismatchError, PlanError, VerificationError

COMMANDS = ("tune", "estimate", "run", "verify", "report", "explain", "compare", "doctor", "cache")


def test_version_and_help(run: Run) -> None:
    done = run("--version")
    assert (done.code, done.out.strip()) == (0, f"autofuse {autofuse.__version__}")
    done = run("--help")
    assert done.code == 0 and all(c in done.out for c in COMMANDS) and "Exit codes" in done.out
    assert run("-h").out == done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert done.code == 0 and command in done.out


def test_rare_options_show_only_when_asked_for(run: Run) -> None:
    rare = ("--sampler", "--trials", "--space", "--rtol", "--atol", "--objective", "--max-memory")
    plain, full = run("tune", "--help").out, run("tune", "--help-advanced").out
    assert "--help-advanced" in plain
    for option in rare:
        assert option not in plain and option in full


@pytest.mark.parametrize(
    "words",
    [
        ["tune"],
        ["tune", "sample:mlp", "--no-such-option"],
        ["no-such-command"],
        ["run", "nothing.onnx"],
        ["run", "sample:nothing"],
        ["run", "sample:mlp", "--device", "tpu"],
        ["run", "sample:mlp", "--threads", "0"],
        ["run", "sample:mlp", "--shape", "x"],
        ["run", "sample:mlp", "--shape", "x=1,2"],
        ["run", "sample:mlp", "--shape", "nobody=1,2"],
        ["run", "sample:mlp", "--inputs", "absent.npz"],
        ["tune", "sample:mlp", "--budget", "soon"],
        ["tune", "sample:mlp", "--accuracy", "sloppy"],
        ["tune", "sample:mlp", "--device", "cuda-emulated"],
        ["tune", "sample:mlp", "--baseline", "abacus"],
        ["tune", "sample:mlp", "--sampler", "oracle", "--device", "cpu"],
        ["cache", "prune", "--keep", "much"],
        ["tune", "sample:mlp", "--objective", "beauty", "--device", "cpu"],
        ["tune", "sample:mlp", "--max-memory", "much", "--device", "cpu"],
        ["explain", "sample:mlp", "e999", "--device", "cpu"],
    ],
    ids=lambda words: " ".join(words),
)
def test_bad_use_exits_with_2(run: Run, words: list[str]) -> None:
    done = run(*words)
    assert done.code == 2 and not done.out
    assert done.err.strip() and "Traceback" not in done.err


def test_a_file_that_is_no_model(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"this is no model")
    done = run("estimate", tmp_path / "bad.onnx")
    assert done.code == 2 and "bad.onnx" in done.err and "Traceback" not in done.err


def test_results_that_are_none(run: Run, tmp_path: Path) -> None:
    for words in (["report", tmp_path], ["compare", tmp_path, tmp_path], ["explain", tmp_path / "absent"]):
        done = run(*words)
        assert done.code == 1 and str(tmp_path) in done.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CompileError("no"), 1),
        (LaunchError("no"), 1),
        (MismatchError("no"), 3),
        (PlanError("no"), 3),
        (VerificationError("no"), 1),
        (ZeroDivisionError("no"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, BaseException) else "",
)
def test_exit_codes_follow_from_the_type_of_the_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("autofuse.importer.load.load_model", fail)
    done = run("estimate", "sample:mlp")
    assert done.code == code and "Traceback" not in done.err
    if isinstance(error, Exception):
        assert "no" in done.err
        assert "Traceback" in run("estimate", "sample:mlp", "--debug").err
    if isinstance(error, VerificationError | ZeroDivisionError):
        assert "fault in autofuse itself" in done.err and "--debug" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["doctor"],
        ["estimate", "sample:mlp", "--device", "cpu"],
        ["estimate", "sample:mlp", "--device", "cpu", "--json"],
    ],
    ids=lambda words: " ".join(words),
)
def test_nobody_reads_the_output(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "autofuse.cli.main", *words]
    root = Path(__file__).parents[2]
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=root, check=False, timeout=120)
    assert done.returncode == 141 and not done.stderr
