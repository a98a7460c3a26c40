"""Scalar expressions: one tree for index arithmetic, numerics, kernel text and FLOP counts.

Expressions are interned: two that are built alike are the same object, so `is` compares them and a
dictionary keyed by them costs nothing. They are built through the functions of this file, which
never change a floating-point result; index arithmetic is simplified in `autofuse.ir.index`.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from autofuse.ir.dtype import DType
from autofuse.ir.functions import FUNCTIONS

INDEX = DType.INT64
"""The type of every index expression; renderers narrow it where the tensors allow."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Const:
    """A literal. Floats are kept as Python floats, so every float32 is exact."""

    value: float | int | bool
    dtype: DType

    def __reduce__(self) -> tuple[Any, ...]:
        return const, (self.value, self.dtype)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Var:
    """A loop or axis variable with the range [0, extent), or a scalar temporary (extent None)."""

    name: str
    extent: int | None
    dtype: DType

    def __reduce__(self) -> tuple[Any, ...]:
        return var, (self.name, self.extent, self.dtype)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Load:
    """An element of `source` at `index`.

    In a Stage the source is an input slot (int) and the index has an entry per dimension. `fill`
    makes reads outside the tensor yield that value (padding). In the loop IR the source is a Buffer, the index
    is one flat offset, and `guard` says when memory may be touched at all (else `fill`).
    """

    source: Hashable
    index: tuple[Expr, ...]
    dtype: DType
    fill: float | int | None = None
    guard: Expr | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.source, self.index, self.dtype, self.fill, self.guard)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Apply:
    """A function of `autofuse.ir.functions` applied to arguments; `dtype` is the result's type."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType

    def __reduce__(self) -> tuple[Any, ...]:
        return apply, (self.fn, self.args, self.dtype)


Expr = Const | Var | Load | Apply

# Trees are walked recursively where that reads best; a hundred fused Gelus are some thousand levels deep. Python 3.11 keeps
# such frames on the heap, so that a higher limit costs nothing.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 20_000))

# Weak, so that the expressions of a candidate that was lowered and dropped do not outlive it: a long tune makes millions.
_INTERNED: weakref.WeakValueDictionary[tuple[Any, ...], Expr] = weakref.WeakValueDictionary()
_MAKING = threading.Lock()
# Most literals are the offsets and extents of addresses, the same few over and over: these are kept.
_INDICES: dict[int, Const] = {}
_MOST_INDICES = 1 << 16


def _intern(key: tuple[Any, ...], make: Callable[[], Expr]) -> Expr:
    found = _INTERNED.get(key)
    if found is None:
        with _MAKING:
            found = _INTERNED.get(key)
            if found is None:
                found = make()
                _INTERNED[key] = found
    return found


def const(value: float | int | bool, dtype: DType = INDEX) -> Const:
    """A literal of the given type. The key holds repr(), which tells 0.0 from -0.0 and keeps NaN one object."""
    if dtype is INDEX and type(value) is int:
        found = _INDICES.get(value)
        if found is None:
            found = cast(Const, _intern((Const, repr(value), dtype), lambda: Const(value, dtype)))
            if len(_INDICES) < _MOST_INDICES:
                _INDICES[value] = found
        return found
    if dtype.is_float:
        value = float(value)
    elif dtype is DType.BOOL:
        value = bool(value)
    else:
        value = int(value)
    return cast(Const, _intern((Const, repr(value), dtype), lambda: Const(value, dtype)))


def var(name: str, extent: int | None, dtype: DType = INDEX) -> Var:
    """A variable; two with the same name, extent and type are the same variable."""
    return cast(Var, _intern((Var, name, extent, dtype), lambda: Var(name, extent, dtype)))


def load(
    source: Hashable,
    index: tuple[Expr, ...],
    dtype: DType,
    fill: float | int | None = None,
    guard: Expr | None = None,
) -> Load:
    key = (Load, source, index, dtype, repr(fill), guard)
    return cast(Load, _intern(key, lambda: Load(source, index, dtype, fill, guard)))


def apply(fn: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """Build an Apply node as it stands, checked against the function table."""
    arity = FUNCTIONS[fn].arity
    if len(args) != arity:
        raise ValueError(f"{fn} takes {arity} arguments, got {len(args)}")
    return _intern((Apply, fn, args, dtype), lambda: Apply(fn, args, dtype))


def call(fn: str, *args: Expr) -> Expr:
    """Apply a function whose result type follows from its arguments (comparisons give BOOL)."""
    info = FUNCTIONS[fn]
    if info.result == "bool":
        return apply(fn, args, DType.BOOL)
    return apply(fn, args, args[-1].dtype)


def select(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    """condition ? then : otherwise, evaluating only the branch that is taken."""
    if isinstance(condition, Const):
        return then if condition.value else otherwise
    if then is otherwise:
        return then
    return apply("select", (condition, then, otherwise), then.dtype)


def cast_to(x: Expr, dtype: DType) -> Expr:
    """Convert to another element type. A cast is an operation of the model: it is never dropped but for equal types."""
    if x.dtype is dtype:
        return x
    return apply("cast", (x,), dtype)


def bitcast_to(x: Expr, dtype: DType) -> Expr:
    """The same bits as another type of the same size. ValueError for booleans, whose bits dialects keep in different ways."""
    if x.dtype is dtype:
        return x
    if DType.BOOL in (x.dtype, dtype) or x.dtype.itemsize != dtype.itemsize:
        raise ValueError(f"the bits of {x.dtype.value} are not those of a {dtype.value}")
    return apply("bitcast", (x,), dtype)


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions."""
    match e:
        case Apply():
            return e.args
        case Load():
            return (*e.index, e.guard) if e.guard is not None else e.index
        case _:
            return ()


