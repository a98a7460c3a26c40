"""What the standard's tables say of casts to narrow floats, where the reference evaluator says something else or nothing."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from op_calls import numpy_run

from autofuse.ops.declare import Unsupported

F32, F64 = np.float32, np.float64
INF, NAN = np.inf, np.nan
LEAST = 2.0**-127

POWERS = {
    # the columns of the standard: "saturate + up", "non-saturate + nearest"; and what rounding down says beside them
    ("up", 1): {
        0.0: 0,
        NAN: 255,
        INF: 254,
        1.5 * 2.0**127: 254,
        2.0**127: 254,
        LEAST: 0,
        LEAST / 8: 0,
        1.5 * LEAST: 1,
        2 * LEAST: 1,
        1.0: 127,
        1.0 + 2.0**-23: 128,
        3.0: 129,
    },
    ("nearest", 0): {
        0.0: 255,
        NAN: 255,
        INF: 255,
        1.5 * 2.0**127: 255,
        1.25 * 2.0**127: 254,
        LEAST: 0,
        LEAST / 8: 255,
        1.25 * LEAST: 0,
        1.5 * LEAST: 1,
        1.0: 127,
        1.49: 127,
        1.5: 128,
        3.0: 129,
    },
    ("down", 1): {0.0: 0, NAN: 255, INF: 254, 1.9 * 2.0**127: 254, 1.5 * LEAST: 0, 1.99: 127, 2.0: 128},
}


def cast(x: np.ndarray, to: str, **attributes: object) -> np.ndarray:
    """The codes of x in another type."""
    code = TensorProto.DataType.Value(to)
    (made,), _ = numpy_run("Cast", "", 25, [x], {"to": code, **attributes}, [True], ())
    assert made is not None
    return made.view(f"u{made.itemsize}")


@pytest.mark.parametrize(("mode", "saturate"), POWERS)
def test_powers_of_two(mode: str, saturate: int) -> None:
    table = POWERS[mode, saturate]
    x = np.array(list(table), F32)
    found = cast(x, "FLOAT8E8M0", round_mode=mode, saturate=saturate)
    assert found.tolist() == list(table.values())
    assert cast(x.astype(F64), "FLOAT8E8M0", round_mode=mode, saturate=saturate).tolist() == found.tolist()


def test_a_mode_that_there_is_not() -> None:
    with pytest.raises(Unsupported, match="down"):
        cast(np.ones(1, F32), "FLOAT8E8M0", round_mode="sideways")


EDGES = np.array([0.0, -0.0, NAN, INF, -INF, 1e9, -1e9], F32)


@pytest.mark.parametrize(
    ("to", "saturating", "other"),
    [
        ("FLOAT8E4M3FN", [0x00, 0x80, 0x7F, 0x7E, 0xFE, 0x7E, 0xFE], [0x00, 0x80, 0x7F, 0x7F, 0xFF, 0x7F, 0xFF]),
        ("FLOAT8E4M3FNUZ", [0x00, 0x00, 0x80, 0x7F, 0xFF, 0x7F, 0xFF], [0x00, 0x00, 0x80, 0x80, 0x80, 0x80, 0x80]),
        ("FLOAT8E5M2", [0x00, 0x80, 0x7E, 0x7B, 0xFB, 0x7B, 0xFB], [0x00, 0x80, 0x7E, 0x7C, 0xFC, 0x7C, 0xFC]),
        ("FLOAT8E5M2FNUZ", [0x00, 0x00, 0x80, 0x7F, 0xFF, 0x7F, 0xFF], [0x00, 0x00, 0x80, 0x80, 0x80, 0x80, 0x80]),
    ],
)
def test_eight_bit_floats_at_their_edges(to: str, saturating: list[int], other: list[int]) -> None:
    """The two tables of Cast; CastLike and QuantizeLinear by 1 say the same."""
    assert cast(EDGES, to).tolist() == saturating
    assert cast(EDGES, to, saturate=0).tolist() == other
    kind = np.zeros((), np.uint8).view(_dtype(to))
    for op, inputs in (("CastLike", [EDGES, kind]), ("QuantizeLinear", [EDGES, np.ones((), F32), kind])):
        for saturate, want in ((1, saturating), (0, other)):
            (made,), _ = numpy_run(op, "", 25, inputs, {"saturate": saturate}, [True], ())
            assert made is not None and made.view(np.uint8).tolist() == want, op


def _dtype(name: str) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name))


def test_the_type_is_named_by_a_text_below_opset_6() -> None:
    (made,), _ = numpy_run("Cast", "", 5, [np.array([1.5, -2.5], F32)], {"to": "INT32"}, [True], ())
    assert made is not None and made.dtype == np.int32 and made.tolist() == [1, -2]
    (made,), _ = numpy_run("Cast", "", 5, [np.array([1.5], F32)], {"to": "DOUBLE"}, [True], ())
    assert made is not None and made.dtype == F64


@pytest.mark.parametrize(("source", "to"), [("float32", "INT64"), ("float16", "FLOAT"), ("uint8", "INT4")])
def test_bits_of_another_size_are_refused(source: str, to: str) -> None:
    with pytest.raises(Unsupported, match="bits"):
        numpy_run("BitCast", "", 26, [np.ones(2, source)], {"to": TensorProto.DataType.Value(to)}, [True], ())
