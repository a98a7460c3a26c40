"""Every declared operator on a GPU: alone, and as one kernel with all that it is made of where that is possible."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_case import Case, reference
from cuda_run import TARGET, allows, compare
from lockstep import run

from autofuse.fusion.form import Form, analyse
from autofuse.fusion.region import Region, program_of
from autofuse.ir.graph import Graph, ValueId
from autofuse.ir.stage import Stage
from autofuse.kernels.contract_cuda import ContractCuda
from autofuse.kernels.map_cuda import MapCuda
from autofuse.kernels.reduce_cuda import ReduceCuda
from autofuse.ops.table import OPERATORS

sys.path.append(str(Path(__file__).parent.parent / "ops"))
from op_calls import emitted

FAMILIES = (MapCuda(), ReduceCuda(), ContractCuda())


def regions(graph: Graph, values: dict[ValueId, np.ndarray]) -> Iterator[Case]:
    """All nodes together if they have a form, and each alone; inputs from inside are what the nodes before give."""
    known = reference(graph, values)
    single = [Region.of(graph, [n.id]) for n in graph.nodes]
    together = [Region.of(graph, range(len(graph.nodes)))] if len(single) > 1 else []
    for region in (*together, *single):
        if not region.outputs:
            continue
        program = program_of(graph, region)
        form = analyse(program)
        assert isinstance(form, Form) or region in together, form
        if isinstance(form, Form):
            inputs = {v: known[v].astype(graph.values[v].dtype.numpy) for v in region.inputs}
            found = reference(graph, inputs, region.nodes)
            yield Case(program, tuple(inputs.values()), tuple(found[v] for v in region.outputs))


@pytest.mark.parametrize("key", OPERATORS, ids=[".".join(k).lstrip(".") for k in OPERATORS])
def test_operator(key: tuple[str, str]) -> None:
    for sample in OPERATORS[key].samples:
        graph, values = emitted(key, sample)
        if not all(isinstance(n.compute, Stage) for n in graph.nodes):
            continue
        for c in regions(graph, values):
            variants = [(f, v) for f in FAMILIES for v in f.variants(c.program, TARGET)]
            assert variants
            for family, v in variants:
                s = family.heuristic(v, TARGET)
                assert allows(family, v, s), f"{v.family}/{v.algorithm}: {s.text()}"
                compare(run(v, family.lower(v, s, TARGET), c.inputs), c, f"{v.family}/{v.algorithm} {s.text()}")
