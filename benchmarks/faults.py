"""Faults and kills: whatever happens to a tune, it ends or resumes with a valid best plan, and nothing that was recorded is lost.

    python benchmarks/faults.py [--only WORD] [--kills 30] [--seconds 900] [--seed 0]

All faults of tests/faults/table.py first, each in a tune of a small model, then kill -9 of the tune itself, its worker or a compiler at random
moments. `--seconds` bounds the whole: what is left out then is said, and the exit code is 1. On two quiet cores all takes about six minutes.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.faults.scene import Scene, copied, first_scene, kill_one, sound
from tests.faults.table import TABLE, outcome

ROLES = ("tune", "worker", "compiler")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory(prefix="autofuse-faults-") as folder:
        base = Path(folder)
        first = first_scene(base / "first")
        wrong, done, all_of_them = faults(first, base, given.only, end)
        killed, found = kills(first, base, given.kills, random.Random(given.seed), end)
    print(
        f"{done} of {all_of_them} faults, {sum(killed.values())} of {given.kills} kills ({dict(killed)}): {wrong + found} went wrong"
    )
    sys.exit(1 if wrong + found or done < all_of_them or sum(killed.values()) < given.kills else 0)


def faults(first: Scene, base: Path, only: str, end: float) -> tuple[int, int, int]:
    """Run the faults; how many went wrong, how many were run, how many there are."""
    chosen = [f for f in TABLE if only in f.name]
    wrong = done = 0
    for k, fault in enumerate(chosen):
        if time.monotonic() > end:
            break
        start = time.monotonic()
        said = outcome(fault, first, base / f"fault-{k}")
        done += 1
        wrong += bool(said)
        print(f"{fault.name}: {said or 'as it must be'} ({time.monotonic() - start:.1f} s)", flush=True)
    return wrong, done, len(chosen)


def kills(first: Scene, base: Path, count: int, generator: random.Random, end: float) -> tuple[Counter[str], int]:
    """Kill processes; how many of each kind were killed, and after how many something was not as it must be."""
    killed: Counter[str] = Counter()
    wrong = 0
    for k in range(count):
        if time.monotonic() > end:
            break
        scene = copied(first, base / f"kill-{k}")
        wanted = ROLES[k % len(ROLES)]
        fresh = wanted == "compiler" or generator.random() < 0.5  # compilers run only where nothing is compiled yet
        scene.environment = {"AUTOFUSE_CACHE": str(scene.folder / "empty")} if fresh else {}
        after = generator.uniform(0.3, 3.0 if wanted == "compiler" else 6.0)
        try:
            what, said = killed_once(scene, wanted, after)
            killed[what] += 1
        except Exception as e:  # noqa: BLE001  whatever it is, the report shows it
            killed["error"] += 1
            what, said = wanted, f"{type(e).__name__}: {e}"
        wrong += bool(said)
        print(f"kill -9 of the {what} after {after:.1f} s: {said or 'the next tune carried on'}", flush=True)
    return killed, wrong


def killed_once(scene: Scene, wanted: str, after: float) -> tuple[str, str]:
    """Kill a process of a tune, then tune again; what was killed, and what is wrong ("" where nothing is)."""
    before = scene.rows()
    what, code, said = kill_one(scene, wanted, after, 4.0)
    if what != "tune" and code != 0:
        return what, f"the tune ended with exit code {code}: {said[-300:]}"
    scene.check_records()
    between = scene.rows()
    if not before.keys() <= between.keys():
        return what, "rows were lost"
    scene.check_best()
    again = scene.tune(0.05)
    sound(again)
    if again.code != 0:
        return what, f"the next tune ended with exit code {again.code}: {again.err[-300:]}"
    if not between.keys() <= scene.rows().keys():
        return what, "rows were lost by the next tune"
    scene.check_best()
    # Killed before it had begun, or when it had ended, there is nothing to say.
    if (
        code == -9
        and "[" in said
        and "results:" not in said
        and "cut short" not in scene.notes()
        and "preparing" in said
    ):
        return what, "the next tune did not say that one was cut short"
    return what, ""


if __name__ == "__main__":
    main()
