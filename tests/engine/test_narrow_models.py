"""Whole models on narrow types: moved by kernels without a change, unpacked from models, fed to engines, loaded for contractions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autofuse.api.choosing import heuristic_plan
from autofuse.devices.base import Device
from autofuse.engine.engine import Engine
from autofuse.importer.importing import import_model
from autofuse.ir.dtype import DType
from autofuse.ir.expr import call
from autofuse.ir.stage import Kind
from autofuse.ops.builder import Builder

N = helper.make_node
OPSET = 25


def model(
    nodes: list[NodeProto], inputs: dict[str, np.ndarray], outputs: dict[str, int], constants: dict[str, np.ndarray]
) -> ModelProto:
    ins = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in inputs.items()
    ]
    outs = [helper.make_tensor_value_info(k, t, None) for k, t in outputs.items()]
    graph = helper.make_graph(nodes, "narrow", ins, outs, [numpy_helper.from_array(a, k) for k, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12)


def run(m: ModelProto, device: Device, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of the heuristic plan, which leaves nothing to the host."""
    graph = import_model(m)
    assert not [n.op for n in graph.nodes if n.kind is Kind.HOST]
    with Engine.build(graph, heuristic_plan(graph, device), device) as engine:
        return engine.run(inputs)


@pytest.mark.parametrize("dtype", (DType.FLOAT8E5M2, DType.FLOAT8E8M0, DType.INT4, DType.UINT2))
def test_elements_are_moved_as_they_are(dtype: DType, device: Device) -> None:
    """All codes, NaNs of every kind among them, by copies that know nothing of what they mean."""
    x = np.resize(np.arange(1 << dtype.bits, dtype=np.uint8), (4, 6, 12)).view(dtype.numpy)
    nodes = [
        N("Reshape", ["x", "shape"], ["r"]),
        N("Transpose", ["r"], ["t"], perm=[1, 0]),
        N("Concat", ["t", "c"], ["y"], axis=1),
        N("Slice", ["x", "one", "five", "one"], ["s"]),
        N("Identity", ["s"], ["z"]),
    ]
    stored = x.reshape(12, 24)[:, :5].copy()
    constants = {"shape": np.array([24, 12]), "c": stored, "one": np.array([1]), "five": np.array([5])}
    kind = int(helper.np_dtype_to_tensor_dtype(dtype.numpy))
    m = model(nodes, {"x": x}, {"y": kind, "z": kind}, constants)
    found = run(m, device, {"x": x})
    expected = {"y": np.concatenate([x.reshape(24, 12).T, stored], axis=1), "z": x[:, 1:5]}
    for name, want in expected.items():
        assert found[name].dtype == want.dtype
        np.testing.assert_array_equal(found[name].view(np.uint8), want.view(np.uint8), name)


def test_a_product_with_weights_of_four_bits(device: Device) -> None:
    """Blocks of weights that are fed, with powers of two as scales; K is odd, so that tiles have tails."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((9, 21)).astype(np.float32)
    w = rng.integers(-8, 8, (21, 17)).astype(np.float32).astype(ml_dtypes.int4)
    scale = (2.0 ** rng.integers(-3, 2, (3, 17))).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    nodes = [
        N("DequantizeLinear", ["w", "scale"], ["d"], axis=0, block_size=8, output_dtype=TensorProto.FLOAT),
        N("MatMul", ["x", "d"], ["y"]),
    ]
    inputs = {"x": x, "w": w, "scale": scale}
    m = model(nodes, inputs, {"y": TensorProto.FLOAT}, {})
    (want,) = ReferenceEvaluator(m).run(None, inputs)
    np.testing.assert_allclose(run(m, device, inputs)["y"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", (TensorProto.FLOAT8E8M0, TensorProto.FLOAT8E4M3FN))
def test_operands_of_a_product_in_eight_bits(kind: int, device: Device) -> None:
    """What stands past the end of a tile must be zero, which FLOAT8E8M0 has no code for."""
    rng = np.random.default_rng(4)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    a, b = (np.abs(rng.standard_normal(s)).astype(np.float32).astype(dtype) for s in ((7, 19), (19, 35)))
    nodes = [N("Cast", [n], [n + "f"], to=TensorProto.FLOAT) for n in "ab"] + [N("MatMul", ["af", "bf"], ["y"])]
    m = model(nodes, {"a": a, "b": b}, {"y": TensorProto.FLOAT}, {})
    want = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(run(m, device, {"a": a, "b": b})["y"], want, rtol=1e-4, atol=1e-4)


def test_fused_stages_round_what_unfused_ones_would_store(device: Device) -> None:
    """No operator of the standard computes in a narrow type; one that did would round once a stage, fused or not."""
    kind = DType.FLOAT8E4M3FN
    b = Builder()
    x = b.input("x", kind, (64,))
    square = b.elementwise([x], lambda e: call("mul", e, e))
    assert b.dtype(square) is kind
    graph = b.graph([("y", b.map([square], (64,), lambda i, read: read(0, i)))])
    plan = heuristic_plan(graph, device)
    assert len(plan.regions) == 1
    values = np.resize(np.arange(0x20, 0x58, dtype=np.uint8), 64).view(kind.numpy)
    with Engine.build(graph, plan, device) as engine:
        (found,) = engine.run({"x": values}).values()
    wide = values.astype(np.float32)
    np.testing.assert_array_equal(found, (wide * wide).astype(kind.numpy).astype(np.float32))
