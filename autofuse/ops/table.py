"""The operator table: every operator that has a declaration, by domain and name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain

from autofuse.ir.dtype import DType
from autofuse.ir.graph import ValueId
from autofuse.ops.activation import ACTIVATIONS
from autofuse.ops.cast import CASTS
from autofuse.ops.columns import COLUMNS
from autofuse.ops.convolution import CONVOLUTIONS
from autofuse.ops.declare import Call, Op, Unsupported
from autofuse.ops.elementwise import ELEMENTWISE
from autofuse.ops.fourier import FOURIER
from autofuse.ops.generator import GENERATORS
from autofuse.ops.indexing import INDEXING
from autofuse.ops.integer_products import INTEGER_PRODUCTS
from autofuse.ops.linear import LINEAR
from autofuse.ops.linear_attention import LINEAR_ATTENTION
from autofuse.ops.microsoft import MICROSOFT
from autofuse.ops.ml import ML
from autofuse.ops.normalization import NORMALIZATIONS
from autofuse.ops.ordering import ORDERING
from autofuse.ops.padding import PADDINGS
from autofuse.ops.pooling import POOLINGS
from autofuse.ops.quantization import QUANTIZATIONS
from autofuse.ops.randomness import RANDOM
from autofuse.ops.recurrent import RECURRENT
from autofuse.ops.reduction import REDUCTIONS
from autofuse.ops.resize import RESIZES
from autofuse.ops.rois import ROIS
from autofuse.ops.sampling import SAMPLINGS
from autofuse.ops.scattering import SCATTERING
from autofuse.ops.shaping import SHAPING
from autofuse.ops.training import TRAINING


def _checked(op: Op) -> Op:
    """Refuse tensors that no stage can hold before the declaration looks at them."""

    def emit(c: Call) -> Sequence[ValueId | None]:
        for v in c.inputs:
            if v is None:
                continue
            value = c.builder.values[v]
            if value.dtype is DType.STRING:
                raise Unsupported("a tensor of strings")
            if value.shape is None:
                raise Unsupported("an input whose shape depends on data")
        return op.emit(c)

    return dataclasses.replace(op, emit=emit)


OPERATORS: Mapping[tuple[str, str], Op] = {
    (op.domain, op.name): _checked(op)
    for op in chain(
        ELEMENTWISE,
        ACTIVATIONS,
        REDUCTIONS,
        LINEAR,
        CONVOLUTIONS,
        POOLINGS,
        NORMALIZATIONS,
        RECURRENT,
        SHAPING,
        PADDINGS,
        INDEXING,
        SCATTERING,
        ORDERING,
        GENERATORS,
        CASTS,
        RESIZES,
        QUANTIZATIONS,
        INTEGER_PRODUCTS,
        COLUMNS,
        FOURIER,
        LINEAR_ATTENTION,
        RANDOM,
        ROIS,
        SAMPLINGS,
        TRAINING,
        ML,
        MICROSOFT,
    )
}
"""Keys are (domain, name); the default domain is the empty string."""


def find(domain: str, name: str) -> Op | None:
    """The declaration of an operator; "ai.onnx" is another name of the default domain."""
    return OPERATORS.get(("" if domain == "ai.onnx" else domain, name))
