"""Maps that the CUDA families implement: what their tests run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cuda_case import F16, F32, I8, I64, Emit, gelu, lit

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ops.builder import Builder


def broadcast(b: Builder) -> Sequence[ValueId]:
    x, y, z = b.input("x", F32, (3, 1, 20)), b.input("y", F32, (4, 20)), b.input("z", F32, (3, 4, 1))
    s = b.elementwise([x, y], lambda p, q: call("add", p, q))
    return [s, b.elementwise([s, z], lambda p, q: call("mul", gelu(p), q))]


def transposed(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", F32, (2, 33, 40)), b.input("y", F32, (40,))
    t = b.map([x], (2, 40, 33), lambda i, read: read(0, (i[0], i[2], i[1])))
    return [b.map([t, y], (2, 40, 33), lambda i, read: call("add", read(0, i), read(1, (i[1],))))]


def two_transposed(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", F16, (8, 9, 35)), b.input("y", F16, (35, 72))
    return [
        b.map(
            [x, y],
            (35, 72),
            lambda i, read: call("mul", read(0, (ix.floor_div(i[1], 9), ix.floor_mod(i[1], 9), i[0])), read(1, i)),
            F16,
        )
    ]


def concatenated(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", F32, (5, 7)), b.input("y", F32, (5, 9))

    def body(i: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        return select(ix.less(i[1], const(7)), read(0, i), call("exp", read(1, (i[0], ix.add(i[1], const(-7))))))

    return [b.map([x, y], (5, 16), body)]


def padded(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (3, 6, 6))
    return [
        b.map([x], (3, 8, 8), lambda i, read: read(0, (i[0], ix.add(i[1], const(-1)), ix.add(i[2], const(-1))), 0.5))
    ]


def sliced(b: Builder) -> Sequence[ValueId]:
    x = b.input("x", F32, (6, 21))
    return [b.map([x], (6, 16), lambda i, read: call("neg", read(0, (i[0], ix.add(i[1], const(3))))))]


def gathered(b: Builder) -> Sequence[ValueId]:
    table, where = b.input("t", F16, (11, 16)), b.input("i", I64, (5, 3))

    def body(i: tuple[Expr, ...], read: Callable[..., Expr]) -> Expr:
        k = ix.minimum(ix.maximum(cast_to(read(1, i[:2]), I64), const(0)), const(10))
        return read(0, (k, i[2]))

    return [b.map([table, where], (5, 3, 16), body, F16)]


def integers(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", I8, (4, 33)), b.input("y", I8, (33,))
    s = b.elementwise([x, y], lambda p, q: call("mul", call("mul", p, q), q))
    return [s, b.elementwise([s], lambda p: call("gt", p, lit(p, 3)))]


def large(b: Builder) -> Sequence[ValueId]:
    x, y = b.input("x", F16, (37, 256)), b.input("y", F16, (256,))
    return [b.elementwise([x, y], lambda p, q: call("add", gelu(p), q), F16)]


def scalar(b: Builder) -> Sequence[ValueId]:
    return [b.elementwise([b.input("x", F32, ())], lambda p: call("exp", p))]


MAPS: dict[str, Emit] = {
    f.__name__: f
    for f in (broadcast, transposed, two_transposed, concatenated, padded, sliced, gathered, integers, large, scalar)
}
