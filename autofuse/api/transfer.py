"""The same choices for other sizes: a plan carried over to the graph of the same model with other dimensions bound."""

from __future__ import annotations

from autofuse.devices.base import Device
from autofuse.engine.assign import assign
from autofuse.engine.options import Option, OptionSource, heuristic_options
from autofuse.engine.plan import Plan
from autofuse.errors import AutofuseError
from autofuse.fusion.partition import Partition, verify_partition
from autofuse.fusion.region import Region, RegionProgram, program_of
from autofuse.ir.graph import Graph, Node
from autofuse.kernels.families import lower


def carried(plan: Plan, old: Graph, new: Graph, device: Device) -> Plan | None:
    """The plan's partition, algorithms and schedules on the new graph; None where its structure differs in more than sizes.

    A schedule that the new sizes do not allow gives way to the heuristic one.
    """
    if [_shapeless(n) for n in old.nodes] != [_shapeless(n) for n in new.nodes]:
        return None
    planned = [p for p in plan.regions if p.region.nodes]
    regions = tuple(Region.of(new, p.region.nodes, p.region.outputs) for p in planned)
    partition = Partition(regions)
    try:
        verify_partition(new, partition, device.target)
        preferred = {
            program_of(new, r).signature: (p.family, p.algorithm, p)
            for r, p in zip(regions, planned, strict=True)
            if p.family not in ("host", "control")
        }
        heuristic = heuristic_options(device.target, device.threads, plan.accuracy)

        def source(program: RegionProgram) -> list[Option]:
            options = list(heuristic(program))
            wish = preferred.get(program.signature)
            if wish is None:
                return options
            family, algorithm, p = wish
            mine = [o for o in options if (o.variant.family, o.variant.algorithm) == (family, algorithm)]
            layouts = (p.input_layouts, p.output_layouts)
            same = [o for o in mine if (o.variant.input_layouts, o.variant.output_layouts) == layouts]
            for o in same:
                kept = Option(o.variant, p.schedule, 0.0)
                try:
                    lower(kept.variant, kept.schedule, device.target)
                except (AutofuseError, ValueError, KeyError):
                    continue
                return [kept, *options]
            return mine or options

        checked: OptionSource = source
        return assign(
            new, partition, device.target, device.threads, plan.accuracy, checked, f"{plan.origin}, other sizes"
        )
    except AutofuseError:
        return None


def _shapeless(n: Node) -> tuple[object, ...]:
    """What must be equal in two graphs of one model."""
    return (n.op, n.origin, n.kind, n.inputs, n.outputs)
