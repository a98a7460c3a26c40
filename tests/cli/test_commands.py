"""The commands at work on small models, on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from command_line import Run
from onnx.reference import ReferenceEvaluator

sys.path.insert(0, str(Path(__file__).parents[1] / "importer"))

from exported import exported

from autofuse.report.places import find_results
from autofuse.search.exact.reasons import CLASSES

CPU = ("--device", "cpu", "--threads", "1")


def test_estimate_for_people_and_machines(run: Run, model: Path) -> None:
    done = run("estimate", model, *CPU)
    assert done.code == 0 and "floor" in done.out and "Predicted" in done.out
    data = json.loads(run("estimate", model, *CPU, "--json").out)
    assert data["predicted"] and data["greedy"]["launches"] <= data["unfused"]["launches"]


def test_estimate_for_a_gpu_that_is_not_there(run: Run, chain: Path) -> None:
    data = json.loads(run("estimate", chain, "--device", "cuda-emulated", "--json").out)
    assert data["greedy"]["launches"] == 1 < data["unfused"]["launches"]


def test_run_reads_inputs_and_writes_outputs(run: Run, model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    done = run("run", model, *CPU, "--inputs", tmp_path / "in.npz", "--output", tmp_path / "deep" / "out.npz")
    assert done.code == 0 and "heuristic plan" in done.err
    with np.load(tmp_path / "deep" / "out.npz") as found:
        wanted = ReferenceEvaluator(onnx.load(model)).run(None, {"x": x})[0]
        assert np.allclose(found["y"], wanted, atol=1e-5)
    np.save(tmp_path / "in.npy", x.astype(np.float64))
    done = run("run", model, *CPU, "--inputs", tmp_path / "in.npy")
    assert done.code == 2 and "float64" in done.err


@pytest.mark.parametrize("dtype", ["float8_e5m2", "int4", "bfloat16"])
def test_run_reads_and_writes_types_that_numpy_does_not_know(run: Run, tmp_path: Path, dtype: str) -> None:
    """numpy keeps them as bytes without a type; what one run wrote another takes."""
    x = np.array([[1, -2, 3], [0, 4, -1]], np.float32).astype(getattr(ml_dtypes, dtype))
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    info = [onnx.helper.make_tensor_value_info(n, kind, s) for n, s in (("x", (2, 3)), ("y", (3, 2)))]
    node = onnx.helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    graph = onnx.helper.make_graph([node], "narrow", info[:1], info[1:])
    onnx.save(onnx.helper.make_model(graph, ir_version=10), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=x.view(f"V{x.itemsize}"))
    done = run("run", tmp_path / "m.onnx", *CPU, "--inputs", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    assert done.code == 0, done.err
    with np.load(tmp_path / "out.npz") as found:
        assert (found["y"].view(x.dtype) == x.T).all()
    assert run("verify", tmp_path / "m.onnx", *CPU).code == 0


def test_run_profile_shows_each_kernel(run: Run, model: Path) -> None:
    data = json.loads(run("run", model, *CPU, "--profile", "--repeats", "5", "--json").out)
    assert len(data["kernels"]) >= 2 and all(k["time_us"] > 0 and k["bytes"] > 0 for k in data["kernels"])
    assert sum(k["time_share"] for k in data["kernels"]) == pytest.approx(1.0)
    assert data["median_ms"] > 0
    done = run("run", model, *CPU, "--profile", "--repeats", "5")
    assert "GFLOP/s" in done.out and "Gemm" in done.out


def test_drawn_inputs_depend_on_the_seed_alone(run: Run, model: Path) -> None:
    first, same, other = (
        json.loads(run("run", model, *CPU, "--seed", s, "--json").out)["outputs"] for s in ("1", "1", "2")
    )
    assert first == same != other


def test_verify_names_the_oracle(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("verify", model, *CPU)
    assert done.code == 0 and "onnxruntime, optimisations off" in done.out and "right" in done.err
    monkeypatch.setattr("autofuse.api.verifying.run_onnxruntime", lambda p, i: {"y": np.ones((4, 8), np.float32)})
    done = run("verify", model, *CPU)
    assert done.code == 3 and "differ" in done.err
    data = run("verify", model, *CPU, "--json")
    assert data.code == 3 and json.loads(data.out)["ok"] is False


def test_verify_under_emulation(run: Run, chain: Path) -> None:
    done = run("verify", chain, "--device", "cuda-emulated", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["ok"] is True


def test_explain_a_model_without_results(run: Run, model: Path) -> None:
    done = run("explain", model, *CPU)
    assert done.code == 0 and "edges between kernels" in done.out and "illegal" in done.out
    assert "leftover" in done.out
    edges = json.loads(run("explain", model, *CPU, "--json").out)["edges"]
    first = edges[0]
    done = run("explain", model, first["producer_name"], first["consumer_name"], *CPU)
    assert done.out.startswith(f"e{first['edge']} ")


@pytest.fixture(scope="module")
def results(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tune by the command line, once for all tests of this file."""
    from autofuse.cli.main import main

    output = tmp_path_factory.mktemp("results")
    with pytest.raises(SystemExit) as ended:
        main(
            ["tune", str(model), *CPU, "--budget", "3s", "--output", str(output), "--baseline", "onnxruntime", "--json"]
        )
    assert not ended.value.code
    return find_results(output)