def walk(root: Expr) -> Iterator[Expr]:
    """Every distinct subexpression once, children before parents."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        e, expanded = stack.pop()
        if e in seen:
            continue
        if expanded:
            seen.add(e)
            yield e
            continue
        stack.append((e, True))
        stack.extend((c, False) for c in reversed(children(e)))


def loads(root: Expr) -> tuple[Load, ...]:
    """Every distinct Load below, in evaluation order."""
    return tuple(e for e in walk(root) if isinstance(e, Load))


def variables(root: Expr) -> frozenset[Var]:
    """Every variable that occurs below, in indices and guards too."""
    return frozenset(e for e in walk(root) if isinstance(e, Var))


def rewrite(root: Expr, fn: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild bottom-up; `fn` sees each rebuilt node and returns its replacement or None to keep it."""
    done: dict[Expr, Expr] = {}
    for e in walk(root):
        match e:
            case Apply():
                args = tuple(done[a] for a in e.args)
                new: Expr = e if args == e.args else apply(e.fn, args, e.dtype)
            case Load():
                index = tuple(done[i] for i in e.index)
                guard = done[e.guard] if e.guard is not None else None
                same = index == e.index and guard is e.guard
                new = e if same else load(e.source, index, e.dtype, e.fill, guard)
            case _:
                new = e
        replaced = fn(new)
        done[e] = new if replaced is None else replaced
    return done[root]


def count_flops(root: Expr) -> int:
    """Floating-point operations of one evaluation, by the weights of the function table."""
    return sum(FUNCTIONS[e.fn].flops for e in walk(root) if isinstance(e, Apply) and e.dtype.is_float)


def to_text(e: Expr, names: Mapping[Hashable, str] | None = None) -> str:
    """A stable text form: equal computations give equal text."""
    match e:
        case Const():
            return f"{e.value!r}:{e.dtype.value}" if e.dtype is not INDEX else repr(e.value)
        case Var():
            return e.name
        case Load():
            source = names[e.source] if names is not None else str(e.source)
            inner = ", ".join(to_text(i, names) for i in e.index)
            extra = "" if e.fill is None else f" fill {e.fill!r}"
            extra += "" if e.guard is None else f" if {to_text(e.guard, names)}"
            return f"{source}[{inner}{extra}]"
        case Apply():
            inner = ", ".join(to_text(a, names) for a in e.args)
            suffix = f":{e.dtype.value}" if FUNCTIONS[e.fn].result == "cast" else ""
            return f"{e.fn}{suffix}({inner})"
