"""Host contractions against float64 arithmetic: convolutions and matrix products of many shapes, under many schedules."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from host_contract import Case, Maker, check, in_space, schedules, target

from autofuse.ir.layout import Layout
from autofuse.kernels.contract_host import ContractHost
from autofuse.kernels.cook_toom import Matrix, short_filter
from autofuse.kernels.preparation import Preparation
from autofuse.kernels.winograd_host import WinogradHost

DIRECT = ContractHost()
WINOGRAD = WinogradHost()


def conv(
    x: tuple[int, ...],
    w: tuple[int, ...],
    dtype: type = np.float32,
    residual: bool = False,
    relu: bool = True,
    **attributes: object,
) -> Case:
    """Convolution, bias, perhaps a residual and a Relu."""
    g = Maker(dtype)
    y = g.op("Conv", g.input(*x), g.weights(*w), g.weights(w[0]), **attributes)
    if residual:
        y = g.op("Add", y, g.input(*g.b.shape(y)))
    return g.case(g.op("Relu", y) if relu else y)


def matmul(
    a: tuple[int, ...], b: tuple[int, ...], constant: bool = True, transposed: bool = False, dtype: type = np.float32
) -> Case:
    """Matrix product (of a transposed second operand) and bias."""
    g = Maker(dtype)
    x = g.input(*a)
    w = g.weights(*b) if constant else g.input(*b)
    if transposed:
        order = [*range(len(b) - 2), len(b) - 1, len(b) - 2]
        w = g.op("Transpose", w, perm=order)
    y = g.op("MatMul", x, w)
    return g.case(g.op("Add", y, g.weights(g.b.shape(y)[-1])))


def split_heads() -> Case:
    """MatMul, bias, Reshape and Transpose: the output is a permutation of the product."""
    g = Maker()
    y = g.op("Add", g.op("MatMul", g.input(2, 21, 48), g.weights(48, 96)), g.weights(96))
    shape = g.b.constant(np.array([2, 21, 3, 32]))
    return g.case(g.op("Transpose", g.op("Reshape", y, shape), perm=[0, 2, 1, 3]))


def merge_heads() -> Case:
    """Transpose and Reshape before MatMul: the reduced axis comes from two axes of the input."""
    g = Maker()
    x = g.op("Transpose", g.input(2, 3, 13, 16), perm=[0, 2, 1, 3])
    return g.case(g.op("MatMul", g.op("Reshape", x, g.b.constant(np.array([2, 13, 48]))), g.weights(48, 40)))


def two_outputs() -> Case:
    """The sum before and after its activation."""
    g = Maker()
    y = g.op("Conv", g.input(1, 32, 9, 9), g.weights(32, 32, 3, 3), g.weights(32), pads=[1, 1, 1, 1])
    return g.case(y, g.op("Relu", y))


def activation_first() -> Case:
    """A Relu in front of the convolution, inside its padding."""
    g = Maker()
    return g.case(g.op("Conv", g.op("Relu", g.input(1, 16, 9, 9)), g.weights(20, 16, 3, 3), pads=[1, 1, 1, 1]))


def scaled() -> Case:
    """An epilogue operand that varies along the rows, one that varies along both, and a scalar."""
    g = Maker()
    y = g.op("MatMul", g.input(19, 33), g.weights(33, 50))
    y = g.op("Mul", g.op("Add", y, g.input(19, 50)), g.input(19, 1))
    return g.case(g.op("Mul", y, g.weights()))


CASES: dict[str, Callable[[], Case]] = {
    "3x3": lambda: conv((1, 32, 14, 15), (48, 32, 3, 3), residual=True, pads=[1, 1, 1, 1]),
    "3x3 stride 2": lambda: conv((2, 16, 15, 17), (32, 16, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2]),
    "3x3 dilation": lambda: conv((1, 16, 13, 14), (16, 16, 3, 3), pads=[2, 3, 2, 3], dilations=[2, 3]),
    "asymmetric": lambda: conv((1, 20, 9, 10), (24, 20, 2, 3), residual=True, pads=[0, 2, 1, 1]),
    "1x1": lambda: conv((2, 32, 7, 7), (64, 32, 1, 1)),
    "1x1 stride 2": lambda: conv((1, 32, 9, 9), (40, 32, 1, 1), strides=[2, 2]),
    "1x1 padded": lambda: conv((1, 16, 5, 6), (16, 16, 1, 1), pads=[1, 1, 1, 1]),
    "first layer": lambda: conv((1, 3, 30, 31), (24, 3, 7, 7), pads=[3, 3, 3, 3], strides=[2, 2]),
    "few channels": lambda: conv((1, 5, 12, 12), (7, 5, 3, 3), residual=True, pads=[1, 1, 1, 1]),
    "odd channels": lambda: conv((1, 35, 6, 6), (50, 35, 3, 3), residual=True, pads=[1, 1, 1, 1]),
    "grouped": lambda: conv((1, 64, 9, 8), (64, 16, 3, 3), pads=[1, 1, 1, 1], group=4),
    "grouped odd": lambda: conv((1, 12, 9, 8), (18, 4, 3, 3), pads=[1, 1, 1, 1], group=3),
    "one dimension": lambda: conv((2, 24, 37), (20, 24, 5), pads=[2, 2]),
    "wide window": lambda: conv((1, 16, 40), (16, 16, 25), pads=[12, 12]),
    "three dimensions": lambda: conv((1, 16, 5, 6, 7), (16, 16, 3, 2, 3), pads=[1, 0, 1, 1, 1, 1]),
    "whole image": lambda: conv((2, 16, 4, 4), (32, 16, 4, 4)),
    "double": lambda: conv((1, 20, 8, 9), (24, 20, 3, 3), np.float64, residual=True, pads=[1, 1, 1, 1]),
    "half": lambda: conv((1, 16, 8, 9), (24, 16, 3, 3), np.float16, residual=True, pads=[1, 1, 1, 1]),
    "two outputs": two_outputs,
    "activation first": activation_first,
    "matmul": lambda: matmul((29, 33), (33, 50)),
    "matmul aligned": lambda: matmul((3, 16, 64), (64, 96)),
    "vector": lambda: matmul((1, 65), (65, 133)),
    "batched": lambda: matmul((2, 3, 10, 17), (2, 3, 17, 35), constant=False),
    "broadcast batch": lambda: matmul((2, 3, 10, 17), (3, 17, 35)),
    "scores": lambda: matmul((2, 3, 18, 32), (2, 3, 21, 32), constant=False, transposed=True),
    "transposed constant": lambda: matmul((9, 40), (31, 40), transposed=True),
    "integers": lambda: matmul((13, 21), (21, 37), dtype=np.int32),
    "double matmul": lambda: matmul((13, 21), (21, 37), dtype=np.float64),
    "half matmul": lambda: matmul((13, 21), (21, 37), constant=False, dtype=np.float16),
    "split heads": split_heads,
    "merge heads": merge_heads,
    "scaled": scaled,
}


@pytest.mark.parametrize("name", CASES)
def test_direct(name: str, tmp_path: Path) -> None:
    """Every variant, with its heuristic schedule and two random ones."""
    case = CASES[name]()
    t = target()
    found = list(DIRECT.variants(case.program, t))
    assert found
    for k, v in enumerate(found):
        for s in schedules(DIRECT, v, t, 2, seed=k):
            assert in_space(DIRECT, v, s, t) == []
            check(case, DIRECT, v, s, t, tmp_path)


@pytest.mark.parametrize("name", ["3x3", "odd channels", "double", "matmul", "scores"])
def test_narrow_vectors(name: str, tmp_path: Path) -> None:
    """Vectors of 32 and 16 bytes: fewer registers, smaller channel blocks."""
    case = CASES[name]()
    for width in (32, 16):
        t = target(width)
        for v in DIRECT.variants(case.program, t):
            check(case, DIRECT, v, DIRECT.heuristic(v, t), t, tmp_path)


@pytest.mark.parametrize(("m", "n", "k"), [(513, 17, 9), (14, 1000, 5), (3, 33, 257), (1, 1000, 257)])
def test_tails_of_every_tile(m: int, n: int, k: int, tmp_path: Path) -> None:
    """Rows, columns and depths that no tile divides."""
    t = target()
    case = matmul((m, k), (k, n))
    for v in DIRECT.variants(case.program, t):
        for s in schedules(DIRECT, v, t, 4, seed=m):
            check(case, DIRECT, v, s, t, tmp_path)


WINOGRAD_CASES: dict[str, Callable[[], Case]] = {
    "padded": lambda: conv((2, 20, 9, 11), (40, 20, 3, 3), residual=True, pads=[1, 1, 1, 1]),
    "valid": lambda: conv((1, 32, 14, 13), (32, 32, 3, 3), residual=True),
    "asymmetric": lambda: conv((1, 16, 13, 10), (24, 16, 3, 3), residual=True, pads=[1, 0, 2, 1]),
    "small": lambda: conv((3, 16, 7, 7), (48, 16, 3, 3), pads=[1, 1, 1, 1]),
    "two outputs": two_outputs,
    "activation first": activation_first,
    "five taps": lambda: conv((2, 20, 9, 11), (40, 20, 5, 5), residual=True, pads=[2, 2, 2, 2]),
    "five taps, valid": lambda: conv((1, 16, 13, 14), (24, 16, 5, 5)),
    "one dimension": lambda: conv((2, 20, 23), (40, 20, 3), residual=True, pads=[1, 1]),
    "one dimension, five taps": lambda: conv((1, 32, 37), (32, 32, 5), residual=True, pads=[2, 2]),
    "one dimension of two": lambda: conv((1, 32, 3, 18), (32, 32, 1, 5), residual=True, pads=[0, 2, 0, 2]),
    "dilated": lambda: conv((1, 16, 21, 23), (32, 16, 3, 3), dilations=[2, 3], pads=[2, 3, 2, 3], residual=True),
    "dilated, one dimension": lambda: conv((2, 16, 75), (32, 16, 3), dilations=[16], pads=[16, 16]),
    "the other dimension": lambda: conv((1, 16, 18, 3), (32, 16, 3, 1), pads=[1, 0, 1, 0]),
}


@pytest.mark.parametrize("name", WINOGRAD_CASES)
def test_winograd(name: str, tmp_path: Path) -> None:
    """Both tile sizes: they are marked tolerant, and are right for numbers of the size that layers have."""
    case = WINOGRAD_CASES[name]()
    t = target()
    found = list(WINOGRAD.variants(case.program, t))
    assert {v.algorithm for v in found} == {"winograd-f4", "winograd-f2"}
    for k, v in enumerate(found):
        assert v.tolerant
        for s in schedules(WINOGRAD, v, t, 1, seed=k):
            check(case, WINOGRAD, v, s, t, tmp_path)


def test_winograd_is_in_its_space() -> None:
    t = target()
    for c, h in ((64, 56), (512, 7), (16, 9), (1024, 14)):
        case = conv((1, c, h, h), (16, c, 3, 3), pads=[1, 1, 1, 1])
        for v in WINOGRAD.variants(case.program, t):
            assert in_space(WINOGRAD, v, WINOGRAD.heuristic(v, t), t) == []


@pytest.mark.parametrize(
    "case",
    [
        lambda: conv((1, 16, 9, 9), (16, 16, 3, 3), strides=[2, 2]),
        lambda: conv((1, 32, 9, 9), (32, 16, 3, 3), group=2),
        lambda: conv((1, 16, 9, 9), (16, 16, 7, 7)),
        lambda: conv((1, 16, 9, 9), (16, 16, 3, 5)),
        lambda: conv((1, 16, 29), (16, 16, 5), strides=[2]),
        lambda: conv((1, 8, 9, 9), (16, 8, 3, 3)),
        lambda: conv((1, 16, 9, 9), (16, 16, 3, 3), np.float64),
    ],
)
def test_winograd_refuses(case: Callable[[], Case]) -> None:
    """Strides, groups, other windows, few channels, other types."""
    assert not list(WINOGRAD.variants(case().program, target()))


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (2, 5), (4, 5), (3, 2), (6, 3)])
def test_short_filters_are_correlations(m: int, r: int) -> None:
    """Exactly, in fractions: m outputs of r taps."""
    f = short_filter(m, r)
    generator = np.random.default_rng(m * r)
    w, d = ([Fraction(int(x)) for x in generator.integers(-9, 9, n)] for n in (r, m + r - 1))

    def times(matrix: Matrix, x: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, x, strict=True)), Fraction(0)) for row in matrix]

    product = [a * b for a, b in zip(times(f.weight, w), times(f.input, d), strict=True)]
    assert times(f.output, product) == [sum(w[k] * d[i + k] for k in range(r)) for i in range(m)]


@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("size", [2, 4])
def test_winograd_weights(size: int, taps: int) -> None:
    """G w G^T in the order in which the kernel reads it, zeros in the padding."""
    w = np.random.default_rng(0).standard_normal((20, 17, taps, taps)).astype(np.float32)
    p = Preparation("winograd", size, taps, 16)
    flat = p.apply(w)
    assert flat.size == p.elements(w.shape) and flat.dtype == w.dtype
    side = size + taps - 1
    tiles = flat.reshape(2, side, side, 32, 16)
    g = np.array(short_filter(size, taps).weight, np.float64)
    np.testing.assert_allclose(tiles[1, :, :, 5, 3], g @ w[19, 5].astype(np.float64) @ g.T, rtol=1e-6)
    assert not tiles[1, :, :, :, 4:].any() and not tiles[:, :, :, 17:].any()


def test_channel_blocked_variants_ask_for_blocked_layouts() -> None:
    """Activations and residuals in blocks of channels, weights with the vector innermost."""
    case = conv((1, 32, 8, 8), (64, 32, 3, 3), residual=True, pads=[1, 1, 1, 1])
    first = next(iter(DIRECT.variants(case.program, target())))
    assert [x.text() for x in first.input_layouts] == ["abcd16b", "abcd16b16a", "a16a", "abcd16b"]
    assert first.output_layouts == (Layout.blocked(4, 1, 16),)


def test_no_variant_for_what_is_no_contraction() -> None:
    g = Maker()
    assert not list(DIRECT.variants(g.case(g.op("Relu", g.input(4, 5))).program, target()))


@pytest.mark.parametrize(
    ("size", "taps", "shape", "saving"),
    [
        (4, 3, (8, 8, 3, 3), 4.0),
        (2, 3, (8, 8, 3, 3), 2.25),
        (4, 5, (8, 8, 5), 2.5),
        (4, 5, (8, 8, 1, 5), 2.5),
        (4, 5, (8, 8, 5, 5), 6.25),
    ],
)
def test_what_winograd_saves(size: int, taps: int, shape: tuple[int, ...], saving: float) -> None:
    """Multiplications of the direct form for one of Winograd's: bounds rest on it."""
    assert Preparation("winograd", size, taps, 16).saving(shape) == saving


@pytest.mark.parametrize(("size", "products", "inputs", "outputs"), [(2, 16, 64, 36), (4, 36, 264, 180)])
def test_winograd_counts_its_own_arithmetic(size: int, products: int, inputs: int, outputs: int) -> None:
    """The counts of one tile of F(2x2, 3x3) and F(4x4, 3x3): B^T has 8 and 22 coefficients, A^T 6 and 18."""
    case = conv((1, 32, 8, 8), (48, 32, 3, 3), pads=[1, 1, 1, 1], relu=False)
    host = target()
    (variant,) = (v for v in WINOGRAD.variants(case.program, host) if v.algorithm == f"winograd-f{size}")
    lowered = WINOGRAD.lower(variant, WINOGRAD.heuristic(variant, host), host)
    tiles, bias = (8 // size) ** 2, 48 * 8 * 8
    own = 2 * tiles * (products * 32 * 48 + inputs * 32 + outputs * 48) + bias
    assert sum(x.kernel.flops for x in lowered.launches) == own
