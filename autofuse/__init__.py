"""autofuse: finds the fastest way to run an ONNX model by searching over kernel fusions and tile sizes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from autofuse.version import __version__

if TYPE_CHECKING:
    from autofuse.api import LoadedEngine, Results, TuneResult, load, open_results, tune

__all__ = ["LoadedEngine", "Results", "TuneResult", "__version__", "load", "open_results", "tune"]


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: `import autofuse` alone takes no time."""
    if name in __all__:
        return getattr(importlib.import_module("autofuse.api"), name)
    raise AttributeError(f"module 'autofuse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
