"""LSTM, GRU and RNN: the input's part is one contraction over all steps, the recurrence is a Scan.

Scan inputs, in order: the input's part of the gates gx[T, B, G*H] (with the biases that are simply added), the recurrent weights
R[G*H, H], the initial state h0[B, H], then those that the cell has (`Cell.slots`): c0[B, H] for an LSTM; for a GRU with
linear_before_reset the recurrent bias of its candidate rb[H]; the peephole weights p[3*H] (i, o, f); the sequences' lengths[B], in
steps: past its end a sequence keeps its state and gives zeros. Outputs: y[T, B, H], the last h[B, H], and the last c[B, H] for an
LSTM. Gate orders are ONNX's (iofc and zrh).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autofuse.ir.dtype import from_numpy
from autofuse.ir.expr import Expr, call, const, select, var
from autofuse.ir.graph import ValueId
from autofuse.ir.index import less
from autofuse.ir.stage import Combine, Scan
from autofuse.ops.cells import GATES, Cell, activations, cell_of
from autofuse.ops.declare import Call, Op, Sample
from autofuse.ops.interpret import evaluate_expr


def _cells(c: Call, directions: int) -> list[Cell]:
    """The cell of each direction."""
    clip = float(c.attr("clip") or 0.0)
    names = c.attr("activations")
    alphas, betas = ([float(v) for v in c.attr(n) or ()] for n in ("activation_alpha", "activation_beta"))
    every = activations(c.op, [str(n) for n in names] if names else None, alphas, betas, directions)
    direction = c.attr("direction", "forward")
    return [
        Cell(
            c.op,
            functions,
            clip,
            c.op == "LSTM" and bool(c.attr("input_forget", 0)),
            c.op == "GRU" and bool(c.attr("linear_before_reset", 0)),
            direction == "reverse" or d == 1,
            c.op == "LSTM" and c.has(7),
            _differ(c),
        )
        for d, functions in enumerate(every)
    ]


def _differ(c: Call) -> bool:
    """Whether sequences may end before the last step."""
    if not c.has(4):
        return False
    x = c.builder.shape(c.input(0))
    known = c.builder.known(c.input(4))
    return known is None or not bool(np.all(known == (x[1] if c.attr("layout", 0) else x[0])))


def _emit(c: Call) -> Sequence[ValueId | None]:
    b = c.builder
    gates = GATES[c.op]
    direction = c.attr("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    batch_first = bool(c.attr("layout", 0))
    x, r = c.input(0), c.input(2)
    shape = b.shape(x)
    batch, steps = (shape[0], shape[1]) if batch_first else (shape[1], shape[0])
    hidden = b.shape(r)[2]
    finals: list[list[ValueId]] = []
    ys: list[ValueId] = []
    for d, cell in enumerate(_cells(c, directions)):
        gx = _input_part(c, d, steps, batch, gates * hidden, batch_first)
        inputs = [gx, _direction(c, r, d)]
        inputs.append(_state(c, 5, d, batch, hidden, batch_first))
        if c.op == "LSTM":
            inputs.append(_state(c, 6, d, batch, hidden, batch_first))
        if cell.linear:
            inputs.append(_candidate_bias(c, d, hidden))
        if cell.peepholes:
            inputs.append(_direction(c, c.input(7), d))
        if cell.lengths:
            inputs.append(c.input(4))
        dtype = b.dtype(x)
        out_shapes = [(steps, batch, hidden)] + [(batch, hidden)] * (2 if c.op == "LSTM" else 1)
        flops = steps * batch * gates * hidden * (2 * hidden + 12)
        scan = Scan(c.op, tuple(out_shapes), (dtype,) * len(out_shapes), cell.attributes(), flops)
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


def _step(cell: Cell, gx: np.ndarray, state: list[np.ndarray], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The state after a step: h, and c for an LSTM."""
    slots = cell.slots
    h, r = state[0], arrays[slots["r"]]
    kind = from_numpy(gx.dtype)
    names: dict[str, np.ndarray] = {}

    def given(name: str, value: np.ndarray) -> Expr:
        names[name] = value
        return var(name, None, kind)

    def value(e: Expr) -> np.ndarray:
        return np.asarray(evaluate_expr(e, {var(n, None, kind): a for n, a in names.items()}, (), False))

    if cell.op == "LSTM":
        pre = tuple(given(f"g{k}", a) for k, a in enumerate(np.split(gx + h @ r.T, 4, axis=-1)))
        weights = np.split(arrays[slots["p"]], 3) if cell.peepholes else []
        peepholes = tuple(given(f"p{k}", a) for k, a in enumerate(weights)) or None
        new = value(cell.state(pre, given("c", state[1]), peepholes))
        return [value(cell.shown(pre, given("new", new), peepholes)), new]
    if cell.op == "RNN":
        return [value(cell.act(0, given("g0", gx + h @ r.T)))]
    n = h.shape[-1]
    z, reset = np.split(gx[..., : 2 * n] + h @ r[: 2 * n].T, 2, axis=-1)
    opened = value(cell.reset(given("r", reset)))
    if cell.linear:
        candidate = gx[..., 2 * n :] + opened * (h @ r[2 * n :].T + arrays[slots["rb"]])
    else:
        candidate = gx[..., 2 * n :] + (opened * h) @ r[2 * n :].T
    return [value(cell.updated(given("z", z), given("n", candidate), given("h", h)))]


