"""Small pieces of what is printed: tables in the common style, cells, plain text."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text


def table(title: str, *columns: str) -> Table:
    """An empty table in the common style; a column whose name begins with ">" is right-aligned."""
    found = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    found.show_header = any(c.lstrip(">") for c in columns)
    for c in columns:
        found.add_column(c.lstrip(">"), justify="right" if c.startswith(">") else "left", overflow="fold")
    return found


def cells(*values: object) -> list[Text]:
    """Names from a model are shown as they are: never read as markup."""
    return [Text(str(v)) for v in values]


def error_text(error: float) -> str:
    """An error in scientific notation; a dash where it is unknown."""
    return "-" if math.isnan(error) else f"{error:.1e}" if error else "0"


def render(what: RenderableType, width: int = 140) -> str:
    """Plain text of something that rich can print."""
    console = Console(width=width, no_color=True, highlight=False, force_terminal=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()