def test_tune_writes_results_and_says_where(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("tune", model, *CPU, "--budget", "2s", "--output", tmp_path / "out")
    assert done.code == 0, done.err
    assert not done.out and str(find_results(tmp_path / "out")) in done.err
    assert "gain" in done.err.lower()


def test_tune_prints_one_json_document(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("tune", model, *CPU, "--budget", "2s", "--output", tmp_path / "out", "--json")
    data = json.loads(done.out)
    assert data["best"]["median_ms"] > 0 and Path(data["folder"]).is_dir() and data["interrupted"] is False


def test_an_interrupted_tune_keeps_the_best_and_exits_with_130(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autofuse.search import tune as search

    original = search.tune_on

    def stopped(*arguments: object, **named: object) -> object:
        import dataclasses

        return dataclasses.replace(original(*arguments, **named), interrupted=True)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "tune_on", stopped)
    done = run("tune", model, *CPU, "--budget", "1s", "--output", tmp_path / "out")
    assert done.code == 130 and "interrupted" in done.err
    assert find_results(tmp_path / "out")


def test_report_prints_and_writes_html(run: Run, results: Path, tmp_path: Path) -> None:
    done = run("report", results, "--html", tmp_path / "deep" / "r.html")
    assert done.code == 0 and "Where the gain comes from" in done.out and "onnxruntime" in done.out
    assert (tmp_path / "deep" / "r.html").read_text().startswith("<!DOCTYPE html>")
    data = json.loads(run("report", results, "--json").out)
    assert data["html"] == str(results / "report.html") and data["baselines"]["onnxruntime"]["median_ms"] > 0


def test_explain_cleans_a_model(run: Run, tmp_path: Path) -> None:
    onnx.save(exported(size=6, channels=4), tmp_path / "m.onnx")
    done = run("explain", tmp_path / "m.onnx", *CPU, "--cleaned", tmp_path / "c.onnx")
    assert done.code == 0 and "Transposes around element-wise operators" in done.out and "bit for bit" in done.err
    assert len(onnx.load(tmp_path / "c.onnx").graph.node) == 11
    data = json.loads(run("explain", tmp_path / "m.onnx", *CPU, "--cleaned", tmp_path / "d.onnx", "--json").out)
    assert len(data["leftovers"]["removable"]) == 7 and data["cleaned"]["exact"]
    assert run("explain", tmp_path / "m.onnx", *CPU, "--cleaned", tmp_path / "m.onnx").code == 1


def test_explain_results(run: Run, results: Path) -> None:
    done = run("explain", results)
    assert done.code == 0 and "edges between kernels" in done.out and "leftover" in done.out
    verdicts = json.loads(run("explain", results, "--json").out)["edges"]
    assert all(e["state"] in CLASSES and (e["state"] == "fused") == (not e["reason"]) for e in verdicts)
    done = run("explain", results, "e0")
    assert done.out.startswith("e0 ") and "kernels, measured alone" in done.out
    data = json.loads(run("explain", results, "e0", "--split", "--json").out)
    assert data["what_if"]["nodes"] == [verdicts[0]["producer"], verdicts[0]["consumer"]]
    ends = [str(verdicts[0]["producer"]), str(verdicts[-1]["consumer"])]
    assert "impossible [" in run("explain", results, *ends, "--fuse").out
    assert run("explain", results, "nobody").code == 2
    for wrong in (["--fuse", "--split", "e0"], ["--fuse"]):
        assert run("explain", results, *wrong).code == 2
    done = run("explain", results, "e0", "--model", "absent.onnx")
    assert done.code == 0 and "no more can be said" in done.err
    assert run("explain", results, "e0", "--fuse", "--model", "absent.onnx").code == 2


def test_compare_with_itself_is_a_tie(run: Run, results: Path) -> None:
    assert "a tie" in run("compare", results, results).out
    data = json.loads(run("compare", results, results, "--json").out)
    assert data["same_graph"] and not data["only_a"] and not data["only_b"]


def test_run_with_a_plan_and_one_that_does_not_fit(run: Run, results: Path, model: Path, chain: Path) -> None:
    done = run("run", model, *CPU, "--plan", results)
    assert done.code == 0 and "plan.json" in done.err
    done = run("run", chain, *CPU, "--plan", results / "plan.json")
    assert done.code == 3 and "structure" in done.err


def test_doctor(run: Run) -> None:
    done = run("doctor")
    assert done.code == 0 and "C++ compiler" in done.out and "onnxruntime" in done.out
    topics = {f["topic"]: f for f in json.loads(run("doctor", "--json").out)["findings"]}
    assert topics["cpu"]["state"] == "ok"
    assert all(f["mend"] for f in topics.values() if f["state"] != "ok")


def test_doctor_without_a_compiler(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    done = run("doctor")
    assert done.code == 1 and "broken" in done.out


def test_operator_table(run: Run) -> None:
    assert "Conv" in run("doctor", "--ops").out
    names = {o["name"] for o in json.loads(run("doctor", "--ops", "--json").out)}
    assert {"Conv", "MatMul", "Softmax", "LSTM"} <= names


def test_cache(run: Run, model: Path) -> None:
    run("run", model, *CPU)
    before = json.loads(run("cache", "info", "--json").out)
    assert before["kernels"]["entries"] > 0
    assert "compiled kernels" in run("cache", "info").out
    assert run("cache", "prune", "--keep", "2G").out.strip() == "freed 0 B"
    assert run("cache", "clear").code == 0
    assert json.loads(run("cache", "info", "--json").out)["kernels"]["entries"] == 0


def test_a_tune_is_replayed_from_its_results(run: Run, tmp_path: Path) -> None:
    tuned = Path(__file__).parents[2] / "results" / "examples"
    done = run("tune", "sample:chain_layernorm", "--replay", tuned, "--output", tmp_path, "--budget", "1s")
    assert done.code == 0 and "nothing was run" in done.err + done.out
    assert find_results(tmp_path / "replayed").is_dir()
    refused = run("tune", "sample:chain_layernorm", "--replay", tuned, "--output", tmp_path, "--threads", "1")
    assert refused.code == 2 and "leave out --threads" in refused.err
