"""Faults and kills: a part of what benchmarks/faults.py runs."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.scene import Scene, copied, first_scene, kill_one, sound
from tests.faults.table import TABLE, Fault, run_fault


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A scene in which one tune was made."""
    return first_scene(tmp_path_factory.mktemp("faults") / "first")


def test_the_table_has_faults_of_all_kinds() -> None:
    assert len(TABLE) >= 40
    assert max(Counter(f.name for f in TABLE).values()) == 1


@pytest.mark.parametrize("fault", [f for f in TABLE if f.quick], ids=lambda f: f.name)
def test_a_fault_ends_nothing_but_what_it_hits(fault: Fault, first: Scene, tmp_path: Path) -> None:
    run_fault(fault, first, tmp_path / "scene")


@pytest.mark.parametrize("role", ["tune", "worker"])
def test_the_next_tune_carries_on_where_a_process_was_killed(first: Scene, tmp_path: Path, role: str) -> None:
    scene = copied(first, tmp_path / "scene")
    before = scene.rows()
    killed, code, said = kill_one(scene, role, 0.8, 20.0 if role == "tune" else 1.5, measuring=True)
    assert killed == role, said
    assert code == (-9 if role == "tune" else 0), said
    scene.check_records()
    assert before.keys() <= scene.rows().keys()
    if role == "tune":
        scene.check_best()  # the results of the first tune are untouched
        done = scene.tune(0.05)
        sound(done)
        assert done.code == 0 and "was cut short" in scene.notes()
    scene.check_best()


def test_a_crash_does_not_replace_a_time_but_a_wrong_number_does(tmp_path: Path) -> None:
    from dataclasses import replace

    from autofuse.measure.records import Records
    from autofuse.measure.result import Status
    from tests.measure.test_records import ROW

    with Records("cpu", 2, tmp_path / "r.sqlite") as r:
        r.add([ROW])
        for status in (Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY):
            r.add([replace(ROW, status=status, reason="it happens", samples_ns=())])
            assert r.find(["k1"], "warm", "sig")["k1"] == ROW
        r.add([replace(ROW, status=Status.WRONG, reason="off", samples_ns=())])
        assert r.find(["k1"], "warm", "sig")["k1"].status is Status.WRONG
        r.add([replace(ROW, status=Status.TIMEOUT, reason="late", samples_ns=())])
        assert r.find(["k1"], "warm", "sig")["k1"].status is Status.TIMEOUT


def test_replacing_files_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after any of its steps, a folder has the old files or, once someone looked at it, the new ones."""
    from autofuse.report import replacing

    class Killed(BaseException):
        pass

    names = ("a", "b", "sub/c")
    for step in range(40):
        folder = tmp_path / str(step)
        folder.mkdir()
        replacing.replace_files(folder, dict.fromkeys((*names, "sub/old"), b"old"), ())
        left = [step]
        real = {n: getattr(replacing.os, n) for n in ("replace", "fsync", "chmod", "unlink")}

        def counted(name: str, left: list[int] = left, real: dict[str, object] = real) -> object:
            def act(*arguments: object) -> object:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return real[name](*arguments)  # type: ignore[operator]

            return act

        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(replacing.os, name, counted(name))
            patch.setattr(replacing.shutil, "rmtree", lambda *a, **k: None)  # the killed do not tidy up
            try:
                replacing.replace_files(folder, dict.fromkeys(names, b"new"), ("sub/old*",))
                finished = True
            except Killed:
                finished = False
        replacing.settle(folder)
        found = {(folder / n).read_bytes() for n in names}
        assert len(found) == 1 and (folder / "sub/old").exists() is (found == {b"old"})
        if finished:
            assert found == {b"new"}
            return
    raise AssertionError("it never finished")


def test_records_of_before_the_journal_are_taken_over(tmp_path: Path) -> None:
    from autofuse.measure.records import Records
    from tests.measure.test_records import ROW

    path = tmp_path / "r.sqlite"
    with Records("cpu", 2, path) as r:
        r.add([ROW])
    with sqlite3.connect(path) as c:
        c.execute("ALTER TABLE measurements DROP COLUMN tune")
        c.execute("DROP TABLE tunes")
        c.execute("DROP TABLE plans")
    c.close()
    with Records("cpu", 2, path) as r:
        assert r.find(["k1"], "warm", "sig")["k1"] == ROW and not r.notes
