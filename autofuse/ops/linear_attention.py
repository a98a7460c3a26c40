"""LinearAttention: attention whose keys and values are kept as one matrix a head, updated step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from autofuse.ir import index as ix
from autofuse.ir.dtype import DType
from autofuse.ir.expr import Expr, call, cast_to, const
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Index, Reader
from autofuse.ops.common import F16, F32, like
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.shaping import concat

MOST_STEPS = 64
"""Steps that are laid out one after the other; a longer sequence runs by the standard's definition of the operator."""


@dataclass(frozen=True)
class _Heads:
    """Sizes: batch, steps, heads of queries and of keys, and the widths of a key and of a value."""

    batch: int
    steps: int
    queries: int
    keys: int
    depth: int
    width: int


def _sizes(c: Call) -> _Heads:
    b = c.builder
    q, k, v = (b.shape(c.input(n)) for n in range(3))
    queries, keys = int(c.attr("q_num_heads", 0)), int(c.attr("kv_num_heads", 0))
    if len(q) != 3 or queries <= 0 or keys <= 0 or queries % keys or q[2] % queries or v[2] % keys:
        raise Unsupported(f"linear attention of shapes {q}, {k}, {v} with {queries} and {keys} heads")
    return _Heads(q[0], q[1], queries, keys, q[2] // queries, v[2] // keys)


def _linear_attention(c: Call) -> Sequence[ValueId | None]:
    """For each step t: S = exp(g_t) S; v_t = beta_t (v_t - S^T k_t) for the delta rules; S = S + k_t v_t^T; o_t = scale S^T q_t.

    A head of keys serves a group of heads of queries. The state is kept in single precision between steps.
    """
    b = c.builder
    h = _sizes(c)
    if h.steps > MOST_STEPS:
        raise Unsupported(f"a recurrence of {h.steps} steps")
    rule = str(c.attr("update_rule", "gated_delta"))
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise Unsupported(f"the update rule {rule!r}")
    gated, corrected = "gated" in rule, "delta" in rule
    scale = float(c.attr("scale", 0.0)) or 1.0 / sqrt(h.depth)
    work = b.dtype(c.input(0)).compute
    kept = b.dtype(c.input(3)) if c.has(3) else b.dtype(c.input(0))
    state = _first_state(c, h, work)
    made: list[ValueId] = []
    for t in range(h.steps):
        if gated:
            state = _decayed(c, h, state, t)
        value = _corrected(c, h, state, t) if corrected else None
        state = _written(c, h, state, value, t)
        made.append(_read_out(c, h, state, t, scale))
    if not made:
        raise Unsupported("a sequence of no steps")
    y = made[0] if len(made) == 1 else concat(b, made, 1)
    return [y, b.elementwise([state], lambda e: e, kept) if b.dtype(state) is not kept else state]


def _first_state(c: Call, h: _Heads, work: DType) -> ValueId:
    b = c.builder
    shape = (h.batch, h.keys, h.depth, h.width)
    if c.has(3):
        return b.map([c.input(3)], shape, lambda i, read: cast_to(read(0, i), work), work)
    return b.map([], shape, lambda i, read: const(0.0, work), work)


def _decayed(c: Call, h: _Heads, state: ValueId, t: int) -> ValueId:
    b = c.builder
    decay = c.input(4)
    width = b.shape(decay)[2] // h.keys
    if width not in (1, h.depth) or b.shape(decay)[2] % h.keys:
        raise Unsupported(f"a decay of shape {b.shape(decay)}")

    def body(i: Index, read: Reader) -> Expr:
        n, head, d, _ = i
        g = read(1, (n, const(t), ix.add(ix.mul(head, width), d) if width > 1 else head))
        e = read(0, i)
        return call("mul", e, call("exp", cast_to(g, e.dtype)))

    return b.map([state, decay], b.shape(state), body)


def _corrected(c: Call, h: _Heads, state: ValueId, t: int) -> ValueId:
    """beta (v - S^T k), [batch, heads, width]."""
    b = c.builder
    key, value, beta = c.input(1), c.input(2), c.input(5)
    work = b.dtype(state)
    if b.shape(beta)[2] not in (1, h.keys):
        raise Unsupported(f"beta of shape {b.shape(beta)}")

    def retrieved(out: Index, reduced: Index, read: Reader) -> Expr:
        n, head, m = out
        d = reduced[0]
        k = read(1, (n, const(t), ix.add(ix.mul(head, h.depth), d)))
        return call("mul", read(0, (n, head, d, m)), cast_to(k, work))

    old = b.reduce([state, key], (h.batch, h.keys, h.width), [h.depth], Combine.SUM, retrieved, work)

    def body(i: Index, read: Reader) -> Expr:
        n, head, m = i
        v = cast_to(read(1, (n, const(t), ix.add(ix.mul(head, h.width), m))), work)
        factor = read(2, (n, const(t), head if b.shape(beta)[2] > 1 else const(0)))
        return call("mul", cast_to(factor, work), call("sub", v, read(0, i)))

    return b.map([old, value, beta], b.shape(old), body, work)


def _written(c: Call, h: _Heads, state: ValueId, value: ValueId | None, t: int) -> ValueId:
    """S + k v^T; `value` is [batch, heads, width], or None for the input's own."""
    b = c.builder
    work = b.dtype(state)

    def body(i: Index, read: Reader) -> Expr:
        n, head, d, m = i
        k = cast_to(read(1, (n, const(t), ix.add(ix.mul(head, h.depth), d))), work)
        v = read(2, (n, head, m) if value is not None else (n, const(t), ix.add(ix.mul(head, h.width), m)))
        return call("add", read(0, i), call("mul", k, cast_to(v, work)))

    return b.map([state, c.input(1), value if value is not None else c.input(2)], b.shape(state), body, work)


def _read_out(c: Call, h: _Heads, state: ValueId, t: int, scale: float) -> ValueId:
    """scale S^T q as [batch, 1, heads x width]."""
    b = c.builder
    work = b.dtype(state)
    group = h.queries // h.keys

    def product(out: Index, reduced: Index, read: Reader) -> Expr:
        n, head, m = out
        d = reduced[0]
        q = read(1, (n, const(t), ix.add(ix.mul(head, h.depth), d)))
        return call("mul", read(0, (n, ix.floor_div(head, group), d, m)), cast_to(q, work))

    total = b.reduce([state, c.input(0)], (h.batch, h.queries, h.width), [h.depth], Combine.SUM, product, work)

    def body(i: Index, read: Reader) -> Expr:
        n, _, j = i
        e = read(0, (n, ix.floor_div(j, h.width), ix.floor_mod(j, h.width)))
        return call("mul", e, like(e, scale))

    return b.map([total], (h.batch, 1, h.queries * h.width), body, b.dtype(c.input(0)))


def _sample(
    rule: str, dtype: str = F32, heads: int = 2, decay: int = 0, past: bool = False, **attributes: object
) -> Sample:
    batch, steps, keys, depth, width = 2, 3, 2, 4, 3
    inputs: list[tuple[str, tuple[int, ...]] | None] = [
        (dtype, (batch, steps, heads * depth)),
        (dtype, (batch, steps, keys * depth)),
        (dtype, (batch, steps, keys * width)),
        (dtype, (batch, keys, depth, width)) if past else None,
        (dtype, (batch, steps, keys * (decay or 1))) if "gated" in rule else None,
        (dtype, (batch, steps, keys)) if "delta" in rule else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    given = {"update_rule": rule, "q_num_heads": heads, "kv_num_heads": keys, **attributes}
    return Sample(tuple(inputs), given, 27, low=-0.9, high=0.9, outputs=2)


LINEAR_ATTENTION: tuple[Op, ...] = (
    Op(
        "LinearAttention",
        _linear_attention,
        (
            _sample("linear"),
            _sample("gated", decay=4),
            _sample("delta", past=True),
            _sample("gated_delta", heads=4, scale=0.5),
            _sample("gated_delta", dtype=F16),
        ),
        since=27,
    ),
)
