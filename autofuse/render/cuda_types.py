"""Names of CUDA text: types, the dialect of its expressions, and identifiers."""

from __future__ import annotations

import re

from autofuse.ir.dtype import NARROW_FLOATS, NARROW_INTEGERS, DType
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
    **{t: f"af_{t.value}" for t in (*NARROW_FLOATS, *NARROW_INTEGERS)},
}
DIALECT = ScalarDialect(TYPES, "int")

_KEYWORDS = """
alignas alignof and asm auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern
false float for friend goto if inline int long mutable namespace new not operator or private protected public register return short signed
sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while xor
threadIdx blockIdx blockDim gridDim exp log sin cos tan erf pow floor ceil abs sqrt min max round
"""
_RESERVED = frozenset(_KEYWORDS.split())


class Identifiers:
    """C identifiers, each given out once."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._counters: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """The given name where it is one and still free, else one like it."""
        clean = re.sub(r"\W", "_", base, flags=re.ASCII)
        if not clean or clean[0].isdigit() or clean in _RESERVED or clean.startswith(("af_", "AF_", "_")):
            clean = f"v_{clean}"
        name = clean
        while name in self._used:
            self._counters[clean] = self._counters.get(clean, 1) + 1
            name = f"{clean}_{self._counters[clean]}"
        self._used.add(name)
        return name

    def numbered(self, base: str) -> str:
        """base0, base1, ..."""
        self._counters[base] = self._counters.get(base, -1) + 1
        return self.fresh(f"{base}{self._counters[base]}")
