"""Loading: which plan is taken, what is checked of inputs, what a plan from elsewhere meets."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import autofuse
from autofuse.api import verifying
from autofuse.engine.plan import load_plan
from autofuse.errors import AutofuseError, InputError, MismatchError, PlanError, ShapeError, UsageError
from autofuse.measure.reference import Tolerance


def reference(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    evaluator = ReferenceEvaluator(onnx.load(path))
    return dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))


def imported(code: str) -> str:
    """Which heavy packages are there after some code ran in a new interpreter."""
    code = f"import sys; {code}; print([m for m in ('numpy', 'onnx', 'pandas', 'matplotlib', 'optuna') if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_brings_only_what_is_needed() -> None:
    assert imported("import autofuse; autofuse.__version__") == "[]"
    assert imported("import autofuse; autofuse.load") == "['numpy', 'onnx']"
    assert {"tune", "load", "open_results"} <= set(dir(autofuse))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = autofuse.nonsense


def test_without_a_saved_plan_it_is_the_heuristic_one_and_says_so(fixed: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    with autofuse.load(fixed, device="cpu", threads=1) as engine:
        assert engine.origin.startswith("heuristic plan")
        got = engine.run({"x": x})
        assert [(p.name, p.dtype, p.shape) for p in engine.inputs] == [("x", "float32", (4, 16))]
        assert [(p.name, p.shape) for p in engine.outputs] == [("y", (4, 8))]
    assert np.allclose(got["y"], reference(fixed, {"x": x})["y"], atol=1e-5)
    engine.close()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "missing"),
        ({"X": np.zeros((4, 16), np.float32)}, "unknown input 'X'"),
        ({"x": np.zeros((4, 16), np.float64)}, r"expected float32.*found float64"),
        ({"x": np.zeros((4, 15), np.float32)}, r"\[4, 16\], found float32\[4, 15\]"),
        ({"x": np.zeros((4, 16, 1), np.float32)}, "expected"),
    ],
)
def test_inputs_that_do_not_fit_are_named(fixed: Path, inputs: dict[str, np.ndarray], message: str) -> None:
    with autofuse.load(fixed, device="cpu", threads=1) as engine, pytest.raises(InputError, match=message):
        engine.run(inputs)


def test_open_dimensions_need_a_shape_once(dynamic: Path) -> None:
    with pytest.raises(ShapeError, match="x"):
        autofuse.load(dynamic, device="cpu")


def test_another_size_of_an_open_dimension_is_compiled_and_said_once(dynamic: Path) -> None:
    rng = np.random.default_rng(1)
    with autofuse.load(dynamic, device="cpu", threads=1, shapes={"x": (2, 8)}) as engine:
        with pytest.warns(UserWarning, match=r"other sizes .*the plan's choices"):
            five = rng.standard_normal((5, 8)).astype(np.float32)
            got = engine.run({"x": five})
        assert np.allclose(got["y"], reference(dynamic, {"x": five})["y"], atol=1e-5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine.run({"x": five})
            two = rng.standard_normal((2, 8)).astype(np.float32)
            assert np.allclose(engine.run({"x": two})["y"], reference(dynamic, {"x": two})["y"], atol=1e-5)
        with pytest.raises(InputError, match="batch, 8"):
            engine.run({"x": np.zeros((2, 9), np.float32)})


def test_open_dimensions_are_those_of_the_saved_result(dynamic: Path) -> None:
    result = autofuse.tune(dynamic, device="cpu", budget=1, shapes={"batch": (3,)}, threads=1)
    for plan in (None, result.folder):
        with autofuse.load(dynamic, plan=plan, device="cpu", threads=1) as engine:
            assert engine.inputs[0].shape == (3, 8) and engine.plan == result.plan


def test_calls_from_threads_take_turns(fixed: Path) -> None:
    rng = np.random.default_rng(2)
    xs = [rng.standard_normal((4, 16)).astype(np.float32) for _ in range(8)]
    wrong: list[int] = []
    with autofuse.load(fixed, device="cpu", threads=2) as engine:

        def work(k: int) -> None:
            for _ in range(20):
                if not np.allclose(engine.run({"x": xs[k]})["y"], expected[k], atol=1e-5):
                    wrong.append(k)

        expected = [reference(fixed, {"x": x})["y"] for x in xs]
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong


@pytest.mark.parametrize(("device", "threads"), [("tpu", None), ("cpu", 0), ("cpu", -1)])
def test_devices_that_do_not_exist(fixed: Path, device: str, threads: int | None) -> None:
    with pytest.raises(UsageError):
        autofuse.load(fixed, device=device, threads=threads)


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "cuda-emulated"},
        {"accuracy": "sloppy"},
        {"budget": "soon"},
        {"baseline": "abacus"},
        {"sampler": "oracle"},
    ],
)
def test_tunes_that_cannot_be(fixed: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        autofuse.tune(fixed, **{"device": "cpu", "budget": 1, **wrong})
    assert not Path("results").exists()


@pytest.fixture(scope="module")
def tuned(fixed: Path, tmp_path_factory: pytest.TempPathFactory) -> autofuse.TuneResult:
    return autofuse.tune(fixed, device="cpu", budget=3, output=tmp_path_factory.mktemp("out"), threads=1)


def test_a_tune_leaves_a_folder_that_opens(tuned: autofuse.TuneResult) -> None:
    results = autofuse.open_results(tuned.folder)
    assert results.plan == tuned.plan
    assert (tuned.trade_offs["status"] == "ok").any()
    assert results.run["environment"]["compiler"]
    assert not tuned.interrupted
    assert results.kernel_files


def test_the_saved_plan_is_found_even_for_a_renamed_model(tuned: autofuse.TuneResult, fixed: Path) -> None:
    Path("results").symlink_to(tuned.folder.parents[2])
    model = onnx.load(fixed)
    for n in model.graph.node:
        n.name = f"renamed_{n.name}"
    with autofuse.load(model, device="cpu", threads=1) as engine:
        assert engine.origin.startswith("saved plan") and engine.plan == tuned.plan and not engine.warnings
    with autofuse.load(fixed, device="cpu", threads=2) as engine:
        assert engine.plan == tuned.plan and "1 threads" in engine.warnings[0]


def test_a_saved_plan_that_cannot_be_used_gives_way(tuned: autofuse.TuneResult, fixed: Path, tmp_path: Path) -> None:
    """It was found, not asked for. Asked for, it is an error."""
    folder = tmp_path / "results" / Path(*tuned.folder.parts[-3:])
    folder.mkdir(parents=True)
    plan = json.loads((tuned.folder / "plan.json").read_text())
    plan["regions"] = [{**r, "algorithm": "of another version"} for r in plan["regions"]]
    (folder / "plan.json").write_text(json.dumps(plan))
    with autofuse.load(fixed, device="cpu", threads=1) as engine:
        assert engine.origin.startswith("heuristic plan") and "cannot be used" in engine.origin
        assert "unknown to this version" in engine.warnings[0]
    with pytest.raises(PlanError, match="unknown to this version"):
        autofuse.load(fixed, plan=folder / "plan.json", device="cpu", threads=1)


def test_a_second_tune_begins_with_the_first_ones_best(tuned: autofuse.TuneResult, fixed: Path) -> None:
    again = autofuse.tune(fixed, device="cpu", budget=2, output=tuned.folder.parents[2], threads=1)
    assert tuned.plan.key in set(again.trade_offs["plan"])
    assert again.folder == tuned.folder


def changed(plan: Path, into: Path, **fields: object) -> Path:
    into.write_text(json.dumps({**json.loads(plan.read_text()), **fields}))
    return into


def test_plans_that_do_not_fit(tuned: autofuse.TuneResult, fixed: Path, dynamic: Path, tmp_path: Path) -> None:
    plan = tuned.folder / "plan.json"
    with pytest.raises(PlanError, match="another model structure"):
        autofuse.load(dynamic, plan=plan, device="cpu", shapes={"x": (2, 8)})
    for name, fields, message in [
        ("arch", {"arch": "x86-64-mmx"}, "seed"),
        ("device", {"device": "cuda"}, "seed"),
        ("format", {"format": 99}, "format 99"),
        ("regions", {"regions": [{"nodes": "all"}]}, "damaged"),
    ]:
        with pytest.raises(PlanError, match=message):
            autofuse.load(fixed, plan=changed(plan, tmp_path / f"{name}.json", **fields), device="cpu", threads=1)
    (tmp_path / "torn.json").write_text(plan.read_text()[:100])
    with pytest.raises(PlanError, match="damaged"):
        autofuse.load(fixed, plan=tmp_path / "torn.json", device="cpu")
    with pytest.raises(PlanError, match="cannot be read"):
        autofuse.load(fixed, plan=tmp_path / "absent.json", device="cpu")
    assert dataclasses.replace(load_plan(plan), arch="other").key != tuned.plan.key


def test_a_plan_from_another_environment_warns_and_is_checked(
    tuned: autofuse.TuneResult, fixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.json").write_text((tuned.folder / "plan.json").read_text())
    run = json.loads((tuned.folder / "run.json").read_text())
    run["environment"]["compiler"] = "an old compiler"
    (tmp_path / "run.json").write_text(json.dumps(run))
    with autofuse.load(fixed, plan=tmp_path, device="cpu", threads=1) as engine:
        assert any("an old compiler" in w for w in engine.warnings)
    monkeypatch.setattr("autofuse.api.loading.whole_reference", lambda graph, inputs: {"y": np.full((4, 8), 7.0)})
    with pytest.raises(MismatchError, match="tune on this machine"):
        autofuse.load(fixed, plan=tmp_path, device="cpu", threads=1)


def test_verifying_names_its_oracle_and_falls_back(fixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = onnx.load(fixed)
    x = {"x": np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)}
    with autofuse.load(fixed, device="cpu", threads=1) as engine:
        found = verifying.verify_engine(engine, proto, x, Tolerance())
        assert found.ok and found.oracle == verifying.ONNXRUNTIME and 0 <= found.outputs["y"] < 1e-4

        def refuse(proto: object, inputs: object) -> dict[str, np.ndarray]:
            raise RuntimeError("no such operator\nat all")

        monkeypatch.setattr(verifying, "run_onnxruntime", refuse)
        found = verifying.verify_engine(engine, proto, x, Tolerance())
        assert found.ok and found.oracle == verifying.REFERENCE
        assert found.refused == {verifying.ONNXRUNTIME: "no such operator"}
        monkeypatch.setattr(verifying, "run_onnx_reference", lambda p, i: {"y": np.zeros((4, 8), np.float32)})
        assert not verifying.verify_engine(engine, proto, x, Tolerance()).ok


def test_a_limit_on_memory_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["x", "a", "b", "y"]
    nodes = [helper.make_node("Softmax", [i], [o], axis=k) for k, (i, o) in enumerate(itertools.pairwise(names))]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8, 16]) for n in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ports[:1], ports[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    with autofuse.load(model, device="cpu", threads=1) as engine:
        need, plan = engine.engine.peak_bytes, engine.plan
    with autofuse.load(model, device="cpu", threads=1, max_memory=need) as engine:
        assert engine.engine.peak_bytes <= need
    with pytest.raises(AutofuseError, match="the least that a known plan needs is"):
        autofuse.load(model, device="cpu", threads=1, max_memory=1)
    with pytest.raises(AutofuseError, match="keeps its intermediates not within"):
        autofuse.load(model, plan=plan, device="cpu", threads=1, max_memory="1")
