"""Vector loops in CUDA text: lanes are unrolled, and accesses of neighbouring lanes are joined into wide ones.

A body is dealt out to lanes in segments: a run of scalars and stores becomes joined loads, one unrolled loop over lanes, joined stores.
Inner loops and conditions that are alike for all lanes stand around their own segments. A scalar that several segments use is an array of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofuse.ir.expr import Expr, Load, Var, var, variables, walk
from autofuse.loops.ir import Buffer, For, If, LaneReduce, Let, LoopKind, Scope, Stmt, Store
from autofuse.render.cuda_types import DIALECT, TYPES
from autofuse.render.scalar import cast_text, literal
from autofuse.render.values import replace
from autofuse.render.vectorize import (
    Joined,
    inline_indices,
    join,
    mentioned,
    reads,
    simple,
    sure_loads,
    uniform,
    varies,
    writes,
)

if TYPE_CHECKING:
    from autofuse.render.cuda import _Renderer


@dataclass
class _Lanes:
    """A vector loop under way: its lane variable, how many lanes, and the scalars that differ between them."""

    lane: Var
    count: int
    varying: set[Var]


def write_vector_loop(r: _Renderer, s: For) -> None:
    """A vector loop."""
    count = s.var.extent if s.end is None else _constant(s.end)
    assert count is not None
    body = inline_indices(s.body)
    if not simple(body):
        r.open_loop(For(s.var, LoopKind.UNROLL, s.body, s.begin, s.end))
        r.block(s.body)
        r.lines.close()
        return
    lanes = _Lanes(s.var, count, {s.var})
    parts = _parts(lanes, body)
    # scalars that are alike for all lanes stand outside of the loops over lanes, and need a scope of their own
    scoped = any(isinstance(p, Let) for p in parts)
    if scoped:
        r.lines.open("")
    _write(r, lanes, parts)
    if scoped:
        r.lines.close()
    for v in lanes.varying - {s.var}:
        r.names.pop(v, None)


def _constant(e: Expr) -> int | None:
    value = getattr(e, "value", None)
    return None if value is None else int(value)


def write_lane_reduce(r: _Renderer, s: LaneReduce) -> None:
    """A reduction over lanes: the lanes' values, then one after the other put together."""
    count = s.lane.extent or 1
    each = var(f"{s.target.name}_lanes", None, s.target.dtype)
    lanes = _Lanes(s.lane, count, {s.lane})
    _segment(r, lanes, [Let(each, s.value)], {each})
    name, lane = r.name(s.target), r.name(s.lane)
    array = r.names[each].split("[")[0]
    r.lines.add(f"{r.declare(s.target, name, False)} = {array}[0];")
    r.lines.add("#pragma unroll")
    r.lines.add(f"for (int {lane} = 1; {lane} < {count}; ++{lane}) {name} = af_{s.combine}()({name}, {array}[{lane}]);")


def _body(r: _Renderer, lanes: _Lanes, body: Sequence[Stmt]) -> None:
    """A list of statements for all lanes, in the scope that is open."""
    _write(r, lanes, _parts(lanes, inline_indices(body)))


def _write(r: _Renderer, lanes: _Lanes, parts: Sequence[Stmt | list[Stmt]]) -> None:
    for k, part in enumerate(parts):
        if isinstance(part, list):
            later = set().union(*(_uses(p) for p in parts[k + 1 :]))
            own = {s.var for s in part if isinstance(s, Let)} | {s.target for s in part if isinstance(s, LaneReduce)}
            _segment(r, lanes, part, own & later)
        elif isinstance(part, For):
            r.open_loop(part)
            _body(r, lanes, part.body)
            r.lines.close()
        elif isinstance(part, If):
            (condition,) = r.texts(part.condition)
            r.lines.open(f"if ({condition})")
            _body(r, lanes, part.then)
            if part.otherwise:
                r.lines.close(" else {")
                r.lines.depth += 1
                _body(r, lanes, part.otherwise)
            r.lines.close()
        else:
            r.statement(part)


