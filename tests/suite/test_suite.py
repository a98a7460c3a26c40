"""onnx's backend suite through autofuse's backend: what does not pass, and what uses the host, is what the list says."""

from __future__ import annotations

from collections import Counter

import pytest

from autofuse.devices.base import Compiled, Device
from autofuse.devices.emulated import EmulatedCudaDevice
from tests.suite import exceptions
from tests.suite.cases import KINDS, Case, Outcome, all_cases, part_of, run_case
from tests.suite.exceptions import Exceptions

PARTS = 40
"""Test items that the small cases are dealt out to: enough for two workers to end together."""

EMULATED_PARTS = 12
EMULATED_SHARE = 3
"""Every third node case runs under emulation too; `benchmarks/onnx_suite.py --device cuda-emulated` runs all of them."""

NETWORKS = 9


def small() -> list[Case]:
    """The cases that take a moment: all but the networks."""
    return [c for c in all_cases() if c.kind != "real"]


@pytest.mark.parametrize("part", range(PARTS))
def test_cases_on_the_cpu(part: int, cpu: Device) -> None:
    check(part_of(small(), part, PARTS), cpu)


@pytest.mark.parametrize("number", range(NETWORKS))
def test_networks_on_the_cpu(number: int, cpu: Device) -> None:
    networks = [c for c in all_cases() if c.kind == "real"]
    assert len(networks) == NETWORKS
    check(networks[number : number + 1], cpu)


def check(cases: list[Case], device: Device) -> None:
    """Every outcome is the one that the list promises; the message names each case that differs."""
    known = exceptions.read()
    complaints = {c.name: known.complaint(c, run_case(c, device)) for c in cases}
    wrong = [f"{name} {text}" for name, text in complaints.items() if text]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", range(EMULATED_PARTS))
def test_a_third_under_emulation(part: int) -> None:
    """What has kernels and passes on the CPU passes as CUDA text as well, and NVRTC accepts each kernel for sm_90."""
    device = EmulatedCudaDevice("sm_90")
    known = exceptions.read()
    wrong: list[str] = []
    for case in part_of(part_of(small(), 0, EMULATED_SHARE), part, EMULATED_PARTS):
        if any(case.name in table.get(case.kind, {}) for table in (known.fails, known.drawn)):
            continue
        outcome = run_case(case, device)
        if outcome.error:
            wrong.append(f"{case.name} fails: {outcome.error[:600]}")
        for made in device.nvrtc_check(outcome.kernels, ["sm_90"])["sm_90"]:
            if not isinstance(made, Compiled):
                wrong.append(f"{case.name}: {made}")
    assert not wrong, "\n".join(wrong)


def test_the_list_names_cases_that_exist_and_says_why() -> None:
    known = exceptions.read()
    names = {kind: {c.name for c in all_cases() if c.kind == kind} for kind in KINDS}
    for table in (known.fails, known.drawn, known.host):
        assert set(table) <= set(KINDS)
        gone = [name for kind, rows in table.items() for name in rows if name not in names[kind]]
        assert not gone, f"listed, but not in onnx's suite: {gone}"
    reasons = [(name, reason) for rows in known.fails.values() for name, reason in rows.items()]
    unexplained = [name for name, reason in reasons if not reason or reason.startswith(exceptions.UNEXPLAINED)]
    assert not unexplained, f"these fail without a reason in {exceptions.PATH.name}: {unexplained}"
    assert exceptions.PATH.read_text() == exceptions.text(known), "write the list with onnx_suite.py --write-list"


def test_few_cases_use_the_host() -> None:
    known = exceptions.read()
    operators = Counter(op for rows in known.host.values() for ops in rows.values() for op in ops.split(", "))
    count = sum(len(rows) for rows in known.host.values())
    assert count <= known.most_host, f"{count} cases use the host: {operators.most_common()}"


def test_each_way_to_differ_from_the_list_is_told() -> None:
    case = next(c for c in all_cases() if c.name == "test_add")
    listed = {"node": {"test_add": "Add"}}
    nothing, fails = Exceptions({}, {}, {}, 0), Exceptions(listed, {}, {}, 0)
    drawn, host = Exceptions({}, listed, {}, 0), Exceptions({}, {}, listed, 0)
    good, hosted = Outcome(""), Outcome("", ("Add",))
    values, crash = Outcome(f"AssertionError: {exceptions.VALUES_DIFFER}"), Outcome("LaunchError: it fell over")
    assert not nothing.complaint(case, good)
    assert "it fell over" in nothing.complaint(case, crash) and "Add" in nothing.complaint(case, hosted)
    assert not fails.complaint(case, crash) and "off the list" in fails.complaint(case, good)
    assert not drawn.complaint(case, values) and not drawn.complaint(case, good) and drawn.complaint(case, crash)
    assert not host.complaint(case, hosted) and "off the list" in host.complaint(case, good)
    assert exceptions.updated(fails, [(case, good)]).fails["node"] == {}
    assert exceptions.updated(host, [(case, good)]).host["node"] == {}
    new = exceptions.updated(nothing, [(case, crash)]).fails["node"]["test_add"]
    assert new.startswith(exceptions.UNEXPLAINED)
