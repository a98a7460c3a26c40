"""autofuse: finds the fastest way to run an ONNX model by searching over kernel fusions and tile sizes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from autofuse.version import __version__

if TYPE_CHECKING:
    from autofuse.api import onnx_backend
    from autofuse.api.cleaning import write_cleaned
    from autofuse.api.loading import LoadedEngine, load
    from autofuse.api.replaying import replay
    from autofuse.api.tuning import TuneResult, tune
    from autofuse.report.results import Results, open_results

__all__ = [
    "LoadedEngine",
    "Results",
    "TuneResult",
    "__version__",
    "load",
    "onnx_backend",
    "open_results",
    "replay",
    "tune",
    "write_cleaned",
]

_HOME = {
    "LoadedEngine": "autofuse.api.loading",
    "load": "autofuse.api.loading",
    "replay": "autofuse.api.replaying",
    "TuneResult": "autofuse.api.tuning",
    "tune": "autofuse.api.tuning",
    "write_cleaned": "autofuse.api.cleaning",
    "Results": "autofuse.report.results",
    "open_results": "autofuse.report.results",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: `import autofuse` alone takes no time, and loading a model needs no Optuna."""
    if name == "onnx_backend":
        return importlib.import_module("autofuse.api.onnx_backend")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'autofuse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
