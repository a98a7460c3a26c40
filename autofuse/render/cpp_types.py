"""Names and values of host C++ text."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from autofuse.ir.dtype import NARROW_FLOATS, NARROW_INTEGERS, DType
from autofuse.ir.expr import Const, Var
from autofuse.ops.interpret import convert
from autofuse.render.scalar import ScalarDialect, literal

TYPES = {
    DType.FLOAT16: "uint16_t",  # its bits
    DType.BFLOAT16: "uint16_t",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.INT8: "int8_t",
    DType.INT16: "int16_t",
    DType.INT32: "int32_t",
    DType.INT64: "int64_t",
    DType.UINT8: "uint8_t",
    DType.UINT16: "uint16_t",
    DType.UINT32: "uint32_t",
    DType.UINT64: "uint64_t",
    DType.BOOL: "bool",
    **dict.fromkeys((*NARROW_FLOATS, *NARROW_INTEGERS), "uint8_t"),  # their bits
}
CODED = {DType.FLOAT16: "half", DType.BFLOAT16: "bfloat", **{t: t.value for t in (*NARROW_FLOATS, *NARROW_INTEGERS)}}
"""Types whose values are bits that the prelude converts, and what its functions call them: af_half_to_float, af_int_to_int4."""
HOST = ScalarDialect(TYPES, "int64_t")


def stored(dtype: DType) -> str:
    """The C type of an element in memory: booleans are bytes."""
    return "uint8_t" if dtype is DType.BOOL else TYPES[dtype]


def vector_type(dtype: DType, lanes: int, mask: int = 0) -> str:
    """The C type of a vector; of booleans it is a mask of integers of `mask` bytes."""
    return f"vec<int{8 * mask}_t, {lanes}>" if dtype is DType.BOOL else f"vec<{TYPES[dtype]}, {lanes}>"


@dataclass(frozen=True)
class Value:
    """The text of a value. `mask` is the bytes of a mask's elements where it is a vector of booleans."""

    text: str
    vector: bool = False
    mask: int = 0


@dataclass(frozen=True)
class Mode:
    """Where a value is wanted: `lane` None outside of vector loops; `element`: for the one lane that is numbered l."""

    lane: Var | None
    element: bool = False

    @property
    def lanes(self) -> int:
        return (self.lane.extent or 1) if self.lane is not None else 1


SCALAR = Mode(None)


def constant(c: Const) -> str:
    """A literal; half and narrow types as their bits."""
    if c.dtype in CODED:
        kind = TYPES[c.dtype]
        with np.errstate(over="ignore"):
            bits = int(convert(c.value, c.dtype).view(kind.removesuffix("_t")))
        return f"({kind}){bits:#x}"
    text = literal(c.value, c.dtype, HOST)
    return f"({text})" if text.startswith(("-", "(")) else text


class Namer:
    """Gives unique C identifiers."""

    def __init__(self) -> None:
        self.taken = {"args", "begin", "end", "scratch", "l"}

    def fresh(self, wanted: str) -> str:
        """An identifier like `wanted` that was not given yet."""
        base = re.sub(r"\W", "_", wanted)
        if not base or not base[0].isalpha() or base.startswith("af_") or base in _KEYWORDS:
            base = f"v_{base}"
        name, k = base, 1
        while name in self.taken:
            k += 1
            name = f"{base}_{k}"
        self.taken.add(name)
        return name


_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr continue decltype
default delete do double else enum explicit export extern false float for friend goto if inline int long mutable
namespace new not not_eq nullptr operator or or_eq private protected public register return short signed sizeof static
struct switch template this throw true try typedef typeid typename union unsigned using vec virtual void volatile while
xor xor_eq
"""
_KEYWORDS = frozenset(_WORDS.split())
