"""The list of cases that do not pass or that use the host, beside this file: reading it, holding outcomes to it, writing it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tests.suite.cases import KINDS, Case, Outcome

PATH = Path(__file__).with_name("exceptions.toml")

HEADER = """\
# What is not as it should be when onnx's backend suite runs on the CPU, a line a case.
#
# fails: the cases that do not pass, each with its reason. One that passes must leave the list, or the tests fail.
# drawn: the cases whose expected values are random and differ each time that onnx makes them: types and shapes must agree, the values
#        do so by chance at most. None of them counts as passed.
# host:  the cases that pass with the help of onnx's reference evaluator, each with the operators that ran there according to the
#        engines' launch logs. One that needs no host any more must leave the list too. At most `most_host` may stand here.
#
# After a change: python benchmarks/onnx_suite.py --device cpu --write-list
# It keeps the reasons that are here; a new failure gets its error message, to be replaced by the reason.
"""

VALUES_DIFFER = "Not equal to tolerance"
"""What numpy says where types and shapes agree and values do not."""

UNEXPLAINED = "unexplained: "
"""How the reason of a case begins that nobody has looked at."""

Table = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Exceptions:
    """By kind and name: the reason of each case that fails or is random, the operators of each that uses the host."""

    fails: Table
    drawn: Table
    host: Table
    most_host: int

    def complaint(self, case: Case, outcome: Outcome) -> str:
        """What the list has to say against an outcome; empty where they agree."""
        if case.name in self.drawn.get(case.kind, {}):
            return "" if not outcome.error or VALUES_DIFFER in outcome.error else f"fails: {outcome.error[:600]}"
        reason = self.fails.get(case.kind, {}).get(case.name)
        if outcome.error:
            return "" if reason is not None else f"fails: {outcome.error[:600]}"
        if reason is not None:
            return f"passes, but is listed as failing ({reason}): take it off the list"
        listed = self.host.get(case.kind, {}).get(case.name, "")
        found = ", ".join(outcome.host)
        if found == listed:
            return ""
        if not found:
            return f"needs no host any more, but is listed with {listed}: take it off the list"
        return f"runs on the host: {found}; listed is {listed or 'nothing'}"


@lru_cache(maxsize=1)
def read() -> Exceptions:
    """The list as it stands in the file."""
    table = tomllib.loads(PATH.read_text())
    return Exceptions(table.get("fails", {}), table.get("drawn", {}), table.get("host", {}), int(table["most_host"]))


def updated(old: Exceptions, outcomes: Iterable[tuple[Case, Outcome]]) -> Exceptions:
    """The list after the given outcomes; what is said of cases that did not run stays."""
    fails = {kind: dict(old.fails.get(kind, {})) for kind in KINDS}
    host = {kind: dict(old.host.get(kind, {})) for kind in KINDS}
    for case, outcome in outcomes:
        if case.name in old.drawn.get(case.kind, {}):
            continue
        reason = fails[case.kind].pop(case.name, None)
        host[case.kind].pop(case.name, None)
        if outcome.error:
            fails[case.kind][case.name] = reason or UNEXPLAINED + outcome.error[:160]
        elif outcome.host:
            host[case.kind][case.name] = ", ".join(outcome.host)
    return Exceptions(fails, old.drawn, host, old.most_host)


def text(e: Exceptions) -> str:
    """The file's contents: cases of one reason, or of the same operators on the host, stand together."""
    lines = [HEADER, f"most_host = {e.most_host}"]
    for title, table in (("fails", e.fails), ("drawn", e.drawn), ("host", e.host)):
        for kind in KINDS:
            rows = sorted((reason, name) for name, reason in table.get(kind, {}).items())
            if not rows:
                continue
            lines += ["", f'[{title}."{kind}"]']
            before = rows[0][0]
            for reason, name in rows:
                if reason != before:
                    lines.append("")
                lines.append(f"{name} = {_quoted(reason)}")
                before = reason
    return "\n".join(lines) + "\n"


def _quoted(reason: str) -> str:
    """A TOML basic string."""
    plain = "".join(c if c.isprintable() else " " for c in reason)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
