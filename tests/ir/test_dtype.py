"""Element types: their numbers are those of the libraries that store them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from autofuse.importer.binding import element_type, onnx_type
from autofuse.ir.dtype import NARROW_FLOATS, NARROW_INTEGERS, DType, from_numpy


@pytest.mark.parametrize("dtype", [t for t in DType if t is not DType.STRING])
def test_numpy_and_onnx_know_every_type(dtype: DType) -> None:
    assert from_numpy(dtype.numpy) is dtype
    assert element_type(onnx_type(dtype)) is dtype


def test_every_number_of_the_standard_but_complex_ones_is_a_type() -> None:
    unknown = {name for name, code in TensorProto.DataType.items() if element_type(code) is None}
    assert unknown == {"UNDEFINED", "COMPLEX64", "COMPLEX128"}


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_formats_of_narrow_floats(dtype: DType) -> None:
    info, narrow = ml_dtypes.finfo(dtype.numpy), NARROW_FLOATS[dtype]
    assert narrow.largest == float(info.max)
    assert narrow.bits == dtype.bits == info.bits
    top = np.array([narrow.top_code], np.uint8).view(dtype.numpy)
    assert float(top[0]) == narrow.largest
    assert narrow.has_infinity == bool(
        np.isinf(np.array([np.inf], np.float32).astype(dtype.numpy).astype(np.float32))[0]
    )
    assert dtype.compute is DType.FLOAT32 and dtype.is_narrow and dtype.is_float and not dtype.is_integer
    zero = np.zeros(1, np.uint8).view(dtype.numpy)
    assert dtype.has_zero == (float(zero[0]) == 0)


@pytest.mark.parametrize("dtype", NARROW_INTEGERS)
def test_ranges_of_narrow_integers(dtype: DType) -> None:
    info = ml_dtypes.iinfo(dtype.numpy)
    assert (dtype.min_value, dtype.max_value) == (int(info.min), int(info.max))
    assert dtype.max_value - dtype.min_value + 1 == 1 << dtype.bits
    assert dtype.is_signed == (dtype.min_value < 0) and dtype.compute is DType.INT32
