"""Lowering a plan's regions, and remembering what came of it: a saved plan is made ready without any loops.

Lowering and rendering a kernel takes ten times as long as loading it. So a device that keeps records (`devices.base.Remembers`) is given one
for each region program, variant and schedule: the kernels' texts and what a launch must know of them. A record is never a source of
truth: its key holds a digest of the code that made it, so that another version of autofuse makes the text again.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from autofuse.devices.base import Device, Remembers
from autofuse.devices.cache import content_key
from autofuse.engine.assign import reorder_program, reorder_variant
from autofuse.engine.plan import PlannedRegion
from autofuse.errors import AutofuseError, PlanError
from autofuse.fusion.region import RegionProgram, program_of
from autofuse.ir.dtype import DType
from autofuse.ir.graph import Graph
from autofuse.ir.target import Target
from autofuse.kernels.base import Argument, Lowered, Schedule, Variant
from autofuse.kernels.dot_roles import Quads
from autofuse.kernels.families import find_variant, lower
from autofuse.kernels.narrow_weights_host import Narrow
from autofuse.kernels.preparation import Preparation
from autofuse.loops.ir import Buffer, Kernel, Rendered, Scope

_FORMAT = 1
_KEPT = 1024
_MAKERS = ("ir", "fusion", "loops", "kernels", "render")
"""The parts of autofuse that decide what a kernel's text is."""


@dataclass(frozen=True)
class Ready:
    """A planned region's variant with its launches: each kernel with its arguments, and the bytes of its scratch buffers."""

    variant: Variant
    launches: tuple[tuple[Kernel | Rendered, tuple[Argument, ...]], ...]
    scratch: tuple[int, ...]

    @staticmethod
    def of(variant: Variant, lowered: Lowered) -> Ready:
        """The same of loops that were just made."""
        launches = tuple((x.kernel, x.arguments) for x in lowered.launches)
        return Ready(variant, launches, tuple(x.bytes for x in lowered.scratch))


Lowering = Callable[[Graph, PlannedRegion], Ready]


def variant_of(graph: Graph, planned: PlannedRegion, target: Target) -> Variant:
    """The variant that a planned region names. PlanError where this version of autofuse doesn't have it."""
    if not planned.region.nodes:
        value = graph.values[planned.region.inputs[0]]
        program = reorder_program(value.dtype, value.dims)
        return reorder_variant(program, target, planned.input_layouts[0], planned.output_layouts[0])
    return _variant(program_of(graph, planned.region), planned, target)


def _variant(program: RegionProgram, planned: PlannedRegion, target: Target) -> Variant:
    layouts = (planned.input_layouts, planned.output_layouts)
    found = find_variant(program, target, planned.family, planned.algorithm, layouts)
    if found is None:
        raise PlanError(
            f"the plan's {planned.family}/{planned.algorithm} for nodes {planned.region.nodes} is unknown to this version of "
            "autofuse; tune again (the plan serves as a seed)"
        )
    return found


def plainly(target: Target) -> Lowering:
    """Lowering anew, whatever is remembered."""

    def make(graph: Graph, planned: PlannedRegion) -> Ready:
        variant = variant_of(graph, planned, target)
        return Ready.of(variant, lower(variant, planned.schedule, target))

    return make


def lowering(device: Device) -> Lowering:
    """How to lower for a device: with its records where it keeps some."""
    return Remembered(device, device) if isinstance(device, Remembers) else plainly(device.target)


def ready(device: Device, variant: Variant, schedule: Schedule) -> Ready:
    """The launches of a variant under a schedule, from the device's records where it keeps some: what the process of a tune has rendered,
    the process that measures need not render again."""
    if isinstance(device, Remembers):
        return Remembered(device, device).of(variant, schedule)
    return Ready.of(variant, lower(variant, schedule, device.target))


class Remembered:
    """Lowering with the records of a device."""

    def __init__(self, device: Device, records: Remembers) -> None:
        self._device = device
        self._records = records

    def __call__(self, graph: Graph, planned: PlannedRegion) -> Ready:
        """From a record, else anew, and then a record is left behind."""
        program = _program(graph, planned)
        key = self._key(program, planned, planned.schedule)
        known = _MADE.get(key)
        if known is None:
            known = self._recalled(key, program, planned)
            if known is None:
                known = self._made(key, variant_of(graph, planned, self._device.target), planned.schedule)
            _keep(key, known)
        return known

    def of(self, variant: Variant, schedule: Schedule) -> Ready:
        """The same for a variant that is known."""
        key = self._key(variant.program, variant, schedule)
        known = _MADE.get(key)
        if known is None:
            known = self._recalled(key, variant.program, variant) or self._made(key, variant, schedule)
            _keep(key, known)
        return replace(known, variant=variant)

    def _key(self, program: RegionProgram, chosen: PlannedRegion | Variant, schedule: Schedule) -> str:
        return _key(self._device.target, program, chosen, schedule)

    def _recalled(self, key: str, program: RegionProgram, chosen: PlannedRegion | Variant) -> Ready | None:
        data = self._records.recall(key)
        if data is None:
            return None
        try:
            return _ready(json.loads(zlib.decompress(data)), program, chosen)
        except (zlib.error, ValueError, KeyError, TypeError):
            return None  # damaged: made anew

    def _made(self, key: str, variant: Variant, schedule: Schedule) -> Ready:
        ready = Ready.of(variant, lower(variant, schedule, self._device.target))
        try:
            data = zlib.compress(json.dumps(_record(ready, self._device)).encode(), 3)
        except AutofuseError:  # what cannot be rendered is told when it is compiled
            return ready
        self._records.remember(key, data)
        return ready


