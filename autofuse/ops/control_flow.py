"""What If, Loop, Scan and Deferred mean: which of their graphs run, on what, and what becomes of the results.

The graphs themselves are run by the caller: kernels in an engine, numpy in the reference. So there is one text of the standard's rules.

If           arguments: condition; bodies: then, else
Loop         arguments: trip count, condition (either may be left out), carried values; body: index, condition, carried values ->
             condition, carried values, slices. Attributes: index_shape and condition_shape, as the body wants them.
Scan         arguments: states, scanned tensors; body: states, slices -> states, slices. Attributes: scanned (how many), input_axes,
             input_directions, output_axes, output_directions, batched (1 below opset 9: lengths of the sequences come first, and
             everything has a batch axis in front).
Deferred     no arguments, all is captured; body: a part of the model

In each case what a body captures follows its own inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autofuse.ir.stage import Body, Control

RunBody = Callable[[int, Sequence[Any]], Sequence[Any]]
"""Runs a body, by number, on all its inputs and gives all its outputs."""


def run_control(control: Control, inputs: Sequence[Any], run: RunBody) -> list[Any]:
    """The node's outputs for its inputs. Slices of all steps are copied into one array a result; none give an empty array."""
    given = [None if k is None else inputs[k] for k in control.arguments]
    match control.operator:
        case "If":
            taken = 0 if _true(given[0]) else 1
            results = list(run(taken, _captured(control.bodies[taken], inputs)))
        case "Loop":
            results = _loop(control, given, inputs, run)
        case "Scan":
            results = _scan(control, given, inputs, run)
        case _:
            results = list(run(0, _captured(control.bodies[0], inputs)))
    return [results[k] for k in control.results]


def _captured(body: Body, inputs: Sequence[Any]) -> list[Any]:
    return [inputs[k] for k in body.captures]


def _true(x: Any) -> bool:
    return bool(np.asarray(x).reshape(-1)[0])


def _loop(control: Control, given: Sequence[Any], inputs: Sequence[Any], run: RunBody) -> list[Any]:
    trips = None if given[0] is None else int(np.asarray(given[0]).reshape(-1)[0])
    go = given[1] is None or _true(given[1])
    carried = list(given[2:])
    captured = _captured(control.bodies[0], inputs)
    at, holds = control.attribute("index_shape"), control.attribute("condition_shape")
    slices: list[Sequence[Any]] = []
    k = 0
    while go and (trips is None or k < trips):
        index = np.full(at, k, np.int64)
        results = run(0, [index, np.full(holds, True), *carried, *captured])
        go = _true(results[0])
        carried = list(results[1 : 1 + len(carried)])
        slices.append(results[1 + len(carried) :])
        k += 1
    first = 1 + len(carried)
    count = len(control.bodies[0].outputs) - first
    return [*carried, *(_joined(control, [s[j] for s in slices], first + j, 0) for j in range(count))]


def _scan(control: Control, given: Sequence[Any], inputs: Sequence[Any], run: RunBody) -> list[Any]:
    (scanned,) = control.attribute("scanned")
    captured = _captured(control.bodies[0], inputs)
    if control.attribute("batched")[0]:
        return _batches(control, given[0], list(given[1 : len(given) - scanned]), given[-scanned:], captured, run)
    ways = zip(
        given[len(given) - scanned :],
        control.attribute("input_axes"),
        control.attribute("input_directions"),
        strict=True,
    )
    turned = [_along(np.moveaxis(x, axis, 0), backward) for x, axis, backward in ways]
    return _steps(control, list(given[: len(given) - scanned]), turned, captured, run)


def _along(x: np.ndarray, backward: int) -> np.ndarray:
    return x[::-1] if backward else x


def _steps(
    control: Control, states: list[Any], turned: Sequence[np.ndarray], captured: Sequence[Any], run: RunBody
) -> list[Any]:
    """States and joined slices after all steps over tensors that are scanned along their first axis."""
    slices: list[Sequence[Any]] = []
    for k in range(len(turned[0])):
        results = run(0, [*states, *(np.asarray(x[k]) for x in turned), *captured])
        states = list(results[: len(states)])
        slices.append(results[len(states) :])
    out: list[Any] = list(states)
    ways = zip(control.attribute("output_axes"), control.attribute("output_directions"), strict=True)
    for j, (axis, backward) in enumerate(ways):
        parts = [s[j] for s in slices]
        out.append(_joined(control, parts[::-1] if backward else parts, len(states) + j, axis))
    return out


def _batches(
    control: Control, lengths: Any, states: list[Any], tensors: Sequence[Any], captured: Sequence[Any], run: RunBody
) -> list[Any]:
    """Opset 8: everything has a batch axis in front; what is joined of a shorter sequence is filled with zeros."""
    full = tensors[0].shape[1]
    rows: list[list[Any]] = []
    for b in range(tensors[0].shape[0]):
        n = full if lengths is None else int(lengths[b])
        turned = [_along(x[b, :n], d) for x, d in zip(tensors, control.attribute("input_directions"), strict=True)]
        row = _steps(control, [np.asarray(s[b]) for s in states], turned, captured, run)
        padded = [np.pad(y, [(0, full - n), *[(0, 0)] * (y.ndim - 1)]) for y in row[len(states) :]]
        rows.append([*row[: len(states)], *padded])
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _joined(control: Control, parts: Sequence[Any], output: int, axis: int) -> np.ndarray:
    """The slices of all steps along a new axis."""
    dtype, shape = control.bodies[0].outputs[output]
    if parts:
        arrays = [np.asarray(p) for p in parts]
        return np.stack(arrays, axis % (arrays[0].ndim + 1))
    dims = list(shape)
    dims.insert(axis % (len(dims) + 1), 0)
    return np.empty(dims, dtype.numpy)
