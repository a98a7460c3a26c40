"""What the recurrent families share: gate counts and activations."""

from __future__ import annotations

from autofuse.ir.expr import Expr, call, const

GATE_COUNT = {"LSTM": 4, "GRU": 3, "RNN": 1}


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x))."""
    one = const(1, x.dtype)
    return call("div", one, call("add", one, call("exp", call("neg", x))))
