"""Models that are always at hand: `sample:NAME`, each with seeded random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import ModelProto

from autofuse.errors import ModelError
from autofuse.importer.samples import basic, chains, light, transformers

SAMPLES: Mapping[str, Callable[[], ModelProto]] = {
    **light.MODELS,
    "mlp": basic.mlp,
    "softmax": basic.softmax,
    "bert_block": transformers.bert_block,
    "gpt_block": transformers.gpt_block,
    "chain_gelu": chains.gelu,
    "chain_layernorm": chains.layernorm,
    "chain_rmsnorm": chains.rmsnorm,
    "chain_softmax": chains.softmax,
    "chain_swiglu": chains.swiglu,
    "chain_rotary": chains.rotary,
    "chain_groupnorm": chains.groupnorm,
}


def names() -> tuple[str, ...]:
    """What may stand after `sample:`."""
    return tuple(SAMPLES)


def build(name: str) -> ModelProto:
    """The sample of that name; ModelError with the list where there is none."""
    if name not in SAMPLES:
        raise ModelError(f"there is no sample {name!r}. There are: {', '.join(SAMPLES)}.")
    return SAMPLES[name]()
