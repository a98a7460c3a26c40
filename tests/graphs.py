"""Random models over the whole operator table; every choice follows from a seed.

A step takes an operator and one of its declaration's samples, and feeds it with what earlier steps made: as it is, where the
operator takes that (broadcasts, other shapes and ranks), else cast, cut, repeated and reshaped to what the sample has. Values are
computed on the way in float64, so that every operator gets numbers from its domain and nothing grows without bound.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from autofuse.errors import VerificationError
from autofuse.importer.emitter import Emitter
from autofuse.importer.hosts import RANDOM
from autofuse.importer.importing import import_model
from autofuse.importer.reference import run_node
from autofuse.ir.dtype import DType
from autofuse.ir.graph import Graph, Node, ValueId
from autofuse.ir.stage import Control, Host, Stage
from autofuse.ops.declare import Call, Op, Sample, Unsupported
from autofuse.ops.table import OPERATORS
from tests.ops.op_calls import draw, stored

OPSETS = (18, 20, 21, 21, 21, 21, 23, 24, 25, 26, 27)
"""The versions of the operator set that models are drawn from; the commonest more often."""
LARGEST = 3000
"""Elements of any tensor."""
POINTS = 200_000
"""Points of any computation."""
RANK = 5
ATTEMPTS = 20
GROWN = 6.0
"""Float values beyond this are brought back before they are used where an operator's sample has no bounds of its own."""
REFUSALS = (Unsupported, VerificationError, ValueError, IndexError, KeyError, TypeError, ZeroDivisionError)
SIZES = (1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 33)
F32 = DType.FLOAT32


@dataclass(frozen=True)
class Tensor:
    """A value of the model: its name there, and its number among the values made so far."""

    name: str
    v: ValueId


@dataclass(frozen=True, eq=False)
class Drawn:
    """A random model with inputs for it."""

    seed: int
    model: ModelProto
    inputs: dict[str, np.ndarray]


@cache
def usable(opset: int) -> list[tuple[Op, Sample]]:
    """Every operator with each of its samples that means the same in this version of the operator set; random operators give no
    values to compare."""
    return [
        (op, s)
        for op in OPERATORS.values()
        for s in op.samples
        if s.outputs >= 1 and s.inputs and op.name not in RANDOM and (op.domain or _is_same(op.name, s.opset, opset))
    ]


def _is_same(op: str, one: int, other: int) -> bool:
    """Whether an operator has the same definition in two versions of the operator set."""
    try:
        a, b = (onnx.defs.get_schema(op, v, "").since_version for v in (one, other))
    except onnx.defs.SchemaError:
        return False
    return bool(a == b)


