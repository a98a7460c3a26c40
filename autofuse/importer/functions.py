"""Functions: those that a model brings, and those that the ONNX standard defines operators by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto, defs

from autofuse.importer.proto import bind_references, domain_of, opsets_of

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Body:
    """A function ready to be emitted: its nodes with the caller's attributes in place."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Sequence[NodeProto]
    opsets: Mapping[str, int]


def local_functions(model: ModelProto) -> dict[Key, FunctionProto]:
    """The model's own functions by domain, name and overload."""
    return {("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload): f for f in model.functions}


def instantiate(f: FunctionProto, node: NodeProto, defaults: Sequence[AttributeProto] = ()) -> Body:
    """A function's body for one call. Attributes that the call does not give have the function's or the schema's default."""
    given = {a.name: a for a in [*defaults, *f.attribute_proto, *node.attribute]}
    return Body(tuple(f.input), tuple(f.output), bind_references(f.node, given), opsets_of(f))


def standard_body(node: NodeProto, opset: int, types: Sequence[TypeProto]) -> Body | None:
    """The body by which the standard defines an operator at this opset, or None where it defines it in words.

    `types` are those of the inputs; some bodies depend on them.
    """
    domain = domain_of(node)
    if not defs.has(node.op_type, opset, domain):
        return None
    schema: Any = defs.get_schema(node.op_type, opset, domain)
    versions = [v for v in schema.function_opset_versions if v <= opset]
    dependent = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if versions:
        data = schema.get_function_with_opset_version(max(versions))
    elif dependent:
        data = schema.get_context_dependent_function_with_opset_version(
            max(dependent), node.SerializeToString(), [t.SerializeToString() for t in types]
        )
    else:
        return None
    f = FunctionProto()
    f.ParseFromString(data)
    if not f.node:
        return None
    defaults = [a.default_value for a in schema.attributes.values() if a.default_value.name]
    body = instantiate(f, node, defaults)
    return Body(body.inputs, body.outputs, body.nodes, body.opsets or {"": opset})


def is_standard(node: NodeProto, opset: int) -> bool:
    """Whether the ONNX standard has this operator."""
    return bool(defs.has(node.op_type, opset, domain_of(node)))
