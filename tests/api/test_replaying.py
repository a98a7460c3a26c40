"""Result folders searched again: by the kernels that they hold, on whatever machine."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import autofuse
from autofuse.devices.cpuinfo import cpu_target
from autofuse.errors import LaunchError, PlanError, StorageError, UsageError
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.kernels.base import Schedule, Variant
from autofuse.kernels.space import load_spaces
from autofuse.report.folder import write_results
from autofuse.report.recorded import recorded
from autofuse.search.budget import Budget
from autofuse.search.tune import Task, tune_on
from tests.search.replay import ReplayBench

FOREIGN = cpu_target("aarch64-neon", "another processor", 2, (65536, 1 << 20, 0))


def cost(variant: Variant, schedule: Schedule) -> float:
    return 5e4 + 1000 * len(variant.program.steps) + len(schedule.text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a tune on a machine of another kind left behind."""
    graph = import_model(load_model("sample:mlp"))
    bench = ReplayBench(graph, cost)
    bench.target = FOREIGN
    task = Task("sample:mlp", {}, {}, 8.0, "default", 0, "exact", None, None, None, None, None, "")
    outcome = tune_on(graph, bench, load_spaces("cpu"), task, Budget(8.0, bench.clock))
    return write_results(outcome, tmp_path_factory.mktemp("tuned"))


def test_a_result_folder_is_searched_again_on_another_machine(folder: Path, tmp_path: Path) -> None:
    before = autofuse.open_results(folder)
    one = autofuse.replay(folder, budget=8, output=tmp_path)
    assert one.folder.is_relative_to(tmp_path / "replayed")
    assert one.results.run["device"]["arch"] == "aarch64-neon"
    assert one.results.best is not None and before.best is not None
    assert one.results.best["median_ms"] <= before.best["median_ms"] * 1.001
    assert any("nothing was run" in n for n in one.results.run["notes"])
    assert one.results.kernel_files
    known = set(zip(before.kernels["signature"], before.kernels["schedule"], strict=True))
    timed = one.results.kernels[one.results.kernels["status"] == "ok"]
    in_place = timed["key"].str.startswith("in-place-")
    assert set(zip(timed["signature"][~in_place], timed["schedule"][~in_place], strict=True)) <= known
    two = autofuse.replay(folder, budget=8, output=tmp_path / "again")
    assert two.plan.key == one.plan.key


def test_what_a_plan_took_in_place_stands_for_kernels_that_were_not_timed_alone(folder: Path) -> None:
    _, recording = recorded(folder)
    assert recording.target == FOREIGN and recording.reached.bandwidth > 0
    results = autofuse.open_results(folder)
    assert recording.kernels >= results.kernels["key"].nunique()


def test_what_cannot_be_replayed_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        autofuse.replay(tmp_path / "nothing", output=tmp_path)
    with pytest.raises(PlanError, match="not the model that was recorded"):
        autofuse.replay(folder, "sample:softmax", output=tmp_path)
    with pytest.raises(UsageError, match="there are: exact"):
        autofuse.replay(folder, sampler="magic", output=tmp_path)


def test_without_kernels_there_is_no_plan_and_no_number(folder: Path, tmp_path: Path) -> None:
    graph, recording = recorded(folder)
    path = tmp_path / "empty.parquet"
    dataclasses.replace(recording, rows=()).save(path)
    with pytest.raises(LaunchError, match="no working kernel"):
        autofuse.replay(path, budget=1, output=tmp_path)
    whole = tmp_path / "whole.parquet"
    recording.save(whole)
    found = autofuse.replay(whole, budget=4, output=tmp_path)
    assert json.loads((found.folder / "run.json").read_text())["graph"] == graph.structural_hash