class ModelMaker:
    """Builds one model."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.opset = self.rng.choice(OPSETS)
        self.numbers = np.random.default_rng(seed)
        self.emitter = Emitter(ModelProto())
        self.b = self.emitter.builder
        self.data: dict[ValueId, np.ndarray] = {}
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.live: list[Tensor] = []
        self.made: list[Tensor] = []

    # ---- leaves

    def constant(self, array: np.ndarray) -> Tensor:
        """An initializer."""
        t = Tensor(f"c{len(self.initializers)}", self.b.constant(array))
        self.initializers.append(numpy_helper.from_array(array, t.name))
        self.data[t.v] = array
        return t

    def numbers_of(self, dtype: DType, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> np.ndarray:
        """Random numbers of a type."""
        if dtype is DType.BOOL:
            return self.numbers.random(shape) < 0.5
        if dtype.is_float:
            return np.asarray(self.numbers.uniform(low, high, shape)).astype(dtype.numpy)
        least = max(int(low), 0) if not dtype.is_signed else int(low)
        return np.asarray(self.numbers.integers(least, max(int(high), least + 1), shape)).astype(dtype.numpy)

    def input(self, dtype: DType, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> Tensor:
        """A model input with numbers for it."""
        array = self.numbers_of(dtype, shape, low, high)
        name = f"x{len(self.inputs)}"
        t = Tensor(name, self.b.input(name, dtype, tuple(shape)))
        self.inputs[name] = array
        self.data[t.v] = array
        self.live.append(t)
        return t

    # ---- nodes

    def add(
        self, op: str, inputs: Sequence[Tensor | None], outputs: int = 1, domain: str = "", **attributes: Any
    ) -> list[Tensor]:
        """A node, and what it gives; nothing where the declaration refuses these inputs or the result would be large."""
        b = self.b
        values, nodes = len(b.values), len(b.nodes)
        ids = tuple(None if t is None else t.v for t in inputs)
        try:
            call = Call(op, domain, self.opset, ids, stored(attributes), (True,) * outputs, b)
            made = list(OPERATORS[domain, op].emit(call))[:outputs]
            if any(v is None for v in made) or len(made) < outputs or not all(self._fits(n) for n in b.nodes[nodes:]):
                raise Unsupported("too large, or shapes that do not fit")
            self.data.update((v, b.constants[v]) for v in range(values, len(b.values)) if v in b.constants)
            for n in b.nodes[nodes:]:
                self._evaluate(n)
        except REFUSALS:
            for v in range(values, len(b.values)):
                self.data.pop(v, None)
                b.constants.pop(v, None)
            del b.values[values:], b.nodes[nodes:]
            return []
        found = [Tensor(f"t{len(self.made) + k}", v) for k, v in enumerate(made) if v is not None]
        plain = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
        names = ["" if t is None else t.name for t in inputs]
        self.nodes.append(helper.make_node(op, names, [t.name for t in found], domain=domain, **plain))
        self.made += found
        return found

    def one(self, op: str, inputs: Sequence[Tensor | None], **attributes: Any) -> Tensor | None:
        """The first output of a node."""
        return next(iter(self.add(op, inputs, **attributes)), None)

    def _fits(self, node: Node) -> bool:
        if not self.emitter.covers(node):
            return False
        for v in node.outputs:
            if math.prod(self.b.shape(v)) > LARGEST or len(self.b.shape(v)) > RANK:
                return False
        stage = node.compute
        if isinstance(stage, Stage):
            return math.prod(stage.shape) * math.prod(a.extent or 0 for a in stage.reduce_axes) <= POINTS
        return not isinstance(stage, Host | Control)

    def _evaluate(self, node: Node) -> None:
        operands = [self.data[v] for v in node.inputs]
        with np.errstate(all="ignore"):
            self.data.update(zip(node.outputs, run_node(self.b.graph([]), node, operands, True), strict=True))

    # ---- operands

    def dtype(self, t: Tensor) -> DType:
        return self.b.dtype(t.v)

    def shape(self, t: Tensor) -> tuple[int, ...]:
        return self.b.shape(t.v)

    def pick(self, fits: Callable[[Tensor], bool] = lambda t: True) -> Tensor | None:
        """A value made earlier, a late one more often than not."""
        fitting = [t for t in self.live if fits(t)]
        if not fitting:
            return None
        return self.rng.choice(fitting[-3:] if self.rng.random() < 0.7 else fitting)

    def within(self, t: Tensor | None, low: float, high: float) -> Tensor | None:
        """The tensor clipped to a range where it leaves it."""
        if t is None:
            return None
        dtype, x = self.dtype(t), self.data[t.v]
        if dtype is DType.BOOL or x.size == 0:
            return t
        if (low, high) == (-2.0, 2.0) and dtype.is_float:
            low, high = -GROWN, GROWN
        if not dtype.is_float:
            high = max(math.ceil(high) - 1, low)
            low = max(low, 0) if not dtype.is_signed else low
        if x.min() >= low and x.max() <= high:
            return t
        bounds = [self.constant(np.array(n).astype(dtype.numpy)) for n in (low, high)]
        return self.one("Clip", [t, *bounds])

    def shaped(self, dtype: DType, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        """A tensor of just this type and shape, with numbers in a range: made of an earlier one, or a new input."""
        made = None
        if self.rng.random() < 0.85 or len(self.inputs) >= 4:
            made = self.within(self._reshaped(dtype, shape), low, high)
        return made if made is not None else self.input(dtype, shape, low, high)

    def _reshaped(self, dtype: DType, shape: tuple[int, ...]) -> Tensor | None:
        t = self.pick(lambda t: self.data[t.v].size > 0)
        if t is None:
            return None
        if self.dtype(t) is not dtype:
            t = self.within(t, -100, 100)
            t = t and self.one("Cast", [t], to=helper.np_dtype_to_tensor_dtype(dtype.numpy))
        if t is None or self.shape(t) == shape:
            return t
        have, need = self.data[t.v].size, math.prod(shape)
        flat = self.one("Reshape", [t, self.constant(np.array([-1]))])
        if flat is not None and have < need:
            flat = self.one("Tile", [flat, self.constant(np.array([-(-need // have)]))])
            have = -(-need // have) * have
        if flat is not None and have > need:
            start = self.rng.randint(0, have - need)
            flat = self.one("Slice", [flat, self.constant(np.array([start])), self.constant(np.array([start + need]))])
        return flat and self.one("Reshape", [flat, self.constant(np.array(shape, np.int64))], allowzero=1)

    def partner(self, t: Tensor) -> Tensor:
        """A second operand that broadcasts with a tensor: an earlier value or a constant."""
        shape, dtype = self.shape(t), self.dtype(t)
        found = self.pick(lambda o: self.dtype(o) is dtype and _broadcasts(self.shape(o), shape))
        if found is not None and self.rng.random() < 0.7:
            return found
        dims = tuple(n if self.rng.random() < 0.6 else 1 for n in shape)
        return self.constant(self.numbers_of(dtype, dims[self.rng.randint(0, len(dims)) :]))

    # ---- steps

    def step(self) -> None:
        """One operator on what there is; its results can be read by the steps after it."""
        moves = [
            self.matmul,
            self.reduce,
            self.softmax,
            self.normalise,
            self.transpose,
            self.slice,
            self.concat,
            self.split,
        ]
        made: list[Tensor] = []
        for _ in range(8):
            made = self.rng.choice(moves)() if self.rng.random() < 0.35 else self.sampled()
            made = [t for t in made if self._usable(t)]
            if made:
                break
        self.live += made

    def _usable(self, t: Tensor) -> bool:
        x = self.data[t.v]
        return x.dtype.kind not in "f" or bool(np.isfinite(x).all() and (x.size == 0 or np.abs(x).max() < 1e4))

    def sampled(self) -> list[Tensor]:
        """Any operator of the table, in the way of one of its samples."""
        names = sorted({(op.domain, op.name) for op, _ in self.pool})
        key = self.rng.choice(names)
        op, sample = self.rng.choice([p for p in self.pool if (p[0].domain, p[0].name) == key])
        if self.rng.random() < 0.75:
            made = self._direct(op, sample)
            if made:
                return made
        given = draw(sample, self.rng.randrange(1 << 30))
        args: list[Tensor | None] = []
        for k, (spec, array) in enumerate(zip(sample.inputs, given, strict=True)):
            if spec is None or array is None:
                args.append(None)
            elif isinstance(spec, np.ndarray) or k in sample.constant:
                args.append(self.constant(array))
            else:
                args.append(self.shaped(DType(spec[0]), tuple(spec[1]), sample.low, sample.high))
        return self.add(op.name, args, sample.outputs, op.domain, **sample.attributes)

    def _direct(self, op: Op, sample: Sample) -> list[Tensor]:
        """The operator on earlier values in their own shapes; nothing where it does not take them."""
        first = sample.inputs[0]
        if first is None or isinstance(first, np.ndarray) or 0 in sample.constant:
            return []
        t = self.within(self.pick(lambda t: self.dtype(t).value == first[0]), sample.low, sample.high)
        if t is None:
            return []
        args: list[Tensor | None] = [t]
        for k, (spec, array) in enumerate(zip(sample.inputs, draw(sample), strict=True)):
            if k == 0:
                continue
            if spec is None or array is None:
                args.append(None)
            elif isinstance(spec, np.ndarray) or k in sample.constant:
                args.append(self.constant(array))
            elif spec[0] == first[0]:
                args.append(self.within(self.partner(t), sample.low, sample.high))
            else:
                args.append(self.shaped(DType(spec[0]), self.shape(t), sample.low, sample.high))
        return self.add(op.name, args, sample.outputs, op.domain, **sample.attributes)

    def _float(self, rank: int = 1) -> Tensor | None:
        return self.within(self.pick(lambda t: self.dtype(t) is F32 and len(self.shape(t)) >= rank), -2.0, 2.0)

    def matmul(self) -> list[Tensor]:
        t = self._float()
        if t is None:
            return []
        n = self.rng.choice(SIZES)
        return self.add("MatMul", [t, self.constant(self.numbers_of(F32, (self.shape(t)[-1], n), -1, 1))])

    def reduce(self) -> list[Tensor]:
        t = self._float()
        if t is None:
            return []
        rank = len(self.shape(t))
        axes = sorted(self.rng.sample(range(rank), self.rng.randint(1, rank)))
        op = self.rng.choice(["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL2", "ReduceSumSquare"])
        return self.add(op, [t, self.constant(np.array(axes))], keepdims=self.rng.randint(0, 1))

    def softmax(self) -> list[Tensor]:
        t = self._float()
        return [] if t is None else self.add("Softmax", [t], axis=self.rng.randrange(len(self.shape(t))))

    def normalise(self) -> list[Tensor]:
        t = self._float()
        if t is None:
            return []
        rank = len(self.shape(t))
        axis = self.rng.randrange(rank)
        scale = self.constant(self.numbers_of(F32, self.shape(t)[axis:], 0.5, 1.5))
        return self.add("LayerNormalization", [t, scale], axis=axis, epsilon=1e-2)

    def transpose(self) -> list[Tensor]:
        t = self.pick(lambda t: bool(self.shape(t)))
        if t is None:
            return []
        order = list(range(len(self.shape(t))))
        self.rng.shuffle(order)
        return self.add("Transpose", [t], perm=order)

    def slice(self) -> list[Tensor]:
        t = self.pick(lambda t: max(self.shape(t), default=0) > 2)
        if t is None:
            return []
        shape = self.shape(t)
        axis = shape.index(max(shape))
        step = self.rng.choice([1, 1, 2, 3, -1, -2])
        first, last = sorted(self.rng.sample(range(shape[axis] + 1), 2))
        start, end = (first, last) if step > 0 else (last - 1, first - 1 - shape[axis] if first == 0 else first - 1)
        return self.add("Slice", [t, *(self.constant(np.array([k])) for k in (start, end, axis, step))])

    def concat(self) -> list[Tensor]:
        t = self.pick(lambda t: bool(self.shape(t)))
        if t is None:
            return []
        axis = self.rng.randrange(len(self.shape(t)))
        rest = _without(self.shape(t), axis)
        others = [o for o in self.live if self.dtype(o) is self.dtype(t) and _without(self.shape(o), axis) == rest]
        return self.add("Concat", [t, *(self.rng.choice(others) for _ in range(self.rng.randint(1, 2)))], axis=axis)

    def split(self) -> list[Tensor]:
        t = self.pick(lambda t: max(self.shape(t), default=0) > 1)
        if t is None:
            return []
        axis = self.shape(t).index(max(self.shape(t)))
        return self.add("Split", [t], 2, axis=axis, num_outputs=2)

    # ---- the model

    def build(self, steps: int) -> Drawn:
        self.pool = usable(self.opset)
        shape = tuple(self.rng.choice(SIZES) for _ in range(self.rng.choice([1, 2, 2, 3, 3, 4])))
        while math.prod(shape) > LARGEST // 2:
            shape = shape[1:]
        if self.rng.random() < 0.06:
            shape = (*shape[:-1], 0)
        self.input(F32, shape)
        if self.rng.random() < 0.5:
            self.input(F32, shape)
        if self.rng.random() < 0.3:
            others = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT8, DType.BOOL)
            self.input(self.rng.choice(others), shape)
        for _ in range(steps):
            self.step()
        made = [t for t in self.live if t.name not in self.inputs]
        if not made:
            return ModelMaker(self.seed + (1 << 32)).build(steps)
        extra = self.rng.sample(made, min(len(made), self.rng.choice([0, 1, 1, 2])))
        chosen = list(dict.fromkeys([made[-1], *extra]))
        graph = helper.make_graph(
            self.nodes,
            f"random{self.seed}",
            [self._info(Tensor(name, v)) for name, v in zip(self.inputs, self.b.inputs, strict=True)],
            [self._info(t) for t in chosen],
            self.initializers,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        version = helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        return Drawn(self.seed, helper.make_model(graph, opset_imports=opsets, ir_version=version), dict(self.inputs))

    def _info(self, t: Tensor) -> ValueInfoProto:
        code = helper.np_dtype_to_tensor_dtype(self.dtype(t).numpy)
        return helper.make_tensor_value_info(t.name, code, self.shape(t))


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :] if axis < len(shape) else (-1,)


def random_model(seed: int, steps: int = 7) -> Drawn:
    """A random model with something left to compute once it is imported; equal seeds give equal models."""
    for k in range(ATTEMPTS):
        drawn = ModelMaker(seed + (k << 32)).build(steps)
        if import_model(drawn.model).nodes:
            return dataclasses.replace(drawn, seed=seed)
    raise AssertionError(f"no model of seed {seed} computes anything")


def random_graph(seed: int, steps: int = 7) -> Graph:
    """The graph of a random model."""
    return import_model(random_model(seed, steps).model)
