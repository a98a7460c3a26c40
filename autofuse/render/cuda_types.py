"""Names of CUDA text: types and the dialect of its expressions."""

from __future__ import annotations

from autofuse.ir.dtype import DType
from autofuse.render.scalar import ScalarDialect

TYPES = {
    DType.FLOAT16: "af_half",
    DType.BFLOAT16: "af_bfloat",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.INT8: "signed char",
    DType.INT16: "short",
    DType.INT32: "int",
    DType.INT64: "long long",
    DType.UINT8: "unsigned char",
    DType.UINT16: "unsigned short",
    DType.UINT32: "unsigned int",
    DType.UINT64: "unsigned long long",
    DType.BOOL: "bool",
}
DIALECT = ScalarDialect(TYPES, "int")
