"""Contractions on the host: convolutions and matrix products by register tiles of fused multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, Var, const, load, loads, select, var, variables
from autofuse.ir.target import Target
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.contract_layouts import direct_variants
from autofuse.kernels.contract_problem import Problem, problem
from autofuse.kernels.contract_roles import coefficient, vanishing
from autofuse.kernels.contract_tile import At, Panel, Rows, Tile, shielded
from autofuse.kernels.contract_window import Segment, holds, over_segments, segments
from autofuse.loops.ir import Alloc, Buffer, For, Kernel, Let, LoopKind, Scope, Stmt, Store, loop
from autofuse.loops.verify import verify_kernel

MOST_PEELED = 24
"""At most so many copies of the step for single positions of a window at borders; beyond that reads are guarded instead."""

MOST_LINES = 3000
"""About so many unrolled statements at most: compilers take longer than linear time."""

L1_WAY = 4096
L1_WAYS = 8
"""First-level data caches are 8 (or 12) ways of 4 KiB, since a way may not be larger than a page."""

_OuterBody = Callable[[At], tuple[Stmt, ...]]
_RowBody = Callable[[At, Rows], tuple[Stmt, ...]]
_PanelBody = Callable[[At, Panel], tuple[Stmt, ...]]


class ContractHost:
    """Sums of products with a tile of accumulators in registers; constants are packed in the order in which they are read."""

    name = "contract_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """Channel-blocked convolutions, and row-major contractions along one or two vector axes."""
        return direct_variants(self.name, program, target)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`rows_extent`, `vectors_extent`: the tile's axes; `vector_registers`, `cores`; `can_pack`, `must_pack`; `outer_extent`, `depth`."""
        p = problem(variant, target)
        return {
            "rows_extent": p.rows,
            "vectors_extent": p.vectors,
            "depth": p.depth,
            "outer_extent": _outer_extent(p),
            "vector_registers": target.vector_registers,
            "cores": target.cores,
            "can_pack": int(p.may_pack),
            "must_pack": int(p.must_pack),
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """The tile with the most multiply-adds per load that fits the registers, and tasks enough for the cores."""
        p = problem(variant, target)
        rows, vectors = _best_tile(p, target.vector_registers)
        tiles = -(-p.rows // rows)
        panels = -(-p.vectors // vectors)
        outer = _outer_extent(p)
        others = math.prod(a.extent or 1 for a in (*p.batch, *p.outer)) // outer
        pack = int(p.must_pack or (p.may_pack and p.rows * outer >= 64))
        task_tiles, task_panels = 32, 1
        while task_tiles > 1 and others * panels * -(-tiles * outer // task_tiles) < 8 * target.cores:
            task_tiles //= 2
        return Schedule.of(
            {
                "rows": rows,
                "vectors": vectors,
                "unroll": 4,
                "task_tiles": task_tiles,
                "task_panels": task_panels,
                "order": "panels",
                "pack": pack,
            }
        )

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        p = problem(variant, target)
        body = _Kernel(p, schedule).grid()
        kernel = Kernel(
            "contract", p.binding.parameters, body, body.var.extent or 0, flops=p.flops, bytes=p.binding.nbytes
        )
        return Lowered((RegionLaunch(verify_kernel(kernel), p.binding.arguments),))


def _best_tile(p: Problem, registers: int) -> tuple[int, int]:
    """Rows and vectors of the tile: fewest loads per multiply-add, points past the ends counted as waste."""
    best: tuple[float, int, int] = (math.inf, 1, 1)
    cached = _rows_in_cache(p)
    for vectors in (1, 2, 3, 4, 6, 8):
        most = (registers - 2 - vectors) // vectors
        for rows in range(1, min(most, 14, cached) + 1):
            if vectors > p.vectors or rows * vectors + vectors + 1 > registers:
                continue
            waste = (-(-p.rows // rows) * rows / p.rows) * (-(-p.vectors // vectors) * vectors / p.vectors)
            fma = rows * vectors
            loads = (vectors + rows * 0.5) / fma
            cost = waste * (max(1.0, 8 / fma, loads) + 0.3 * loads + 0.5 / rows)
            best = min(best, (cost, rows, vectors))
    return best[1], best[2]


def _rows_in_cache(p: Problem) -> int:
    """How many rows of the narrow factor stay in the first-level cache side by side: rows a multiple of a page apart share its sets."""
    if p.m is None:
        return 1
    most = p.rows
    for ld in loads(p.narrow):
        stride = abs(coefficient(ld.index[0], p.m) or 0) * ld.dtype.itemsize
        along = any(coefficient(ld.index[0], k) == 1 for k in p.reduced)
        if stride >= L1_WAY // 4 and along:
            sets = L1_WAY // math.gcd(L1_WAY, stride)
            most = min(most, max(1, sets * L1_WAYS * 3 // 4))
    return most


def _outer_extent(p: Problem) -> int:
    return (p.outer[-1].extent or 1) if p.outer else 1


@dataclass
class _Kernel:
    """The grid and the loops of a task around the tiles."""

    p: Problem
    schedule: Schedule

    def __post_init__(self) -> None:
        p, s = self.p, self.schedule
        self.vectors = s.integer("vectors")
        self.pack = bool(s.integer("pack"))
        self.by_panels = s.values["order"] == "panels" or self.pack
        self.scratch: Buffer | None = None
        if self.pack:
            self.scratch = Buffer("packed", p.dtype, p.depth * self.vectors * p.lanes, Scope.SHARED)
        self.tile = Tile(p, s.integer("unroll"), self._packed if self.pack else None)
        self.rows = min(s.integer("rows"), p.rows)
        if p.scatters:
            self.tile.spill = Buffer("sums", p.dtype, self.rows * self.vectors * p.lanes, Scope.SHARED)
        self.row_segments = segments(p.rows, self.rows, self.tile.is_clean)
        dirty = sum(not s.clean for s in self.row_segments)
        if self.tile.peel is not None and dirty * (self.tile.peel.extent or 1) > MOST_PEELED:
            self.tile.peel = None
        if self.tile.peel is None:
            self.row_segments = segments(p.rows, self.rows, self.tile.is_clean, merge=True)
        self.panel_segments = segments(p.points, self.vectors * p.lanes, self._panel_is_clean)
        self.tile.unroll = min(self.tile.unroll, self._most_unrolled())
        self.tiles = -(-p.rows // self.rows)
        self.panels = -(-p.vectors // self.vectors)
        wanted = s.integer("task_tiles")
        self.task_tiles = min(self.tiles, wanted)
        self.task_panels = min(self.panels, s.integer("task_panels"))
        self.slow = p.outer[-1] if p.outer else None
        self.task_outer = max(1, min(wanted // self.tiles, _outer_extent(p)))

    def _most_unrolled(self) -> int:
        """How far the sum may be unrolled before the kernel's text grows too long: each kind of tile has its own copies of the step."""
        peeled = (self.tile.peel.extent or 1) if self.tile.peel is not None else 1
        steps = sum(1 if s.clean else peeled for s in self.row_segments) * len(self.panel_segments)
        lines = steps * (self.rows * (self.vectors + 1) + self.vectors)
        return max(1, MOST_LINES // lines)

    def _panel_is_clean(self, start: int, size: int) -> bool:
        """Whether all lanes of a panel exist and none touches a border."""
        p = self.p
        if start + -(-size // p.lanes) * p.lanes > (p.n.extent or 1):
            return False
        inside = ix.add(const(start), var("ntest", size)) if size > 1 else const(start)
        return self.pack or all(holds(a, {p.n: inside}) for a in self.panel_conditions)

    @property
    def panel_conditions(self) -> tuple[Expr, ...]:
        """The comparisons of the wide factor that n takes part in."""
        return tuple(a for a in vanishing(self.p.wide) if self.p.n in variables(a))

    # ---- the grid

    def grid(self) -> For:
        """The whole kernel."""
        p = self.p
        outer = p.outer[:-1]
        panel_blocks = -(-self.panels // self.task_panels)
        outer_blocks = -(-_outer_extent(p) // self.task_outer)
        tile_blocks = -(-self.tiles // self.task_tiles)
        sizes: list[tuple[Var | str, int]] = [
            *((a, a.extent or 1) for a in p.batch),
            ("panels", panel_blocks),
            *((a, a.extent or 1) for a in outer),
            ("outer", outer_blocks),
            ("tiles", tile_blocks),
        ]
        g = var("g", math.prod(n for _, n in sizes))
        places = ix.unflatten(g, tuple(n for _, n in sizes))
        at: At = {}
        named: dict[str, Expr] = {}
        lets: list[Stmt] = []
        for (what, n), place in zip(sizes, places, strict=True):
            where: Expr = const(0)
            if n > 1:
                where = index = self.tile.fresh("p", n)
                lets.append(Let(index, place))
            if isinstance(what, str):
                named[what] = where
            else:
                at[what] = where
        body = self._task(at, named["panels"], named["outer"], named["tiles"])
        alloc = [Alloc(b) for b in (self.scratch, self.tile.spill) if b is not None]
        return loop(g, LoopKind.GRID, *lets, *alloc, *body)

    def _task(self, at: At, panel_block: Expr, outer_block: Expr, tile_block: Expr) -> tuple[Stmt, ...]:
        panels = (panel_block, self.task_panels, self.panels)
        tiles = (tile_block, self.task_tiles, self.tiles)

        def over_rows(at: At, inner: _RowBody) -> tuple[Stmt, ...]:
            return self._outer(at, outer_block, lambda at: self._rows(at, tiles, inner))

        if self.by_panels:
            return self._panels(
                at,
                panels,
                lambda at, panel: (
                    *self._fill(at, panel),
                    *over_rows(at, lambda at, rows: self.tile.emit(at, panel, rows)),
                ),
            )
        return over_rows(
            at,
            lambda at, rows: self._panels(at, panels, lambda at, panel: self.tile.emit(at, panel, rows)),
        )

    def _outer(self, at: At, block: Expr, inner: _OuterBody) -> tuple[Stmt, ...]:
        if self.slow is None:
            return inner(at)
        n = _outer_extent(self.p)
        if self.task_outer == 1:
            return inner({**at, self.slow: block})
        o = self.tile.fresh("o", n)
        begin = ix.mul(block, self.task_outer)
        end = ix.minimum(const(n), ix.add(begin, const(self.task_outer)))
        return (loop(o, LoopKind.SERIAL, *inner({**at, self.slow: o}), begin=begin, end=end),)

    def _panels(self, at: At, block: tuple[Expr, int, int], inner: _PanelBody) -> tuple[Stmt, ...]:
        width = self.vectors * self.p.lanes

        def make(segment: Segment, t: Expr) -> tuple[Stmt, ...]:
            vectors = -(-segment.size // self.p.lanes)
            return inner(at, Panel(ix.mul(t, width), vectors, not segment.clean))

        return over_segments(self.panel_segments, block, self.tile.fresh, make)

    def _rows(self, at: At, block: tuple[Expr, int, int], inner: _RowBody) -> tuple[Stmt, ...]:
        def make(segment: Segment, t: Expr) -> tuple[Stmt, ...]:
            return inner(at, Rows(ix.mul(t, self.rows), segment.size, segment.clean, segment.first * self.rows))

        return over_segments(self.row_segments, block, self.tile.fresh, make)

    # ---- packing the wide factor into scratch memory

    def _packed(self, at: At, lane: Expr) -> Expr:
        assert self.scratch is not None
        p = self.p
        k = ix.flatten([at[a] for a in p.reduced], [a.extent or 1 for a in p.reduced])
        return load(self.scratch, (ix.add(ix.mul(k, self.vectors * p.lanes), lane),), p.dtype)

    def _fill(self, at: At, panel: Panel) -> tuple[Stmt, ...]:
        """Write a panel of the wide factor to scratch memory, zeros past the end of n."""
        if self.scratch is None:
            return ()
        p = self.p
        axes = [self.tile.fresh("k", a.extent) for a in p.reduced]
        inside: At = {**at, **dict(zip(p.reduced, axes, strict=True))}
        k = ix.flatten(axes, [a.extent or 1 for a in axes])
        body: list[Stmt] = []
        for v in range(panel.vectors):
            l = self.tile.fresh("l", p.lanes)
            point = self.tile.point(panel, v, l)
            value = ix.substitute(p.wide, {**inside, p.n: point})
            if panel.partial:
                valid = self.tile.valid(point)
                value = select(valid, shielded(value, valid), const(0, value.dtype))
            place = ix.add(ix.mul(k, self.vectors * p.lanes), const(v * p.lanes), l)
            body.append(loop(l, LoopKind.VECTOR, Store(self.scratch, place, value)))
        nest: tuple[Stmt, ...] = tuple(body)
        for a in reversed(axes):
            nest = (loop(a, LoopKind.SERIAL, *nest),)
        return nest
