"""Lower bounds: what a variant computes and moves at least, memory levels, and what a kernel that beats its bound corrects."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info
from onnx.numpy_helper import from_array
from replay import HOST
from search_graphs import matmul

from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.importer.importing import import_model
from autofuse.importer.load import load_model
from autofuse.ir.dtype import DType
from autofuse.kernels.families import variants
from autofuse.kernels.least import least_bytes, least_products
from autofuse.measure.calibrate import Reached
from autofuse.ops.builder import Builder
from autofuse.search.exact.bounds import SLACK, Bounds

REACHED = Reached(1e10, 1e11, 1e-7, True, 8e10, 4e10)


def product(m: int, k: int, n: int) -> RegionProgram:
    b = Builder()
    x = b.input("x", DType.FLOAT32, (m, k))
    w = b.constant(np.ones((k, n), np.float32))
    return program_of(b.graph([("y", matmul(b, x, w))]), Region((0,), (x, w), (2,)))


def test_vectors_are_whole() -> None:
    for n, lanes in ((16, 16), (17, 32), (55, 64)):
        tiled = [
            v for v in variants(product(64, 32, n), HOST) if (v.family, v.algorithm) == ("contract_host", "direct-i1")
        ]
        assert tiled
        assert all(least_products(v, HOST) == pytest.approx(2 * 64 * 32 * lanes) for v in tiled)


def convolution(extent: int, taps: int, pad: int) -> RegionProgram:
    weights = from_array(np.ones((16, 16, taps), np.float32), "w")
    shape = [1, 16, extent]
    made = make_graph(
        [make_node("Conv", ["x", "w"], ["y"], pads=[pad, pad])],
        "padded",
        [make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weights],
    )
    graph = import_model(make_model(made))
    return program_of(graph, Partitioner(graph, HOST).unfused().regions[0])


@pytest.mark.parametrize(("extent", "taps", "pad"), [(1, 3, 1), (2, 3, 1), (7, 3, 1), (9, 5, 2), (4, 3, 0), (1, 1, 2)])
def test_products_with_padding_are_not_counted(extent: int, taps: int, pad: int) -> None:
    program = convolution(extent, taps, pad)
    outputs = extent + 2 * pad - taps + 1
    inside = sum(0 <= i + k - pad < extent for i in range(outputs) for k in range(taps))
    tiled = [v for v in variants(program, HOST) if v.family == "contract_host" and v.algorithm == "direct-i0"]
    assert tiled
    assert all(least_products(v, HOST) == pytest.approx(2 * 16 * 16 * inside) for v in tiled)


def test_winograd_has_fewer_products_and_larger_weights() -> None:
    graph = import_model(load_model("sample:squeezenet"))
    found = 0
    for region in Partitioner(graph, HOST).unfused().regions:
        every = variants(program_of(graph, region), HOST)
        direct = [v for v in every if v.family == "contract_host"]
        for v in every:
            if v.family == "winograd_host" and direct:
                found += 1
                assert least_products(v, HOST) < least_products(direct[0], HOST)
                # Half of the transforms counts, and nothing is below the algorithm's products alone.
                assert least_products(v, HOST) > v.program.flops / 9
                assert least_bytes(v) > least_bytes(direct[0])
    assert found


def test_bytes_move_at_the_rate_of_the_level_that_holds_them() -> None:
    bounds = Bounds.of(REACHED, HOST)
    near, far = HOST.cores * HOST.l2, HOST.l3
    assert [level.name for level in bounds.levels] == ["first caches", "last cache", "memory"]
    assert bounds.traffic(near) == pytest.approx(near / 8e10 / SLACK)
    assert bounds.traffic(near + far) == pytest.approx((near / 8e10 + far / 4e10) / SLACK)
    assert bounds.traffic(near + far + 1e9) == pytest.approx((near / 8e10 + far / 4e10 + 1e9 / 1e10) / SLACK)
    # A last cache that was not measured is taken to be as fast as the first ones: a bound stays a bound.
    unknown = Bounds.of(Reached(1e10, 1e11, 1e-7, True, 8e10), HOST)
    assert unknown.traffic(near + far) < bounds.traffic(near + far)


def test_a_beaten_bound_raises_the_rate_that_was_beaten_and_says_which() -> None:
    v = next(v for v in variants(product(64, 256, 64), HOST) if v.family == "contract_host")
    bounds = Bounds.of(REACHED, HOST)
    assert bounds.corrected(v, 1.0) is bounds and bounds.words() == ""
    seconds = bounds.lower(v) / 2
    better = bounds.corrected(v, seconds)
    assert better.lower(v) <= seconds and better.flops > 1.9 * bounds.flops
    assert better.levels == bounds.levels  # its bytes were not what bound it
    assert "a kernel was faster than the bound" in better.words() and "arithmetic 2." in better.words()
    again = better.corrected(v, seconds / 2)
    assert again.corrections == 2 and dict(again.raised)["arithmetic"] > 4
