"""What a step of an LSTM, GRU or RNN computes, as scalar expressions: kernels lower them, and numpy evaluates the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.ir.expr import Expr, call, select
from autofuse.ir.stage import Scan
from autofuse.ops.common import like
from autofuse.ops.declare import Unsupported

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}

ALPHAS = {"Affine": 1.0, "LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "ScaledTanh": 1.0, "HardSigmoid": 0.2, "Elu": 1.0}
BETAS = {"Affine": 0.0, "ScaledTanh": 1.0, "HardSigmoid": 0.5}
"""Activations with parameters, and the values that these have by default: those of the operators of the same names."""

PLAIN = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")


@dataclass(frozen=True)
class Activation:
    """A function of a gate with its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Expr) -> Expr:
        one, zero, alpha, beta = like(x, 1), like(x, 0), like(x, self.alpha), like(x, self.beta)
        match self.name:
            case "Tanh":
                return call("tanh", x)
            case "Sigmoid":
                return call("div", one, call("add", one, call("exp", call("neg", x))))
            case "Relu":
                return call("maximum", x, zero)
            case "Affine":
                return call("add", call("mul", x, alpha), beta)
            case "LeakyRelu":
                return select(call("lt", x, zero), call("mul", x, alpha), x)
            case "ThresholdedRelu":
                return select(call("lt", x, alpha), zero, x)
            case "ScaledTanh":
                return call("mul", call("tanh", call("mul", x, beta)), alpha)
            case "HardSigmoid":
                return call("minimum", call("maximum", call("add", call("mul", x, alpha), beta), zero), one)
            case "Elu":
                return select(call("lt", x, zero), call("mul", call("sub", call("exp", x), one), alpha), x)
            case "Softsign":
                return call("div", x, call("add", one, call("abs", x)))
            case "Softplus":
                positive = call("maximum", x, zero)
                return call("add", positive, call("log1p", call("exp", call("neg", call("abs", x)))))
            case _:
                raise ValueError(f"no activation {self.name!r}")


def activations(
    op: str, names: list[str] | None, alphas: list[float], betas: list[float], directions: int
) -> list[tuple[Activation, ...]]:
    """The activations of each direction; parameters are handed out in order to those functions that have them."""
    wanted = names or list(DEFAULTS[op]) * directions
    known = {n.lower(): n for n in (*PLAIN, *ALPHAS)}
    count = len(DEFAULTS[op])
    strange = [n for n in wanted if n.lower() not in known]
    if strange or len(wanted) != count * directions:
        raise Unsupported(
            f"activations {wanted}: {count} for each of {directions} directions are allowed, of {sorted(known.values())}"
        )
    a, b = iter(alphas), iter(betas)
    made = [_parametrised(known[n.lower()], a, b) for n in wanted]
    return [tuple(made[d * count : (d + 1) * count]) for d in range(directions)]


def _parametrised(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    alpha = next(alphas, ALPHAS[name]) if name in ALPHAS else 0.0
    return Activation(name, alpha, next(betas, BETAS[name]) if name in BETAS else 0.0)


@dataclass(frozen=True)
class Cell:
    """A kind of recurrence with its options. `clip` bounds the gates before their activations; 0 leaves them unbounded."""

    op: str
    functions: tuple[Activation, ...]
    clip: float = 0.0
    coupled: bool = False
    linear: bool = False
    reverse: bool = False
    peepholes: bool = False
    lengths: bool = False

    @property
    def slots(self) -> dict[str, int]:
        """Where each input of the Scan stands: see autofuse.ops.recurrent."""
        names = ["gx", "r", "h"]
        names += ["c"] if self.op == "LSTM" else []
        names += ["rb"] if self.linear else []
        names += ["p"] if self.peepholes else []
        names += ["lengths"] if self.lengths else []
        return {n: k for k, n in enumerate(names)}

    def attributes(self) -> tuple[tuple[str, str | int | float | tuple[str, ...]], ...]:
        """As a Scan carries them."""
        functions = tuple(f"{f.name}({f.alpha!r},{f.beta!r})" for f in self.functions)
        return (
            ("activations", functions),
            ("clip", self.clip),
            ("input_forget", int(self.coupled)),
            ("lengths", int(self.lengths)),
            ("linear_before_reset", int(self.linear)),
            ("peepholes", int(self.peepholes)),
            ("reverse", int(self.reverse)),
        )

    def act(self, k: int, x: Expr) -> Expr:
        """The k-th activation (f, g, h in the standard's names) of what it sees."""
        if self.clip:
            x = call("minimum", call("maximum", x, like(x, -self.clip)), like(x, self.clip))
        return self.functions[k](x)

    def state(self, pre: tuple[Expr, ...], old: Expr, peepholes: tuple[Expr, ...] | None) -> Expr:
        """The next cell state of an LSTM from its gates' inputs (i, o, f, c) and the peephole weights (i, o, f)."""
        i, _, f, g = pre
        if peepholes is not None:
            i, f = call("add", i, call("mul", peepholes[0], old)), call("add", f, call("mul", peepholes[2], old))
        opened = self.act(0, i)
        kept = call("sub", like(opened, 1), opened) if self.coupled else self.act(0, f)
        return call("add", call("mul", kept, old), call("mul", opened, self.act(1, g)))

    def shown(self, pre: tuple[Expr, ...], new: Expr, peepholes: tuple[Expr, ...] | None) -> Expr:
        """What an LSTM gives for its next cell state, which stays unclipped, as onnxruntime and OpenVINO have it."""
        o = pre[1] if peepholes is None else call("add", pre[1], call("mul", peepholes[1], new))
        return call("mul", self.act(0, o), self.functions[2](new))

    def reset(self, r: Expr) -> Expr:
        """The reset gate of a GRU."""
        return self.act(0, r)

    def updated(self, z: Expr, candidate: Expr, old: Expr) -> Expr:
        """The next state of a GRU from the inputs of its update gate and of its candidate."""
        gate = self.act(0, z)
        return call(
            "add", call("mul", call("sub", like(gate, 1), gate), self.act(1, candidate)), call("mul", gate, old)
        )


def cell_of(scan: Scan) -> Cell:
    """The cell that a Scan's attributes describe."""
    found = dict(scan.attributes)
    texts = found["activations"]
    assert isinstance(texts, tuple)
    functions = []
    for text in texts:
        name, _, rest = str(text).rstrip(")").partition("(")
        alpha, beta = rest.split(",")
        functions.append(Activation(name, float(alpha), float(beta)))
    clip = found["clip"]
    assert isinstance(clip, float)
    return Cell(
        scan.cell,
        tuple(functions),
        clip,
        bool(found["input_forget"]),
        bool(found["linear_before_reset"]),
        bool(found["reverse"]),
        bool(found["peepholes"]),
        bool(found["lengths"]),
    )
