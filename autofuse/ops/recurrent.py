"""LSTM, GRU and RNN: the input's part is one contraction over all steps, the recurrence is a Scan.

Scan inputs, in order: the input's part of the gates gx[T, B, G*H] (with the biases that are simply added), the recurrent weights
R[G*H, H], the initial state h0[B, H], then c0[B, H] for an LSTM, and for a GRU with linear_before_reset the recurrent bias of its
candidate rb[H]. Outputs: y[T, B, H], the last h[B, H], and the last c[B, H] for an LSTM. Gate orders are ONNX's (iofc and zrh).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autofuse.ir.expr import call, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.index import less
from autofuse.ir.stage import Combine, Scan
from autofuse.ops.declare import Call, Op, Sample, Unsupported

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _check(c: Call, directions: int) -> None:
    """Refuse the options that the recurrence has no kernel for."""
    wanted = [str(a) for a in c.attr("activations", None) or DEFAULTS[c.op] * directions]
    if tuple(wanted) != DEFAULTS[c.op] * directions:
        raise Unsupported(f"activations {wanted}")
    if c.attr("clip") is not None:
        raise Unsupported("clip")
    if c.attr("input_forget", 0):
        raise Unsupported("coupled input and forget gates")
    if c.op == "LSTM" and c.has(7):
        raise Unsupported("peephole weights")


def _emit(c: Call) -> Sequence[ValueId | None]:
    b = c.builder
    gates = GATES[c.op]
    direction = c.attr("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    _check(c, directions)
    batch_first = bool(c.attr("layout", 0))
    x, r = c.input(0), c.input(2)
    shape = b.shape(x)
    batch, steps = (shape[0], shape[1]) if batch_first else (shape[1], shape[0])
    hidden = b.shape(r)[2]
    if c.has(4):
        lengths = c.constant(4)
        if lengths is None or not np.all(lengths == steps):
            raise Unsupported("sequences of differing length")
    finals: list[list[ValueId]] = []
    ys: list[ValueId] = []
    for d in range(directions):
        reverse = direction == "reverse" or d == 1
        gx = _input_part(c, d, steps, batch, gates * hidden, batch_first)
        inputs = [gx, _direction(c, r, d)]
        inputs.append(_state(c, 5, d, batch, hidden, batch_first))
        if c.op == "LSTM":
            inputs.append(_state(c, 6, d, batch, hidden, batch_first))
        linear = c.op == "GRU" and bool(c.attr("linear_before_reset", 0))
        if linear:
            inputs.append(_candidate_bias(c, d, hidden))
        dtype = b.dtype(x)
        out_shapes = [(steps, batch, hidden)] + [(batch, hidden)] * (2 if c.op == "LSTM" else 1)
        attributes = (("linear_before_reset", int(linear)), ("reverse", int(reverse)))
        flops = steps * batch * gates * hidden * (2 * hidden + 12)
        scan = Scan(c.op, tuple(out_shapes), (dtype,) * len(out_shapes), attributes, flops)
        made = b.node(inputs, scan, [(dtype, s) for s in out_shapes])
        ys.append(made[0])
        finals.append(list(made[1:]))
    y = _join_steps(c, ys, batch_first)
    last = [_join_states(c, [f[k] for f in finals], batch_first) for k in range(len(finals[0]))]
    return [y, *last]


def _input_part(c: Call, d: int, steps: int, batch: int, width: int, batch_first: bool) -> ValueId:
    """gx[t, b, g] = sum of x[t, b, i] w[d, g, i], then the biases."""
    b = c.builder
    x, w = c.input(0), _direction(c, c.input(1), d)
    size = b.shape(x)[2]
    product = b.reduce(
        [x, w],
        (steps, batch, width),
        (size,),
        Combine.SUM,
        lambda i, r, read: call(
            "mul", read(0, (i[1], i[0], r[0]) if batch_first else (i[0], i[1], r[0])), read(1, (i[2], r[0]))
        ),
        dtype=b.dtype(x),
    )
    if not c.has(3):
        return product
    bias = c.input(3)
    hidden = width // GATES[c.op]
    # A GRU that applies the reset gate after the product adds its candidate's recurrent bias inside the recurrence.
    kept = width - hidden if c.op == "GRU" and c.attr("linear_before_reset", 0) else width

    def total(i: Any, read: Any) -> Any:
        both = call("add", read(0, (const(d), i[0])), read(0, (const(d), call("add", i[0], const(width)))))
        if kept == width:
            return both
        return select(less(i[0], const(kept)), both, read(0, (const(d), i[0])))

    summed = b.map([bias], (width,), total, dtype=b.dtype(bias))
    return b.elementwise([product, summed], lambda p, s: call("add", p, s))


def _candidate_bias(c: Call, d: int, hidden: int) -> ValueId:
    b = c.builder
    if not c.has(3):
        return b.constant(np.zeros(hidden, b.dtype(c.input(0)).numpy))
    return b.map([c.input(3)], (hidden,), lambda i, read: read(0, (const(d), call("add", i[0], const(5 * hidden)))))


def _direction(c: Call, v: ValueId, d: int) -> ValueId:
    """The slice of a parameter that belongs to one direction."""
    b = c.builder
    return b.map([v], b.shape(v)[1:], lambda i, read: read.raw(0, (const(d), *i)))


def _state(c: Call, k: int, d: int, batch: int, hidden: int, batch_first: bool) -> ValueId:
    b = c.builder
    if not c.has(k):
        return b.constant(np.zeros((batch, hidden), b.dtype(c.input(0)).numpy))
    return b.map(
        [c.input(k)],
        (batch, hidden),
        lambda i, read: read.raw(0, (i[0], const(d), i[1]) if batch_first else (const(d), i[0], i[1])),
    )


def _pick(parts: Sequence[ValueId], axis: Any, read: Any, index: tuple[Any, ...]) -> Any:
    """The part that a direction index selects."""
    if len(parts) == 1:
        return read.raw(0, index)
    return select(less(axis, const(1)), read.raw(0, index), read.raw(1, index))


def _join_steps(c: Call, ys: Sequence[ValueId], batch_first: bool) -> ValueId:
    b = c.builder
    steps, batch, hidden = b.shape(ys[0])
    n = len(ys)
    if batch_first:
        return b.map(ys, (batch, steps, n, hidden), lambda i, read: _pick(ys, i[2], read, (i[1], i[0], i[3])))
    return b.map(ys, (steps, n, batch, hidden), lambda i, read: _pick(ys, i[1], read, (i[0], i[2], i[3])))


def _join_states(c: Call, parts: Sequence[ValueId], batch_first: bool) -> ValueId:
    b = c.builder
    batch, hidden = b.shape(parts[0])
    n = len(parts)
    if batch_first:
        return b.map(parts, (batch, n, hidden), lambda i, read: _pick(parts, i[1], read, (i[0], i[2])))
    return b.map(parts, (n, batch, hidden), lambda i, read: _pick(parts, i[0], read, (i[1], i[2])))


# ---- numpy


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


Cell = Callable[[np.ndarray, list[np.ndarray], Sequence[np.ndarray], bool], list[np.ndarray]]


def _lstm(gx: np.ndarray, state: list[np.ndarray], inputs: Sequence[np.ndarray], linear: bool) -> list[np.ndarray]:
    del linear
    h, cell = state
    i, o, f, g = np.split(gx + h @ inputs[1].T, 4, axis=-1)
    cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
    return [_sigmoid(o) * np.tanh(cell), cell]


def _gru(gx: np.ndarray, state: list[np.ndarray], inputs: Sequence[np.ndarray], linear: bool) -> list[np.ndarray]:
    (h,) = state
    n = h.shape[-1]
    r = inputs[1]
    zr = _sigmoid(gx[..., : 2 * n] + h @ r[: 2 * n].T)
    z, reset = zr[..., :n], zr[..., n:]
    if linear:
        candidate = np.tanh(gx[..., 2 * n :] + reset * (h @ r[2 * n :].T + inputs[3]))
    else:
        candidate = np.tanh(gx[..., 2 * n :] + (reset * h) @ r[2 * n :].T)
    return [(1 - z) * candidate + z * h]


def _rnn(gx: np.ndarray, state: list[np.ndarray], inputs: Sequence[np.ndarray], linear: bool) -> list[np.ndarray]:
    del linear
    return [np.tanh(gx + state[0] @ inputs[1].T)]


_CELLS: dict[str, Cell] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def evaluate_scan(scan: Scan, inputs: Sequence[np.ndarray], wide: bool = False) -> list[np.ndarray]:
    """All outputs of a Scan. With `wide` everything is float64."""
    dtype = np.dtype(np.float64) if wide else scan.dtypes[0].compute.numpy
    arrays = [np.asarray(a).astype(dtype) for a in inputs]
    attributes = dict(scan.attributes)
    steps = scan.shapes[0][0]
    state = [arrays[2], arrays[3]] if scan.cell == "LSTM" else [arrays[2]]
    y = np.zeros(scan.shapes[0], dtype)
    order = range(steps - 1, -1, -1) if attributes["reverse"] else range(steps)
    with np.errstate(over="ignore"):
        for t in order:
            state = _CELLS[scan.cell](arrays[0][t], state, arrays, bool(attributes["linear_before_reset"]))
            y[t] = state[0]
    stored = dtype if wide else scan.dtypes[0].numpy
    return [a.astype(stored) for a in (y, *state)]


def _sample(op: str, hidden: int = 5, direction: str = "forward", **attributes: Any) -> Sample:
    d, g = (2 if direction == "bidirectional" else 1), GATES[op]
    f = "float32"
    inputs: list[tuple[str, tuple[int, ...]] | None] = [
        (f, (4, 2, 3)),
        (f, (d, g * hidden, 3)),
        (f, (d, g * hidden, hidden)),
        (f, (d, 2 * g * hidden)),
    ]
    states = [(f, (d, 2, hidden))] * (2 if op == "LSTM" else 1)
    return Sample(
        (*inputs, None, *states),
        {"hidden_size": hidden, "direction": direction, **attributes},
        low=-1.0,
        high=1.0,
        outputs=3 if op == "LSTM" else 2,
        constant=(1, 2, 3),
    )


RECURRENT: tuple[Op, ...] = (
    Op(
        "LSTM",
        _emit,
        (_sample("LSTM"), _sample("LSTM", direction="bidirectional"), _sample("LSTM", direction="reverse")),
    ),
    Op(
        "GRU", _emit, (_sample("GRU"), _sample("GRU", linear_before_reset=1), _sample("GRU", direction="bidirectional"))
    ),
    Op("RNN", _emit, (_sample("RNN"), _sample("RNN", direction="bidirectional"))),
)
