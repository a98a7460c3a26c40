"""The table of kernel families, and what can be asked of all of them at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

from autofuse.fusion.region import RegionProgram, Step
from autofuse.ir.layout import Layout
from autofuse.ir.stage import Kind, Stage
from autofuse.ir.target import Target
from autofuse.kernels.attention_host import AttentionHost
from autofuse.kernels.base import Choice, Family, Lowered, Schedule, Variant
from autofuse.kernels.contract_cuda import ContractCuda
from autofuse.kernels.contract_host import ContractHost
from autofuse.kernels.determinant_cuda import DeterminantCuda
from autofuse.kernels.determinant_host import DeterminantHost
from autofuse.kernels.dot_host import DotHost
from autofuse.kernels.dot_roles import integer_product
from autofuse.kernels.map_cuda import MapCuda
from autofuse.kernels.map_host import MapHost
from autofuse.kernels.narrow_weights_host import NarrowWeightsHost
from autofuse.kernels.reduce_cuda import ReduceCuda
from autofuse.kernels.reduce_host import ReduceHost
from autofuse.kernels.running_cuda import RunningCuda
from autofuse.kernels.running_host import RunningHost
from autofuse.kernels.scan_cuda import ScanCuda
from autofuse.kernels.scan_host import ScanHost
from autofuse.kernels.scatter_cuda import ScatterCuda
from autofuse.kernels.scatter_host import ScatterHost
from autofuse.kernels.sort_cuda import SortCuda
from autofuse.kernels.sort_host import SortHost
from autofuse.kernels.space import Spaces
from autofuse.kernels.view import View
from autofuse.kernels.winograd_host import WinogradHost

FAMILIES: tuple[Family, ...] = (
    View(),
    MapHost(),
    ReduceHost(),
    ScanHost(),
    RunningHost(),
    ScatterHost(),
    SortHost(),
    DeterminantHost(),
    ContractHost(),
    DotHost(),
    WinogradHost(),
    NarrowWeightsHost(),
    AttentionHost(),
    MapCuda(),
    ReduceCuda(),
    ScanCuda(),
    RunningCuda(),
    ScatterCuda(),
    SortCuda(),
    DeterminantCuda(),
    ContractCuda(),
)
"""Every family; each offers variants only for targets that it is made for."""

GENERAL = frozenset({"reduce_host", "reduce_cuda"})
DEEP = 32
"""Terms of a sum from which register tiles always pay (a depthwise window has fewer)."""


def family(name: str) -> Family:
    """A family by name; KeyError where there is none."""
    for f in FAMILIES:
        if f.name == name:
            return f
    raise KeyError(name)


@lru_cache(maxsize=1 << 14)
def variants(program: RegionProgram, target: Target) -> tuple[Variant, ...]:
    """All variants of a region program on a target, in the order of the table.

    The general reductions also do contractions, without register tiles: for a deep sum that a tiled family takes they are not asked.
    """
    special = {f.name: tuple(f.variants(program, target)) for f in FAMILIES if f.name not in GENERAL}
    products = [s for s in program.steps if s.kind is Kind.CONTRACT or integer_product(program) is not None]
    skip = any(_sum_length(s) > DEEP for s in products) and any(special.values())
    found = {f.name: () if skip else tuple(f.variants(program, target)) for f in FAMILIES if f.name in GENERAL}
    return tuple(v for f in FAMILIES for v in {**special, **found}[f.name])


def _sum_length(step: Step) -> int:
    """How many terms a step sums up; 0 where it reduces nothing."""
    if not isinstance(step.stage, Stage) or not step.stage.reduce_axes:
        return 0
    return math.prod(a.extent or 0 for a in step.stage.reduce_axes)


def find_variant(
    program: RegionProgram,
    target: Target,
    name: str,
    algorithm: str,
    layouts: tuple[tuple[Layout, ...], tuple[Layout, ...]],
) -> Variant | None:
    """The variant that a plan names, or None where this version of autofuse doesn't have it."""
    for v in variants(program, target):
        if v.family == name and v.algorithm == algorithm and (v.input_layouts, v.output_layouts) == layouts:
            return v
    return None


def schedules(variant: Variant, target: Target, spaces: Spaces) -> Iterator[Schedule]:
    """Every legal schedule of a variant: the heuristic one first, then the search space's."""
    f = family(variant.family)
    first = f.heuristic(variant, target)
    yield first
    if variant.family == "view":
        return
    for s in spaces.of(variant.family).schedules(_facts(variant, target)):
        if s != first:
            yield s


@lru_cache(maxsize=1 << 12)
def lower(variant: Variant, schedule: Schedule, target: Target) -> Lowered:
    """The launches of a variant under a schedule."""
    return family(variant.family).lower(variant, schedule, target)


def allows(variant: Variant, schedule: Schedule, target: Target, spaces: Spaces) -> bool:
    """Whether a schedule is a legal one of a variant."""
    if schedule == family(variant.family).heuristic(variant, target):
        return True
    return spaces.of(variant.family).allows(schedule, _facts(variant, target))


def _facts(variant: Variant, target: Target) -> Mapping[str, Choice]:
    """What constraints may speak of besides the choices: the device's limits, and what the family says of the variant."""
    limits: dict[str, Choice] = {
        "vector_registers": target.vector_registers,
        "vector_bytes": target.vector_bytes,
        "max_threads": target.max_threads_per_block,
        "shared_memory": target.shared_memory,
        "warp": target.warp,
        "l1": target.l1,
        "l2": target.l2,
        "cores": target.cores,
    }
    return {**limits, **family(variant.family).facts(variant, target)}