def _uses(part: Stmt | list[Stmt]) -> set[Var]:
    if isinstance(part, list):
        return set().union(*(mentioned(s) for s in part))
    return mentioned(part)


def _parts(lanes: _Lanes, body: Sequence[Stmt]) -> list[Stmt | list[Stmt]]:
    """The body cut into runs of statements that differ between lanes, and statements that stand around or before them."""
    out: list[Stmt | list[Stmt]] = []
    for s in body:
        s = _around(lanes, s)
        if isinstance(s, If) and out and _same_condition(out[-1], s):
            before = out[-1]
            assert isinstance(before, If)
            out[-1] = If(before.condition, before.then + s.then)
            continue
        alone = isinstance(s, For | If) and not varies(s, lanes.varying)
        if isinstance(s, Let):
            if variables(s.value) & lanes.varying:
                lanes.varying.add(s.var)
            else:
                alone = True
        elif isinstance(s, LaneReduce):
            lanes.varying.add(s.target)
        if alone:
            out.append(s)
        elif out and isinstance(out[-1], list):
            out[-1].append(s)
        else:
            out.append([s])
    return out


def _around(lanes: _Lanes, s: Stmt) -> Stmt:
    """A guard or condition that holds for all lanes or none becomes a condition around them."""
    guard = s.guard if isinstance(s, Store) else s.condition if isinstance(s, If) else None
    alike = None if guard is None else uniform(guard, lanes.lane, lanes.count)
    if alike is None or variables(alike) & lanes.varying:
        return s
    if isinstance(s, Store):
        return If(alike, (Store(s.buffer, s.offset, s.value, None, s.stream),))
    assert isinstance(s, If)
    return If(alike, s.then, s.otherwise)


def _same_condition(before: Stmt | list[Stmt], s: If) -> bool:
    """Whether two conditions that follow each other can be one: nothing that the first one does may change the second."""
    if not isinstance(before, If) or before.otherwise or s.otherwise or before.condition is not s.condition:
        return False
    return not any(isinstance(x, Load) for x in walk(s.condition))


def _segment(r: _Renderer, lanes: _Lanes, body: Sequence[Stmt], shared: set[Var]) -> None:
    """Joined loads, the loop over lanes, joined stores. The scalars in `shared` become arrays that outlive it."""
    known: dict[Expr, Expr] = {}
    loads = _joined_loads(r, lanes, body)
    for x, joined in loads.items():
        assert isinstance(x.source, Buffer)
        pack = r.fresh(f"{r.buffers[x.source]}_v")
        _load(r, pack, x, joined)
        lane_value = var(f"${pack}", None, x.dtype)
        text = f"{pack}.lane[{r.name(lanes.lane)}]"
        r.names[lane_value] = text if x.source.dtype is x.dtype else cast_text(text, x.source.dtype, x.dtype, DIALECT)
        known[x] = lane_value
    stores = _joined_stores(r, lanes, body)
    packs: dict[int, str] = {}
    for k, joined in stores.items():
        packs[k] = r.fresh(f"{r.buffers[joined.buffer]}_v")
        r.lines.add(f"af_pack<{TYPES[joined.buffer.dtype]}, {joined.lanes}> {packs[k]};")
    lane = r.name(lanes.lane)
    for v in shared:
        array = r.fresh(v.name)
        r.lines.add(f"{TYPES[v.dtype]} {array}[{lanes.count}];")
        r.names[v] = f"{array}[{lane}]"
        r.ranged.pop(v, None)
        r.definitions.pop(v, None)
    r.lines.add("#pragma unroll")
    r.lines.open(f"for (int {lane} = 0; {lane} < {lanes.count}; ++{lane})")
    for k, s in enumerate(body):
        s = _known(s, known) if known else s
        if k in stores and isinstance(s, Store):
            (value,) = r.texts(s.value)
            r.lines.add(f"{packs[k]}.lane[{lane}] = {r.converted(value, s.value.dtype, s.buffer.dtype)};")
        elif isinstance(s, Let) and s.var in shared:
            (value,) = r.texts(s.value)
            r.lines.add(f"{r.names[s.var]} = {value};")
        else:
            r.statement(s)
    r.lines.close()
    for k, joined in stores.items():
        s = body[k]
        assert isinstance(s, Store)
        _store(r, packs[k], joined, s.stream and s.buffer.scope is Scope.GLOBAL)


