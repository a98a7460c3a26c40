"""Contractions on a GPU as tiled matrix products: matmuls, and convolutions without an unfolded copy of their input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir import index as ix
from autofuse.ir.expr import Expr, call, const, load, var
from autofuse.ir.target import Target
from autofuse.kernels.base import Choice, Lowered, Schedule, Scratch, Variant
from autofuse.kernels.contract_roles import contraction
from autofuse.kernels.gemm import Gemm, gemm, gemm_layouts
from autofuse.kernels.gemm_tile import Tiling, Writer, group
from autofuse.kernels.launches import region_launch
from autofuse.kernels.points import below, place, up
from autofuse.loops.ir import Alloc, Buffer, For, If, Let, LoopKind, Scope, Stmt, Store, loop

_FINISH_THREADS = 256

Make = Callable[[dict[Expr, Expr], Expr], tuple[Stmt, ...]]

_ASYNC_FROM = 80
"""The first architecture with asynchronous copies into shared memory."""


class ContractCuda:
    """One contraction with the maps around it: block tiles in shared memory, register tiles of multiply-adds.

    `tiled` is the only algorithm. Its stages choose between plain loads and asynchronous copies one step ahead; its split lets several blocks share
    a long sum, whose partial results a second launch adds up.
    """

    name = "contract_cuda"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """Row-major tensors; constant factors transposed for coalesced reads."""
        if target.is_cuda and contraction(program) is not None:
            yield Variant(self.name, "tiled", program, *gemm_layouts(program))

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`m`, `n`, `k`, `batch`; `copies` 1 where asynchronous copies apply; `bytes_a` and `bytes_b` an element of each factor.

        `words` is the registers an accumulator takes; the rest are limits of the target.
        """
        p = gemm(variant)
        return {
            "m": p.rows.points,
            "n": p.columns.points,
            "k": p.terms,
            "batch": p.batches,
            "copies": int(p.rows.can_copy and p.columns.can_copy and _architecture(target) >= _ASYNC_FROM),
            "bytes_a": p.rows.dtype.itemsize,
            "bytes_b": p.columns.dtype.itemsize,
            "words": max(1, p.result.dtype.itemsize // 4),
            "cores": target.cores,
            "max_threads": target.max_threads_per_block,
            "shared": target.shared_memory,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """The largest tile that still gives every core a block; the sum is split where even small tiles leave most idle."""
        facts = self.facts(variant, target)
        m, n, k, batch = (int(facts[name]) for name in ("m", "n", "k", "batch"))
        words = int(facts["words"])
        chosen = _TILES[-1]
        for tile in _TILES:
            block_m, block_n, thread_m, thread_n = tile
            fits = block_m < 2 * max(m, 16) and block_n < 2 * max(n, 16)
            if fits and thread_m * thread_n * words <= 64 and up(m, block_m) * up(n, block_n) * batch >= target.cores:
                chosen = tile
                break
        else:
            chosen = min(_TILES[2:], key=lambda tile: (up(m, tile[0]) * tile[0] * up(n, tile[1]) * tile[1], -tile[1]))
        block_m, block_n, thread_m, thread_n = chosen
        blocks = up(m, block_m) * up(n, block_n) * batch
        split = 1
        for parts in (4, 16):
            if blocks * parts <= 2 * target.cores and k >= 64 * parts:
                split = parts
        stages = 2 if int(facts["copies"]) and k >= 64 else 1
        block_k = 16 if k > 8 else 8
        return Schedule.of(
            {
                "block_m": block_m,
                "block_n": block_n,
                "block_k": block_k,
                "thread_m": thread_m,
                "thread_n": thread_n,
                "stages": stages,
                "split": split,
            }
        )

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel, or two where the sum is split."""
        p = gemm(variant)
        names = ("block_m", "block_n", "block_k", "thread_m", "thread_n", "stages", "split")
        tiling = Tiling(*(schedule.integer(name) for name in names))
        writer = Writer(p, tiling)
        if tiling.split == 1:
            nest = writer.nest(_outputs)
            return Lowered((region_launch("contract_tiled", nest, tiling.threads, p.flops, p.binding),))
        size = p.batches * p.rows.points * p.columns.points
        partial = Buffer("z", p.result.dtype, size * tiling.split, written=True)
        part, total = writer.nest(lambda w: _partials(w, partial)), _finish(p, partial, size, tiling.split)
        launches = (
            region_launch("contract_part", part, tiling.threads, p.flops, p.binding, (partial,)),
            region_launch("contract_sum", total, _FINISH_THREADS, size * tiling.split, p.binding, (partial,)),
        )
        return Lowered(launches, (Scratch(partial.size * partial.dtype.itemsize),))


_TILES = (
    (128, 128, 8, 8),
    (64, 128, 4, 8),
    (64, 64, 4, 4),
    (32, 64, 2, 4),
    (32, 32, 2, 4),
    (16, 64, 2, 2),
    (16, 32, 1, 4),
)
"""(block_m, block_n, thread_m, thread_n), the one with the most arithmetic a loaded element first."""


def _architecture(target: Target) -> int:
    """The number in sm_80, sm_90a; 0 where there is none."""
    digits = "".join(ch for ch in target.arch.partition("_")[2] if ch.isdigit())
    return int(digits or 0)


def _outputs(w: Writer) -> list[Stmt]:
    """Evaluate the outputs at every point of a thread's tile."""
    p = w.p

    def make(where: dict[Expr, Expr], value: Expr) -> tuple[Stmt, ...]:
        return (Let(p.result, value), *_stores(p, where))

    return _each(w, p.store, make)


def _stores(p: Gemm, where: dict[Expr, Expr]) -> tuple[Stmt, ...]:
    return tuple(
        Store(o.buffer, ix.substitute(offset, where), ix.substitute(value, where))
        for o, offset, value in zip(p.binding.outputs, p.offsets, p.values, strict=True)
    )


def _partials(w: Writer, target: Buffer) -> list[Stmt]:
    """Store the accumulators as they are: [part][batch][row][column]."""
    p = w.p
    m, n = p.rows.points, p.columns.points
    row, column = var("zm", m), var("zn", n)
    start = ix.mul(ix.add(ix.mul(w.part, p.batches), w.batch), m * n)
    out: list[Stmt] = []
    i, j = var("i", w.t.thread_m), var("j", w.t.thread_n)
    at_m, at_n = _at(w, i, j)
    value = load(w.accumulator, (ix.add(ix.mul(i, w.t.thread_n), j),), target.dtype)
    store: Stmt = Store(target, ix.add(start, ix.mul(row, n), column), value)
    inside = ix.both(below(at_m, m), below(at_n, n))
    body: tuple[Stmt, ...] = (Let(row, at_m), Let(column, at_n), store)
    if inside is not ix.TRUE:
        body = (If(inside, body),)
    out.append(loop(i, LoopKind.UNROLL, For(j, LoopKind.UNROLL, body)))
    return out


def _at(w: Writer, i: Expr, j: Expr) -> tuple[Expr, Expr]:
    """The row and column of the matrix of an element of a thread's tile."""
    return (
        ix.add(ix.mul(w.tile_m, w.t.block_m), w.row(i)),
        ix.add(ix.mul(w.tile_n, w.t.block_n), w.column(j)),
    )


def _each(w: Writer, store: int, make: Make) -> list[Stmt]:
    """Run `make` at every point of a thread's tile that lies in the matrix, by vectors of columns where they can be written at once."""
    p, t = w.p, w.t
    m, n = p.rows.points, p.columns.points
    width = math.gcd(group(t.thread_n), store)
    i, j, lane = var("i", t.thread_m), var("j", t.thread_n // width), var("lane", width)
    at_m, at_n = _at(w, i, ix.mul(j, width))
    row, column = var("om", m), var("on", n // width)
    element = lane if width > 1 else const(0)
    where: dict[Expr, Expr] = {
        **w.where,
        **place(p.rows.axes, row, 1, const(0)),
        **place(p.columns.axes, column, width, element),
    }
    slot = ix.add(ix.mul(i, t.thread_n), ix.mul(j, width), element)
    inner = make(where, load(w.accumulator, (slot,), w.accumulator.dtype))
    if width > 1:
        inner = (For(lane, LoopKind.VECTOR, inner),)
    inner = (Let(column, ix.floor_div(at_n, width)), *inner)
    if below(at_n, n) is not ix.TRUE:
        inner = (If(below(at_n, n), inner),)
    outer: tuple[Stmt, ...] = (Let(row, at_m), For(j, LoopKind.UNROLL, inner))
    if below(at_m, m) is not ix.TRUE:
        outer = (If(below(at_m, m), outer),)
    return [For(i, LoopKind.UNROLL, outer)]


def _finish(p: Gemm, partial: Buffer, size: int, parts: int) -> For:
    """Add up the partial sums and evaluate the outputs."""
    g, t = var("g", up(size, _FINISH_THREADS)), var("t", _FINISH_THREADS)
    start = ix.add(ix.mul(g, _FINISH_THREADS), t)
    e, s = var("e", size), var("s", parts)
    total = Buffer("total", partial.dtype, 1, Scope.REGISTER)
    held = load(total, (const(0),), total.dtype)
    added = call("add", held, load(partial, (ix.add(ix.mul(s, size), e),), total.dtype))
    batch, row, column = ix.unflatten(e, (p.batches, p.rows.points, p.columns.points))
    where: dict[Expr, Expr] = {
        **place(p.batch, batch, 1, const(0)),
        **place(p.rows.axes, row, 1, const(0)),
        **place(p.columns.axes, column, 1, const(0)),
    }
    body: tuple[Stmt, ...] = (
        Let(e, start),
        Alloc(total),
        Store(total, const(0), const(0, total.dtype)),
        loop(s, LoopKind.SERIAL, Store(total, const(0), added)),
        Let(p.result, held),
        *_stores(p, where),
    )
    if size % _FINISH_THREADS:
        body = (If(below(start, size), body),)
    return loop(g, LoopKind.GRID, For(t, LoopKind.THREAD, body))
