"""The figures in the tables, and the Pareto front."""

from __future__ import annotations

import dataclasses

import numpy as np
import outcomes
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofuse.report import pareto
from autofuse.report.results import Results
from autofuse.report.structure import region_table
from autofuse.report.tables import quantiles, step_table, trade_off_table
from autofuse.report.units import bytes_text, count_text, gain_text, microseconds_text, percent_text

points = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=25)


@given(points)
def test_the_front_is_what_nothing_beats(rows: list[tuple[int, int, int]]) -> None:
    standing = pareto.front(np.array(rows, dtype=float))
    for k, row in enumerate(rows):
        beaten = any(all(a <= b for a, b in zip(o, row, strict=True)) and o != row for o in rows)
        assert standing[k] == (not beaten)


def test_rows_with_nan_do_not_stand() -> None:
    assert list(pareto.front(np.array([[np.nan, 0.0], [1.0, 1.0]]))) == [False, True]


@pytest.mark.parametrize(("error", "step"), [(1.1e-6, 2e-6), (2e-6, 2e-6), (6e-5, 1e-4), (1e-3, 1e-3), (0.0, 0.0)])
def test_errors_count_by_their_order(error: float, step: float) -> None:
    assert pareto.error_step(error) == pytest.approx(step)


def test_failed_plans_have_no_time_and_no_flag() -> None:
    table = trade_off_table(outcomes.small())
    bad = table[table["status"] != "ok"]
    assert len(bad) == 1 and bad["median_ms"].isna().all() and not bad["pareto"].any() and not bad["best"].any()
    assert "3e-2" in bad["reason"].iloc[0]
    assert table["pareto"].any()


def test_quantiles() -> None:
    low, middle, high = quantiles([1_000_000, 2_000_000, 3_000_000])
    assert (low, middle, high) == pytest.approx((1.2, 2.0, 2.8))
    assert np.isnan(quantiles([])).all()


def test_gains_are_told_apart() -> None:
    steps = step_table(trade_off_table(outcomes.small()))
    assert list(steps["step"]) == ["unfused", "tuned", "fused", "other-algorithm"]
    assert steps["gain"].iloc[0] == 1.0
    assert np.prod(steps["gain_here"]) == pytest.approx(steps["gain"].iloc[-1])
    assert (steps["median_ms"].diff().dropna() < 0).all()


def test_a_slower_step_is_a_loss_not_a_gain() -> None:
    outcome = outcomes.small()
    slow = dataclasses.replace(outcome.plans[3], samples_ns=(10**9,) * 3)
    steps = step_table(trade_off_table(dataclasses.replace(outcome, plans=(outcome.plans[0], slow))))
    assert steps["gain_here"].iloc[1] < 1


def test_region_times_are_shares_of_the_whole(transformer_results: Results) -> None:
    regions = transformer_results.regions
    assert regions["time_share"].sum() == pytest.approx(1.0)
    assert (regions["floor_us"] <= regions["time_us"]).all()
    assert set(regions["bound"]) <= {"memory", "compute", "launch", "none"}
    assert regions["launches"].sum() == transformer_results.trade_offs["launches"].iloc[3]
    assert regions["operators"].str.contains("MatMul").any()


def test_a_plan_that_was_not_profiled_has_regions_without_times() -> None:
    outcome = outcomes.small()
    table = region_table(outcome.graph, outcome.best, outcome.target, outcome.calibration)
    assert table["time_us"].isna().all() and table["floor_us"].gt(0).all()


def test_values_that_the_plan_stores_are_marked(transformer_results: Results) -> None:
    values = transformer_results.values
    outputs = values[values["role"] == "output"]
    assert list(outputs["name"]) == ["y"] and outputs["materialised"].all()
    assert not values.loc[values["role"] == "constant", "materialised"].any()
    assert (~values.loc[values["role"] == "intermediate", "materialised"]).any()


def test_every_column_is_in_the_data_dictionary(transformer_results: Results, data_dictionary: str) -> None:
    tables: list[pd.DataFrame] = [
        transformer_results.trade_offs, transformer_results.kernels, transformer_results.verdicts, transformer_results.regions,
        transformer_results.values, transformer_results.samples, transformer_results.steps,
    ]  # fmt: skip
    missing = [c for t in tables for c in t.columns if f"`{c}`" not in data_dictionary]
    missing += [k for k in transformer_results.run if f"`{k}`" not in data_dictionary]
    assert not missing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(1023), "1023 B"),
        (bytes_text(1536), "1.50 KiB"),
        (bytes_text(7.5 * 2**20), "7.50 MiB"),
        (microseconds_text(999.6), "1000 us"),
        (microseconds_text(1234), "1.23 ms"),
        (microseconds_text(float("nan")), "-"),
        (count_text(2.5e9), "2.50 G"),
        (percent_text(0.663), "66 %"),
        (gain_text(2.5333), "2.53x"),
    ],
)
def test_units(text: str, expected: str) -> None:
    assert text == expected
