"""What the fixture `run` gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """What a command gave back."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]
