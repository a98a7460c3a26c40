"""The options that several commands share, and what is made of them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console, RenderableType

if TYPE_CHECKING:
    from onnx import ModelProto

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Path of an .onnx file, or sample:NAME.", show_default=False)
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cuda, cpu or cuda-emulated.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="Worker threads on the CPU.", show_default="all usable cores"),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=1,3,224,224",
        help="Bind open dimensions of an input; may be repeated.",
        show_default=False,
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE",
        help="An .npz, an .npy or a folder with a test_data_set.",
        show_default="drawn in range",
    ),
]
PlanOption = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help="A plan.json or a result folder.",
        show_default="the saved best plan, else heuristic",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for machines.")]
HELP_ADVANCED = "--help-advanced"


def show_advanced(context: typer.Context, value: bool) -> None:
    """Print the help with the hidden options and end."""
    if not value:
        return
    for parameter in context.command.params:
        if hasattr(parameter, "hidden"):
            parameter.hidden = False
    typer.echo(context.get_help())
    raise typer.Exit


HelpAdvanced = Annotated[
    bool,
    typer.Option(
        HELP_ADVANCED, help="Show all options, the rare ones too, and exit.", is_eager=True, callback=show_advanced
    ),
]


def shapes(given: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """The --shape options as a table."""
    from autofuse.api.arguments import shape_of

    return dict(shape_of(text) for text in given or ())


def input_names(model: ModelProto) -> list[str]:
    """The inputs that a model must be fed: those without an initializer."""
    stored = {t.name for t in model.graph.initializer}
    return [i.name for i in model.graph.input if i.name not in stored]


class _Console(Console):
    """Says it where nobody reads any more, instead of ending the process in the middle of what it does."""

    def on_broken_pipe(self) -> None:
        raise _unread()


def _unread() -> BrokenPipeError:
    """Without a number: the command line's framework would take one that has it for a failure of its own."""
    return BrokenPipeError("nobody reads what is printed")


def people() -> Console:
    """Where tables and progress go for people: stderr. BrokenPipeError where nobody reads it any more."""
    return _Console(stderr=True, highlight=False, width=_width(sys.stderr))


def paper() -> Console:
    """Where a command's result goes: stdout, in lines as long as they need to be where it is no terminal."""
    return _Console(highlight=False, width=_width(sys.stdout))


def _width(stream: Any) -> int | None:
    return None if stream.isatty() else 160


def say(text: RenderableType) -> None:
    """Tell people something on stderr."""
    people().print(text, markup=False, soft_wrap=True) if isinstance(text, str) else people().print(text)


def print_json(data: object) -> None:
    """One JSON document on stdout. What is not a number (NaN) becomes null. BrokenPipeError where nobody reads it."""
    try:
        typer.echo(json.dumps(_plain(data), indent=1, allow_nan=False))
    except BrokenPipeError:
        raise _unread() from None


def _plain(x: object) -> object:
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if isinstance(x, np.ndarray):
        return _plain(x.tolist())
    if isinstance(x, np.generic):
        return _plain(x.item())
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    if x is None or isinstance(x, str | int | bool):
        return x
    return str(x)
