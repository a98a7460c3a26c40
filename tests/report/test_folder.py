"""Result folders: their names, that they are complete, that damage is noticed, that nothing else is touched."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import outcomes
import pandas as pd
import pytest

from autofuse.errors import PlanError, StorageError, UsageError
from autofuse.report.folder import folder_of, write_results
from autofuse.report.naming import case_folder, model_stem, safe_name
from autofuse.report.places import find_results, saved_plans
from autofuse.report.results import Results, open_results


def test_layout_is_the_documented_one(small_results: Results) -> None:
    folder = small_results.path
    assert folder.name == "x_4x32-default-2t"
    assert folder.parent.name == "cpu-x86-64-avx512"
    assert folder.parent.parent.name == f"my_mlp-{outcomes.small().graph.structural_hash[:8]}"
    names = {p.name for p in folder.iterdir()}
    assert names == {
        "plan.json", "run.json", "trade_offs.csv", "trade_offs.parquet", "kernels.parquet", "verdicts.parquet", "regions.parquet",
        "values.parquet", "kernels",
    }  # fmt: skip
    assert [p.suffix for p in small_results.kernel_files] == [".cpp"]


def test_reading_gives_back_what_was_written(small_results: Results) -> None:
    outcome = outcomes.small()
    assert small_results.plan == outcome.best
    assert set(small_results.plans) == {p.plan.key for p in outcome.plans}
    assert next(iter(small_results.plans.values())) in [p.plan for p in outcome.plans]
    samples = small_results.samples
    first = samples[(samples["kind"] == "plan") & (samples["name"] == outcome.plans[0].plan.key)]["ns"]
    assert list(first)[: len(outcome.plans[0].samples_ns)] == list(outcome.plans[0].samples_ns)
    assert set(samples["kind"]) == {"plan", "kernel", "baseline"}
    row = small_results.trade_offs.iloc[0]
    assert row["median_ms"] == pytest.approx(np.median(outcome.plans[0].samples_ns) / 1e6)
    assert small_results.run["environment"] == {"python": "3.x"}
    csv = pd.read_csv(small_results.path / "trade_offs.csv")
    assert len(csv) == len(outcome.plans) and "samples_ns" not in csv


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "a/b\\c",
        "..",
        "",
        "$(touch x)",
        "x" * 400,
        "mo\x00del\n",
        "モデル",
        "-rf",
        ".hidden",
        "C:\\con",
    ],
)
def test_names_never_leave_their_folder(name: str, tmp_path: Path) -> None:
    for part in (safe_name(name), model_stem(name + ".onnx"), case_folder({name: (1, 2)}, name, 1)):
        assert part and "/" not in part and "\\" not in part and not part.startswith((".", "-"))
        assert all(c.isascii() and (c.isalnum() or c in "_-") for c in part)
        assert len(part) < 120
    outcome = dataclasses.replace(outcomes.small(), model=name, shapes={name: (4, 32)})
    folder = write_results(outcome, tmp_path)
    assert folder.resolve().is_relative_to(tmp_path.resolve())
    assert len(folder.relative_to(tmp_path).parts) == 3
    assert open_results(folder).run["model"] == name


def test_long_names_do_not_meet() -> None:
    assert safe_name("x" * 400) != safe_name("x" * 401)


def test_writing_again_replaces_and_leaves_foreign_files(tmp_path: Path) -> None:
    folder = write_results(outcomes.small(), tmp_path)
    (folder / "my notes.txt").write_text("mine")
    (folder / "report.html").write_text("of the first tune")
    again = dataclasses.replace(outcomes.small(), best_text={"cd" * 32: "void other() {}"}, seconds=1.0)
    assert write_results(again, tmp_path) == folder
    results = open_results(folder)
    assert results.run["seconds"] == 1.0
    assert [p.stem for p in results.kernel_files] == ["cd" * 12]
    assert (folder / "my notes.txt").read_text() == "mine"
    assert not (folder / "report.html").exists()
    assert not list(folder.rglob(".*"))


def test_an_unwritable_output_is_a_storage_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StorageError, match="--output"):
        write_results(outcomes.small(), blocker)
    if os.geteuid():
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        with pytest.raises(StorageError, match="--output"):
            write_results(outcomes.small(), closed)


def test_opening_what_is_no_result_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no folder"):
        open_results(tmp_path / "nothing")
    with pytest.raises(StorageError, match="tune first"):
        open_results(tmp_path)


def test_a_folder_above_means_the_only_result_below(tmp_path: Path) -> None:
    folder = write_results(outcomes.small(), tmp_path)
    assert find_results(tmp_path) == find_results(folder.parent) == find_results(folder / "plan.json") == folder
    write_results(dataclasses.replace(outcomes.small(), threads=1), tmp_path)
    with pytest.raises(StorageError, match="2 results"):
        find_results(tmp_path)


@pytest.fixture
def copy(small_results: Results, tmp_path: Path) -> Path:
    shutil.copytree(small_results.path, tmp_path / "copy")
    return tmp_path / "copy"


def test_damage_is_noticed(copy: Path) -> None:
    run = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**run, "best": "0" * 16}))
    with pytest.raises(StorageError, match="cut short"):
        open_results(copy)
    (copy / "run.json").write_text(json.dumps({**run, "format": 99}))
    with pytest.raises(StorageError, match="format 99"):
        open_results(copy)
    (copy / "run.json").write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        open_results(copy)
    (copy / "run.json").write_text(json.dumps(run))
    (copy / "trade_offs.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(StorageError, match=r"trade_offs\.parquet"):
        _ = open_results(copy).trade_offs
    (copy / "plan.json").write_text("[]")
    with pytest.raises(PlanError):
        open_results(copy)


def test_saved_plans_are_found_by_structure_whatever_the_model_is_called(tmp_path: Path) -> None:
    outcome = dataclasses.replace(outcomes.small(), model="renamed.onnx")
    folder = write_results(outcome, tmp_path)
    found = list(saved_plans(tmp_path, outcome.graph.structural_hash, outcome.target))
    assert found == [(folder / "plan.json", outcome.best)]
    other = dataclasses.replace(outcome.target, arch="x86-64-avx2")
    assert not list(saved_plans(tmp_path, outcome.graph.structural_hash, other))
    assert not list(saved_plans(tmp_path, "0" * 64, outcome.target))
    (folder / "plan.json").write_text("damaged")
    assert not list(saved_plans(tmp_path, outcome.graph.structural_hash, outcome.target))


def test_cuda_kernels_end_in_cu(tmp_path: Path) -> None:
    target = dataclasses.replace(outcomes.TARGET, kind="cuda", dialect="cuda", arch="sm_90")
    outcome = dataclasses.replace(outcomes.small(), target=target)
    assert folder_of(outcome, tmp_path).parent.name == "cuda-sm_90"
    assert [p.suffix for p in open_results(write_results(outcome, tmp_path)).kernel_files] == [".cu"]


def test_pareto_refuses_columns_without_numbers(small_results: Results) -> None:
    with pytest.raises(UsageError, match="median_ms"):
        small_results.pareto("status", "error")
