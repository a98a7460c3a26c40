"""What several declarations share: literals, axes, reductions that keep their axes, windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import INDEX, Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.declare import Call, Unsupported

F16, F32, F64 = "float16", "float32", "float64"
I8, I32, I64, U8 = "int8", "int32", "int64", "uint8"
B = "bool"


def like(x: Expr, value: float | int) -> Expr:
    """A literal of the type of x."""
    return const(value, x.dtype)


def axis_in(axis: int, rank: int) -> int:
    """An axis counted from the front; ONNX counts negative ones from the end."""
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} does not exist in a tensor of rank {rank}")
    return axis % rank if rank else 0


def axes_in(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted, each once."""
    return tuple(sorted({axis_in(a, rank) for a in axes}))


def kept_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """The shape after a reduction over `axes`."""
    if keepdims:
        return tuple(1 if k in axes else n for k, n in enumerate(shape))
    return tuple(n for k, n in enumerate(shape) if k not in axes)


def merge(out: Index, reduced: Index, axes: Sequence[int], rank: int, keepdims: bool) -> Index:
    """The index into the reduced tensor's source, from the output's index and the reduction's."""
    over = dict(zip(axes, reduced, strict=True))
    rest = [i for k, i in enumerate(out) if k not in over] if keepdims else list(out)
    kept = iter(rest)
    return tuple(over[k] if k in over else next(kept) for k in range(rank))


def reduce_axes(
    b: Builder,
    v: ValueId,
    axes: Sequence[int],
    combine: Combine,
    fn: Callable[[Expr], Expr] = lambda x: x,
    keepdims: bool = True,
    dtype: DType | None = None,
) -> ValueId:
    """combine(fn(x)) over whole axes of one tensor."""
    shape = b.shape(v)

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        return fn(read(0, merge(out, reduced, axes, len(shape), keepdims)))

    return b.reduce([v], kept_shape(shape, axes, keepdims), [shape[a] for a in axes], combine, body, dtype)


def inverse(n: int) -> float:
    """1 / n; NaN for the mean of nothing, as numpy gives."""
    return 1.0 / n if n else float("nan")


def scaled(x: Expr, n: int) -> Expr:
    """x / n for a count n: floats by its reciprocal, integers truncating."""
    if x.dtype.is_float:
        return call("mul", x, like(x, inverse(n)))
    return call("trunc_div", x, like(x, n))


def square(x: Expr) -> Expr:
    """x * x."""
    return call("mul", x, x)


def wrapped(i: Expr, n: int) -> Expr:
    """A data-dependent index: negative ones count from the end, and none leaves the tensor.

    An index outside [-n, n) is an error of the caller's in ONNX. Clamping it keeps a kernel from reading foreign memory.
    """
    i = cast_to(i, INDEX)
    counted = select(ix.less(i, const(0)), ix.add(i, const(n)), i)
    return ix.minimum(ix.maximum(counted, const(0)), const(max(n - 1, 0)))


@dataclass(frozen=True)
class Window:
    """The spatial geometry of a convolution or a pooling: one entry for each spatial axis."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    def index(self, out: Index, tap: Index) -> Index:
        """Where a tap of the window that belongs to an output position reads."""
        return tuple(
            ix.add(ix.mul(o, s), ix.mul(k, d), const(-p))
            for o, k, s, d, p in zip(out, tap, self.strides, self.dilations, self.begin, strict=True)
        )


def window(c: Call, sizes: Sequence[int], kernel: Sequence[int], ceil: bool = False) -> Window:
    """Read strides, dilations, pads and auto_pad and work out the output size.

    With `ceil` the last window may hang over the end, but none may start in the end padding.
    """
    rank = len(sizes)
    strides = [int(s) for s in c.attr("strides") or [1] * rank]
    dilations = [int(d) for d in c.attr("dilations") or [1] * rank]
    pads = [int(p) for p in c.attr("pads") or [0] * (2 * rank)]
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise Unsupported("kernel, strides, dilations and pads do not have an entry for each spatial axis")
    mode = str(c.attr("auto_pad", "NOTSET") or "NOTSET")
    begin, end, out = [], [], []
    for k, n in enumerate(sizes):
        span = (kernel[k] - 1) * dilations[k] + 1
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            o = -(-n // strides[k])
            total = max((o - 1) * strides[k] + span - n, 0)
            p = total // 2 if mode == "SAME_UPPER" else total - total // 2
            q = total - p
        else:
            p, q = (0, 0) if mode == "VALID" else (pads[k], pads[k + rank])
            free = n + p + q - span
            o = (-(-free // strides[k]) if ceil else free // strides[k]) + 1
            if ceil and (o - 1) * strides[k] >= n + p:
                o -= 1
        begin.append(p)
        end.append(q)
        out.append(max(o, 0))
    return Window(tuple(sizes), tuple(kernel), tuple(strides), tuple(dilations), tuple(begin), tuple(end), tuple(out))
