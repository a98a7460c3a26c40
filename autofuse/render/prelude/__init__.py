"""The hand-written code that generated text stands on, as text."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent


@lru_cache(maxsize=32)
def prelude(name: str) -> str:
    """The text of one prelude file, "cuda.h" say."""
    return (FOLDER / name).read_text(encoding="utf-8")
