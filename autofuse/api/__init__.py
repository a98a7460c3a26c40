"""What Python programs call: tune a model, load the best plan, open results."""

from autofuse.api.loading import LoadedEngine, load
from autofuse.api.tuning import TuneResult, tune
from autofuse.report.results import Results, open_results

__all__ = ["LoadedEngine", "Results", "TuneResult", "load", "open_results", "tune"]
