"""Signals: discrete Fourier transforms as contractions with tables of sines and cosines, short-time transforms, windows, mel weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt

import numpy as np
from onnx import TensorProto

from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, cast_to, const, select
from autofuse.ir.graph import ValueId
from autofuse.ir.stage import Combine
from autofuse.ops.builder import Builder, Index, Reader
from autofuse.ops.cast import element_type
from autofuse.ops.common import F32, F64, axis_in
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.shaping import moved

DIRECT = 512
"""Up to this length a transform is one contraction; a longer one is split in two where its length has factors."""

MOST_ENTRIES = 1 << 24
"""Entries of a table of sines and cosines."""


def _waves(length: int, bins: int, taken: int, inverse: bool) -> np.ndarray:
    """table[k, c, n, d]: what part d (real, imaginary) of sample n adds to part c of bin k of a transform of `length`."""
    if 4 * bins * taken > MOST_ENTRIES:
        raise Unsupported(f"a transform of length {length}, whose factors are too large for a table")
    turns = np.outer(np.arange(bins, dtype=np.int64), np.arange(taken, dtype=np.int64)) % length
    angle = turns * (2 * np.pi / length)
    cos, sin = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    table = np.stack([np.stack([cos, -sin], axis=-1), np.stack([sin, cos], axis=-1)], axis=1)
    return np.asarray(table / length if inverse else table)


def _real_waves(length: int, bins: int) -> np.ndarray:
    """table[n, 0, k, d] of the inverse of a one-sided transform: every bin but the first and the middle one counts twice."""
    table = _waves(length, length, bins, inverse=True)[:, :1].copy()
    mirrored = np.arange(bins)
    table[:, :, (mirrored > 0) & (2 * mirrored != length)] *= 2
    return table


def _factors(n: int) -> tuple[int, int]:
    """The two factors of n that lie nearest to each other, the lesser first."""
    p = next(p for p in range(isqrt(n), 0, -1) if n % p == 0)
    return p, n // p


def _cut(b: Builder, x: ValueId, axis: int, n: int) -> ValueId:
    """The first n elements of an axis."""
    shape = b.shape(x)
    return x if shape[axis] == n else moved(b, x, (*shape[:axis], n, *shape[axis + 1 :]), lambda i: i)


def _contracted(b: Builder, x: ValueId, axis: int, table: np.ndarray) -> ValueId:
    """out[..., k, ..., c] = sum over n, d of x[..., n, ..., d] table[k, c, n, d], in the type that x computes in."""
    shape, compute = b.shape(x), b.dtype(x).compute
    bins, parts, taken, given = table.shape

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        n, d = reduced
        e = read(0, (*out[:axis], n, *out[axis + 1 : -1], d))
        return call("mul", e, read(1, (out[axis], out[-1], n, d)))

    x = _cut(b, x, axis, taken)
    waves = b.constant(np.ascontiguousarray(table.astype(compute.numpy)))
    made = (*shape[:axis], bins, *shape[axis + 1 : -1], parts)
    return b.reduce([x, waves], made, (taken, given), Combine.SUM, body, compute)


def _split(b: Builder, x: ValueId, axis: int, length: int, bins: int, inverse: bool) -> ValueId:
    """A transform of length p q in two (Cooley and Tukey, 1965): sample q n1 + n2 meets bin k1 + p k2.

    First transforms of length p over n1, then what is left of the angles, then transforms of length q over n2.
    """
    shape, compute = b.shape(x), b.dtype(x).compute
    p, q = _factors(length)
    parts = shape[-1]
    lead, trail = shape[:axis], shape[axis + 1 : -1]
    first = b.constant(np.ascontiguousarray(_waves(p, p, p, inverse)[..., :parts].astype(compute.numpy)))
    turns = np.outer(np.arange(p), np.arange(q)) * (2 * np.pi / length)
    sine = np.sin(turns) * (1 if inverse else -1)
    left = b.constant(np.stack([np.cos(turns), sine], axis=-1).astype(compute.numpy))
    second = b.constant(np.ascontiguousarray(_waves(q, q, q, inverse).astype(compute.numpy)))

    def outer(out: Index, reduced: Index, read: Reader) -> Expr:
        k, n2, c = out[axis], out[axis + 1], out[-1]
        n1, d = reduced
        sample = ix.add(ix.mul(n1, q), n2)
        e = read(0, (*out[:axis], sample, *out[axis + 2 : -1], d), fill=0.0)
        return call("mul", e, read(1, (k, c, n1, d)))

    def turned(i: Index, read: Reader) -> Expr:
        real, imaginary = (read(0, (*i[:-1], const(d))) for d in (0, 1))
        cos, sine = (read(1, (i[axis], i[axis + 1], const(d))) for d in (0, 1))
        return select(
            call("eq", i[-1], const(0)),
            call("sub", call("mul", real, cos), call("mul", imaginary, sine)),
            call("add", call("mul", real, sine), call("mul", imaginary, cos)),
        )

    def inner(out: Index, reduced: Index, read: Reader) -> Expr:
        n2, d = reduced
        k1, k2 = ix.floor_mod(out[axis], p), ix.floor_div(out[axis], p)
        e = read(0, (*out[:axis], k1, n2, *out[axis + 1 : -1], d))
        return call("mul", e, read(1, (k2, out[-1], n2, d)))

    halves = b.reduce([x, first], (*lead, p, q, *trail, 2), (p, parts), Combine.SUM, outer, compute)
    moved = b.map([halves, left], b.shape(halves), turned, compute)
    return b.reduce([moved, second], (*lead, bins, *trail, 2), (q, 2), Combine.SUM, inner, compute)


def _dft(c: Call) -> Sequence[ValueId]:
    """Sums of the samples (cut off or padded with zeros to the length) times e^(-2 pi i n k / length); the inverse with + and
    divided by the length. The one-sided inverse takes the first half of the bins and gives real samples."""
    b = c.builder
    x = c.input(0)
    shape, dtype = b.shape(x), b.dtype(x)
    given = c.ints(2)
    axis = axis_in(given[0] if given else int(c.attr("axis", 1 if c.opset < 20 else -2)), len(shape))
    inverse, onesided = bool(c.attr("inverse", 0)), bool(c.attr("onesided", 0))
    if len(shape) < 2 or shape[-1] not in (1, 2) or axis == len(shape) - 1 or not dtype.is_float:
        raise Unsupported(f"a transform of a tensor of shape {shape} along axis {axis}")
    asked = c.ints(1)
    length = asked[0] if asked else 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    if length < 1:
        raise Unsupported(f"a transform of length {length}")
    taken = min(length, shape[axis])
    if inverse and onesided:
        table = _real_waves(length, min(shape[axis], length // 2 + 1))[..., : shape[-1]]
        return [_stored(b, _contracted(b, x, axis, table), x)]
    bins = length // 2 + 1 if onesided else length
    if length > DIRECT and _factors(length)[0] > 1:
        return [_stored(b, _split(b, x, axis, length, bins, inverse), x)]
    table = _waves(length, bins, taken, inverse)[..., : shape[-1]]
    return [_stored(b, _contracted(b, x, axis, table), x)]


def _stored(b: Builder, v: ValueId, x: ValueId) -> ValueId:
    """In the type of x."""
    return v if b.dtype(v) is b.dtype(x) else b.elementwise([v], lambda e: e, b.dtype(x))


def _stft(c: Call) -> Sequence[ValueId]:
    """out[batch, frame, k, c]: transforms of frames that begin `frame_step` apart, each sample times the window's.

    One contraction; the window goes into its table.
    """
    b = c.builder
    x = c.input(0)
    shape, compute = b.shape(x), b.dtype(x).compute
    step, wanted = c.ints(1), c.ints(3)
    window = c.input(2) if c.has(2) else None
    if len(shape) != 3 or shape[-1] not in (1, 2) or not step or step[0] < 1:
        raise Unsupported(f"frames of a signal of shape {shape}")
    size = b.shape(window)[0] if window is not None else None
    length = wanted[0] if wanted else size if size is not None else shape[1]
    frames = 1 + (shape[1] - length) // step[0]
    if not 1 <= length <= shape[1]:
        raise Unsupported(f"frames of {length} samples of a signal of {shape[1]}")
    taken = length if size is None else min(length, size)
    bins = length // 2 + 1 if c.attr("onesided", 1) else length
    table = b.constant(_waves(length, bins, taken, inverse=False)[..., : shape[-1]].astype(compute.numpy))
    if window is not None:

        def weighted(i: Index, read: Reader) -> Expr:
            return call("mul", read(0, i), cast_to(read(1, (i[2],)), compute))

        table = b.map([table, window], b.shape(table), weighted, compute)

    def body(out: Index, reduced: Index, read: Reader) -> Expr:
        batch, frame, k, part = out
        n, d = reduced
        return call("mul", read(0, (batch, ix.add(ix.mul(frame, step[0]), n), d)), read(1, (k, part, n, d)))

    x = _cut(b, x, 1, (frames - 1) * step[0] + taken)
    made = (shape[0], frames, bins, 2)
    return [_stored(b, b.reduce([x, table], made, (taken, shape[-1]), Combine.SUM, body, compute), x)]


# ---- constants: a size decides them


def _window(shape: Callable[[np.ndarray], np.ndarray]) -> Callable[[Call], Sequence[ValueId]]:
    """A window as a function of the angle 2 pi n / N, N being its size, or one less where it is not periodic."""

    def emit(c: Call) -> Sequence[ValueId]:
        given = c.ints(0)
        if not given:
            raise Unsupported("no size is given")
        size = given[0]
        period = size if c.attr("periodic", 1) else size - 1
        with np.errstate(all="ignore"):
            values = shape(np.arange(size) * (2 * np.pi / np.float64(period)))
        dtype = element_type(int(c.attr("output_datatype", TensorProto.FLOAT)))
        return [c.builder.constant(values.astype(dtype.numpy))]

    return emit


def _hann(angle: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(angle / 2) ** 2)


def _hamming(angle: np.ndarray) -> np.ndarray:
    return np.asarray(25 / 46 - (1 - 25 / 46) * np.cos(angle))


def _blackman(angle: np.ndarray) -> np.ndarray:
    return np.asarray(0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle))


def _mel_weights(c: Call) -> Sequence[ValueId]:
    """Triangles over the bins of a spectrogram whose corners are evenly spaced in mel, 2595 log10(1 + f / 700)."""
    given = [c.constant(k) for k in range(5)]
    if any(g is None for g in given):
        raise Unsupported("a parameter is left out")
    bands, length, rate, low, high = (float(np.asarray(g).reshape(-1)[0]) for g in given)
    count = int(bands)
    ends = 2595 * np.log10(1 + np.array([low, high]) / 700)
    mels = ends[0] + np.arange(count + 2) * (ends[1] - ends[0]) / (count + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    corners = ((int(length) + 1) * hertz // rate).astype(np.int64)
    weights = np.zeros((int(length) // 2 + 1, count))
    if count and not 0 <= corners.min() <= corners.max() < len(weights):
        raise Unsupported("mel bands beyond the bins of the spectrogram")
    for band, (left, centre, right) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
        if left == centre:
            weights[centre, band] = 1
        else:
            weights[left : centre + 1, band] = (np.arange(left, centre + 1) - left) / (centre - left)
        if right > centre:
            weights[centre:right, band] = (right - np.arange(centre, right)) / (right - centre)
    dtype = element_type(int(c.attr("output_datatype", TensorProto.FLOAT)))
    return [c.builder.constant(weights.astype(dtype.numpy))]


def _int(value: int) -> np.ndarray:
    return np.array(value, np.int64)


def _windows(name: str, shape: Callable[[np.ndarray], np.ndarray]) -> Op:
    size = _int(9)
    samples = (
        Sample((size,), constant=(0,)),
        Sample((size,), {"periodic": 0}, constant=(0,)),
        Sample((size,), {"output_datatype": int(TensorProto.DOUBLE)}, constant=(0,)),
    )
    return Op(name, _window(shape), samples, since=17)


_COMPLEX, _REAL = (F32, (2, 10, 3, 2)), (F32, (2, 10, 3, 1))

FOURIER: tuple[Op, ...] = (
    Op(
        "DFT",
        _dft,
        (
            Sample((_COMPLEX,), {"axis": 1}, 17),
            Sample((_REAL,), {"axis": 2}, 17),
            Sample((_COMPLEX,), {"axis": 1, "inverse": 1}, 17),
            Sample((_REAL,), {"axis": 1, "onesided": 1}, 17),
            Sample((_COMPLEX,), opset=20),
            Sample((_REAL, _int(16), _int(1)), opset=20, constant=(1, 2)),
            Sample((_COMPLEX, _int(7), _int(-3)), {"inverse": 1}, 20, constant=(1, 2)),
            Sample(((F32, (2, 6, 3, 2)), None, _int(1)), {"onesided": 1, "inverse": 1}, 20, constant=(2,)),
            Sample(((F32, (2, 6, 3, 2)), _int(11), _int(1)), {"onesided": 1, "inverse": 1}, 20, constant=(1, 2)),
            Sample(((F64, (1, 8, 1)),), opset=20),
            Sample(((F32, (1, 540, 1)),), opset=20, low=-0.1, high=0.1),
            Sample(((F32, (1, 600, 2)), _int(640), _int(1)), {"onesided": 1}, 20, -0.1, 0.1, constant=(1, 2)),
        ),
        since=17,
    ),
    Op(
        "STFT",
        _stft,
        (
            Sample(((F32, (2, 33, 1)), _int(4), None, _int(8)), opset=17, constant=(1, 3)),
            Sample(((F32, (1, 33, 1)), _int(3), (F32, (9,))), opset=17, constant=(1,)),
            Sample(((F32, (1, 33, 2)), _int(3), (F32, (8,))), {"onesided": 0}, 17, constant=(1,)),
            Sample(((F32, (1, 10, 1)), _int(3), (F32, (8,))), opset=17, constant=(1,)),
        ),
        since=17,
    ),
    _windows("HannWindow", _hann),
    _windows("HammingWindow", _hamming),
    _windows("BlackmanWindow", _blackman),
    Op(
        "MelWeightMatrix",
        _mel_weights,
        (
            Sample(
                (_int(8), _int(64), _int(8192), np.array(0, np.float32), np.array(4096, np.float32)),
                opset=17,
                constant=(0, 1, 2, 3, 4),
            ),
        ),
        since=17,
    ),
)
