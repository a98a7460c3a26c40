"""Products of bytes against numpy's 64-bit integers, bit for bit: tails, extreme values, zero points of every kind, many schedules."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from host_contract import Case, check, in_space, schedules, target
from onnx import ModelProto, helper, numpy_helper
from test_contract_host import matmul

from autofuse.devices.cpu import CpuDevice
from autofuse.devices.toolchain import find_toolchain
from autofuse.engine import lowering
from autofuse.engine.assign import assign
from autofuse.engine.engine import Engine
from autofuse.engine.options import Option, heuristic_options
from autofuse.fusion.partition import Partitioner
from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.importer.importing import import_model
from autofuse.ir.graph import Graph
from autofuse.kernels.base import Variant
from autofuse.kernels.dot_host import DotHost
from autofuse.kernels.dot_roles import Quads, integer_product
from autofuse.kernels.families import family, variants
from autofuse.kernels.least import least_products
from autofuse.render.cpp import PRELUDE, render_cpp

DOT = DotHost()
RNG = np.random.default_rng(3)


def numbers(dtype: type, shape: Sequence[int]) -> np.ndarray:
    """Bytes of all sizes, many of them the least and the greatest."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = RNG.integers(low, high + 1, shape)
    kind = RNG.integers(0, 4, shape)
    return np.where(kind == 0, low, np.where(kind == 1, high, values)).astype(dtype)


def model(
    op: str, fed: dict[str, np.ndarray], constants: dict[str, np.ndarray], names: list[str], y: np.ndarray, **how
):
    """A model of one operator, `names` its inputs in order."""
    ports = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()
    ]
    stored = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    out = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(y.dtype), y.shape)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **how)], "g", ports, [out], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def case_of(made: ModelProto, fed: dict[str, np.ndarray], expected: np.ndarray) -> Case:
    """All of a model as one region."""
    graph = import_model(made, {})
    region = Region.of(graph, range(len(graph.nodes)))
    values = {**dict(graph.constants), **dict(zip(graph.inputs, fed.values(), strict=True))}
    return Case(graph, region, program_of(graph, region), tuple(values[v] for v in region.inputs), (expected,))


