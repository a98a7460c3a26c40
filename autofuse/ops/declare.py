"""What a declaration is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autofuse.ir.graph import ValueId
from autofuse.ops.builder import Builder


class Unsupported(Exception):
    """A declaration has no kernel for this use of the operator; the message says which use."""


@dataclass(frozen=True)
class Call:
    """One use of an operator: its attributes (plain Python and numpy values), its opset, its inputs.

    `inputs` has None for left-out optional inputs; trailing ones may be missing. `wanted` says, for each
    output of the node, whether anything reads it.
    """

    op: str
    domain: str
    opset: int
    inputs: tuple[ValueId | None, ...]
    attributes: Mapping[str, Any]
    wanted: tuple[bool, ...]
    builder: Builder

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default where it is not given: a float in single precision, as attributes are."""
        if isinstance(default, float):
            default = float(np.float32(default))
        return self.attributes.get(name, default)

    def has(self, k: int) -> bool:
        """Whether input k is there."""
        return k < len(self.inputs) and self.inputs[k] is not None

    def input(self, k: int) -> ValueId:
        """Input k, which must be there."""
        v = self.inputs[k] if k < len(self.inputs) else None
        if v is None:
            raise Unsupported(f"input {k} is left out")
        return v

    def constant(self, k: int) -> np.ndarray | None:
        """The contents of input k: None where it is left out. Unsupported where it is not known at import.

        Only for what decides about shapes, axes or the kernel itself: where it is fed, the graph holds for what was fed alone.
        """
        if not self.has(k):
            return None
        found = self.builder.parameter(self.input(k))
        if found is None:
            raise Unsupported(f"input {k} is not a constant")
        return found

    def ints(self, k: int, attribute: str | None = None) -> list[int] | None:
        """A list of integers from a constant input, or (older opsets) from an attribute."""
        if attribute is not None and attribute in self.attributes:
            return [int(x) for x in self.attributes[attribute]]
        found = self.constant(k)
        return None if found is None else [int(x) for x in found.reshape(-1)]


Emit = Callable[[Call], Sequence[ValueId | None]]


@dataclass(frozen=True)
class Sample:
    """A use of an operator for tests: inputs as (type, shape) or ready arrays, attributes, the opset.

    `low` and `high` bound the random numbers, so that they lie in the operator's domain.
    """

    inputs: tuple[np.ndarray | tuple[str, tuple[int, ...]] | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 21
    low: float = -2.0
    high: float = 2.0
    outputs: int = 1
    constant: tuple[int, ...] = ()
    """Which inputs are initializers of the model (axes, shapes, weights)."""


@dataclass(frozen=True)
class Op:
    """An operator: what it emits. `samples` drive the tests; `fuses` names the kernel families that it can end up in."""

    name: str
    emit: Emit
    samples: tuple[Sample, ...]
    domain: str = ""
    since: int = 1
