"""Expressions of flattened host kernels as C++ text.

A value is wanted in one of three modes: as a scalar, as a vector of all lanes, or for one lane inside a per-lane lambda (which is how
gathers and other addresses that no vector load fits are written). Subexpressions that do not depend on the lane are scalars in
every mode. What is used more than once is bound to a temporary, so that text does not grow with the paths through the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from autofuse.errors import VerificationError
from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Apply, Const, Expr, Load, Var, apply, cast_to, children, const
from autofuse.loops.ir import Buffer, Scope
from autofuse.render.cpp_flatten import Register, lane_variable
from autofuse.render.cpp_functions import named_function, scalar_cast, with_plain_power
from autofuse.render.cpp_types import CODED, HOST, SCALAR, TYPES, Mode, Value, constant, stored, vector_type
from autofuse.render.cpp_vector import vector_apply
from autofuse.render.cpp_widths import Property, loading, loads_below, position_property, unknown, value_nodes
from autofuse.render.scalar import INFIX, narrow, never_negative

_DEEP = 24  # an expression is bound at every so many levels: compilers limit how deep parentheses nest


@dataclass
class Frame:
    """A block of C++ that is being written, and what is bound in it. `element`: it is a per-lane lambda."""

    element: bool = False
    lines: list[str] = field(default_factory=list)
    bound: dict[Expr, Value] = field(default_factory=dict)


class ExpressionWriter:
    """Writes expressions into the current frame."""

    def __init__(self, kept: Mapping[Buffer, Register], names: dict[Buffer, str], temporary: Iterable[str]) -> None:
        self.kept = kept
        self.buffers = names
        self.temporary = iter(temporary)
        self.variables: dict[Var, Value] = {}
        self.frames: list[Frame] = [Frame()]
        self.counts: Counter[Expr] = Counter()
        self.lane_variables = {v for k in range(1, 9) if (v := lane_variable(1 << k)) is not None}
        self.depends = Property(lambda e: isinstance(e, Var) and e in self.lane_variables)
        self.is_position = position_property()
        self.loads_memory = loading()
        self.read: dict[Expr, frozenset[Hashable]] = {}
        self.unguarded = 0  # above 0: inside of what a guard protects, so loads may not be moved out
        self.depths: dict[Expr, int] = {}
        self.splits: dict[tuple[Expr, Var], tuple[int | None, Expr]] = {}

    # ---- wanting values

    def scalar(self, e: Expr) -> str:
        """The text of an expression outside of any vector loop."""
        return self.value(e, SCALAR).text

    def vector(self, e: Expr, mode: Mode, mask: int = 0) -> str:
        """The text of an expression as a vector of all lanes (for booleans: a mask of `mask` bytes an element)."""
        return self.as_vector(self.value(e, mode), e.dtype, mode, mask)

    def as_vector(self, v: Value, dtype: DType, mode: Mode, mask: int = 0) -> str:
        """A value as a vector, a mask in the width that is wanted."""
        kind = vector_type(dtype, mode.lanes, mask)
        if not v.vector:
            return f"af_splat<{kind}>({'-(int)' if dtype is DType.BOOL else ''}{v.text})"
        return v.text if v.mask == mask else f"af_convert<{kind}>({v.text})"

    def element(self, e: Expr, mode: Mode) -> tuple[list[str], str]:
        """The statements and the text that give an expression's value in lane l."""
        self.frames.append(Frame(element=True))
        text = self.value(e, Mode(mode.lane, element=True)).text
        return self.frames.pop().lines, text

    def gathered(self, kind: str, e: Expr, mode: Mode, sign: str = "") -> str:
        """A vector whose lanes are computed one by one."""
        lines, text = self.element(e, mode)
        return f"af_lanes<{kind}>([&](int64_t l) {{ {' '.join([*lines, f'return {sign}({text});'])} }})"

    def value(self, e: Expr, mode: Mode) -> Value:
        """The value of an expression, bound to a temporary where it is used again."""
        if isinstance(e, Const):
            return Value(constant(e))
        varies = mode.lane is not None and self.depends(e)
        if not varies:
            mode = SCALAR
        if isinstance(e, Var):
            return self._variable(e, mode)
        frame = next(f for f in reversed(self.frames) if f.element is mode.element)
        found = self._bound(e, frame)
        if found is not None:
            return found
        self._flatten_deep(e, mode)
        v = self._load(e, mode) if isinstance(e, Load) else self._apply(e, mode)
        if not self._worth_binding(e):
            return v
        name = next(self.temporary)
        kind = vector_type(e.dtype, mode.lanes, v.mask) if v.vector else TYPES[e.dtype]
        frame.lines.append(f"const {kind} {name} = {v.text};")
        frame.bound[e] = Value(name, v.vector, v.mask)
        return frame.bound[e]

    def _bound(self, e: Expr, frame: Frame) -> Value | None:
        if frame.element:
            return frame.bound.get(e)
        return next((f.bound[e] for f in reversed(self.frames) if not f.element and e in f.bound), None)

    def _worth_binding(self, e: Expr) -> bool:
        if isinstance(e, Load) and isinstance(e.source, Buffer) and self._register_width(e.source):
            return False
        if self.unguarded and self.loads_memory(e):
            return False
        return self.counts[e] > 1 or self._depth(e) % _DEEP == 0

    def _depth(self, root: Expr) -> int:
        depths = self.depths
        if root not in depths:
            for e in unknown(root, depths):
                depths[e] = 1 + max((depths[c] for c in children(e)), default=0)
        return depths[root]

    def _flatten_deep(self, root: Expr, mode: Mode) -> None:
        """Bind the lower parts of a deep expression first, so that writing it needs little of Python's stack."""
        if self._depth(root) <= 2 * _DEEP or self.unguarded:
            return
        inner = [e for e in value_nodes(root, self.is_position) if self._depth(e) % _DEEP == 0 and e is not root]
        for e in sorted(inner, key=self._depth):
            self.value(e, mode)

    def _variable(self, v: Var, mode: Mode) -> Value:
        if v is mode.lane:
            return Value("l") if mode.element else Value(self._positions(v, mode), vector=True)
        known = self.variables.get(v)
        if known is None:
            raise VerificationError(f"variable {v.name} is used where it is not defined")
        if known.vector and mode.element:
            return Value(f"({known.text}[l] != 0)" if v.dtype is DType.BOOL else f"{known.text}[l]")
        return known

    def _positions(self, e: Expr, mode: Mode) -> str:
        return self.gathered(vector_type(INDEX, mode.lanes), e, mode)

    # ---- counting, and forgetting what a store changes

    def count(self, roots: Iterable[Expr]) -> Counter[Expr]:
        """How often each subexpression is used by the roots and by one another."""
        counts: Counter[Expr] = Counter()
        seen: set[Expr] = set()
        for root in roots:
            counts[root] += 1
            stack = [root]
            while stack:
                e = stack.pop()
                if e not in seen:
                    seen.add(e)
                    below = children(e)
                    for c in below:
                        counts[c] += 1
                    stack += below
        return counts

    def forget(self, buffer: Buffer) -> None:
        """Drop what was computed from a buffer that is written now."""
        for f in self.frames:
            stale = [e for e in f.bound if self._reads(e, buffer)]
            for e in stale:
                del f.bound[e]

    def _reads(self, e: Expr, buffer: Buffer) -> bool:
        found = self.read.get(e)
        if found is None:
            found = self.read[e] = frozenset(x.source for x in loads_below(e, self.loads_memory))
        return buffer in found

    # ---- loads

    def _register_width(self, buffer: Buffer) -> int:
        kept = self.kept.get(buffer)
        return kept.width if kept is not None and buffer.scope is Scope.REGISTER else 0

    def split(self, offset: Expr, mode: Mode) -> tuple[int | None, Expr]:
        """(step, base) of an offset that is base + step * lane; step None where it is no such sum."""
        if mode.lane is None or not self.depends(offset):
            return 0, offset
        found = self.splits.get((offset, mode.lane))
        if found is None:
            found = self.splits[offset, mode.lane] = self._split(offset, mode.lane)
        return found

    def _split(self, offset: Expr, lane: Var) -> tuple[int | None, Expr]:
        step = dict(ix.terms(offset)[0]).get(lane, 0)
        base = ix.sub(offset, ix.mul(lane, step))
        return (None, offset) if self.depends(base) else (step, base)

    def register(self, buffer: Buffer, offset: Expr, mode: Mode) -> Value:
        """A register buffer's variable, or the lane of it, at a constant offset."""
        width = self._register_width(buffer)
        step, base = self.split(offset, mode)
        if not isinstance(base, Const):
            raise VerificationError(f"register buffer {buffer.name} is indexed by {base}")
        name, at = self.buffers[buffer], int(base.value)
        if width == 1:
            return Value(f"{name}_{at}")
        whole = f"{name}_{at // width}"
        if step == 1 and not mode.element:
            return Value(whole, vector=True, mask=1 if buffer.dtype is DType.BOOL else 0)
        lane = f"{whole}[{'l' if step == 1 else at % width}]"
        return Value(f"({lane} != 0)" if buffer.dtype is DType.BOOL else lane)

    def _load(self, e: Load, mode: Mode) -> Value:
        buffer = e.source
        assert isinstance(buffer, Buffer)
        if self._register_width(buffer):
            return self.register(buffer, e.index[0], mode)
        if mode.lane is None or mode.element:
            return Value(self._scalar_load(e, buffer, mode))
        sure, lanewise = self.conjuncts(e.guard, mode)
        step, base = self.split(e.index[0], mode)
        bool_or_not = 1 if e.dtype is DType.BOOL else 0
        if step not in (0, 1) and not (step == 2 and lanewise is None and mode.lanes > 1):
            kind = vector_type(e.dtype, mode.lanes, bool_or_not)
            return Value(self.gathered(kind, e, mode, "-" if bool_or_not else ""), vector=True, mask=bool_or_not)
        kind = f"vec<{stored(e.dtype)}, {mode.lanes}>"
        fill = constant(const(e.fill if e.fill is not None else 0, e.dtype))
        if bool_or_not:
            fill = "1" if e.fill else "0"
        guarded = e.guard is not None
        self.unguarded += guarded
        address = f"{self.buffers[buffer]} + {self.scalar(base)}"
        self.unguarded -= guarded
        if lanewise is None:
            how = "af_load" if step == 1 else "af_load_even"
            text = f"{how}<{stored(e.dtype)}, {mode.lanes}>({address})"
        else:
            mask = self.vector(lanewise, mode, e.dtype.itemsize)
            how = "masked" if step == 1 else "shared"
            text = f"af_load_{how}<{stored(e.dtype)}, {mode.lanes}>({address}, {mask}, {fill})"
        if sure is not None:
            text = f"({self.scalar(sure)} ? {text} : af_splat<{kind}>({fill}))"
        return Value(f"({text} != 0)" if bool_or_not else text, vector=True, mask=bool_or_not)

    def _scalar_load(self, e: Load, buffer: Buffer, mode: Mode) -> str:
        self.unguarded += e.guard is not None
        text = f"{self.buffers[buffer]}[{self.value(e.index[0], mode).text}]"
        self.unguarded -= e.guard is not None
        if e.dtype is DType.BOOL:
            text = f"({text} != 0)"
        if e.guard is None:
            return text
        fill = constant(const(e.fill if e.fill is not None else 0, e.dtype))
        return f"({self.value(e.guard, mode).text} ? {text} : {fill})"

    def conjuncts(self, guard: Expr | None, mode: Mode) -> tuple[Expr | None, Expr | None]:
        """A guard as the part that is the same for all lanes and the part that is not."""
        parts: list[Expr | None] = [None, None]
        stack = [guard] if guard is not None else []
        seen: set[Expr] = set()
        while stack:
            g = stack.pop()
            if isinstance(g, Apply) and g.fn == "and":
                stack += [g.args[1], g.args[0]]
                continue
            k = int(mode.lane is not None and self.depends(g))
            known = parts[k]
            if g not in seen:
                parts[k] = g if known is None else ix.both(known, g)
            seen.add(g)
        return parts[0], parts[1]

    # ---- functions

    def _apply(self, e: Expr, mode: Mode) -> Value:
        assert isinstance(e, Apply)
        if e.fn not in ("select", "cast", "bitcast") and any(a.dtype in CODED for a in e.args):
            wide = apply(e.fn, tuple(cast_to(a, a.dtype.compute) for a in e.args), e.dtype.compute)
            return self.value(cast_to(wide, e.dtype), mode)
        plain = with_plain_power(e)
        if plain is not e:
            return self.value(plain, mode)
        if mode.lane is None or mode.element:
            return Value(self._scalar_apply(e, mode))
        quotient = self._as_quotient(e)
        assert isinstance(quotient, Apply)
        return vector_apply(self, quotient, mode)

    def _as_quotient(self, e: Apply) -> Expr:
        """a * (1 / b) as a / b, where the reciprocal differs from lane to lane and nothing else wants it: one multiplication and one
        rounding less, and the same infinities and NaNs but where 1 / b alone would leave the range."""
        match e:
            case Apply("mul", (a, Apply("div", (Const(value=1), b)) as r)) | Apply(
                "mul", (Apply("div", (Const(value=1), b)) as r, a)
            ) if e.dtype.is_float and self.counts[r] == 1 and self.depends(b):
                return apply("div", (a, b), e.dtype)
            case _:
                return e

    def _neighbours(self, args: tuple[Expr, ...]) -> str | None:
        """The address of bytes that are read one after the other; None where something else is meant."""
        first = args[0]
        if not isinstance(first, Load) or not isinstance(first.source, Buffer) or self._register_width(first.source):
            return None
        for k, a in enumerate(args):
            if not isinstance(a, Load) or a.guard is not None or a.source is not first.source:
                return None
            if a.dtype not in (DType.INT8, DType.UINT8) or ix.sub(a.index[0], first.index[0]) is not const(k):
                return None
        return f"{self.buffers[first.source]} + {self.scalar(first.index[0])}"

    def _scalar_apply(self, e: Apply, mode: Mode) -> str:
        if e.fn == "join_bytes" and mode is SCALAR:
            together = self._neighbours(e.args)
            if together is not None:
                return f"af_four_bytes({together})"
        t = [self.value(a, mode).text for a in e.args]
        kind = TYPES[e.dtype]
        match e:
            case Apply("select", _):
                return f"({t[0]} ? ({kind}){t[1]} : ({kind}){t[2]})"
            case Apply("cast", (a,)):
                return scalar_cast(t[0], a.dtype, e.dtype)
            case Apply("bitcast", _):
                return f"af_as<{kind}>({t[0]})"
            case Apply("not", _):
                return f"(!{t[0]})"
            case Apply("neg", _):
                return narrow(f"(-{t[0]})", e.dtype, HOST)
            case Apply("bit_not", _):
                return narrow(f"(~{t[0]})", e.dtype, HOST)
            case Apply("xor", _):
                return f"({t[0]} != {t[1]})"
            case Apply("div", _) if e.dtype.is_float:
                return f"({t[0]} / {t[1]})"
            case Apply("fma", _):
                return f"({t[0]} * {t[1]} + {t[2]})"
            case Apply("floor_div" | "floor_mod", (a, Const(value=d))) if (
                e.dtype is INDEX and d > 0 and never_negative(a)
            ):
                return f"({t[0]} {'/' if e.fn == 'floor_div' else '%'} {int(d)})"
            case Apply(fn, (_, _)) if fn in INFIX:
                return narrow(f"({t[0]} {INFIX[fn]} {t[1]})", e.dtype, HOST)
            case _:
                fn, args = named_function(e)
                return f"{fn}<{TYPES[e.args[-1].dtype]}>({', '.join(self.value(a, mode).text for a in args)})"