def evaluate_scan(scan: Scan, inputs: Sequence[np.ndarray], wide: bool = False) -> list[np.ndarray]:
    """All outputs of a Scan. With `wide` everything is float64."""
    dtype = np.dtype(np.float64) if wide else scan.dtypes[0].compute.numpy
    cell = cell_of(scan)
    slots = cell.slots
    arrays = [
        np.asarray(a).astype(a.dtype if cell.lengths and k == slots["lengths"] else dtype) for k, a in enumerate(inputs)
    ]
    steps = scan.shapes[0][0]
    state = [arrays[slots["h"]], arrays[slots["c"]]] if cell.op == "LSTM" else [arrays[slots["h"]]]
    y = np.zeros(scan.shapes[0], dtype)
    order = range(steps - 1, -1, -1) if cell.reverse else range(steps)
    with np.errstate(all="ignore"):
        for t in order:
            new = _step(cell, arrays[0][t], state, arrays)
            y[t] = new[0]
            if cell.lengths:
                going = (t < arrays[slots["lengths"]])[:, None]
                y[t] = np.where(going, new[0], 0)
                new = [np.where(going, a, b) for a, b in zip(new, state, strict=True)]
            state = new
    stored = dtype if wide else scan.dtypes[0].numpy
    return [a.astype(stored) for a in (y, *state)]


_LENGTHS = np.array([3, 1], np.int32)


def _sample(op: str, hidden: int = 5, direction: str = "forward", peepholes: bool = False, **attributes: Any) -> Sample:
    """Sequences of four steps in two rows, of differing length where the name `lengths` is given."""
    d, g = (2 if direction == "bidirectional" else 1), GATES[op]
    f = attributes.pop("dtype", "float32")
    lengths = attributes.pop("lengths", None)
    batch_first = attributes.get("layout", 0)
    state: tuple[str, tuple[int, ...]] = (f, (2, d, hidden) if batch_first else (d, 2, hidden))
    inputs: list[np.ndarray | tuple[str, tuple[int, ...]] | None] = [
        (f, (2, 4, 3) if batch_first else (4, 2, 3)),
        (f, (d, g * hidden, 3)),
        (f, (d, g * hidden, hidden)),
        (f, (d, 2 * g * hidden)),
        lengths,
        *([state] * (2 if op == "LSTM" else 1)),
    ]
    if peepholes:
        inputs.append((f, (d, 3 * hidden)))
    return Sample(
        tuple(inputs),
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
        (
            _sample("LSTM"),
            _sample("LSTM", direction="bidirectional"),
            _sample("LSTM", direction="reverse"),
            _sample("LSTM", peepholes=True),
            _sample("LSTM", peepholes=True, direction="bidirectional", clip=0.4),
            _sample("LSTM", lengths=_LENGTHS, direction="bidirectional"),
            _sample("LSTM", input_forget=1),
            _sample("LSTM", dtype="float64", peepholes=True),
            _sample(
                "LSTM", activations=["HardSigmoid", "Softsign", "Relu"], activation_alpha=[0.3], activation_beta=[0.4]
            ),
            _sample("LSTM", activations=["Sigmoid", "LeakyRelu", "Softplus"], activation_alpha=[0.2]),
        ),
    ),
    Op(
        "GRU",
        _emit,
        (
            _sample("GRU"),
            _sample("GRU", linear_before_reset=1),
            _sample("GRU", direction="bidirectional"),
            _sample("GRU", lengths=_LENGTHS, direction="reverse", linear_before_reset=1),
            _sample(
                "GRU",
                activations=["HardSigmoid", "ScaledTanh"],
                activation_alpha=[0.3, 0.7],
                activation_beta=[0.4, 0.8],
            ),
            _sample("GRU", clip=0.3),
            _sample("GRU", dtype="float16", direction="bidirectional"),
        ),
    ),
    Op(
        "RNN",
        _emit,
        (
            _sample("RNN"),
            _sample("RNN", direction="bidirectional"),
            _sample("RNN", lengths=_LENGTHS),
            _sample("RNN", activations=["Affine"], activation_alpha=[0.6], activation_beta=[0.1]),
            _sample(
                "RNN", activations=["Elu", "ThresholdedRelu"], direction="bidirectional", activation_alpha=[0.7, 0.2]
            ),
            _sample("RNN", layout=1, direction="bidirectional"),
        ),
    ),
)
