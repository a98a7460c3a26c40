"""The faults: what each is, how it is injected, and what must hold besides what holds for all (`run_fault`)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autofuse.report.results import open_results
from tests.faults import injections as inject
from tests.faults.scene import Done, Scene, copied, sound


@dataclass(frozen=True)
class Fault:
    """`code`: the exit code of the tune that it hits. `says`: an expression that must be found in its messages or notes. `status`: how a plan
    of the tune ended, as its table says, with a reason. `loses`: recorded rows that the fault itself destroyed may be missing. `budget`: seconds; kernels are measured from about a second on. `quick`: the tests run it."""

    name: str
    inject: Callable[[Scene], contextlib.AbstractContextManager[None]]
    code: int = 0
    says: str = ""
    loses: bool = False
    status: str = ""
    budget: float = 0.2
    quick: bool = False
    words: tuple[str, ...] = ()


def run_fault(fault: Fault, first: Scene, folder: Path) -> None:
    """A second tune goes wrong. It ends with the right code and says what happened; nothing recorded is lost, the results are whole, and a tune
    after it is fine."""
    scene = copied(first, folder)
    before = scene.rows()
    with fault.inject(scene):
        kept = before if scene.records.exists() else {}
        done = scene.tune(fault.budget, *fault.words)
    sound(done)
    assert done.code == fault.code, (done.code, done.err)
    if done.code in (1, 2, 3):
        assert re.search(r"^error: ", done.err, re.MULTILINE), done.err
    scene.check_best()
    scene.check_records()
    said = done.err + ("" if done.code in (1, 2, 3) else scene.notes())
    assert re.search(fault.says, re.sub(r"\s+", " ", said), re.IGNORECASE), said
    if fault.status:
        tried = open_results(scene.result).trade_offs
        assert any(s == fault.status and r for s, r in zip(tried["status"], tried["reason"], strict=True)), set(
            tried["status"]
        )
    if not fault.loses:
        assert kept.keys() <= scene.rows().keys()
        assert {k for k, s in kept.items() if s == "ok"} <= {k for k, s in scene.rows().items() if s == "ok"}
    if fault.code == 0 and not scene.environment:
        return
    scene.environment = {}
    after = scene.tune(0.05)
    assert after.code == 0, after.err
    scene.check_best()
    if not fault.loses:
        assert kept.keys() <= scene.rows().keys()


# ---- changes of files


def _cut(scene: Scene) -> None:
    data = scene.records.read_bytes()
    scene.records.write_bytes(data[: len(data) * 2 // 3])


def _garbage(scene: Scene) -> None:
    scene.records.write_bytes(os.urandom(20_000))


def _foreign(scene: Scene) -> None:
    scene.records.unlink()
    with contextlib.closing(sqlite3.connect(scene.records)) as c, c:
        c.execute("CREATE TABLE measurements (song TEXT, singer TEXT)")


def _page(scene: Scene) -> None:
    data = bytearray(scene.records.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\x5a" * 4096
    scene.records.write_bytes(bytes(data))


def _wal(scene: Scene) -> None:
    """A process wrote a row and was killed: the row is in the log alone."""
    script = (
        "import os, sys\nfrom dataclasses import replace\nfrom autofuse.measure.records import Records\n"
        "from tests.measure.test_records import ROW\nr = Records('other', 1, sys.argv[1])\n"
        "r.add([replace(ROW, key='left in the log')])\nos.kill(os.getpid(), 9)"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(scene.records)],
        env=scene.variables(),
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert Path(f"{scene.records}-wal").stat().st_size > 0


def _library(change: Callable[[bytes], bytes]) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        for path in scene.cache.rglob("*.so"):
            path.write_bytes(change(path.read_bytes()))

    return act


def _json(name: str, change: Callable[[dict[str, object]], None]) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        path = scene.result / name
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return act


def _schedules(data: dict[str, object]) -> None:
    for r in data["regions"]:  # type: ignore[attr-defined]
        r["schedule"] = dict.fromkeys(r["schedule"], 3000017)


def _regions(data: dict[str, object]) -> None:
    regions: list[dict[str, object]] = data["regions"]  # type: ignore[assignment]
    regions.append({**regions[-1], "nodes": [0], "outputs": [9999]})


def _write(name: str, data: bytes) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        (scene.result / name).write_bytes(data)

    return act


def _halve(name: str) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        path = scene.result / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        if name.endswith("parquet"):
            done = scene.command("report", str(scene.results))
            sound(done)
            assert done.code == 1 and name in done.err and "Tune again" in done.err, done.err

    return act


def _cut_short(scene: Scene) -> None:
    """The writing of results was killed after it was decided."""
    folder = scene.result
    ready = folder / ".ready"
    ready.mkdir()
    for name in ("plan.json", "run.json", "regions.parquet"):
        (ready / name).write_bytes((folder / name).read_bytes())
        (folder / name).write_bytes(b"")


def _running(scene: Scene) -> None:
    with contextlib.closing(sqlite3.connect(scene.records)) as c, c:
        c.execute("UPDATE tunes SET state='running', process='1 1 none'")


D = inject.disk
TABLE: tuple[Fault, ...] = (
    # candidates
    Fault("a kernel reads where nothing is", inject.candidate("segv"), status="crashed", budget=1.0),
    Fault("a kernel has an illegal instruction", inject.candidate("ill"), status="crashed", budget=1.0),
    Fault("a kernel aborts", inject.candidate("crash"), status="crashed", budget=1.0),
    Fault("a kernel is killed, time and again", inject.candidate("kill"), status="crashed", budget=1.0),
    Fault("a kernel ends its process in silence", inject.candidate("exit"), status="crashed", budget=1.0),
    Fault("a kernel hangs", inject.candidate("hang"), status="timeout", budget=1.0),
    Fault("a kernel crashes while it is timed", inject.candidate("late"), status="crashed", budget=1.0),
    Fault("a kernel hangs while it is timed", inject.candidate("late-hang"), status="timeout", budget=1.0),
    Fault("a kernel asks for all memory at once", inject.candidate("memory"), status="out-of-memory", budget=1.0),
    Fault("a kernel takes memory bit by bit", inject.candidate("greedy-memory"), status="out-of-memory", budget=1.0),
    Fault("a kernel gives wrong numbers", inject.candidate("wrong"), status="wrong", budget=1.0),
    Fault("a kernel gives NaN", inject.candidate("nan"), status="wrong", budget=1.0),
    Fault("a kernel writes nothing", inject.candidate("poison"), status="wrong", budget=1.0),
    Fault(
        "a kernel's numbers differ from run to run",
        inject.candidate("unstable"),
        status="wrong",
        budget=1.0,
        quick=True,
    ),
    Fault("a kernel loses NaN", inject.candidate("special"), budget=1.0),
    Fault("the compiler refuses a kernel", inject.candidate("compile"), status="compile-failed", budget=1.0),
    Fault("the worker answers garbage", inject.candidate("garbage"), status="crashed", budget=1.0, quick=True),
    Fault("the worker answers something else", inject.candidate("forged"), status="crashed", budget=1.0),
    # Nobody is to blame where all that was asked for was answered before: then it is asked again, and may be fine.
    Fault("the worker dies between messages", inject.candidate("dies-later"), budget=1.0),
    Fault("the worker is killed from outside, time and again", inject.worker_killed, budget=1.0),
    # the compiler
    Fault(
        "there is no compiler",
        inject.environment(CXX="/nowhere/g++", AUTOFUSE_CACHE="{folder}/empty"),
        1,
        "no C.. compiler was found.*CXX",
    ),
    Fault("the compiler vanishes half-way", inject.compiler("rm -f {wrapper}; exit 127", 9), says="", budget=1.0),
    Fault("the compiler fails half-way", inject.compiler("echo error: license expired >&2; exit 1", 9), budget=1.0),
    Fault(
        "the compiler never ends",
        inject.compiler("sleep 300 & while :; do :; done", 9, COMPILE_SECONDS=1.0),
        budget=1.0,
    ),
    Fault(
        "the compiler takes all memory",
        inject.compiler("exec tail -c 2G /dev/zero", 9, COMPILE_BYTES=600 << 20),
        budget=1.0,
    ),
    Fault("the compiler is killed once", inject.compiler("if [ $n = 4 ]; then kill -9 $$; fi", 0), budget=0.2),
    Fault(
        "the compiler gives no library",
        inject.compiler("while [ $1 != -o ]; do shift; done; echo no > $2; exit 0", 9),
        budget=1.0,
    ),
    # disks
    Fault("the kernel cache is full", D("new-cache"), says="kernel cache.*AUTOFUSE_CACHE", quick=True),
    Fault("the kernel cache fills up", D("new-cache", after=20), says="kernel cache.*AUTOFUSE_CACHE"),
    Fault("the kernel cache is read-only", D("new-cache", errno.EROFS), says="Read-only.*AUTOFUSE_CACHE"),
    Fault(
        "the results' disk is full",
        D("{folder}/results", after=4),
        1,
        "results cannot be written.*No space.*--output",
        quick=True,
    ),
    Fault("the results' folder is read-only", D("{folder}/results", errno.EROFS), 1, "Read-only.*--output"),
    Fault("the records' disk is full", inject.records_full, says="cannot be written.*AUTOFUSE_DATA", budget=1.0),
    Fault("the records are read-only", inject.records_read_only, says="readonly.*adds nothing", budget=0.2),
    Fault("the temporary folder is full", D("autofuse-scratch"), 1, "No space.*TMPDIR"),
    Fault(
        "the studies cannot be written",
        inject.environment(),
        says="--storage",
        budget=1.0,
        words=("--storage", "sqlite:////nowhere/at/all.db"),
    ),
    # records
    Fault("the records were cut short", inject.changed(_cut), says="damaged.*could be read", loses=True, quick=True),
    Fault("a page of the records is garbage", inject.changed(_page), says="damaged.*could be read", loses=True),
    Fault("the records are garbage", inject.changed(_garbage), says="damaged.*afresh", loses=True),
    Fault("the records are of something else", inject.changed(_foreign), says="damaged.*afresh", loses=True),
    Fault("a log was left beside the records", inject.changed(_wal)),
    Fault(
        "recorded rows are foreign",
        inject.sql("UPDATE measurements SET samples_ns='[-1, \"a\"]' WHERE rowid % 2 = 0"),
        budget=1.0,
    ),
    Fault(
        "a recorded calibration cannot be true",
        inject.sql("UPDATE measurements SET samples_ns='[1,1,1]' WHERE key='calibration:copy:1'"),
        says="cannot be true",
        budget=0.2,
    ),
    Fault(
        "recorded plans are foreign",
        inject.sql('UPDATE plans SET plan=\'{"format": 1, "regions": [7]}\''),
        says="plan in the records",
    ),
    Fault("the records are locked", inject.records_locked, says="locked", budget=1.0),
    Fault(
        "an earlier tune was killed",
        inject.changed(_running),
        says="cut short.*best plan is measured first",
        quick=True,
    ),
    # results
    Fault("a table of the results was cut short", inject.changed(_halve("trade_offs.parquet"))),
    Fault("the saved plan was cut short", inject.changed(_halve("plan.json")), says="saved plan could not be used"),
    Fault(
        "the saved plan is garbage",
        inject.changed(_write("plan.json", os.urandom(500))),
        says="saved plan could not be used",
    ),
    Fault(
        "the saved plan is of another model",
        inject.changed(_json("plan.json", lambda d: d.update(graph="0" * 64))),
        says="another model",
    ),
    Fault(
        "the saved plan has impossible schedules",
        inject.changed(_json("plan.json", _schedules)),
        says="previous best plan",
        quick=True,
    ),
    Fault(
        "the saved plan has impossible regions", inject.changed(_json("plan.json", _regions)), says="previous best plan"
    ),
    Fault("the results are of another tool", inject.changed(_write("run.json", b'{"format": "other"}'))),
    Fault("the writing of results was cut short", inject.changed(_cut_short)),
    # the cache
    Fault("compiled kernels were cut short", inject.changed(_library(lambda d: d[: len(d) // 2])), quick=True),
    Fault("compiled kernels are garbage", inject.changed(_library(lambda d: b"\x7fELF" + d[5:]))),
    Fault("compiled kernels are empty", inject.changed(_library(lambda d: b""))),
    # all the rest
    Fault("the clock goes backwards", inject.clock_backwards, budget=1.0),
    Fault("two tunes at once", inject.two_at_once, budget=1.0),
    Fault(
        "Ctrl-C before there is a plan",
        inject.signalled(signal.SIGINT, "preparing the reference"),
        130,
        "interrupted before there was a plan",
    ),
    Fault("Ctrl-C in the middle", inject.signalled(signal.SIGINT, "the device reaches"), 130, "best so far is kept"),
    Fault("Ctrl-C in the finals", inject.signalled(signal.SIGINT, "side by side"), 130, "best so far is kept"),
    Fault(
        "Ctrl-C while results are written",
        inject.signalled(signal.SIGINT, "", 2),
        130,
        "best so far is kept",
        quick=True,
    ),
    Fault("a request to end", inject.signalled(signal.SIGTERM, "the device reaches"), 130, "best so far is kept"),
    Fault("no memory in the middle", inject.out_of_memory_at("the device reaches"), says="ended before its time"),
    Fault("the terminal is closed", inject.terminal_gone),
    Fault("nobody reads the results", inject.reader_gone("out"), 141, quick=True, words=("--json",)),
    Fault("nobody reads the messages", inject.reader_gone("err"), 141, quick=True),
)


def outcome(fault: Fault, first: Scene, folder: Path) -> str:
    """What came of a fault: "" where all that must hold did."""
    try:
        run_fault(fault, first, folder)
    except AssertionError as e:
        return str(e) or "an assertion failed"
    except Exception as e:  # noqa: BLE001  a fault in autofuse, which the report shows
        return f"{type(e).__name__}: {e}"
    return ""


__all__ = ["TABLE", "Done", "Fault", "outcome", "run_fault"]
