"""Running the command line in this process, in a folder of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from command_line import Done, Run

from autofuse.cli.main import main
from autofuse.importer.samples.basic import mlp
from autofuse.importer.samples.chains import gelu


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFUSE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("AUTOFUSE_DATA", str(tmp_path_factory.mktemp("data")))
        # what is printed must not depend on who runs the tests
        patch.setenv("COLUMNS", "120")
        patch.setenv("NO_COLOR", "1")
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def go(*words: str | os.PathLike[str]) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([os.fspath(w) for w in words])
        caught = capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0 if code is None else 1, caught.out, caught.err)

    return go


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    onnx.save(mlp(4, (16, 12, 8)), path)
    return path


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "chain.onnx"
    onnx.save(gelu(8, 32), path)
    return path
