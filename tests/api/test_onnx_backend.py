"""The standard backend interface runs models of onnx's own suite."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.backend.test.loader import load_model_tests

import autofuse

CASES = {c.name: c for c in load_model_tests(kind="node")}
CHOSEN = (
    "test_add_bcast",
    "test_argmax_keepdims_example_select_last_index",
    "test_averagepool_2d_ceil",
    "test_convtranspose_pads",
    "test_gemm_all_attributes",
    "test_gru_seq_length",
    "test_layer_normalization_3d_axis1_epsilon",
    "test_lstm_defaults",
    "test_mod_int64_fmod",
    "test_resize_upsample_scales_linear_align_corners",
    "test_simple_rnn_defaults",
    "test_softmax_large_number",
    "test_transpose_all_permutations_3",
    "test_where_long_example",
)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_node_case_through_the_backend(name: str) -> None:
    case = CASES[name]
    assert autofuse.onnx_backend.supports_device("CPU")
    prepared = autofuse.onnx_backend.prepare(case.model)
    for inputs, outputs in case.data_sets:
        for found, expected in zip(prepared.run(inputs), outputs, strict=True):
            assert found.dtype == expected.dtype and found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=case.rtol, atol=case.atol)
