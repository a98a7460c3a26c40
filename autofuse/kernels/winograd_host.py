"""Convolutions on the host by Winograd's algorithm, on channel-blocked activations.

A task takes a block of tiles: it transforms their inputs into scratch memory, multiplies them, tile position by tile position, with the
prepared weights in the register tiles of the direct kernels, and transforms the products back, with the epilogue. All of a task's
intermediates stay in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autofuse.fusion.region import RegionProgram
from autofuse.ir.layout import Layout
from autofuse.ir.target import Target
from autofuse.kernels.base import Choice, Lowered, RegionLaunch, Schedule, Variant
from autofuse.kernels.contract_layouts import can_block_output, wanted_layouts
from autofuse.kernels.layouts import blocked, channel_block
from autofuse.kernels.preparation import Preparation
from autofuse.kernels.winograd_loops import WinogradLoops
from autofuse.kernels.winograd_shape import Shape
from autofuse.kernels.winograd_transform import SIZES, arithmetic, setting
from autofuse.loops.ir import Kernel
from autofuse.loops.verify import verify_kernel


class WinogradHost:
    """Winograd's F(4, r) and F(2, r), in one or two dimensions: fewer multiplications, more rounding."""

    name = "winograd_host"

    def variants(self, program: RegionProgram, target: Target) -> Iterable[Variant]:
        """Both tile sizes, where the convolution has 3 or 5 taps in one or two dimensions and stride 1, on enough channels."""
        s = None if target.is_cuda else setting(program, target)
        if s is None:
            return
        block = channel_block(target)
        can = [can_block_output(s.c, k, s.n, block) for k in range(len(s.c.outputs))]
        tensors = [program.tensor(o) for o in program.outputs]
        outs = tuple(blocked(t, block) if b else Layout.plain(len(t.shape)) for t, b in zip(tensors, can, strict=True))
        ins = list(wanted_layouts(s.c, s.side, s.n, target, any(can), s.activation, s.channel))
        ins[s.weight] = Layout.plain(len(program.inputs[s.weight].shape))
        for size in SIZES[s.reach]:
            # A tile that is mostly cut off saves nothing.
            if min(-(-(a.extent or 0) // d) for a, d in zip(s.spaces, s.strides, strict=True)) > 2 * (size // 4):
                how = ((s.weight, Preparation("winograd", size, s.reach, block)),)
                yield Variant(self.name, f"winograd-f{size}", program, tuple(ins), outs, True, how)

    def facts(self, variant: Variant, target: Target) -> Mapping[str, Choice]:
        """`tiles`: tiles of the output; `vectors_extent`; `tile_bytes`: a tile's transformed input; limits of the target."""
        w = Shape(variant, target)
        return {
            "tiles": w.tiles,
            "vectors_extent": w.vectors,
            "tile_bytes": w.points * w.blocks * w.block * 4,
            "l2": target.l2,
            "vector_registers": target.vector_registers,
            "cores": target.cores,
        }

    def heuristic(self, variant: Variant, target: Target) -> Schedule:
        """Blocks of tiles whose transformed inputs leave room in the second-level cache, with the fullest register tile."""
        w = Shape(variant, target)
        vectors = 2 if w.vectors % 2 == 0 or w.vectors > 4 else 1
        most = (target.vector_registers - 2 - vectors) // vectors
        fits = max(1, target.l2 * 5 // 8 // (w.points * w.blocks * w.block * 4))
        best: tuple[float, int, int] | None = None
        for rows in range(1, min(14, most, w.tiles) + 1):
            for groups in (1, 2, 3, 4):
                block = rows * groups
                if block > fits and block > min(4, w.tiles):
                    continue
                count = -(-w.tiles // block)
                waste = count * block / w.tiles
                shared = -(-count // target.cores) * target.cores / count
                cost = waste * shared * (1 + 1.5 / rows + 0.5 / block)
                if best is None or cost < best[0]:
                    best = (cost, rows, groups)
        assert best is not None
        count = -(-w.tiles // (best[1] * best[2]))
        panels = -(-w.vectors // vectors)
        parts = 1
        while count * parts < 2 * target.cores and parts * 2 <= panels:
            parts *= 2
        return Schedule.of({"rows": best[1], "groups": best[2], "vectors": vectors, "unroll": 4, "parts": parts})

    def lower(self, variant: Variant, schedule: Schedule, target: Target) -> Lowered:
        """One kernel."""
        shape = Shape(variant, target)
        w = WinogradLoops(shape, schedule)
        body = w.grid()
        kernel = Kernel(
            "winograd",
            w.binding.parameters,
            body,
            body.var.extent or 0,
            flops=arithmetic(shape.s, shape.size, shape.tiles, variant.program.flops),
            bytes=w.binding.nbytes,
        )
        return Lowered((RegionLaunch(verify_kernel(kernel), w.binding.arguments),))
