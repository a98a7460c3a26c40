"""Stages: what one node computes, as a scalar expression over axes.

A Map gives every output element as an expression of input elements. A Reduce combines such an expression over extra axes
(a whole axis or a window). A Contract is a Reduce whose body is a product of two loads summed up. Scan, Host and Control stand for
what is no expression: a recurrence along an axis, an operator that runs in onnx's reference evaluator, and one that runs graphs of its own.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from autofuse.ir.dtype import DType
from autofuse.ir.expr import Apply, Expr, Load, Var, count_flops, loads, to_text, var

if TYPE_CHECKING:
    from autofuse.ir.graph import Graph


class Kind(enum.StrEnum):
    """How a stage relates its output elements to its inputs."""

    MAP = "map"
    REDUCE = "reduce"
    CONTRACT = "contract"
    SCAN = "scan"
    HOST = "host"
    CONTROL = "control"

    @property
    def has_kernel(self) -> bool:
        """Whether a kernel computes it; Host and Control nodes stand apart, and kernels run before and after them."""
        return self not in (Kind.HOST, Kind.CONTROL)


class Combine(enum.StrEnum):
    """The associative operation of a reduction. ARG* give the first (or last) position of an extreme."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"
    MIN = "min"
    ARGMAX = "argmax"
    ARGMIN = "argmin"
    ARGMAX_LAST = "argmax_last"
    ARGMIN_LAST = "argmin_last"

    @property
    def is_arg(self) -> bool:
        return self.value.startswith("arg")


@dataclass(frozen=True)
class Stage:
    """One output tensor as an expression: out[axes] = combine over reduce_axes of body.

    `body` loads from input slots (`Load.source` is the slot number). `acc_dtype` is the type in which
    a reduction is carried; it is cast to `dtype` when stored. A Map has no reduce axes and no combine. Zero-size reduce axes give the identity.
    """

    axes: tuple[Var, ...]
    body: Expr
    dtype: DType
    reduce_axes: tuple[Var, ...] = ()
    combine: Combine | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.extent or 0 for a in self.axes)

    @property
    def acc_dtype(self) -> DType:
        """The type that a reduction is carried in: that of the body, half types in float32."""
        return self.body.dtype.compute

    @cached_property
    def kind(self) -> Kind:
        if self.combine is None:
            return Kind.MAP
        return Kind.CONTRACT if self.contraction is not None else Kind.REDUCE

    @cached_property
    def contraction(self) -> tuple[Load, Load] | None:
        """The two operands of a sum of products; casts around a load are looked through for types only.

        A sum of squares is none: it has one operand, and shares kernels with other reductions of it.
        """
        match self.body:
            case Apply("mul", (a, b)) if self.combine is Combine.SUM:
                la, lb = _operand(a), _operand(b)
                if la is None or lb is None or la is lb:  # a sum of squares has one operand: it is no contraction
                    return None
                return la, lb
            case _:
                return None

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of the whole stage."""
        points = math.prod(self.shape) * math.prod(a.extent or 0 for a in self.reduce_axes)
        each = count_flops(self.body) + (1 if self.combine is not None else 0)
        return points * each

    def text(self) -> str:
        """A stable text form (the canonical one that signatures hash)."""
        dims = ", ".join(f"{a.name}<{a.extent}" for a in self.axes)
        if self.combine is None:
            return f"map[{dims}]:{self.dtype.value} {to_text(self.body)}"
        over = ", ".join(f"{a.name}<{a.extent}" for a in self.reduce_axes)
        return f"{self.combine.value}[{dims}]:{self.dtype.value} over [{over}] {to_text(self.body)}"


def _operand(e: Expr) -> Load | None:
    match e:
        case Load():
            return e
        case Apply("cast", (Load() as inner,)):
            return inner
        case _:
            return None


@dataclass(frozen=True)
class Scan:
    """A recurrence along the first axis: the gates of an LSTM, GRU or RNN, or a running sum or product.

    `cell` names it; the meaning of the inputs and outputs is that of `autofuse.kernels.scan` and
    `autofuse.ops.recurrent`, which document them side by side. `attributes` are plain data and part of every signature.
    """

    cell: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    attributes: tuple[tuple[str, str | int | float | tuple[str, ...]], ...] = ()
    flops: int = 0
    kind: Kind = field(default=Kind.SCAN, init=False)

    def text(self) -> str:
        return f"scan {self.cell} {self.shapes} {[d.value for d in self.dtypes]} {self.attributes}"


@dataclass(frozen=True)
class Host:
    """An operator that runs through onnx's reference evaluator; `model` is a serialised one-node ModelProto.

    The model's input names are i0, i1, ... in the order of the node's inputs, its outputs o0, o1, ...
    `reason` says why no kernel was made, in words for people.
    """

    model: bytes
    shapes: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[DType, ...]
    reason: str
    flops: int = 0
    kind: Kind = field(default=Kind.HOST, init=False)

    def text(self) -> str:
        return f"host {self.model.hex()}"


@dataclass(frozen=True, eq=False)
class Body:
    """A graph inside a Control node: a branch of If, the body of Loop or Scan, or a part whose shapes show late.

    `model` is a serialised ModelProto that stands alone. Its inputs, `names`, are first those that the operator hands to it, then the
    values that it captures; `captures` are the positions of these among the node's inputs. `outputs` are the types of its outputs, with
    0 for a dimension that is not known. `graph` is the body imported for the shapes that were known, with captured constants in place;
    None where some shape shows only at run time. `digest` stands for the model without its weights.
    """

    model: bytes
    names: tuple[str, ...]
    captures: tuple[int, ...]
    outputs: tuple[tuple[DType, tuple[int, ...]], ...]
    graph: Graph | None
    digest: str

    def text(self) -> str:
        known = f"graph {self.graph.structural_hash}" if self.graph is not None else f"late {self.digest}"
        return f"{known} captures {self.captures}"


@dataclass(frozen=True, eq=False)
class Control:
    """An operator that runs graphs: If, Loop, Scan, or Deferred, which is a part of the model whose shapes depend on data.

    `arguments` tell, for each of the operator's inputs, its position among the node's inputs (None: left out); captured values come
    among them too. `results` tell, for each output of the node, which of the operator's outputs it is. `attributes` are the operator's
    own; `autofuse.ops.control_flow` says what they mean. `host` is the same operator for onnx's reference evaluator.
    """

    operator: str
    bodies: tuple[Body, ...]
    arguments: tuple[int | None, ...]
    results: tuple[int, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[DType, ...]
    attributes: tuple[tuple[str, tuple[int, ...]], ...]
    host: Host
    flops: int = 0
    kind: Kind = field(default=Kind.CONTROL, init=False)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Those of its bodies that are known."""
        return tuple(b.graph for b in self.bodies if b.graph is not None)

    def attribute(self, name: str) -> tuple[int, ...]:
        """An attribute by name."""
        return dict(self.attributes)[name]

    def text(self) -> str:
        bodies = "; ".join(b.text() for b in self.bodies)
        return f"control {self.operator} {self.arguments} {self.results} {self.attributes} [{bodies}]"


Compute = Stage | Scan | Host | Control


def axes_of(shape: tuple[int, ...], prefix: str = "i") -> tuple[Var, ...]:
    """Fresh axis variables i0, i1, ... over a shape."""
    return tuple(var(f"{prefix}{k}", n) for k, n in enumerate(shape))


def inputs_of(stage: Stage) -> tuple[Load, ...]:
    """Every load of a stage's body, those in index positions included."""
    return loads(stage.body)
