"""Records: rows come back as they were written, and nothing that can happen to the file ends a tune."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autofuse.errors import StorageError
from autofuse.measure.records import Records, default_path
from autofuse.measure.result import Measurement, Status

ROW = Measurement(
    "k1", "sig", "map_host", "vector", "ab->ab", "task=1", Status.OK, "", (10, 20, 30), 1e-6, 0.2, 1, 2, 3, 4, 5
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "records.sqlite"


def test_a_row_comes_back_as_it_was_written(path: Path) -> None:
    failed = replace(ROW, key="k2", status=Status.WRONG, reason="off by 1", samples_ns=(), error=float("inf"))
    with Records("cpu", 2, path) as r:
        r.add([ROW, failed])
    with Records("cpu", 2, path) as r:
        found = r.find(["k1", "k2", "k3"], "warm", "sig")
        assert found == {"k1": ROW, "k2": failed}
        assert all(m.cached for m in found.values())
        assert found["k1"].seconds == pytest.approx(20e-9)
        assert [m.key for m in r.of_signature("sig")] == ["k1", "k2"]


@pytest.mark.parametrize("other", [("gpu", 2, "warm"), ("cpu", 1, "warm"), ("cpu", 2, "rotated")])
def test_rows_of_another_device_threads_or_state_are_not_used(path: Path, other: tuple[str, int, str]) -> None:
    with Records("cpu", 2, path) as r:
        r.add([ROW])
    with Records(other[0], other[1], path) as r:
        assert r.find(["k1"], other[2], "sig") == {}


def test_a_newer_row_replaces_the_older_and_cached_rows_are_not_written(path: Path) -> None:
    with Records("cpu", 2, path) as r:
        r.add([ROW])
        r.add([replace(ROW, samples_ns=(7,))])
        r.add([replace(ROW, samples_ns=(9,), cached=True)])
        assert r.find(["k1"], "warm", "sig")["k1"].samples_ns == (7,)
        assert r.count() == 1


@pytest.mark.parametrize(
    "change",
    [
        "samples_ns = 'not json'",
        "samples_ns = '[-1]'",
        "samples_ns = '[1.5]'",
        "samples_ns = '{\"a\": 1}'",
        "samples_ns = '[]'",
        "status = 'splendid'",
        "version = 99",
        "registers = 'many'",
        "noisy = '[99]'",
        "noisy = 'x'",
        "error = 'x'",
    ],
)
def test_foreign_rows_are_passed_over(path: Path, change: str) -> None:
    with Records("cpu", 2, path) as r:
        r.add([ROW, replace(ROW, key="k2")])
    with sqlite3.connect(path) as c:
        c.execute(f"UPDATE measurements SET {change} WHERE key = 'k1'")
    with Records("cpu", 2, path) as r:
        assert list(r.find(["k1", "k2"], "warm", "sig")) == ["k2"]


def test_signatures_with_the_same_text_do_not_answer_for_each_other(path: Path) -> None:
    """The numbers of one may be wrong, as where its tensors lie otherwise, and its bytes are its own."""
    other = replace(ROW, signature="other", status=Status.WRONG, reason="off by 1", samples_ns=(), bytes_model=99)
    with Records("cpu", 2, path) as r:
        r.add([ROW])
        assert r.find(["k1"], "warm", "other") == {}
        r.add([other])
        assert r.find(["k1"], "warm", "sig") == {"k1": ROW} and r.find(["k1"], "warm", "other") == {"k1": other}
        assert r.of_signature("sig") == [ROW] and r.of_signature("other") == [other] and r.count() == 2


def test_a_table_with_one_row_a_text_keeps_its_rows_and_takes_more(path: Path) -> None:
    with Records("cpu", 2, path) as r:
        r.add([ROW, replace(ROW, key="k2")])
    with sqlite3.connect(path) as c:
        (made,) = c.execute("SELECT sql FROM sqlite_master WHERE name='measurements'").fetchone()
        c.execute("ALTER TABLE measurements RENAME TO before")
        c.execute(made.replace("PRIMARY KEY (key, signature, device", "PRIMARY KEY (key, device"))
        c.execute("INSERT INTO measurements SELECT * FROM before")
        c.execute("DROP TABLE before")
    c.close()
    other = replace(ROW, signature="other")
    with Records("cpu", 2, path) as r:
        r.add([other])
        assert r.find(["k1", "k2"], "warm", "sig") == {"k1": ROW, "k2": replace(ROW, key="k2")}
        assert r.of_signature("other") == [other] and not r.notes
    with sqlite3.connect(path) as c:
        tables = {name for (name,) in c.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        assert tables == {"measurements", "signatures", "tunes", "plans"}
        assert c.execute("SELECT COUNT(*) FROM sqlite_master WHERE name='by_signature'").fetchone() == (1,)
    c.close()


def test_a_table_of_an_earlier_version_keeps_its_rows(path: Path) -> None:
    with Records("cpu", 2, path) as r:
        r.add([ROW])
    with sqlite3.connect(path) as c:
        for name in ("repeats", "noisy"):
            c.execute(f"ALTER TABLE measurements DROP COLUMN {name}")
    marked = replace(ROW, key="k2", repeats=2, noisy=(1,), samples_ns=(20, 25))
    with Records("cpu", 2, path) as r:
        r.add([marked])
        assert r.find(["k1", "k2"], "warm", "sig") == {"k1": ROW, "k2": marked}
        assert not r.notes


def test_a_file_that_is_no_database_is_put_aside(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database, whatever its name says" * 100)
    with Records("cpu", 2, path) as r:
        r.add([ROW])
        assert r.count() == 1
        assert "damaged" in r.notes[0]
    assert len(list(path.parent.glob("*.damaged-*"))) == 1


def test_a_table_with_other_columns_is_put_aside(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as c:
        c.execute("CREATE TABLE measurements (signature TEXT, something TEXT)")
    with Records("cpu", 2, path) as r:
        r.add([ROW])
        assert r.count() == 1


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="AUTOFUSE_DATA"):
        Records("cpu", 2, tmp_path / "file" / "records.sqlite")


def test_a_full_disk_says_what_is_lost(path: Path) -> None:
    with Records("cpu", 2, path) as r:
        connection = r._connection
        assert connection is not None
        connection.execute("PRAGMA max_page_count = 8")
        rows = [replace(ROW, key=f"k{n}", reason="x" * 5000) for n in range(100)]
        with pytest.raises(StorageError, match="100 measured kernels are not remembered"):
            r.add(rows)
        assert r.count() == 0


def test_closed_records_are_a_storage_error(path: Path) -> None:
    r = Records("cpu", 2, path)
    r.close()
    r.close()
    with pytest.raises(StorageError, match="closed"):
        r.count()


def test_several_processes_write_at_once(path: Path) -> None:
    script = """
import sys
from dataclasses import replace
from autofuse.measure.records import Records
from tests.measure.test_records import ROW
with Records("cpu", 2, sys.argv[1]) as r:
    for n in range(30):
        r.add([replace(ROW, key=f"{sys.argv[2]}-{n}")])
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(path), name], env=environment, cwd=root) for name in "abc"
    ]
    assert [p.wait(60) for p in started] == [0, 0, 0]
    with Records("cpu", 2, path) as r:
        assert r.count() == 90


def test_the_default_path_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOFUSE_DATA", str(tmp_path))
    assert default_path() == tmp_path / "records.sqlite"
    monkeypatch.delenv("AUTOFUSE_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "x"))
    assert default_path() == tmp_path / "x" / "autofuse" / "records.sqlite"