def made_before(graph: Graph, planned: PlannedRegion, target: Target) -> Ready | None:
    """What this process has made of a planned region for a device with records, if it has."""
    return _MADE.get(_key(target, _program(graph, planned), planned, planned.schedule))


def _program(graph: Graph, planned: PlannedRegion) -> RegionProgram:
    if planned.region.nodes:
        return program_of(graph, planned.region)
    value = graph.values[planned.region.inputs[0]]
    return reorder_program(value.dtype, value.dims)


def _key(target: Target, program: RegionProgram, chosen: PlannedRegion | Variant, schedule: Schedule) -> str:
    return content_key(f"{_FORMAT} {_makers()} {astuple(target)}", program.signature, _choices(chosen, schedule))


_KINDS = (Preparation, Narrow, Quads)
_PREPARED: dict[str, Callable[..., Preparation | Narrow | Quads]] = {k.__name__: k for k in _KINDS}
_MADE: OrderedDict[str, Ready] = OrderedDict()


def _keep(key: str, made: Ready) -> None:
    _MADE[key] = made
    if len(_MADE) > _KEPT:
        _MADE.popitem(last=False)


def _choices(chosen: PlannedRegion | Variant, schedule: Schedule) -> str:
    layouts = [[x.text() for x in side] for side in (chosen.input_layouts, chosen.output_layouts)]
    return json.dumps([chosen.family, chosen.algorithm, layouts, schedule.choices])


def _record(ready: Ready, device: Device) -> dict[str, Any]:
    kernels = {id(k): k for k, _ in ready.launches}
    numbers = {k: n for n, k in enumerate(kernels)}
    return {
        "tolerant": ready.variant.tolerant,
        "lower_precision": ready.variant.lower_precision,
        "prepared": [[k, type(p).__name__, *astuple(p)] for k, p in ready.variant.prepared if isinstance(p, _KINDS)],
        "kernels": [_kernel_record(k, device) for k in kernels.values()],
        "launches": [[numbers[id(k)], arguments] for k, arguments in ready.launches],
        "scratch": ready.scratch,
    }


def _kernel_record(kernel: Kernel | Rendered, device: Device) -> dict[str, Any]:
    text = kernel.text if isinstance(kernel, Rendered) else device.text(kernel)
    return {
        "family": kernel.family,
        "params": [[b.name, b.dtype.value, b.size, b.scope.value, b.written, b.align] for b in kernel.params],
        "grid": kernel.grid,
        "threads": kernel.threads,
        "flops": kernel.flops,
        "bytes": kernel.bytes,
        "shared": kernel.shared_bytes,
        "text": text,
    }


def _ready(data: Mapping[str, Any], program: RegionProgram, chosen: PlannedRegion | Variant) -> Ready:
    kernels = [
        Rendered(
            k["family"],
            tuple(Buffer(n, DType(t), size, Scope(s), w, align) for n, t, size, s, w, align in k["params"]),
            k["grid"],
            k["threads"],
            k["flops"],
            k["bytes"],
            k["shared"],
            k["text"],
        )
        for k in data["kernels"]
    ]
    variant = Variant(
        chosen.family,
        chosen.algorithm,
        program,
        chosen.input_layouts,
        chosen.output_layouts,
        data["tolerant"],
        tuple((k, _PREPARED[kind](*rest)) for k, kind, *rest in data["prepared"]),
        data["lower_precision"],
    )
    launches = tuple((kernels[n], tuple((kind, k) for kind, k in arguments)) for n, arguments in data["launches"])
    return Ready(variant, launches, tuple(data["scratch"]))


@lru_cache(maxsize=1)
def _makers() -> str:
    """A digest of the code that makes kernels."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for part in _MAKERS:
        for path in sorted((root / part).rglob("*")):
            if path.suffix in (".py", ".h") and path.is_file():
                data = path.read_bytes()
                digest.update(f"{path.relative_to(root)} {len(data)}:".encode())
                digest.update(data)
    return digest.hexdigest()
