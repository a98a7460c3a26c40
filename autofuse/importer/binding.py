"""Binding open dimensions: what the model leaves symbolic gets a number, or a message says which and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, TypeProto, ValueInfoProto, helper

from autofuse.errors import ShapeError
from autofuse.ir.dtype import DType, from_numpy
from autofuse.ir.graph import Dim


@dataclass(frozen=True)
class TensorType:
    """What is known of a value: its element type (STRING for whatever no kernel can hold) and its shape."""

    dtype: DType
    shape: tuple[int, ...] | None


def element_type(code: int) -> DType | None:
    """The DType of an ONNX element type; None for those that no kernel handles (complex numbers)."""
    if code == TensorProto.STRING:
        return DType.STRING
    if code == TensorProto.UNDEFINED:
        return None
    try:
        return from_numpy(helper.tensor_dtype_to_np_dtype(code))
    except KeyError:
        return None


def onnx_type(dtype: DType) -> int:
    """The ONNX element type of a DType."""
    if dtype is DType.STRING:
        return TensorProto.STRING
    return int(helper.np_dtype_to_tensor_dtype(dtype.numpy))


def type_of(proto: TypeProto) -> TensorType:
    """The type that a TypeProto declares; sequences, optionals and unknown element types are opaque."""
    if proto.WhichOneof("value") != "tensor_type":
        return TensorType(DType.STRING, None)
    dtype = element_type(proto.tensor_type.elem_type)
    if dtype is None:
        return TensorType(DType.STRING, None)
    if not proto.tensor_type.HasField("shape"):
        return TensorType(dtype, None)
    dims = [_dim(d) for d in proto.tensor_type.shape.dim]
    fixed = tuple(d for d in dims if isinstance(d, int))
    return TensorType(dtype, fixed if len(fixed) == len(dims) else None)


def _dim(d: onnx.TensorShapeProto.Dimension) -> Dim:
    if d.HasField("dim_value") and d.dim_value >= 0:
        return int(d.dim_value)
    return d.dim_param or "?"


def dims_of(info: ValueInfoProto) -> tuple[Dim, ...] | None:
    """The declared dimensions of a tensor input; None where not even the rank is known."""
    t = info.type.tensor_type
    return tuple(_dim(d) for d in t.shape.dim) if t.HasField("shape") else None


def bind(
    inputs: Sequence[ValueInfoProto], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """The shape of every dense tensor input by name, and notes for people.

    `shapes` gives a whole shape by input name, or one dimension by its name in the model: {"batch": (4,)}. A dimension
    bound by one input holds for every input that names it. Raises ShapeError for what stays open or contradicts the model.
    """
    declared = {i.name: dims_of(i) for i in inputs if i.type.WhichOneof("value") == "tensor_type"}
    symbols = {d for dims in declared.values() for d in dims or () if isinstance(d, str) and d != "?"}
    numbers: dict[str, int] = {}
    for key, shape in shapes.items():
        if key in declared:
            continue
        if key not in symbols or len(shape) != 1:
            raise ShapeError(_unknown(key, declared, symbols))
        numbers[key] = _positive(key, tuple(shape))[0]
    notes: list[str] = []
    for name, dims in declared.items():
        if name in shapes:
            given = _positive(name, tuple(shapes[name]))
            _fits(name, dims, given)
            for d, n in zip(dims or (), given, strict=False):
                if not isinstance(d, str) or d == "?":
                    continue
                if numbers.setdefault(d, n) != n:
                    notes.append(f"input {name!r} has {n} where {d!r} is {numbers[d]} elsewhere")
    bound: dict[str, tuple[int, ...]] = {}
    open_inputs: list[str] = []
    strings = {i.name for i in inputs if i.type.tensor_type.elem_type == TensorProto.STRING}
    for name, dims in declared.items():
        if name in shapes:
            bound[name] = tuple(shapes[name])
            continue
        known = [numbers.get(d, d) if isinstance(d, str) else d for d in dims or ()]
        fixed = tuple(d for d in known if isinstance(d, int))
        if dims is not None and len(fixed) == len(known):
            bound[name] = fixed
        elif name not in strings:
            open_inputs.append(name)
    if open_inputs:
        raise ShapeError(_open(open_inputs, declared, numbers))
    return bound, notes


def _positive(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(n < 0 for n in shape):
        raise ShapeError(f"the shape given for {name!r} has a negative dimension: {_listed(shape)}")
    return shape


def _fits(name: str, dims: tuple[Dim, ...] | None, given: tuple[int, ...]) -> None:
    if dims is None:
        return
    wrong = len(dims) != len(given) or any(isinstance(d, int) and d != n for d, n in zip(dims, given, strict=True))
    if wrong:
        raise ShapeError(
            f"input {name!r} is declared as [{_listed(dims)}] in the model, which the given shape {_listed(given)} "
            f"contradicts. Only named or unknown dimensions can be chosen, for example --shape {name}={_example(dims)}"
        )


def _unknown(key: str, declared: Mapping[str, tuple[Dim, ...] | None], symbols: set[str]) -> str:
    have = "; ".join(f"{n}: [{'unknown rank' if d is None else _listed(d)}]" for n, d in declared.items())
    named = f" Its open dimensions are {', '.join(sorted(symbols))}." if symbols else ""
    if key in symbols:
        return f"{key!r} names one dimension, so it takes one number, for example --shape {key}=1. Inputs: {have}."
    return f"a shape is given for {key!r}, but the model has no such input. Inputs: {have}.{named}"


def _open(names: Sequence[str], declared: Mapping[str, tuple[Dim, ...] | None], numbers: Mapping[str, int]) -> str:
    lines = []
    example = []
    for name in names:
        dims = declared[name]
        lines.append(f"{name}: " + ("unknown rank" if dims is None else f"[{_listed(dims)}]"))
        known = None if dims is None else tuple(numbers.get(d, d) if isinstance(d, str) else d for d in dims)
        example.append(f"--shape {name}={_example(known)}")
    return (
        f"the model leaves dimensions open that must be known: {'; '.join(lines)}. "
        f"Give them, for example {' '.join(example)}"
    )


def _listed(dims: Sequence[Dim]) -> str:
    return ",".join(str(d) for d in dims)


def _example(dims: tuple[Dim, ...] | None) -> str:
    if dims is None:
        return "1,3,224,224"
    image = len(dims) == 4
    guess = [1 if k == 0 else (3 if k == 1 else 224) if image else 128 for k in range(len(dims))]
    return _listed([d if isinstance(d, int) else g for d, g in zip(dims, guess, strict=True)])
