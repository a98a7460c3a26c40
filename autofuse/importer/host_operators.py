"""Operators for onnx's reference evaluator that it lacks or gets wrong, by the letter of the standard.

The evaluator's own Loop takes a left-out condition for false and joins scalars and matrices along the wrong axis; its own Scan knows
neither directions nor axes nor the batches of opset 8. Both run their bodies in the reference evaluator. Scatter is the old name of
ScatterElements. A text is cast to no type that numpy lacks. It has no Multinomial. Its Optional wraps the element in a list, which no
other operator expects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_cast import cast_to

BATCHED_SCAN = 9
"""Below this opset Scan works on batches."""


class _WithBody(OpRun):
    body: ReferenceEvaluator

    def need_context(self) -> bool:
        return True

    def _step(self, context: Mapping[str, Any] | None, inputs: Sequence[Any], attributes: Any) -> list[Any]:
        feeds = {**(context or {}), **dict(zip(self.body.input_names, inputs, strict=True))}
        return list(self.body.run(None, feeds, attributes=attributes))

    def _joined(self, parts: Sequence[Any], output: int, axis: int = 0) -> np.ndarray:
        """Results of all steps, stacked along a new axis."""
        if parts:
            arrays = [np.asarray(p) for p in parts]
            return np.stack(arrays, axis % (arrays[0].ndim + 1))
        declared: TypeProto = self.body.proto_.output[output].type
        dims = [d.dim_value for d in declared.tensor_type.shape.dim]
        dims.insert(axis % (len(dims) + 1), 0)
        return np.empty(dims, dtype=helper.tensor_dtype_to_np_dtype(declared.tensor_type.elem_type))


class Loop(_WithBody):
    """A loop with a trip count, a condition, carried values and collected results."""

    op_domain = ""

    def _run(self, *inputs: Any, context: Any = None, attributes: Any = None, **_: Any) -> tuple[Any, ...]:
        count = inputs[0] if inputs else None
        go = inputs[1] if len(inputs) > 1 and inputs[1] is not None else np.array(True)
        carried = list(inputs[2:])
        trips = None if count is None else int(np.asarray(count).reshape(-1)[0])
        collected: list[list[Any]] = [[] for _ in range(len(self.body.output_names) - 1 - len(carried))]
        k = 0
        while (trips is None or k < trips) and bool(np.asarray(go).reshape(-1)[0]):
            results = self._step(context, [np.array(k, dtype=np.int64), go, *carried], attributes)
            go, carried, extra = results[0], results[1 : 1 + len(carried)], results[1 + len(carried) :]
            for parts, x in zip(collected, extra, strict=True):
                parts.append(x)
            k += 1
        first = 1 + len(carried)
        return (*carried, *(self._joined(parts, first + j) for j, parts in enumerate(collected)))


class Scan(_WithBody):
    """A loop over slices of its inputs."""

    op_domain = ""
    num_scan_inputs: int

    def _run(self, *inputs: Any, context: Any = None, attributes: Any = None, **_: Any) -> tuple[Any, ...]:
        if self.run_params["opsets"].get("", BATCHED_SCAN) < BATCHED_SCAN:
            return self._batched(inputs, context, attributes)
        n = self.num_scan_inputs
        carried, scanned = list(inputs[: len(inputs) - n]), list(inputs[len(inputs) - n :])
        axes, backward = self._list("scan_input_axes", n), self._list("scan_input_directions", n)
        slices = [np.moveaxis(x, a, 0) for x, a in zip(scanned, axes, strict=True)]
        slices = [x[::-1] if b else x for x, b in zip(slices, backward, strict=True)]
        return self._scan(carried, slices, context, attributes)

    def _scan(self, carried: list[Any], slices: Sequence[np.ndarray], context: Any, attributes: Any) -> tuple[Any, ...]:
        count = len(self.body.output_names) - len(carried)
        collected: list[list[Any]] = [[] for _ in range(count)]
        for k in range(len(slices[0])):
            results = self._step(context, [*carried, *(x[k] for x in slices)], attributes)
            carried, extra = results[: len(carried)], results[len(carried) :]
            for parts, x in zip(collected, extra, strict=True):
                parts.append(x)
        axes, backward = self._list("scan_output_axes", count), self._list("scan_output_directions", count)
        joined = [
            self._joined(parts[::-1] if b else parts, len(carried) + j, a)
            for j, (parts, a, b) in enumerate(zip(collected, axes, backward, strict=True))
        ]
        return (*carried, *joined)

    def _batched(self, inputs: Sequence[Any], context: Any, attributes: Any) -> tuple[Any, ...]:
        """Opset 8: all inputs have a batch axis in front; the first input holds the lengths of the sequences."""
        lengths, values = inputs[0], inputs[1:]
        n = self.num_scan_inputs
        states, scanned = values[: len(values) - n], values[len(values) - n :]
        backward = self._list("directions", n)
        rows: list[tuple[Any, ...]] = []
        for b in range(scanned[0].shape[0]):
            length = scanned[0].shape[1] if lengths is None else int(lengths[b])
            slices = [x[b, :length] for x in scanned]
            slices = [x[::-1] if back else x for x, back in zip(slices, backward, strict=True)]
            rows.append(self._scan([s[b] for s in states], slices, context, attributes))
        full = scanned[0].shape[1]
        padded = [[self._padded(x, full) if k >= len(states) else x for k, x in enumerate(row)] for row in rows]
        return tuple(np.stack(column) for column in zip(*padded, strict=True))

    @staticmethod
    def _padded(x: np.ndarray, length: int) -> np.ndarray:
        return np.pad(x, [(0, length - x.shape[0]), *([(0, 0)] * (x.ndim - 1))])

    def _list(self, attribute: str, count: int) -> list[int]:
        given = getattr(self, attribute, None)
        return list(given) if given else [0] * count


class Scatter(OpRun):
    """The old name of ScatterElements, without a reduction."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        out = data.copy()
        size = data.shape[axis]
        reached = out[tuple(slice(None) if d == axis % data.ndim else slice(n) for d, n in enumerate(indices.shape))]
        np.put_along_axis(reached, np.where(indices < 0, indices + size, indices), updates, axis)
        return (out,)


