"""The standard interface of onnx backends: `import autofuse.api.onnx_backend as backend; backend.prepare(model)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep

from autofuse.api.choosing import heuristic_plan
from autofuse.api.devices import open_device
from autofuse.api.engines import Engines
from autofuse.devices.base import Device


class AutofuseRep(BackendRep):
    """A prepared model. Dimensions that it leaves open are bound by the inputs of each run; see `autofuse.api.engines`."""

    def __init__(self, model: ModelProto, device: Device) -> None:
        self.model = model
        self.device = device
        self.names = [i.name for i in model.graph.input if i.name not in {x.name for x in model.graph.initializer}]
        self.engines = Engines(model, device, lambda graph: heuristic_plan(graph, device))

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run on a list of inputs in the model's order, or on a dictionary by name."""
        del kwargs
        feeds = dict(inputs) if isinstance(inputs, dict) else dict(zip(self.names, inputs, strict=False))
        engine = self.engines.find(feeds)
        known = {engine.graph.values[v].name for v in engine.graph.inputs}
        return tuple(engine.run({k: v for k, v in feeds.items() if k in known}).values())


class AutofuseBackend(Backend):
    """autofuse as a backend: device "CPU" is the host, "CUDA" a GPU; plans are the heuristic ones."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str | Device = "CPU", **kwargs: Any) -> AutofuseRep:
        """Make a model ready to run on a device by name, or on one that was opened before and may serve many models, one at a time."""
        del kwargs
        if isinstance(device, str):
            device = open_device("cuda" if device.upper().startswith("CUDA") else "cpu", None)
        return AutofuseRep(model, device)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str | Device = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Sequence[Any] | None = None, **kwargs: Any
    ) -> tuple[Any, ...] | None:
        """Not supported: a node alone has no opset. Wrap it in a model."""
        del node, inputs, device, outputs_info, kwargs
        return None

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a device string names one that autofuse knows."""
        return device.upper().split(":")[0] in ("CPU", "CUDA")


prepare = AutofuseBackend.prepare
run_model = AutofuseBackend.run_model
run_node = AutofuseBackend.run_node
supports_device = AutofuseBackend.supports_device
