"""The operator table: what it says follows from the declarations, and the documentation says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import defs

from autofuse.api.operators import CONTROL, DEFINITION, HOST, KERNELS, OperatorRow, markdown, operator_table
from autofuse.ops.table import OPERATORS

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], OperatorRow]:
    return {(r.domain, r.name): r for r in operator_table()}


def test_every_operator_of_the_standard_has_a_row(rows: dict[tuple[str, str], OperatorRow]) -> None:
    assert {(s.domain or "ai.onnx", s.name) for s in defs.get_all_schemas()} <= set(rows)
    declared = {(domain or "ai.onnx", name) for domain, name in OPERATORS}
    assert declared == {key for key, r in rows.items() if r.runs == KERNELS}


def test_rows_say_what_is_so(rows: dict[tuple[str, str], OperatorRow]) -> None:
    relu = rows["ai.onnx", "Relu"]
    assert relu.since == 1 and {"float16", "bfloat16", "float32", "float64", "int32"} <= set(relu.types)
    assert "bool" not in relu.types and "uint8" not in relu.types
    assert "map" in relu.kernels and {"map", "reduce", "contract"} <= set(relu.fuses)
    assert "contract" in rows["ai.onnx", "MatMul"].kernels
    assert rows["ai.onnx", "Gelu"].since == 20
    assert "scan" in rows["ai.onnx", "LSTM"].kernels and rows["ai.onnx", "LSTM"].fuses == ()
    assert rows["ai.onnx", "NonMaxSuppression"].runs == HOST
    assert rows["ai.onnx", "If"].runs == CONTROL
    attention = rows["ai.onnx", "Attention"]
    assert attention.runs == KERNELS or (attention.runs == DEFINITION and "MatMul" in attention.parts)


def test_the_page_is_what_the_command_writes(rows: dict[tuple[str, str], OperatorRow]) -> None:
    written = markdown(list(rows.values()))
    assert PAGE.read_text() == written, "stale: autofuse doctor --ops --markdown > docs/operators.md"