class Cast(OpRun):
    """Casts of texts; the evaluator's own knows no way from a text to the types that numpy lacks."""

    op_domain = ""

    def _run(
        self, x: np.ndarray, to: int, saturate: int | None = 1, round_mode: str | None = "up"
    ) -> tuple[np.ndarray]:
        return (_cast(x, to, saturate, round_mode),)


class CastLike(OpRun):
    """The same, with a tensor of the type that is wanted."""

    op_domain = ""

    def _run(
        self, x: np.ndarray, like: np.ndarray, saturate: int | None = 1, round_mode: str | None = "up"
    ) -> tuple[np.ndarray]:
        text = like.dtype.kind in "OUST"
        to = TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(like.dtype)
        return (_cast(x, to, saturate, round_mode),)


def _cast(x: np.ndarray, to: Any, saturate: int | None, round_mode: str | None) -> np.ndarray:
    if x.dtype.kind in "OUST" and helper.tensor_dtype_to_np_dtype(to).isbuiltin == 2:
        x = x.astype(np.float32)
    return np.asarray(cast_to(x, to, saturate is None or bool(saturate), round_mode or "up"))


class Multinomial(OpRun):
    """Classes drawn by their unnormalised log-probabilities plus Gumbel noise; other ones in each run where there is no seed."""

    op_domain = ""

    def _run(
        self, x: np.ndarray, dtype: int | None = None, sample_size: int | None = None, seed: float | None = None
    ) -> tuple[np.ndarray]:
        generator = np.random.default_rng(None if seed is None or np.isnan(seed) else int(seed))
        noise = generator.gumbel(size=(x.shape[0], sample_size or 1, x.shape[1]))
        found = np.argmax(x.astype(np.float64)[:, None] + noise, axis=-1)
        return (found.astype(helper.tensor_dtype_to_np_dtype(dtype or TensorProto.INT32)),)


class Optional(OpRun):
    """An optional is its element, or None: so are those that are fed, and so do the other operators take them."""

    op_domain = ""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:
        del type
        return (x,)


OVERRIDES: list[type[OpRun]] = [Optional, Loop, Scan, Scatter, Cast, CastLike, Multinomial]