def product(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    kinds: tuple[type, type] = (np.uint8, np.int8),
    zeros: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = ((), ()),
    constant: bool = True,
) -> tuple[ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A MatMulInteger with zero points of the given shapes, what is fed, and numpy's result."""
    x, w = (numbers(k, s) for k, s in zip(kinds, shapes, strict=True))
    names, constants, shift = ["x", "w"], {}, []
    for name, kind, shape in zip(("zx", "zw"), kinds, zeros, strict=True):
        zero = numbers(kind, shape if shape is not None else ())
        if shape is not None and not zero.any():
            zero = zero + kind(5)
        names.append(name if shape is not None else "")
        if shape is not None:
            constants[name] = zero
        shift.append(zero.astype(np.int64) if shape is not None else np.int64(0))
    fed = {"x": x}
    (constants if constant else fed)["w"] = w
    y = np.matmul(x.astype(np.int64) - shift[0], w.astype(np.int64) - shift[1]).astype(np.int32)
    while names and not names[-1]:
        names.pop()
    return model("MatMulInteger", fed, constants, names, y), fed, y


def run_all(made: ModelProto, fed: dict[str, np.ndarray], y: np.ndarray, tmp_path: Path, count: int = 2) -> None:
    """Every variant with some schedules on its own, and as an engine between guard pages."""
    case, t = case_of(made, fed, y), target()
    found = list(DOT.variants(case.program, t))
    assert found
    for k, v in enumerate(found):
        for s in schedules(DOT, v, t, count, seed=k):
            assert in_space(DOT, v, s, t) == []
            check(case, DOT, v, s, t, tmp_path)
    got = engine_result(case.graph, fed)
    np.testing.assert_array_equal(got, y)


def dots_only(device: CpuDevice, algorithms: set[str] | None = None):
    """Dot products wherever there are some."""

    def source(program: RegionProgram) -> Sequence[Option]:
        every = heuristic_options(device.target, 1)(program)
        return [o for o in every if o.variant.family == "dot_host"] or every

    return source


def engine_result(graph: Graph, fed: dict[str, np.ndarray]) -> np.ndarray:
    device = CpuDevice(threads=2)
    plan = assign(graph, Partitioner(graph, device.target).greedy(), device.target, 1, "default", dots_only(device))
    assert any(r.family == "dot_host" for r in plan.regions)
    results = []
    for _ in range(2):  # the second time from the record
        lowering._MADE.clear()
        with Engine.build(graph, plan, device) as engine:
            results.append(engine.run(fed)["y"].copy())
    np.testing.assert_array_equal(*results)
    return results[0]


SHAPES = [
    ((1, 3), (3, 5)),
    ((5, 7), (7, 17)),
    ((13, 64), (64, 16)),
    ((33, 130), (130, 40)),
    ((3, 257), (257, 70)),
    ((70, 16), (16, 100)),
    ((2, 3, 9, 20), (20, 33)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes(shapes: tuple[tuple[int, ...], tuple[int, ...]], tmp_path: Path) -> None:
    """Rows, columns and depths that nothing divides."""
    run_all(*product(shapes), tmp_path, 3)


@pytest.mark.parametrize("kinds", list(itertools.product((np.uint8, np.int8), repeat=2)))
@pytest.mark.parametrize("zeros", [(None, None), ((), ()), ((11, 1), (37,)), (None, (37,)), ((), None)], ids=str)
@pytest.mark.parametrize("constant", [True, False])
def test_signs_and_zero_points(kinds, zeros, constant: bool, tmp_path: Path) -> None:
    """All four pairs of types; no zero points, one for all, one a row or a column; columns that are constants or not."""
    run_all(*product(((11, 35), (35, 37)), kinds, zeros, constant), tmp_path, 0)


@pytest.mark.parametrize(
    "shapes", [((2, 3, 10, 17), (2, 3, 17, 35)), ((2, 3, 10, 17), (3, 17, 35)), ((9,), (9, 5)), ((4, 9), (9,))]
)
def test_batches_and_vectors(shapes, tmp_path: Path) -> None:
    run_all(*product(shapes, (np.int8, np.uint8), ((), ()), False), tmp_path)


def test_overflow_wraps(tmp_path: Path) -> None:
    """More terms than 32 bits hold: around 2^32, like numpy."""
    x = np.full((2, 70000), 255, np.uint8)
    w = np.full((70000, 3), 127, np.int8)
    zero = np.array(1, np.uint8)
    y = np.matmul(x.astype(np.int64) - 1, w.astype(np.int64)).astype(np.int32)
    assert (y < 0).all()
    run_all(model("MatMulInteger", {"x": x}, {"w": w, "zx": zero}, ["x", "w", "zx"], y), {"x": x}, y, tmp_path, 0)


def windows(
    x: np.ndarray, w: np.ndarray, pads: list[int], strides: list[int], dilations: list[int], group: int
) -> np.ndarray:
    """A convolution of 64-bit integers, tap by tap; padding is zero."""
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *((pads[d], pads[rank + d]) for d in range(rank))])
    out = [(x.shape[2 + d] - dilations[d] * (w.shape[2 + d] - 1) - 1) // strides[d] + 1 for d in range(rank)]
    y = np.zeros((x.shape[0], w.shape[0], *out), np.int64)
    per, made = w.shape[1], w.shape[0] // group
    for tap in itertools.product(*(range(n) for n in w.shape[2:])):
        at = tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in zip(tap, dilations, strides, out, strict=True)
        )
        for g in range(group):
            part = x[(slice(None), slice(g * per, (g + 1) * per), *at)]
            weights = w[(slice(g * made, (g + 1) * made), slice(None), *tap)]
            y[:, g * made : (g + 1) * made] += np.einsum("nc...,kc->nk...", part, weights)
    return y


CONVOLUTIONS = {
    "3x3": ((1, 32, 9, 11), (40, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
    "stride 2": ((2, 16, 9, 10), (32, 16, 3, 3), {"pads": [1, 0, 1, 2], "strides": [2, 2]}),
    "dilated": ((1, 16, 11, 13), (16, 16, 3, 2), {"pads": [2, 3, 2, 3], "dilations": [2, 3]}),
    "first layer": ((1, 3, 20, 21), (24, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    "1x1": ((2, 32, 7, 7), (48, 32, 1, 1), {}),
    "odd channels": ((1, 35, 6, 6), (50, 35, 3, 3), {"pads": [1, 1, 1, 1]}),
    "grouped": ((1, 64, 5, 6), (64, 32, 3, 3), {"pads": [1, 1, 1, 1], "group": 2}),
    "one dimension": ((2, 24, 37), (20, 24, 5), {"pads": [2, 2]}),
}


def convolution(name: str, kinds: tuple[type, type], per_channel: bool):
    shape, weights, how = CONVOLUTIONS[name]
    x, w = numbers(kinds[0], shape), numbers(kinds[1], weights)
    zx = numbers(kinds[0], ()) + kinds[0](3)
    zw = numbers(kinds[1], weights[:1] if per_channel else ()) + kinds[1](1)
    rank = len(shape) - 2
    every = {"pads": [0] * 2 * rank, "strides": [1] * rank, "dilations": [1] * rank, "group": 1, **how}
    shifted = w.astype(np.int64) - zw.astype(np.int64).reshape(-1, *[1] * (w.ndim - 1))
    total = windows(x.astype(np.int64) - zx.astype(np.int64), shifted, **every)
    return x, w, zx, zw, total, how


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, tmp_path: Path) -> None:
    """Padding counts as the zero point; row-major and channel-blocked tensors."""
    x, w, zx, zw, total, how = convolution(name, (np.uint8, np.int8), False)
    y = total.astype(np.int32)
    made = model("ConvInteger", {"x": x}, {"w": w, "zx": zx, "zw": zw}, ["x", "w", "zx", "zw"], y, **how)
    run_all(made, {"x": x}, y, tmp_path)


@pytest.mark.parametrize("name", ["3x3", "odd channels", "1x1"])
@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
def test_brought_back_to_bytes(name: str, kinds, tmp_path: Path) -> None:
    """QLinearConv with scales that are powers of two, so that float32 rounds nothing but the result."""
    x, w, zx, zw, total, how = convolution(name, kinds, True)
    scales = {"sx": np.float32(0.5), "sw": np.float32(0.25), "sy": np.float32(512)}
    zy, bias = np.array(7, kinds[0]), RNG.integers(-9999, 9999, w.shape[0]).astype(np.int32)
    limits = np.iinfo(kinds[0])
    biased = total + bias.reshape(1, -1, *[1] * (w.ndim - 2))
    y = np.clip(np.rint(biased / 4096) + 7, limits.min, limits.max).astype(kinds[0])
    assert len(np.unique(y)) > 20
    constants = {**{k: np.array(v) for k, v in scales.items()}, "w": w, "zx": zx, "zw": zw, "zy": zy, "b": bias}
    order = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
    run_all(model("QLinearConv", {"x": x}, constants, order, y, **how), {"x": x}, y, tmp_path)


def test_constant_columns_are_prepared_once() -> None:
    """Quads of each vector of columns, zeros in the padding, sums at the end."""
    w = numbers(np.uint8, (3, 20, 7))
    p = Quads(1, 2, "0", 16)
    flat = p.apply(w)
    assert flat.size == p.elements(w.shape) and flat.dtype == w.dtype
    tiles = flat[: -32 * 4].view(np.int8).reshape(2, 3, 2, 16, 4)
    moved = w.astype(np.int64) - 128
    assert tiles[1, 2, 1, 3].tolist() == [*moved[2, 19, 4:7], 0]
    assert not tiles[1, :, :, 4:].any()
    assert flat[-32 * 4 :].view(np.int32)[:20].tolist() == moved.sum((0, 2)).tolist()


def test_what_is_no_product_of_bytes() -> None:
    case = matmul((13, 21), (21, 37), dtype=np.int32)
    assert integer_product(case.program) is None and not list(DOT.variants(case.program, target()))


def test_the_general_reduction_is_not_asked() -> None:
    """A deep product with zero points is none of the sums that a loop without tiles does."""
    made, fed, y = product(((8, 64), (64, 32)))
    assert {v.family for v in variants(case_of(made, fed, y).program, target())} == {"dot_host"}


def test_bound_counts_whole_vectors_and_quads() -> None:
    made, fed, y = product(((8, 63), (63, 33)))
    (v,) = DOT.variants(case_of(made, fed, y).program, target())
    assert least_products(v, target()) == 2 * 8 * 64 * 48 / 4
    (launch,) = DOT.lower(v, DOT.heuristic(v, target()), target()).launches
    assert launch.kernel.flops == 2 * 8 * 63 * 33 / 4


@pytest.mark.parametrize("width", [32, 16])
def test_narrow_vectors(width: int, tmp_path: Path) -> None:
    t = target(width)
    for made in (product(((11, 35), (35, 37)), (np.int8, np.uint8)), product(((11, 35), (35, 37)), constant=False)):
        case = case_of(*made)
        for v in DOT.variants(case.program, t):
            check(case, DOT, v, DOT.heuristic(v, t), t, tmp_path)


def lowered(v: Variant) -> str:
    (launch,) = family(v.family).lower(v, DOT.heuristic(v, target()), target()).launches
    return render_cpp(launch.kernel, 64)


def test_text(tmp_path: Path) -> None:
    """The inner loop is a broadcast of four bytes and dot products; a processor that has the instruction is told so."""
    made, fed, y = product(((8, 64), (64, 64)))
    (v,) = DOT.variants(case_of(made, fed, y).program, target())
    text = lowered(v)
    assert "af_dot_bytes<vec<int32_t, 16>>" in text and "af_four_bytes(" in text
    toolchain = find_toolchain()
    source = tmp_path / "kernel.cpp"
    source.write_text(text)
    command = [
        *toolchain.command,
        "-O3",
        "-std=c++17",
        "-fwrapv",
        "-march=x86-64-v4",
        "-mavx512vnni",
        f"-I{PRELUDE}",
        "-S",
    ]
    subprocess.run([*command, str(source), "-o", str(tmp_path / "kernel.s")], check=True)
    assert (tmp_path / "kernel.s").read_text().count("vpdpbusd") >= 8
