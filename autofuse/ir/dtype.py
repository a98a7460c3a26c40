"""Element types: what is stored, what it is computed in, and its numpy counterpart."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np


class DType(enum.StrEnum):
    """The element type of a tensor or of a scalar expression."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    STRING = "string"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type that stores it (bfloat16 through ml_dtypes, strings as objects)."""
        if self is DType.BFLOAT16:
            found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return found
        if self is DType.STRING:
            return np.dtype(object)
        return np.dtype(self.value)

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        return self not in _FLOATS and self not in (DType.BOOL, DType.STRING)

    @property
    def is_signed(self) -> bool:
        return self.is_float or self.value.startswith("int")

    @property
    def compute(self) -> DType:
        """The type in which arithmetic on it is done: half types compute in float32."""
        return DType.FLOAT32 if self in (DType.FLOAT16, DType.BFLOAT16) else self

    @property
    def min_value(self) -> float | int:
        """The least value: -inf for floats; the identity of a maximum."""
        if self.is_float:
            return float("-inf")
        return 0 if self is DType.BOOL else int(np.iinfo(self.numpy).min)

    @property
    def max_value(self) -> float | int:
        """The greatest value: +inf for floats; the identity of a minimum."""
        if self.is_float:
            return float("inf")
        return 1 if self is DType.BOOL else int(np.iinfo(self.numpy).max)


_FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
_BY_NUMPY = {t.numpy: t for t in DType if t is not DType.STRING}


def from_numpy(dtype: np.dtype) -> DType:
    """The DType that stores a numpy dtype; KeyError where there is none."""
    if dtype.kind in "OUST":
        return DType.STRING
    return _BY_NUMPY[dtype.newbyteorder("=")]
