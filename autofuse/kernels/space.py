"""Search spaces: the choices of a kernel family on a kind of device, and the constraints between them.

A file `search_spaces/<device>/<family>.toml` holds `version`, a table `choices` (name = list of values) and a table `constraints`
(name = expression). Expressions are parsed with a whitelist (numbers, names, + - * // %, comparisons, and/or/not, min, max) and
never evaluated as Python.
"""

from __future__ import annotations

import ast
import itertools
import operator
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
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


@dataclass(frozen=True)
class Constraint:
    """A named predicate over choices, limits of the target and facts of the kernel."""

    name: str
    text: str
    tree: ast.expr

    def holds(self, values: Mapping[str, Choice]) -> bool:
        """Evaluate; an unknown name is a SearchSpaceError naming what is known."""
        return bool(_evaluate(self.tree, values, self.name))


@dataclass(frozen=True)
class Space:
    """The choices of one family on one kind of device."""

    device: str
    family: str
    version: int
    choices: tuple[tuple[str, tuple[Choice, ...]], ...]
    constraints: tuple[Constraint, ...]

    def schedules(self, facts: Mapping[str, Choice]) -> Iterator[Schedule]:
        """All combinations that satisfy every constraint, in the file's order. `facts` are the names besides the choices."""
        names = [n for n, _ in self.choices]
        for combination in itertools.product(*(c for _, c in self.choices)):
            values = dict(zip(names, combination, strict=True))
            if all(c.holds({**facts, **values}) for c in self.constraints):
                yield Schedule.of(values)


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


def _evaluate(node: ast.expr, values: Mapping[str, Choice], where: str) -> Choice:
    def number(n: ast.expr) -> int:
        return int(_evaluate(n, values, where))

    match node:
        case ast.Constant(value=int() | str() as value):
            return value
        case ast.Name(id=name):
            if name not in values:
                known = ", ".join(sorted(values))
                raise SearchSpaceError(f"constraint {where!r} uses the unknown name {name!r}; known are: {known}")
            return values[name]
        case ast.BinOp(left=a, op=op, right=b):
            return _BINARY[type(op)](number(a), number(b))
        case ast.Compare(left=a, ops=ops, comparators=rest):
            operands = [_evaluate(n, values, where) for n in (a, *rest)]
            pairs = zip(ops, operands, operands[1:], strict=False)
            return int(all(_COMPARE[type(o)](x, y) for o, x, y in pairs))
        case ast.BoolOp(op=ast.And(), values=parts):
            return int(all(_evaluate(n, values, where) for n in parts))
        case ast.BoolOp(values=parts):
            return int(any(_evaluate(n, values, where) for n in parts))
        case ast.UnaryOp(op=ast.Not(), operand=a):
            return int(not _evaluate(a, values, where))
        case ast.UnaryOp(operand=a):
            return -number(a)
        case ast.Call(func=ast.Name(id=fn), args=parts):
            return _CALLS[fn](*(number(n) for n in parts))
        case _:
            raise SearchSpaceError(f"constraint {where!r}: {ast.unparse(node)!r} is not allowed")
