"""Element types: what is stored, what it is computed in, and its numpy counterpart.

The narrow types (floats of 8 bits and less, integers of 4 bits and less) are for storage alone: arithmetic on them is done in `compute`. In
memory each element has a byte of its own, in its low bits; ONNX's tensors pack them more tightly, and unpacking is the reader's work.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
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
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E4M3FNUZ = "float8e4m3fnuz"
    FLOAT8E5M2 = "float8e5m2"
    FLOAT8E5M2FNUZ = "float8e5m2fnuz"
    FLOAT8E8M0 = "float8e8m0"
    FLOAT6E2M3 = "float6e2m3"
    FLOAT6E3M2 = "float6e3m2"
    FLOAT4E2M1 = "float4e2m1"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type that stores it (those that numpy lacks through ml_dtypes, strings as objects)."""
        found = _EXTENSIONS.get(self)
        if found is not None:
            return found
        if self is DType.STRING:
            return np.dtype(object)
        return np.dtype(self.value)

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element."""
        return self.numpy.itemsize

    @property
    def bits(self) -> int:
        """Bits that a value takes where values are packed: its bytes, or less for the narrow types."""
        narrow = NARROW_FLOATS.get(self)
        if narrow is not None:
            return narrow.bits
        return NARROW_INTEGERS.get(self, 8 * self.itemsize)

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
    def is_half(self) -> bool:
        """Whether it is a float of 16 bits: stored so, and computed in float32."""
        return self in _HALVES

    @property
    def is_narrow(self) -> bool:
        """Whether it is a storage-only type: between kernels and within them its rounding is kept."""
        return self in _NARROW

    @property
    def has_zero(self) -> bool:
        """Whether zero is a value of the type, with all bits zero: not so for FLOAT8E8M0, which holds powers of two alone."""
        return self is not DType.FLOAT8E8M0

    @property
    def compute(self) -> DType:
        """The type in which arithmetic on it is done: half types and narrow floats compute in float32, narrow integers in int32."""
        return _COMPUTE.get(self, self)

    @property
    def min_value(self) -> float | int:
        """The least value: -inf for floats that have it; the identity of a maximum."""
        narrow = NARROW_FLOATS.get(self)
        if narrow is not None:
            return narrow.least
        if self.is_float:
            return float("-inf")
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def max_value(self) -> float | int:
        """The greatest value: +inf for floats that have it; the identity of a minimum."""
        narrow = NARROW_FLOATS.get(self)
        if narrow is not None:
            return float("inf") if narrow.has_infinity else narrow.largest
        if self.is_float:
            return float("inf")
        return 1 if self is DType.BOOL else (1 << (self.bits - self.is_signed)) - 1


class Specials(enum.StrEnum):
    """Which codes of a narrow float stand for no finite number, after the suffixes of its name."""

    NONE = "none"
    """All codes are numbers; what is too large becomes the largest (FLOAT4E2M1, FLOAT6*)."""
    FN = "fn"
    """All ones are NaN, with either sign; there is no infinity."""
    FNUZ = "fnuz"
    """What would be -0 is the only NaN; there is neither infinity nor a negative zero."""
    IEEE = "ieee"
    """The greatest exponent holds infinity and the NaNs."""


@dataclass(frozen=True)
class NarrowFloat:
    """The format of a narrow float: bits of exponent and mantissa, the exponent's bias, what is no number. FLOAT8E8M0 has no sign."""

    exponent: int
    mantissa: int
    bias: int
    specials: Specials
    signed: bool = True

    @property
    def bits(self) -> int:
        return self.signed + self.exponent + self.mantissa

    @property
    def has_infinity(self) -> bool:
        return self.specials is Specials.IEEE

    @property
    def top_code(self) -> int:
        """The code of the largest finite number."""
        ones = (1 << (self.exponent + self.mantissa)) - 1
        match self.specials:
            case Specials.FN:
                return ones - 1
            case Specials.IEEE:
                return ones - (1 << self.mantissa)
            case _:
                return ones

    @property
    def largest(self) -> float:
        """The largest finite number."""
        e, m = self.top_code >> self.mantissa, self.top_code & ((1 << self.mantissa) - 1)
        return float(2.0 ** (e - self.bias) * (1 + m / (1 << self.mantissa)))

    @property
    def least(self) -> float:
        """The least number: -inf where there is one, 2^-127 for FLOAT8E8M0."""
        if not self.signed:
            return float(2.0**-self.bias)
        return float("-inf") if self.has_infinity else -self.largest

    @property
    def precision(self) -> float:
        """The distance of neighbours over their magnitude, at most."""
        return float(2.0**-self.mantissa)


NARROW_FLOATS: dict[DType, NarrowFloat] = {
    DType.FLOAT8E4M3FN: NarrowFloat(4, 3, 7, Specials.FN),
    DType.FLOAT8E4M3FNUZ: NarrowFloat(4, 3, 8, Specials.FNUZ),
    DType.FLOAT8E5M2: NarrowFloat(5, 2, 15, Specials.IEEE),
    DType.FLOAT8E5M2FNUZ: NarrowFloat(5, 2, 16, Specials.FNUZ),
    DType.FLOAT8E8M0: NarrowFloat(8, 0, 127, Specials.FN, signed=False),
    DType.FLOAT6E2M3: NarrowFloat(2, 3, 1, Specials.NONE),
    DType.FLOAT6E3M2: NarrowFloat(3, 2, 3, Specials.NONE),
    DType.FLOAT4E2M1: NarrowFloat(2, 1, 1, Specials.NONE),
}
"""The floats of 8 bits and less (OCP's 8-bit and microscaling formats, and the fnuz forms of graphics processors)."""

NARROW_INTEGERS: dict[DType, int] = {DType.INT4: 4, DType.UINT4: 4, DType.INT2: 2, DType.UINT2: 2}
"""The integers of less than a byte, and their bits."""

_HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})
_NARROW = frozenset({*NARROW_FLOATS, *NARROW_INTEGERS})
_COMPUTE = {**dict.fromkeys((*_HALVES, *NARROW_FLOATS), DType.FLOAT32), **dict.fromkeys(NARROW_INTEGERS, DType.INT32)}
_FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, *NARROW_FLOATS})
_EXTENSIONS: dict[DType, np.dtype[Any]] = {
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DType.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    DType.FLOAT8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    DType.FLOAT6E2M3: np.dtype(ml_dtypes.float6_e2m3fn),
    DType.FLOAT6E3M2: np.dtype(ml_dtypes.float6_e3m2fn),
    DType.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
    DType.INT4: np.dtype(ml_dtypes.int4),
    DType.UINT4: np.dtype(ml_dtypes.uint4),
    DType.INT2: np.dtype(ml_dtypes.int2),
    DType.UINT2: np.dtype(ml_dtypes.uint2),
}
_BY_NUMPY = {t.numpy: t for t in DType if t is not DType.STRING}


def from_numpy(dtype: np.dtype) -> DType:
    """The DType that stores a numpy dtype; KeyError where there is none."""
    if dtype.kind in "OUST":
        return DType.STRING
    return _BY_NUMPY[dtype.newbyteorder("=")]
