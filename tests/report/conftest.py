"""Results of made-up tunes, written once for all tests of the report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import outcomes

from autofuse.report.folder import write_results
from autofuse.report.results import Results, open_results


@pytest.fixture(scope="session")
def small_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return open_results(write_results(outcomes.small(), tmp_path_factory.mktemp("small"), {"python": "3.x"}))


@pytest.fixture(scope="session")
def transformer_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return open_results(write_results(outcomes.transformer(), tmp_path_factory.mktemp("transformer")))


@pytest.fixture(scope="session")
def data_dictionary() -> str:
    return (Path(__file__).parents[2] / "docs" / "data-dictionary.md").read_text()
