"""Stages: what one node computes, as a scalar expression over axes.

A Map gives every output element as an expression of input elements. A Reduce combines such an expression over extra axes
(a whole axis or a window). A Contract is a Reduce whose body is a product of two loads summed up. What is no expression of its
output's position has a type of its own: recurrences and running sums, writes at computed indices, sorting, determinants; an operator that
runs in onnx's reference evaluator (Host), and one that runs graphs of its own (Control).
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
    SCATTER = "scatter"
    SORT = "sort"
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
    """A recurrence along the first axis: the gates of an LSTM, GRU or RNN.

    `cell` names it; `autofuse.ops.recurrent` says what the inputs and outputs are, `autofuse.ops.cells` what a step computes under the
    options in `attributes`, which are plain data and part of every signature.
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
    None where some shape shows only at run time. `digest` stands for a model without its weights, where there is no graph to do so.
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


@dataclass(frozen=True)
class Scatter:
    """Writes at computed indices: out = initial; then out[index] = combine(out[index], value) for one update after the other.

    `initial` is an expression over `axes`, the output's; `index` (an entry an axis of the output) and `value` are expressions over
    `updates`. Updates are applied in row-major order of `updates`; where several hit one element they combine in that order, and without a
    `combine` (sum, product, maximum or minimum) the last one wins. An index must lie inside the output: whoever builds a Scatter sees to it.
    Each step is rounded to `dtype`.
    """

    axes: tuple[Var, ...]
    initial: Expr
    updates: tuple[Var, ...]
    index: tuple[Expr, ...]
    value: Expr
    dtype: DType
    combine: Combine | None = None
    kind: Kind = field(default=Kind.SCATTER, init=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.extent or 0 for a in self.axes)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.shape,)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return (self.dtype,)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Everything that reads the inputs."""
        return (self.initial, *self.index, self.value)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of the initial values and of all updates."""
        points = math.prod(a.extent or 0 for a in self.updates)
        each = count_flops(self.value) + (1 if self.combine is not None and self.dtype.is_float else 0)
        return math.prod(self.shape) * count_flops(self.initial) + points * each

    def text(self) -> str:
        """A stable text form (the canonical one that signatures hash)."""
        dims = ", ".join(f"{a.name}<{a.extent}" for a in self.axes)
        over = ", ".join(f"{a.name}<{a.extent}" for a in self.updates)
        at = ", ".join(to_text(e) for e in self.index)
        how = self.combine.value if self.combine is not None else "last"
        start = to_text(self.initial)
        return f"scatter[{dims}]:{self.dtype.value} from {start}, {how} [{over}] at [{at}] {to_text(self.value)}"


@dataclass(frozen=True)
class Sort:
    """The first `count` elements of every row along `axis` of the one input, in order; outputs: the elements, their positions (int64).

    The order is descending where `largest`, else ascending. NaN counts as greater than any number, as numpy sorts it; equal elements
    come in the order of their positions.
    """

    source: tuple[int, ...]
    dtype: DType
    axis: int
    count: int
    largest: bool
    kind: Kind = field(default=Kind.SORT, init=False)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        made = (*self.source[: self.axis], self.count, *self.source[self.axis + 1 :])
        return (made, made)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return (self.dtype, DType.INT64)

    @property
    def flops(self) -> int:
        """Comparisons of a sort by merging."""
        n = self.source[self.axis]
        return math.prod(self.source) * max(n - 1, 0).bit_length()

    def text(self) -> str:
        return f"sort {self.dtype.value}{self.source} along {self.axis} first {self.count} {'falling' if self.largest else 'rising'}"


@dataclass(frozen=True)
class Running:
    """Running sums or products along an axis of the one input, of the input's shape and type.

    `exclusive` leaves an element's own value out; `reverse` runs from the end. Half types are carried in float32.
    """

    shape: tuple[int, ...]
    dtype: DType
    axis: int
    combine: Combine
    exclusive: bool = False
    reverse: bool = False
    kind: Kind = field(default=Kind.SCAN, init=False)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.shape,)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return (self.dtype,)

    @property
    def flops(self) -> int:
        return math.prod(self.shape)

    def text(self) -> str:
        how = f"{'exclusive' if self.exclusive else 'inclusive'} {'reverse' if self.reverse else 'forward'}"
        return f"running {self.combine.value} {self.dtype.value}{self.shape} along {self.axis} {how}"


@dataclass(frozen=True)
class Determinant:
    """The determinants of the square matrices in the last two dimensions of the one input, at least 1 x 1.

    Gaussian elimination with partial pivoting (Golub and Van Loan, Matrix Computations, 3.4); half types are computed in float32.
    """

    source: tuple[int, ...]
    dtype: DType
    kind: Kind = field(default=Kind.SCAN, init=False)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.source[:-2],)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return (self.dtype,)

    @property
    def flops(self) -> int:
        n = self.source[-1]
        return math.prod(self.source[:-2]) * (2 * n**3 // 3 + n)

    def text(self) -> str:
        return f"determinant {self.dtype.value}{self.source}"


Alone = Scan | Scatter | Sort | Running | Determinant
"""Computations whose kernels do nothing else (but for maps before a Scatter). All have `shapes`, `dtypes`, `flops`, `kind` and `text()`."""

Compute = Stage | Alone | Host | Control


def axes_of(shape: tuple[int, ...], prefix: str = "i") -> tuple[Var, ...]:
    """Fresh axis variables i0, i1, ... over a shape."""
    return tuple(var(f"{prefix}{k}", n) for k, n in enumerate(shape))


def inputs_of(stage: Stage) -> tuple[Load, ...]:
    """Every load of a stage's body, those in index positions included."""
    return loads(stage.body)
