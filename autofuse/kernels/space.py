"""Search spaces: the choices of a kernel family on a kind of device, and the constraints between them.

A file `search_spaces/<device>/<family>.toml` holds `version`, a table `choices` (name = list of values) and a table `constraints`
(name = expression). Expressions are parsed with a whitelist (numbers, names, + - * // %, comparisons, and/or/not, min, max) and
never evaluated as Python.
"""

from __future__ import annotations

import ast
import operator
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from autofuse.errors import SearchSpaceError
from autofuse.kernels.base import Choice, Schedule

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Choice, Choice], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max}
Evaluator = Callable[[Mapping[str, Choice]], Choice]


@dataclass(frozen=True)
class Constraint:
    """A named predicate over choices, limits of the target and facts of the kernel."""

    name: str
    text: str
    tree: ast.expr

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name that the expression uses (min and max aside)."""
        calls = {id(n.func) for n in ast.walk(self.tree) if isinstance(n, ast.Call)}
        return frozenset(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and id(n) not in calls)

    @cached_property
    def _value(self) -> Evaluator:
        return _evaluator(self.tree, self.name)

    def holds(self, values: Mapping[str, Choice]) -> bool:
        """Evaluate; an unknown name is a SearchSpaceError naming what is known."""
        return bool(self._value(values))


@dataclass(frozen=True)
class Space:
    """The choices of one family on one kind of device."""

    device: str
    family: str
    version: int
    choices: tuple[tuple[str, tuple[Choice, ...]], ...]
    constraints: tuple[Constraint, ...]

    def schedules(self, facts: Mapping[str, Choice]) -> Iterator[Schedule]:
        """All combinations that satisfy every constraint, in the file's order. `facts` are the names besides the choices.

        A constraint is asked as soon as the choices that it names are made, so most of a large product is never visited.
        """
        names = [n for n, _ in self.choices]
        due: list[list[Constraint]] = [[] for _ in range(len(names) + 1)]
        for c in self.constraints:
            due[max((names.index(n) + 1 for n in c.names if n in names), default=0)].append(c)
        values: dict[str, Choice] = dict(facts)

        def extend(depth: int) -> Iterator[Schedule]:
            if not all(c.holds(values) for c in due[depth]):
                return
            if depth == len(names):
                yield Schedule.of({n: values[n] for n in names})
                return
            for value in self.choices[depth][1]:
                values[names[depth]] = value
                yield from extend(depth + 1)

        yield from extend(0)

    def allows(self, schedule: Schedule, facts: Mapping[str, Choice]) -> bool:
        """Whether a schedule is one of `schedules`, without making them all."""
        values = schedule.values
        if set(values) != {n for n, _ in self.choices} or any(values[n] not in of for n, of in self.choices):
            return False
        return all(c.holds({**facts, **values}) for c in self.constraints)


@dataclass(frozen=True)
class Spaces:
    """All spaces of a device kind."""

    spaces: tuple[Space, ...]

    def of(self, family: str) -> Space:
        """The space of a family; SearchSpaceError where there is none."""
        for s in self.spaces:
            if s.family == family:
                return s
        known = ", ".join(s.family for s in self.spaces)
        raise SearchSpaceError(f"no search space for the kernel family {family!r}; there are: {known}")

    @property
    def version(self) -> str:
        """Identifies the choices as a whole."""
        return "-".join(f"{s.family}{s.version}" for s in self.spaces)


def shipped_folder() -> Path:
    """The folder of the spaces that come with autofuse: inside the wheel, or beside the package in a checkout."""
    inside = Path(__file__).parent.parent / "search_spaces"
    return inside if inside.is_dir() else Path(__file__).parent.parent.parent / "search_spaces"


@lru_cache(maxsize=16)
def load_spaces(device: str, extra: str | None = None) -> Spaces:
    """The shipped spaces of a device kind, with those of the folder `extra` merged over them (whole choices and constraints by name)."""
    kind = "cuda" if device.startswith("cuda") else device
    tables: dict[str, dict[str, object]] = {}
    for folder in [shipped_folder(), *([Path(extra)] if extra else [])]:
        if not folder.is_dir():
            raise SearchSpaceError(f"{folder}: no such folder of search spaces")
        for path in sorted((folder / kind).glob("*.toml")):
            _merge(tables.setdefault(path.stem, {}), _read(path))
    return Spaces(tuple(_space(kind, name, table) for name, table in sorted(tables.items())))


def _read(path: Path) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise SearchSpaceError(f"{path}: not valid TOML: {error}") from error
    unknown = set(table) - {"version", "choices", "constraints"}
    if unknown:
        raise SearchSpaceError(
            f"{path}: unknown key {sorted(unknown)[0]!r}; allowed are version, choices and constraints"
        )
    return table


def _merge(base: dict[str, object], new: dict[str, object]) -> None:
    for key, value in new.items():
        old = base.get(key)
        if isinstance(value, dict):
            if isinstance(old, dict):
                unknown = set(value) - set(old) if key == "choices" else set()
                if unknown:
                    raise SearchSpaceError(
                        f"unknown choice {sorted(unknown)[0]!r}; there are: {', '.join(sorted(old))}"
                    )
            base[key] = {**(old if isinstance(old, dict) else {}), **value}
        else:
            base[key] = value


def _space(device: str, family: str, table: dict[str, object]) -> Space:
    where = f"search space {device}/{family}"
    choices = table.get("choices", {})
    constraints = table.get("constraints", {})
    version = table.get("version", 1)
    if not isinstance(choices, dict) or not isinstance(constraints, dict) or not isinstance(version, int):
        raise SearchSpaceError(f"{where}: choices and constraints are tables, version is an integer")
    parsed: list[tuple[str, tuple[Choice, ...]]] = []
    for name, values in choices.items():
        if not isinstance(values, list) or not values or not all(isinstance(v, int | str) for v in values):
            raise SearchSpaceError(f"{where}: choice {name!r} must be a list of integers or names, found {values!r}")
        parsed.append((name, tuple(values)))
    rules = tuple(_constraint(where, name, text) for name, text in constraints.items())
    return Space(device, family, version, tuple(parsed), rules)


def _constraint(where: str, name: str, text: object) -> Constraint:
    if not isinstance(text, str):
        raise SearchSpaceError(f"{where}: constraint {name!r} must be an expression in quotes, found {text!r}")
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise SearchSpaceError(f"{where}: constraint {name!r} is malformed: {text!r}") from error
    _check(tree, f"{where}: constraint {name!r}")
    return Constraint(name, text, tree)


def _check(node: ast.expr, where: str) -> None:
    match node:
        case ast.Constant(value=int() | str()) | ast.Name():
            return
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
            parts = [a, b]
        case ast.Compare(left=a, ops=ops, comparators=rest) if all(type(o) in _COMPARE for o in ops):
            parts = [a, *rest]
        case ast.BoolOp(values=parts):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=a):
            parts = [a]
        case ast.Call(func=ast.Name(id=fn), args=parts, keywords=[]) if fn in _CALLS:
            pass
        case _:
            raise SearchSpaceError(
                f"{where}: {ast.unparse(node)!r} is not allowed; allowed are numbers, names, + - * // %, comparisons, "
                "and, or, not, min and max"
            )
    for p in parts:
        _check(p, where)


def _evaluator(node: ast.expr, where: str) -> Evaluator:
    """A checked expression as a function of the names' values: large spaces ask it hundreds of thousands of times."""
    match node:
        case ast.Constant(value=int() | str() as constant):
            return lambda values: constant
        case ast.Name(id=name):
            return lambda values: _look_up(values, name, where)
        case ast.BinOp(left=a, op=op, right=b):
            left, right, arithmetic = _evaluator(a, where), _evaluator(b, where), _BINARY[type(op)]
            return lambda values: arithmetic(int(left(values)), int(right(values)))
        case ast.Compare(left=a, ops=ops, comparators=rest):
            operands = [_evaluator(n, where) for n in (a, *rest)]
            tests = [_COMPARE[type(o)] for o in ops]
            return lambda values: _chained(tests, [f(values) for f in operands])
        case ast.BoolOp(op=ast.And(), values=parts):
            every = [_evaluator(n, where) for n in parts]
            return lambda values: int(all(f(values) for f in every))
        case ast.BoolOp(values=parts):
            some = [_evaluator(n, where) for n in parts]
            return lambda values: int(any(f(values) for f in some))
        case ast.UnaryOp(op=ast.Not(), operand=a):
            inner = _evaluator(a, where)
            return lambda values: int(not inner(values))
        case ast.UnaryOp(operand=a):
            inner = _evaluator(a, where)
            return lambda values: -int(inner(values))
        case ast.Call(func=ast.Name(id=fn), args=parts):
            arguments, call = [_evaluator(n, where) for n in parts], _CALLS[fn]
            return lambda values: call(*(int(f(values)) for f in arguments))
        case _:
            raise SearchSpaceError(f"constraint {where!r}: {ast.unparse(node)!r} is not allowed")


def _look_up(values: Mapping[str, Choice], name: str, where: str) -> Choice:
    found = values.get(name)
    if found is None:
        known = ", ".join(sorted(values))
        raise SearchSpaceError(f"constraint {where!r} uses the unknown name {name!r}; known are: {known}")
    return found


def _chained(tests: Sequence[Callable[[Choice, Choice], bool]], operands: Sequence[Choice]) -> int:
    return int(all(t(x, y) for t, x, y in zip(tests, operands, operands[1:], strict=False)))