def _known(s: Stmt, known: dict[Expr, Expr]) -> Stmt:
    """A statement with its joined loads replaced by the lane's element (nested statements keep their own loads)."""
    match s:
        case Let():
            return Let(s.var, replace(s.value, known))
        case Store():
            guard = None if s.guard is None else replace(s.guard, known)
            return Store(s.buffer, replace(s.offset, known), replace(s.value, known), guard, s.stream)
        case _:
            return s


def _joined_loads(r: _Renderer, lanes: _Lanes, body: Sequence[Stmt]) -> dict[Load, Joined]:
    """Loads that all lanes make and that may be made together before anything in the segment is stored."""
    out: dict[Load, Joined] = {}
    stored: set[Buffer] = set()
    varying = _varying(lanes, body)
    for s in body:
        # what stands under a guard that differs between lanes is loaded lane by lane
        roots = (s.value,) if isinstance(s, Let) or (isinstance(s, Store) and s.guard is None) else ()
        for x in sure_loads(roots):
            if not isinstance(x.source, Buffer) or x.source in stored or x in out:
                continue
            if x.guard is not None and x.dtype is not x.source.dtype:
                continue
            joined = join(x.source, x.index[0], x.guard, lanes.lane, lanes.count, varying, r.expanded)
            if joined is not None:
                out[x] = joined
        stored |= writes(s)
    return out


def _joined_stores(r: _Renderer, lanes: _Lanes, body: Sequence[Stmt]) -> dict[int, Joined]:
    """Stores that may be put off to the end of the segment and made together."""
    out: dict[int, Joined] = {}
    varying = _varying(lanes, body)
    for k, s in enumerate(body):
        if not isinstance(s, Store) or s.guard is not None:
            continue
        later: set[Buffer] = set()
        for t in body[k + 1 :]:
            later |= reads(t) | writes(t)
        if s.buffer in later:
            continue
        joined = join(s.buffer, s.offset, None, lanes.lane, lanes.count, varying, r.expanded)
        if joined is not None:
            out[k] = joined
    return out


def _varying(lanes: _Lanes, body: Sequence[Stmt]) -> frozenset[Var]:
    """The scalars that differ between lanes, or are not known yet where the segment begins."""
    return frozenset(lanes.varying - {lanes.lane}) | {s.var for s in body if isinstance(s, Let)}


def _load(r: _Renderer, pack: str, x: Load, joined: Joined) -> None:
    kind = TYPES[joined.buffer.dtype]
    roots = [joined.offset] + ([joined.guard] if joined.guard is not None else [])
    offset, *guard = r.texts(*roots)
    call = f"af_load<{joined.lanes}, {joined.width}>({r.buffers[joined.buffer]}, {offset})"
    if guard:
        fill = literal(0 if x.fill is None else x.fill, joined.buffer.dtype, DIALECT)
        call = f"({guard[0]}) ? {call} : af_fill<{kind}, {joined.lanes}>({fill})"
    r.lines.add(f"const af_pack<{kind}, {joined.lanes}> {pack} = {call};")


def _store(r: _Renderer, pack: str, joined: Joined, stream: bool) -> None:
    r.by_thread(f"a store to {joined.buffer.name}")
    (offset,) = r.texts(joined.offset)
    call = f"af_store_pack{'_stream' if stream else ''}<{joined.lanes}, {joined.width}>"
    r.lines.add(f"{call}({r.buffers[joined.buffer]}, {offset}, {pack});")
